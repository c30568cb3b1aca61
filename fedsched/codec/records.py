"""Records to bytes and back, by way of plain values.

Readers ignore fields they do not know and fill in defaults for those that are missing, so records may grow. A union of
records travels as `[name, fields]`: the name is chosen once and for ever, apart from the class's own name, so that code
can be renamed while old logs stay readable. Maps in records have text or number keys; byte keys are not carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from fedsched.codec.cbor import DEFAULT_LIMITS, STORED_LIMITS, CodecError, Limits, dumps, loads
from fedsched.model.converting import convert
from fedsched.model.plain_form import to_plain

T = TypeVar("T")

_PLAIN = (bytes,)
"""Kept as they are: without this msgspec would turn byte strings into base64 text."""


def to_builtins(record: object) -> Any:
    """The record as plain values, with the field names it has on the wire."""
    try:
        return msgspec.to_builtins(record, builtin_types=_PLAIN, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"cannot encode a {type(record).__name__}: {error}") from error


def from_builtins(value: object, kind: type[T]) -> T:
    """The record these plain values stand for; `CodecError` names the field that does not fit."""
    try:
        return convert(value, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CodecError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def to_bytes(record: object) -> bytes:
    """One record (or container of records), encoded."""
    return dumps(to_builtins(record))


def to_bytes_sparse(record: object) -> bytes:
    """The same record without the fields at their defaults: a fifth of the bytes and of the cost.

    The first use of each record type costs a millisecond or two, so this is for daemons; commands use `to_bytes`.
    """
    return dumps(to_plain(record))


def from_bytes(data: bytes | bytearray | memoryview, kind: type[T], limits: Limits = DEFAULT_LIMITS) -> T:
    """The record of type `kind` in these bytes."""
    return from_builtins(loads(data, limits), kind)


class TaggedUnion(Generic[T]):
    """A fixed set of record types, told apart by a name in front of the fields; meant for what is kept in a log.

    `to_bytes` reads back what it wrote, types and all: msgspec does not check a record when it is made, and a record
    that was stored but cannot be read would stop every server that meets it.
    """

    def __init__(self, types: Mapping[str, type[T]]) -> None:
        self._types = dict(types)
        self._names = {kind: name for name, kind in self._types.items()}
        if len(self._names) != len(self._types):
            raise ValueError("a record type has two names in one union")

    def name_of(self, record: T) -> str:
        """The name this record's type goes by."""
        try:
            return self._names[type(record)]
        except KeyError:
            raise CodecError(f"{type(record).__name__} is not one of {', '.join(sorted(self._types))}") from None

    def to_bytes(self, record: T) -> bytes:
        """`[name, fields]`, encoded."""
        data = dumps([self.name_of(record), to_builtins(record)])
        self.from_bytes(data)
        return data

    def from_bytes(self, data: bytes | bytearray | memoryview, limits: Limits = STORED_LIMITS) -> T:
        """The record, of whichever type its name says."""
        value = loads(data, limits)
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
            raise CodecError("expected a name and its fields")
        name = value[0]
        kind = self._types.get(name)
        if kind is None:
            raise CodecError(f"unknown record name {name[:64]!r}", hint="it may come from a newer version")
        return from_builtins(value[1], kind)
