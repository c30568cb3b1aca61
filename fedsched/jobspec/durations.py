"""Durations as job files write them: "1h30m", "-1.5s", "300ms"; days and bare numbers are not among them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MAX_NS: Final = 2**63
_PART = re.compile(r"(\d*)(?:\.(\d*))?([^\d.]*)", re.ASCII)


class NoDuration(Exception):
    """Text that is no duration; the message says what is wrong with it."""


def parse(text: str) -> int:
    """Nanoseconds. A fraction finer than that is cut off."""
    if len(text) > 100:
        raise NoDuration("that is too long for a duration")
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    if not rest:
        raise NoDuration(f'{_quoted(text)} is no duration; write for example "30s" or "1h30m"')
    total, at = 0, 0
    while at < len(rest):
        match = _PART.match(rest, at)
        if match is None or not (match[1] or match[2]):
            raise NoDuration(f'{_quoted(text)} is no duration; write for example "30s" or "1h30m"')
        total += _amount(match[1], match[2] or "", match[3], text)
        at = match.end()
    if total > _MAX_NS or (total == _MAX_NS and text[0] != "-"):
        raise NoDuration(f"{_quoted(text)} is longer than a duration can be (about 292 years)")
    return -total if text[0] == "-" else total


def _amount(whole: str, fraction: str, unit: str, text: str) -> int:
    if not unit:
        raise NoDuration(f'{_quoted(text)} has no unit: write "{text}s" for seconds')
    size = _UNITS.get(unit)
    if size is None:
        raise NoDuration(f"{_quoted(text)} has an unknown unit {_quoted(unit)}; known are h, m, s, ms, us and ns")
    return int(whole or "0") * size + (int(fraction) * size // 10 ** len(fraction) if fraction else 0)


def _quoted(text: str) -> str:
    return f'"{text}"'
