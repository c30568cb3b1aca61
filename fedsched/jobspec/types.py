"""The types that values of the job language have, and the one type that several of them can share."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """What sort of type; the value is the word that messages use."""

    STRING = "string"
    NUMBER = "number"
    BOOL = "bool"
    ANY = "any"
    LIST = "list"
    SET = "set"
    MAP = "map"
    TUPLE = "tuple"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Type:
    """A type. `element` is that of a list, set or map; `items` those of a tuple; `attributes` those of an object."""

    kind: Kind
    element: Type | None = None
    items: tuple[Type, ...] = ()
    attributes: tuple[tuple[str, Type], ...] = ()

    @property
    def is_primitive(self) -> bool:
        return self.kind in _PRIMITIVE

    @property
    def of(self) -> Type:
        """The element type of a list, set or map."""
        assert self.element is not None, self.kind
        return self.element

    @property
    def has_any(self) -> bool:
        """Whether some part is left open."""
        if self.kind is Kind.ANY:
            return True
        if self.element is not None:
            return self.element.has_any
        return any(t.has_any for t in self.items) or any(t.has_any for _, t in self.attributes)

    def __str__(self) -> str:
        if self.element is not None:
            return f"{self.kind.value} of {self.element}"
        return self.kind.value


STRING = Type(Kind.STRING)
NUMBER = Type(Kind.NUMBER)
BOOL = Type(Kind.BOOL)
ANY = Type(Kind.ANY)
_PRIMITIVE = frozenset({Kind.STRING, Kind.NUMBER, Kind.BOOL})


def list_of(element: Type) -> Type:
    return Type(Kind.LIST, element)


def set_of(element: Type) -> Type:
    return Type(Kind.SET, element)


def map_of(element: Type) -> Type:
    return Type(Kind.MAP, element)


def tuple_of(items: Sequence[Type]) -> Type:
    return Type(Kind.TUPLE, items=tuple(items))


def object_of(attributes: Mapping[str, Type]) -> Type:
    return Type(Kind.OBJECT, attributes=tuple(sorted(attributes.items())))


def can_convert(source: Type, target: Type) -> bool:
    """Whether every value of one type has a counterpart in the other (texts that must be numbers do not count)."""
    if source == target or target.kind is Kind.ANY or source.kind is Kind.ANY:
        return True
    if target.kind is Kind.STRING:
        return source.is_primitive
    if target.kind in (Kind.LIST, Kind.SET):
        if source.kind in (Kind.LIST, Kind.SET):
            return can_convert(source.of, target.of)
        return source.kind is Kind.TUPLE and all(can_convert(t, target.of) for t in source.items)
    if target.kind is Kind.MAP:
        if source.kind is Kind.MAP:
            return can_convert(source.of, target.of)
        return source.kind is Kind.OBJECT and all(can_convert(t, target.of) for _, t in source.attributes)
    if target.kind is Kind.TUPLE and source.kind is Kind.TUPLE and len(source.items) == len(target.items):
        return all(can_convert(a, b) for a, b in zip(source.items, target.items, strict=True))
    if target.kind is Kind.OBJECT and source.kind is Kind.OBJECT:
        has = dict(source.attributes)
        return all(name in has and can_convert(has[name], wanted) for name, wanted in target.attributes)
    return False


def unify(types: Sequence[Type]) -> Type | None:
    """The type that all of these can become without loss, or None. Of nothing at all: any."""
    if not types:
        return ANY
    first = types[0]
    if all(t == first for t in types):
        return first
    if any(t.kind is Kind.ANY for t in types):
        return ANY
    kinds = {t.kind for t in types}
    if kinds <= {Kind.TUPLE, Kind.LIST, Kind.SET} and Kind.TUPLE in kinds:
        return _unify_tuples(types, kinds)
    if kinds <= {Kind.OBJECT, Kind.MAP} and Kind.OBJECT in kinds:
        return _unify_objects(types, kinds)
    if len(kinds) == 1 and first.element is not None:
        element = unify([t.of for t in types])
        return None if element is None else Type(first.kind, element)
    for wanted in sorted(types, key=lambda t: t.kind is not Kind.STRING):
        if all(can_convert(t, wanted) for t in types):
            return wanted
    return None


def _unify_tuples(types: Sequence[Type], kinds: set[Kind]) -> Type | None:
    """Tuples of one length item by item; otherwise all elements must fit one list."""
    if kinds == {Kind.TUPLE} and len({len(t.items) for t in types}) == 1:
        columns = [unify(column) for column in zip(*(t.items for t in types), strict=True)]
        fitting = [t for t in columns if t is not None]
        return tuple_of(fitting) if len(fitting) == len(columns) else None
    element = unify([item for t in types for item in (t.items if t.kind is Kind.TUPLE else (t.of,))])
    if element is None:
        return None
    return set_of(element) if Kind.SET in kinds and Kind.LIST not in kinds else list_of(element)


def _unify_objects(types: Sequence[Type], kinds: set[Kind]) -> Type | None:
    """Objects of the same attributes one by one; otherwise all attributes must fit one map."""
    if kinds == {Kind.OBJECT} and len({tuple(name for name, _ in t.attributes) for t in types}) == 1:
        found: dict[str, Type] = {}
        for column in zip(*(t.attributes for t in types), strict=True):
            unified = unify([t for _, t in column])
            if unified is None:
                return None
            found[column[0][0]] = unified
        return object_of(found)
    parts = [
        t for source in types for t in ([a for _, a in source.attributes] if source.element is None else [source.of])
    ]
    element = unify(parts)
    return None if element is None else map_of(element)
