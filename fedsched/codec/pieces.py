"""Puts encoded values together into larger ones, without decoding them.

Where the same job goes out to a thousand clients it is encoded once and put into a thousand frames by these. What comes
out is what `dumps` would have made of the same values.
"""

from __future__ import annotations

from collections.abc import Iterable

_UINT, _BYTES, _TEXT, _ARRAY, _MAP = 0x00, 0x40, 0x60, 0x80, 0xA0


def head(major: int, number: int) -> bytes:
    """The head of an item: its kind in the upper three bits, and a length or a value."""
    if number < 24:
        return bytes((major | number,))
    if number < 1 << 8:
        return bytes((major | 24, number))
    if number < 1 << 16:
        return bytes((major | 25,)) + number.to_bytes(2, "big")
    if number < 1 << 32:
        return bytes((major | 26,)) + number.to_bytes(4, "big")
    return bytes((major | 27,)) + number.to_bytes(8, "big")


def uint(number: int) -> bytes:
    """A number that is not negative."""
    return head(_UINT, number)


def text(value: str) -> bytes:
    data = value.encode()
    return head(_TEXT, len(data)) + data


def byte_string(data: bytes) -> bytes:
    return head(_BYTES, len(data)) + data


def array(items: list[bytes]) -> bytes:
    """Of values that are encoded already."""
    return head(_ARRAY, len(items)) + b"".join(items)


def mapping(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Of keys and values that are encoded already; keys must not repeat."""
    entries = list(pairs)
    return head(_MAP, len(entries)) + b"".join(key + value for key, value in entries)
