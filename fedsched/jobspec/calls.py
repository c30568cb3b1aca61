"""Calling a function: arguments are counted, expanded, converted, and every refusal points at the argument to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsched.jobspec.context import ArgumentFailed, Context, Function, FunctionFailed, Parameter, refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.numbers import NumberProblem
from fedsched.jobspec.problems import nearest
from fedsched.jobspec.tree import Call, Expr
from fedsched.jobspec.values import Value

Evaluate = Callable[[Sequence[Expr], Context], list[Value]]


def call(expr: Call, context: Context, evaluate: Evaluate) -> Value:
    function = context.functions.get(expr.name)
    if function is None:
        suggestion = nearest(expr.name, context.functions)
        raise refuse("Unknown function", f"there is no function {expr.name!r}.", expr.name_span, suggestion)
    if function.is_lazy:
        result: Value = function.run(expr, context, evaluate)
    else:
        result = _run(expr, function, context, evaluate)
    context.budget.produce(_size(result), expr.span)
    return result


def check_count(expr: Call, function: Function, count: int) -> None:
    """Refuse a call with too few or too many arguments."""
    wanted = len(function.parameters)
    if count < wanted:
        missing = function.parameters[count].name
        at_least = "at least " if function.rest is not None else ""
        detail = f"{expr.name} takes {at_least}{wanted}; {missing!r} is missing"
        raise refuse("Too few arguments", detail, expr.close_span)
    if count > wanted and function.rest is None:
        span = _argument(expr, wanted).start if expr.args else expr.name_span
        raise refuse("Too many arguments", f"{expr.name} takes {wanted}, not {count}", span)


def _run(expr: Call, function: Function, context: Context, evaluate: Evaluate) -> Value:
    values = evaluate(expr.args, context)
    if expr.expands:
        values = _expanded(expr, values)
    check_count(expr, function, len(values))
    _charge(expr, function, values, context)
    arguments = [_suitable(expr, function, at, value) for at, value in enumerate(values)]
    try:
        found = function.run(context, *arguments) if function.wants_context else function.run(*arguments)
    except ArgumentFailed as error:
        span = _argument(expr, error.index).start
        raise refuse("Unsuitable argument", f"{expr.name}: {error}", span) from None
    except (FunctionFailed, NumberProblem, Mismatch) as error:
        raise refuse("Function failed", f"{expr.name}: {error}", expr.start) from None
    assert isinstance(found, Value), expr.name
    return found


def _expanded(expr: Call, values: list[Value]) -> list[Value]:
    last = values[-1]
    if last.is_null:
        raise refuse("Unsuitable argument", "null cannot be expanded with `...`", expr.args[-1].start)
    if not last.is_sequence:
        detail = f"only a list, tuple or set can be expanded with `...`, not a {last.type}"
        raise refuse("Unsuitable argument", detail, expr.args[-1].start)
    return [*values[:-1], *last.elements]


def _suitable(expr: Call, function: Function, at: int, value: Value) -> Value:
    parameter = _parameter(function, at)
    if value.is_null and not parameter.allows_null:
        detail = f"{expr.name}: {parameter.name!r} must not be null"
        raise refuse("Unsuitable argument", detail, _argument(expr, at).start)
    try:
        return convert(value, parameter.type)
    except Mismatch as error:
        detail = f"{expr.name}: {parameter.name!r}: {error}"
        raise refuse("Unsuitable argument", detail, _argument(expr, at).start) from None


def _parameter(function: Function, at: int) -> Parameter:
    if at < len(function.parameters):
        return function.parameters[at]
    assert function.rest is not None
    return function.rest


def _argument(expr: Call, at: int) -> Expr:
    """What was written for an argument; one that came out of `...` is blamed on what was expanded."""
    return expr.args[min(at, len(expr.args) - 1)]


def _charge(expr: Call, function: Function, values: list[Value], context: Context) -> None:
    """Looking at arguments counts too: a short file may hand one large value to a function again and again."""
    size = sum(value.size for value in values)
    context.budget.produce(size * function.weight + 4096 if function.weight else size >> 2, expr.span)


def _size(value: Value) -> int:
    raw = value.raw
    return len(raw) if isinstance(raw, str | tuple | dict) else 1
