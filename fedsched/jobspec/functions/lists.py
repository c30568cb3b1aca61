"""Functions of lists and tuples."""

from __future__ import annotations

from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.convert import convert
from fedsched.jobspec.functions.registry import function, nullable, whole
from fedsched.jobspec.limits import MAX_RANGE
from fedsched.jobspec.numbers import from_int
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Kind, list_of, unify
from fedsched.jobspec.values import Value, boolean, equal, make_list, make_tuple, number, sort_text

_ITEMS = (Kind.LIST, Kind.TUPLE)


@function("chunklist", takes=(("list", list_of(ANY)), ("size", NUMBER)))
def chunklist(values: Value, size: Value) -> Value:
    """Lists of at most `size`; a size of 0 means one list with everything."""
    step = whole(size)
    if step < 0:
        raise FunctionFailed("the size must not be negative")
    items = values.elements
    step = step or max(1, len(items))
    chunks = [make_list(values.type.of, items[at : at + step]) for at in range(0, len(items), step)]
    return make_list(values.type, chunks)


@function("coalesce", rest=nullable("vals", ANY), weight=1)
def coalesce(*values: Value) -> Value:
    """The first that is not null, in the type that all of them share."""
    shared = unify([value.type for value in values if not (value.is_null and value.kind is Kind.ANY)])
    if shared is None:
        raise FunctionFailed("all arguments must have the same type")
    for value in values:
        if not value.is_null:
            return convert(value, shared)
    raise FunctionFailed("every argument is null")


@function("coalescelist", rest=nullable("vals", ANY))
def coalescelist(*values: Value) -> Value:
    if not values:
        raise FunctionFailed("at least one argument is needed")
    for value in values:
        if value.is_null or value.kind not in _ITEMS:
            raise FunctionFailed("all arguments must be lists or tuples")
        if value.elements:
            return value
    raise FunctionFailed("every argument is empty")


@function("compact", takes=(("list", list_of(STRING)),))
def compact(values: Value) -> Value:
    return make_list(STRING, [value for value in values.elements if not value.is_null and value.text])


@function("concat", takes=(), rest=("seqs", ANY))
def concat(*values: Value) -> Value:
    if not values:
        raise FunctionFailed("at least one argument is needed")
    for at, value in enumerate(values):
        if value.kind not in _ITEMS:
            raise ArgumentFailed(at, f"a list or tuple is needed, not a {value.type}")
    items = [element for value in values for element in value.elements]
    shared = unify([value.type.of for value in values]) if all(v.kind is Kind.LIST for v in values) else None
    if shared is None:
        return make_tuple(items)
    return make_list(shared, [convert(item, shared) for item in items])


@function("contains", takes=(("list", ANY), nullable("value", ANY)), weight=1)
def contains(values: Value, wanted: Value) -> Value:
    if not values.is_sequence:
        raise FunctionFailed("the first argument must be a list, tuple or set")
    if wanted.is_null:
        raise FunctionFailed("whether null is in a list cannot be said")
    return boolean(any(equal(value, wanted) for value in values.elements))


@function("distinct", takes=(("list", list_of(ANY)),), weight=1)
def distinct(values: Value) -> Value:
    seen: dict[str, Value] = {}
    for value in values.elements:
        seen.setdefault(sort_text(value), value)
    return make_list(values.type.of, seen.values())


@function("element", takes=(("list", ANY), ("index", NUMBER)))
def element(values: Value, at: Value) -> Value:
    """Counting goes round: after the last comes the first again."""
    if values.kind not in _ITEMS:
        raise FunctionFailed(f"a {values.type} has no elements in order")
    if not values.elements:
        raise FunctionFailed("an empty list has no elements")
    return values.elements[whole(at) % len(values.elements)]


@function("flatten", takes=(("list", ANY),), weight=1)
def flatten(values: Value) -> Value:
    """Lists in lists, however deep, become one; depth is bounded because values bound their own."""
    if not values.is_sequence:
        raise FunctionFailed("only lists, tuples and sets can be flattened")
    flat: list[Value] = []
    waiting = [iter(values.elements)]
    while waiting:
        value = next(waiting[-1], None)
        if value is None:
            waiting.pop()
        elif value.is_sequence:
            waiting.append(iter(value.elements))
        else:
            flat.append(value)
    return make_tuple(flat)


@function("slice", takes=(("list", ANY), ("start_index", NUMBER), ("end_index", NUMBER)))
def slice_(values: Value, start: Value, end: Value) -> Value:
    if values.kind is Kind.SET:
        raise ArgumentFailed(0, "elements of a set have no order; convert it to a list first")
    if values.kind not in _ITEMS:
        raise ArgumentFailed(0, f"a list or tuple is needed, not a {values.type}")
    low, high = whole(start, argument=1), whole(end, argument=2)
    if low < 0:
        raise ArgumentFailed(1, "the start must not be negative")
    if high > len(values.elements):
        raise ArgumentFailed(2, f"the end must not be greater than the length, {len(values.elements)}")
    if low > high:
        raise ArgumentFailed(1, "the start must not be greater than the end")
    part = values.elements[low:high]
    return make_tuple(part) if values.kind is Kind.TUPLE else make_list(values.type.of, part)


@function("sort", takes=(("list", list_of(STRING)),))
def sort(values: Value) -> Value:
    for at, value in enumerate(values.elements):
        if value.is_null:
            raise ArgumentFailed(0, f"element {at} is null")
    return make_list(STRING, sorted(values.elements, key=lambda value: value.text))


@function("range", rest=("params", NUMBER))
def range_(*params: Value) -> Value:
    if not 1 <= len(params) <= 3:
        raise FunctionFailed("one, two or three arguments are needed")
    given = [param.number for param in params]
    start, end = (from_int(0), given[0]) if len(given) == 1 else (given[0], given[1])
    down = end.compare(start) < 0
    step = given[2] if len(given) == 3 else from_int(-1 if down else 1)
    if len(given) == 3:
        if step.negative and end.compare(start) > 0:
            raise ArgumentFailed(1, "with a negative step the end must be less than the start")
        if not step.negative and down:
            raise ArgumentFailed(1, "with a positive step the end must be greater than the start")
    items: list[Value] = []
    at = start
    while at.compare(end) == (1 if step.negative else -1):
        if len(items) >= MAX_RANGE:
            raise FunctionFailed(f"more than {MAX_RANGE} values")
        items.append(number(at))
        at = at.add(step)
    return make_list(NUMBER, items)


@function("alltrue", takes=(("list", list_of(BOOL)),))
def alltrue(values: Value) -> Value:
    return boolean(all(value.raw for value in values.elements))


@function("anytrue", takes=(("list", list_of(BOOL)),))
def anytrue(values: Value) -> Value:
    return boolean(any(value.raw for value in values.elements))
