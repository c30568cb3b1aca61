"""Which known word somebody most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_WORD: Final = 100
"""Characters of what was written that are looked at."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Give the known word that a slip of the fingers most likely meant, whatever its case; None if none is near."""
    from difflib import get_close_matches  # only when something is wrong; importing it costs

    names = sorted(known)
    close = get_close_matches(word[:MAX_WORD].lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    return next((name for name in names if close and name.lower() == close[0]), None)
