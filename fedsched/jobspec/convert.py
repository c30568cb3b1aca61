"""From one type to another: the few conversions that happen on their own, and the ones asked for.

Texts and numbers turn into one another where they can, truths into texts; tuples become lists and sets, objects become
maps, each element converted. Nothing becomes shorter on the way except an object that is asked for fewer attributes.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from fedsched.jobspec import durations, numbers
from fedsched.jobspec.numbers import Number, NumberProblem
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.source import Span
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Kind, Type, list_of, unify
from fedsched.jobspec.values import (
    Value,
    make_list,
    make_map,
    make_object,
    make_set,
    make_tuple,
    null_of,
    number,
    string,
)

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Mismatch(Exception):
    """A value that has no counterpart in the wanted type; the text says what was wanted and what there is."""


def convert(value: Value, wanted: Type) -> Value:
    """The value in the wanted type. Raises `Mismatch`. Null stays null."""
    if wanted.kind is Kind.ANY or value.type == wanted:
        return value
    if value.raw is None:
        return null_of(wanted)
    match wanted.kind:
        case Kind.STRING:
            return _to_string(value)
        case Kind.NUMBER:
            return _to_number(value)
        case Kind.BOOL:
            return _to_bool(value)
        case Kind.LIST | Kind.SET:
            return _to_sequence(value, wanted)
        case Kind.MAP:
            return _to_map(value, wanted)
        case Kind.TUPLE:
            return _to_tuple(value, wanted)
        case _:
            return _to_object(value, wanted)


def as_string(value: Value, span: Span) -> str:
    """Text for a field of a job; null is refused."""
    return _wanted(value, STRING, span).text


def as_bool(value: Value, span: Span) -> bool:
    return bool(_wanted(value, BOOL, span).raw)


def as_number(value: Value, span: Span) -> Number:
    return _wanted(value, NUMBER, span).number


def as_int(value: Value, span: Span, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """A whole number within bounds."""
    found = _wanted(value, NUMBER, span).number
    whole = found.to_int()
    if whole is None or not low <= whole <= high:
        text = found.text()
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise _unsuitable(f"a whole number between {low} and {high} is needed, not {shown}", span)
    return whole


def as_strings(value: Value, span: Span) -> list[str]:
    """A list of texts; none of them may be null."""
    found = _wanted(value, list_of(STRING), span)
    if any(element.is_null for element in found.elements):
        raise _unsuitable("null cannot stand in a list of strings", span)
    return [element.text for element in found.elements]


def as_string_map(value: Value, span: Span) -> dict[str, str]:
    """A map of texts; none of them may be null."""
    found = _wanted(value, Type(Kind.MAP, STRING), span)
    for key, element in found.entries.items():
        if element.is_null:
            raise _unsuitable(f"{key!r} is null, which cannot stand in a map of strings", span)
    return {key: element.text for key, element in found.entries.items()}


def as_duration(value: Value, span: Span) -> int:
    """Nanoseconds, from text such as "1h30m" or from a whole number of nanoseconds."""
    if value.raw is None:
        raise _unsuitable("null is no duration", span)
    if value.kind is Kind.NUMBER:
        return as_int(value, span)
    if value.kind is not Kind.STRING:
        raise _unsuitable(f'a duration such as "30s" is needed, not {_named(value.type)}', span)
    try:
        return durations.parse(value.text)
    except durations.NoDuration as error:
        raise _unsuitable(str(error), span) from None


def _wanted(value: Value, type_: Type, span: Span) -> Value:
    try:
        found = convert(value, type_)
    except Mismatch as error:
        raise _unsuitable(str(error), span) from None
    if found.is_null:
        raise _unsuitable(f"{_named(type_)} is needed, not null", span)
    return found


def _unsuitable(detail: str, span: Span) -> JobfileProblems:
    return JobfileProblems([Problem("Unsuitable value", detail, span)])


def _to_string(value: Value) -> Value:
    if value.kind is Kind.NUMBER:
        return string(value.number.text())
    if value.kind is Kind.BOOL:
        return string("true" if value.raw else "false")
    raise _mismatch(STRING, value)


def _to_number(value: Value) -> Value:
    if value.kind is not Kind.STRING:
        raise _mismatch(NUMBER, value)
    try:
        found = numbers.parse(value.text)
    except NumberProblem as error:
        raise Mismatch(str(error)) from None
    if found is None:
        raise Mismatch(f"a number is needed, not {_shown(value.text)}")
    return number(found)


def _to_bool(value: Value) -> Value:
    if value.kind is not Kind.STRING:
        raise _mismatch(BOOL, value)
    truth = {"true": True, "1": True, "false": False, "0": False}.get(value.text)
    if truth is None:
        lower = value.text.lower()
        hint = f", write {lower} in lower case" if lower in ("true", "false") else ""
        raise Mismatch(f"true or false is needed, not {_shown(value.text)}{hint}")
    return Value(BOOL, truth)


def _to_sequence(value: Value, wanted: Type) -> Value:
    if not value.is_sequence:
        raise _mismatch(wanted, value)
    element = _element_type(value, wanted)
    items = [_inner(item, element, str(at)) for at, item in enumerate(value.elements)]
    make = make_list if wanted.kind is Kind.LIST else make_set
    return make(element, items)


def _to_map(value: Value, wanted: Type) -> Value:
    if not value.is_mapping:
        raise _mismatch(wanted, value)
    element = _element_type(value, wanted)
    return make_map(element, {key: _inner(item, element, repr(key)) for key, item in value.entries.items()})


def _to_tuple(value: Value, wanted: Type) -> Value:
    if value.kind is not Kind.TUPLE or len(value.elements) != len(wanted.items):
        raise Mismatch(f"a tuple of {len(wanted.items)} is needed, not {_named(value.type)}")
    items = [_inner(e, t, str(at)) for at, (e, t) in enumerate(zip(value.elements, wanted.items, strict=True))]
    return make_tuple(items)


def _to_object(value: Value, wanted: Type) -> Value:
    if not value.is_mapping:
        raise _mismatch(wanted, value)
    entries: dict[str, Value] = {}
    for name, type_ in wanted.attributes:
        if name not in value.entries:
            raise Mismatch(f"attribute {name!r} is required")
        entries[name] = _inner(value.entries[name], type_, repr(name))
    return make_object(entries)


def _element_type(value: Value, wanted: Type) -> Type:
    """What the elements become: as asked, or where that is open whatever all of them can be."""
    if not wanted.of.has_any:
        return wanted.of
    if value.type.element is not None:
        own = [value.type.element]
    else:
        items = value.entries.values() if value.is_mapping else value.elements
        own = [item.type for item in items if not (item.is_null and item.kind is Kind.ANY)]
    unified = unify(own)
    if unified is None:
        raise Mismatch(f"all elements of a {wanted.kind.value} must have the same type")
    return unified if wanted.of.kind is Kind.ANY else _filled(wanted.of, unified)


def _filled(pattern: Type, actual: Type) -> Type:
    """The pattern with its open parts taken from the actual type, where both have the same shape."""
    if pattern.kind is Kind.ANY:
        return actual
    if pattern.element is not None:
        inner = actual.element
        if inner is None:
            parts = list(actual.items) or [t for _, t in actual.attributes]
            inner = unify(parts) or ANY
        return Type(pattern.kind, _filled(pattern.element, inner))
    return pattern


def _inner(value: Value, wanted: Type, where: str) -> Value:
    try:
        return convert(value, wanted)
    except Mismatch as error:
        text = str(error)
        raise Mismatch(text if text.startswith("element ") else f"element {where}: {text}") from None


def _mismatch(wanted: Type, value: Value) -> Mismatch:
    return Mismatch(f"{_named(wanted)} is needed, not {_named(value.type)}")


def _named(type_: Type) -> str:
    text = str(type_)
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


def _shown(text: str) -> str:
    short = text if len(text) <= 40 else text[:37] + "..."
    return '"' + "".join(c if unicodedata.category(c)[0] != "C" else "?" for c in short) + '"'
