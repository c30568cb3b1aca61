"""Values of the job language: what expressions give, with the type that decides how they combine.

A value is immutable. Text is always in Unicode's composed form (NFC), so that equal-looking names are equal. Sets and
the keys of maps and objects are kept sorted: everything iterates in one order on every machine.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedsched.jobspec import numbers
from fedsched.jobspec.limits import MAX_ELEMENTS, MAX_STRING_CHARS, MAX_VALUE_DEPTH, MAX_VALUE_SIZE
from fedsched.jobspec.numbers import Number
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Kind, Type, list_of, map_of, object_of, set_of, tuple_of


class Value:
    """A value and its type. `raw` is None for null, else str, Number, bool, a tuple of values, or a dict of them."""

    __slots__ = ("depth", "raw", "size", "type")

    def __init__(self, type_: Type, raw: Any, depth: int = 0, size: int = 16) -> None:
        self.type = type_
        self.raw = raw
        self.depth = depth
        self.size = size

    @property
    def is_null(self) -> bool:
        return self.raw is None

    @property
    def kind(self) -> Kind:
        return self.type.kind

    @property
    def is_sequence(self) -> bool:
        """A list, tuple or set that is not null."""
        return self.raw is not None and self.type.kind in (Kind.LIST, Kind.TUPLE, Kind.SET)

    @property
    def is_mapping(self) -> bool:
        """A map or object that is not null."""
        return self.raw is not None and self.type.kind in (Kind.MAP, Kind.OBJECT)

    @property
    def elements(self) -> tuple[Value, ...]:
        """Of a list, tuple or set."""
        assert self.is_sequence, self.type
        found: tuple[Value, ...] = self.raw
        return found

    @property
    def entries(self) -> Mapping[str, Value]:
        """Of a map or object."""
        assert self.is_mapping, self.type
        found: dict[str, Value] = self.raw
        return found

    @property
    def number(self) -> Number:
        assert isinstance(self.raw, Number), self.type
        return self.raw

    @property
    def text(self) -> str:
        assert isinstance(self.raw, str), self.type
        return self.raw

    def __eq__(self, other: object) -> bool:
        """Same type and same content, as `==` in the language; numbers compare by amount."""
        return isinstance(other, Value) and equal(self, other)

    def __hash__(self) -> int:
        return hash(sort_text(self))

    def __repr__(self) -> str:
        return f"Value({self.type}, {self.to_python()!r})"

    def to_python(self) -> Any:
        """Plain data for opaque configuration: integers that fit 64 bits stay integers, other numbers become floats."""
        if self.raw is None:
            return None
        if self.type.kind is Kind.NUMBER:
            whole = self.number.to_int()
            return whole if whole is not None and -(2**63) <= whole < 2**63 else self.number.to_float()
        if self.is_sequence:
            return [element.to_python() for element in self.elements]
        if self.is_mapping:
            return {key: value.to_python() for key, value in self.entries.items()}
        return self.raw


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of characters, which no text in UTF-8 can hold."""

NULL = Value(ANY, None)
TRUE = Value(BOOL, True)
FALSE = Value(BOOL, False)


def null_of(type_: Type) -> Value:
    return Value(type_, None)


def string(text: str) -> Value:
    if len(text) > MAX_STRING_CHARS:
        raise too_much(f"a text may have {MAX_STRING_CHARS} characters, this one has {len(text)}")
    if text.isascii():
        return Value(STRING, text, size=16 + len(text))
    text = unicodedata.normalize("NFC", _SURROGATE.sub("\ufffd", text))
    return Value(STRING, text, size=16 + len(text))


def boolean(truth: bool) -> Value:
    return TRUE if truth else FALSE


def number(value: Number | float) -> Value:
    if isinstance(value, int):
        value = numbers.from_int(value)
    elif isinstance(value, float):
        value = numbers.from_float(value)
    return Value(NUMBER, value)


