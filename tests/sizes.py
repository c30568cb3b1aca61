"""How much of the same a test does: enough to find what it looks for in every run, more in `just long`."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

LONG: Final = "FEDSCHED_TESTS_LONG"


def size(usual: T, long: T) -> T:
    """The first, or the second one in a long run."""
    return long if os.environ.get(LONG) else usual
