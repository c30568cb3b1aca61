"""Functions of sets."""

from __future__ import annotations

from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.convert import convert
from fedsched.jobspec.functions.registry import function
from fedsched.jobspec.limits import MAX_ELEMENTS
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import ANY, Kind, Type, set_of, tuple_of, unify
from fedsched.jobspec.values import Value, make_list, make_set, make_tuple, sort_text

_FIRST = ("first_set", set_of(ANY))
_REST = ("other_sets", set_of(ANY))


@function("setintersection", takes=(_FIRST,), rest=_REST, weight=1)
def setintersection(*sets: Value) -> Value:
    element, alike = _alike(sets)
    kept = alike[0]
    for other in alike[1:]:
        kept = {key: value for key, value in kept.items() if key in other}
    return make_set(element, kept.values())


@function("setunion", takes=(_FIRST,), rest=_REST, weight=1)
def setunion(*sets: Value) -> Value:
    element, alike = _alike(sets)
    return make_set(element, [value for one in alike for value in one.values()])


@function("setsubtract", takes=(("a", set_of(ANY)), ("b", set_of(ANY))), weight=1)
def setsubtract(left: Value, right: Value) -> Value:
    element, (mine, theirs) = _alike((left, right))
    return make_set(element, [value for key, value in mine.items() if key not in theirs])


@function("setproduct", rest=("sets", ANY), weight=1)
def setproduct(*sets: Value) -> Value:
    """Every way to take one of each; ordered like its arguments unless all of them are sets."""
    if len(sets) < 2:
        raise FunctionFailed("at least two arguments are needed")
    total = 1
    for at, one in enumerate(sets):
        if not one.is_sequence:
            raise ArgumentFailed(at, f"a list, tuple or set is needed, not a {one.type}")
        total *= len(one.elements)
    if total * len(sets) > MAX_ELEMENTS:
        raise too_much(f"the product has {total} elements")
    rows: list[tuple[Value, ...]] = [()]
    for one in sets:
        rows = [(*row, value) for row in rows for value in one.elements]
    types = [_element_of(one) for one in sets]
    if any(t is None for t in types):
        return make_tuple([make_tuple(row) for row in rows])
    known = [t for t in types if t is not None]
    row_type = tuple_of(known)
    products = [make_tuple([convert(v, t) for v, t in zip(row, known, strict=True)]) for row in rows]
    return make_set(row_type, products) if all(s.kind is Kind.SET for s in sets) else make_list(row_type, products)


def _alike(sets: tuple[Value, ...]) -> tuple[Type, list[dict[str, Value]]]:
    """All in the type that they share, by what tells their elements apart."""
    shared = unify([one.type.of for one in sets if one.elements])
    if shared is None:
        raise FunctionFailed("all arguments must hold elements of the same type")
    found = []
    for one in sets:
        values = [convert(value, shared) for value in one.elements]
        found.append({sort_text(value): value for value in values})
    return shared, found


def _element_of(value: Value) -> Type | None:
    if value.type.element is not None:
        return value.type.element
    return unify([item.type for item in value.elements])
