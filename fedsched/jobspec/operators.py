"""What `+`, `==`, `&&` and the like do with values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.jobspec.context import refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.numbers import Number, NumberProblem
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.source import Span
from fedsched.jobspec.tree import Binary, Unary
from fedsched.jobspec.types import BOOL, NUMBER, Type
from fedsched.jobspec.values import Value, boolean, equal, number

_ARITHMETIC: Final[dict[str, Callable[[Number, Number], Number]]] = {
    "+": Number.add,
    "-": Number.subtract,
    "*": Number.multiply,
    "/": Number.divide,
    "%": Number.modulo,
}
_COMPARISON: Final[dict[str, Callable[[int], bool]]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def unary(expr: Unary, operand: Value) -> Value:
    wanted = NUMBER if expr.operator == "-" else BOOL
    found, problem = _operand(operand, wanted, expr.operand.span)
    if found is None:
        raise JobfileProblems([problem])
    _not_null(expr.span, found)
    if expr.operator == "-":
        return number(found.number.negate())
    return boolean(not found.raw)


def binary(expr: Binary, left: Value, right: Value) -> Value:
    operator = expr.operator
    if operator in ("==", "!="):
        return boolean(equal(left, right) == (operator == "=="))
    wanted = BOOL if operator in ("&&", "||") else NUMBER
    a, left_problem = _operand(left, wanted, expr.left.span)
    b, right_problem = _operand(right, wanted, expr.right.span)
    if a is None or b is None:
        raise JobfileProblems([p for found, p in ((a, left_problem), (b, right_problem)) if found is None])
    _not_null(expr.span, a, b)
    if operator == "&&":
        return boolean(a.raw and b.raw)
    if operator == "||":
        return boolean(a.raw or b.raw)
    if operator in _COMPARISON:
        return boolean(_COMPARISON[operator](a.number.compare(b.number)))
    try:
        return number(_ARITHMETIC[operator](a.number, b.number))
    except NumberProblem as error:
        raise refuse("Operation without a result", str(error), expr.span) from None


_FINE: Final = Problem("")


def _operand(value: Value, wanted: Type, span: Span) -> tuple[Value | None, Problem]:
    try:
        return convert(value, wanted), _FINE
    except Mismatch as error:
        return None, Problem("Unsuitable operand", str(error), span)


def _not_null(span: Span, *operands: Value) -> None:
    if any(operand.is_null for operand in operands):
        raise refuse("Operation without a result", "null is no operand", span)
