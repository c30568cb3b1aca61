"""The base of everything stored or logged, and types of fields with the bounds that make `apply` total."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Any, Final, dataclass_transform

import msgspec

INT_MAX: Final = (1 << 63) - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
"""A number that is never negative and fits a column: indexes, times, versions."""

Number = Annotated[int, msgspec.Meta(ge=-INT_MAX, le=INT_MAX)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Name = Annotated[str, msgspec.Meta(max_length=4096)]
ShortText = Annotated[str, msgspec.Meta(max_length=64)]
Text = Annotated[str, msgspec.Meta(max_length=65_536)]


class _KeywordsOnly(msgspec.StructMeta):
    """Makes `kw_only` hold for subclasses too; msgspec hands down every other option but that one."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Stored(msgspec.Struct, metaclass=_KeywordsOnly, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Something in the log or in a table. New fields have defaults; a removed name is never used again.

    Left out of garbage collection: none of these can be part of a cycle.
    """


class Command(Stored):
    """Asks the store to differ. Says everything itself: every id, every time; `apply` looks nothing up elsewhere.

    A released command keeps its meaning for ever; a new meaning is a new command.
    """


def pack(parts: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Many byte strings as one, and their sizes (32 bits each): two values for a decoder instead of thousands."""
    known = list(parts)
    return b"".join(known), struct.pack(f"<{len(known)}I", *map(len, known))


def unpack(data: bytes, sizes: bytes) -> list[bytes]:
    """What `pack` made one; `ValueError` unless the sizes account for every byte."""
    if len(sizes) % 4:
        raise ValueError(f"{len(sizes)} bytes are not a column of 32-bit sizes")
    found: list[bytes] = []
    at = 0
    for size in struct.unpack(f"<{len(sizes) // 4}I", sizes):
        found.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"{len(data)} bytes, the sizes say {at}")
    return found