def make_tuple(items: Sequence[Value]) -> Value:
    _check_count(len(items))
    return Value(tuple_of([item.type for item in items]), tuple(items), *_extent(items))


def make_list(element: Type, items: Iterable[Value]) -> Value:
    kept = tuple(items)
    _check_count(len(kept))
    return Value(list_of(element), kept, *_extent(kept))


def make_set(element: Type, items: Iterable[Value]) -> Value:
    """Each value once, in the order of `sort_key`."""
    distinct = {sort_text(item): item for item in items}
    _check_count(len(distinct))
    kept = tuple(sorted(distinct.values(), key=sort_key))
    return Value(set_of(element), kept, *_extent(kept))


def make_object(entries: Mapping[str, Value]) -> Value:
    _check_count(len(entries))
    kept = dict(sorted(entries.items()))
    return Value(object_of({key: value.type for key, value in kept.items()}), kept, *_extent(kept.values()))


def make_map(element: Type, entries: Mapping[str, Value]) -> Value:
    _check_count(len(entries))
    kept = dict(sorted(entries.items()))
    return Value(map_of(element), kept, *_extent(kept.values()))


def equal(left: Value, right: Value) -> bool:
    """Null equals null; otherwise only values of one type can be equal."""
    if left is right or left.raw is None or right.raw is None:
        return left is right or left.raw is right.raw
    if left.type != right.type and not _alike(left, right):
        return False
    if left.type.kind is Kind.NUMBER:
        return left.number.compare(right.number) == 0
    if left.is_sequence:
        mine, theirs = left.elements, right.elements
        return len(mine) == len(theirs) and all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
    if left.is_mapping:
        a, b = left.entries, right.entries
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return bool(left.raw == right.raw)


def sort_key(value: Value) -> tuple[Any, ...]:
    """Order within a set: texts by code point, numbers by amount, false before true, the rest by what they print as."""
    if value.raw is None:
        return (1,)
    if value.type.kind is Kind.NUMBER:
        return (0, _Amount(value.number))
    if value.type.kind in (Kind.STRING, Kind.BOOL):
        return (0, value.raw)
    return (0, sort_text(value))


def sort_text(value: Value) -> str:
    """A text that equal values share and different ones do not (within one type)."""
    if value.raw is None:
        return "~"
    if value.type.kind is Kind.NUMBER:
        return value.number.text() if not value.number.is_zero else "0"
    if value.type.kind is Kind.STRING:
        return repr(value.raw)
    if value.type.kind is Kind.BOOL:
        return "T" if value.raw else "F"
    if value.is_sequence:
        return "[" + "".join(f"{sort_text(element)};" for element in value.elements) + "]"
    return "{" + "".join(f"{key!r}:{sort_text(element)};" for key, element in value.entries.items()) + "}"


class _Amount:
    """Lets numbers be sorted."""

    __slots__ = ("_number",)

    def __init__(self, number: Number) -> None:
        self._number = number

    def __lt__(self, other: _Amount) -> bool:
        return self._number.compare(other._number) < 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Amount) and self._number.compare(other._number) == 0

    __hash__ = None  # type: ignore[assignment]


def _alike(left: Value, right: Value) -> bool:
    """Tuples and objects that differ in type only because of a null somewhere inside may still be equal."""
    return left.type.kind is right.type.kind and left.type.kind in (Kind.TUPLE, Kind.OBJECT)


def _extent(items: Iterable[Value]) -> tuple[int, int]:
    """Depth and size of a collection."""
    depth, size = 0, 16
    for item in items:
        depth = max(depth, item.depth)
        size += item.size
    if depth >= MAX_VALUE_DEPTH:
        raise too_much(f"values may be nested {MAX_VALUE_DEPTH} deep")
    if size > MAX_VALUE_SIZE:
        raise too_much("a value holds too much, counting all that is inside it")
    return depth + 1, size


def _check_count(count: int) -> None:
    if count > MAX_ELEMENTS:
        raise too_much(f"a collection may have {MAX_ELEMENTS} elements, this one has {count}")
