"""What a reader sees as one character: a base with its accents, a flag, a family joined by zero-width joiners.

The rules are the extended grapheme clusters of Unicode's annex 29, told from the general categories that Python
carries, plus the ranges that categories do not tell apart. Plain ASCII takes none of these paths.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

SPACES = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What counts as blank when something is stripped."""

_JOINER = "\u200d"


def count_graphemes(text: str) -> int:
    if text.isascii() and "\r" not in text:
        return len(text)
    return sum(1 for _ in split_graphemes(text))


def split_graphemes(text: str) -> Iterator[str]:
    """The clusters of a text, in order; joined they are the text again."""
    start, flags = 0, 0
    for at in range(1, len(text)):
        before, here = text[at - 1], text[at]
        flags = flags + 1 if _is_flag_letter(before) else 0
        if _breaks(before, here, flags):
            yield text[start:at]
            start = at
    if text:
        yield text[start:]


def _breaks(before: str, here: str, flags: int) -> bool:
    if before == "\r" and here == "\n":
        return False
    if _is_control(before) or _is_control(here):
        return True
    if _extends(here) or _joins_hangul(before, here):
        return False
    if before == _JOINER:
        return not _is_pictographic(here)
    if _is_flag_letter(before) and _is_flag_letter(here):
        return flags % 2 == 0
    return True


def _extends(char: str) -> bool:
    if char < "\u0300":
        return False
    return (
        char == _JOINER
        or char == "\u200c"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or unicodedata.category(char) in ("Mn", "Me", "Mc")
    )


def _is_control(char: str) -> bool:
    if char < "\u007f":
        return char < " "
    if char in ("\u200c", _JOINER) or "\U000e0020" <= char <= "\U000e007f":
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_pictographic(char: str) -> bool:
    return char >= "\u2190" and unicodedata.category(char) in ("So", "Sm", "Sk", "Cn")


def _joins_hangul(before: str, here: str) -> bool:
    if not "\u1100" <= before <= "\ud7fb":
        return False
    kind, next_kind = _hangul(before), _hangul(here)
    return (kind, next_kind) in {
        ("L", "L"),
        ("L", "V"),
        ("L", "LV"),
        ("L", "LVT"),
        ("LV", "V"),
        ("LV", "T"),
        ("V", "V"),
        ("V", "T"),
        ("LVT", "T"),
        ("T", "T"),
    }


def _hangul(char: str) -> str:
    if "\u1100" <= char <= "\u115f" or "\ua960" <= char <= "\ua97c":
        return "L"
    if "\u1160" <= char <= "\u11a7" or "\ud7b0" <= char <= "\ud7c6":
        return "V"
    if "\u11a8" <= char <= "\u11ff" or "\ud7cb" <= char <= "\ud7fb":
        return "T"
    if "\uac00" <= char <= "\ud7a3":
        return "LV" if (ord(char) - 0xAC00) % 28 == 0 else "LVT"
    return ""
