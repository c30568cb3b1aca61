"""Regular expressions that users write, run on an engine whose time grows with the text alone.

A backtracking engine can be kept busy for hours by a short pattern, so users' patterns never meet Python's `re`. RE2
reads the syntax that Nomad's job files are written in, answers in linear time, and refuses what would need too much
memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

MAX_PATTERN: Final = 4096
"""Characters of a pattern; longer ones are refused unread."""

MAX_MEMORY: Final = 1 << 20
"""Bytes that one compiled pattern may take; its matching falls back to less memory before it fails."""

MAX_TEXT: Final = 1 << 16
"""Characters of a text; no attribute of a node comes near it."""


def pattern_problem(pattern: str) -> str | None:
    """Say why a pattern cannot be used, None if it can."""
    if len(pattern) > MAX_PATTERN:
        return f"pattern of {len(pattern)} characters; at most {MAX_PATTERN} are allowed"
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else None


def found_in(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in the text; a pattern that cannot be used matches nothing."""
    if len(pattern) > MAX_PATTERN or len(text) > MAX_TEXT:
        return False
    compiled = _compiled(pattern)
    if isinstance(compiled, str):
        return False
    try:
        return compiled.search(text) is not None
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        return False


def own_pattern(pattern: str) -> Any:
    """Compile a pattern of ours, for texts of others."""
    return re2.compile(pattern)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    """Compile, or give the reason as text. Both are remembered: the same constraint is asked about node after node."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as bad:
        reason = bad.args[0] if bad.args else bad
        return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
