"""`msgspec.convert`, made safe for the first use of a type by several threads at once.

msgspec works out what it needs to know of a record type when the type is first met, and keeps it on the class. A second
thread that meets the class meanwhile reads what is only half there, and the process dies by signal 11 (seen with
msgspec 0.22 and the blocking SDK in several threads). So a type's first conversion is done alone; after that nothing
is locked.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_PLAIN: Final = (bytes,)
"""Kept as they are: without this msgspec would turn byte strings into base64 text."""

_met: set[Any] = set()
_first = threading.RLock()


def convert(value: object, kind: type[T], *, str_keys: bool = False) -> T:
    """The record these plain values stand for; raises what `msgspec.convert` raises."""
    if kind in _met:
        return msgspec.convert(value, kind, builtin_types=_PLAIN, str_keys=str_keys)
    with _first:
        try:
            return msgspec.convert(value, kind, builtin_types=_PLAIN, str_keys=str_keys)
        finally:
            _met.add(kind)
