"""What `.name`, `[key]` and `[*]` find in a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedsched.jobspec.context import Context, refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.problems import nearest
from fedsched.jobspec.source import Span
from fedsched.jobspec.tree import AttributeStep, Expr, IndexStep, Step
from fedsched.jobspec.types import NUMBER, STRING, Kind, Type
from fedsched.jobspec.values import Value, make_list, make_tuple


def apply_steps(
    found: Value, steps: Sequence[Step], context: Context, value: Callable[[Expr, Context], Value]
) -> Value:
    for step in steps:
        if isinstance(step, AttributeStep):
            found = attribute(found, step.name, step.span)
        elif isinstance(step, IndexStep):
            found = index(found, value(step.key, context), step.span)
        else:
            context.budget.step(step.span)
            each = partial(apply_steps, steps=step.steps, context=context, value=value)
            found = _splat(found, each, context, step.span)
    return found


def attribute(found: Value, name: str, span: Span) -> Value:
    if found.is_null:
        raise refuse("Attribute of null", f"null has no attribute {name!r}", span)
    if not found.is_mapping:
        detail = f"a {found.type} has no attribute {name!r}"
        if found.is_sequence:
            detail += "; to take it of every element, write [*] before it"
        raise refuse("No such attribute", detail, span)
    if name not in found.entries:
        known = found.entries
        raise refuse("No such attribute", f"there is no {name!r} here.", span, nearest(name, known))
    return found.entries[name]


def index(found: Value, key: Value, span: Span) -> Value:
    if found.is_null:
        raise refuse("Index of null", "null has no elements", span)
    if key.is_null:
        raise refuse("Invalid index", "null is no index", span)
    if found.is_mapping:
        text = _converted(key, STRING, span).text
        if text not in found.entries:
            raise refuse("Invalid index", f"there is no {text!r} here.", span, nearest(text, found.entries))
        return found.entries[text]
    if found.kind is Kind.SET:
        raise refuse("Invalid index", "elements of a set have no order; convert it to a list first", span)
    if not found.is_sequence:
        raise refuse("Invalid index", f"a {found.type} has no elements", span)
    at = _converted(key, NUMBER, span).number.to_int()
    if at is None:
        raise refuse("Invalid index", "an index is a whole number", span)
    if not 0 <= at < len(found.elements):
        detail = f"{at} is outside: there are {len(found.elements)} elements, counted from 0"
        raise refuse("Invalid index", detail, span)
    return found.elements[at]


def _splat(found: Value, each: Callable[[Value], Value], context: Context, span: Span) -> Value:
    """Of null nothing, of a single value a list of one."""
    if found.is_null:
        return make_tuple([])
    elements = found.elements if found.is_sequence else (found,)
    context.budget.produce(len(elements), span)
    results = []
    for element in elements:
        context.budget.step(span)
        results.append(each(element))
    if found.kind in (Kind.LIST, Kind.SET) and len({result.type for result in results}) == 1:
        return make_list(results[0].type, results)
    return make_tuple(results)


def _converted(key: Value, wanted: Type, span: Span) -> Value:
    try:
        return convert(key, wanted)
    except Mismatch as error:
        raise refuse("Invalid index", str(error), span) from None
