"""Functions that look at their arguments before they are evaluated, and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsched.jobspec.calls import check_count
from fedsched.jobspec.context import Context, refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.functions.registry import FUNCTIONS, function, nullable
from fedsched.jobspec.problems import JobfileProblems, TooMuch
from fedsched.jobspec.tree import Call, Expr
from fedsched.jobspec.type_names import type_of
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Type, list_of, map_of, set_of
from fedsched.jobspec.values import Value, boolean

Evaluate = Callable[[Sequence[Expr], Context], list[Value]]


@function("can", takes=(("expression", ANY),), lazy=True)
def can(expr: Call, context: Context, evaluate: Evaluate) -> Value:
    check_count(expr, FUNCTIONS["can"], len(expr.args))
    try:
        evaluate(expr.args, context)
    except TooMuch:
        raise
    except JobfileProblems:
        return boolean(False)
    return boolean(True)


@function("try", rest=("expressions", ANY), lazy=True)
def first_that_works(expr: Call, context: Context, evaluate: Evaluate) -> Value:
    if not expr.args:
        raise refuse("Too few arguments", "try takes at least one", expr.start)
    problems: list[str] = []
    for argument in expr.args:
        try:
            return evaluate([argument], context)[0]
        except TooMuch:
            raise
        except JobfileProblems as error:
            problems.append(error.problems[0].message)
    raise refuse("Function failed", f"try: nothing worked; the last problem was: {problems[-1]}", expr.start)


@function("convert", takes=(nullable("value", ANY), ("type", ANY)), lazy=True)
def convert_to(expr: Call, context: Context, evaluate: Evaluate) -> Value:
    check_count(expr, FUNCTIONS["convert"], len(expr.args))
    value = evaluate(expr.args[:1], context)[0]
    context.budget.produce(value.size, expr.span)
    return _converted(expr, value, type_of(expr.args[1], allow_open=True))


def _conversion(name: str, wanted: Type) -> None:
    @function(name, takes=(nullable("v", ANY),), lazy=True)
    def to(expr: Call, context: Context, evaluate: Evaluate) -> Value:
        check_count(expr, FUNCTIONS[name], len(expr.args))
        value = evaluate(expr.args, context)[0]
        context.budget.produce(value.size, expr.span)
        return _converted(expr, value, wanted)


for _name, _wanted in (
    ("tostring", STRING),
    ("tonumber", NUMBER),
    ("tobool", BOOL),
    ("tolist", list_of(ANY)),
    ("toset", set_of(ANY)),
    ("tomap", map_of(ANY)),
):
    _conversion(_name, _wanted)


def _converted(expr: Call, value: Value, wanted: Type) -> Value:
    try:
        return convert(value, wanted)
    except Mismatch as error:
        raise refuse("Unsuitable argument", f"{expr.name}: {error}", expr.args[0].start) from None
