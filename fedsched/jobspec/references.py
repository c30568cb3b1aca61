"""Going through an expression without evaluating it, and values that must not refer to anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.tree import (
    Access,
    Binary,
    Call,
    Conditional,
    Expr,
    ForLoop,
    IndexStep,
    Interpolation,
    ObjectLiteral,
    Parenthesised,
    Reference,
    SplatStep,
    Step,
    Template,
    TemplateFor,
    TemplateIf,
    TupleLiteral,
    Unary,
)
from fedsched.jobspec.values import Value


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything inside it."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(_children(node))))


def static_value(expr: Expr, context: Context) -> Value:
    """The value of an expression that may use neither names nor functions."""
    problems: list[Problem] = []
    for node in walk(expr):
        if isinstance(node, Reference):
            problems.append(Problem("Reference not allowed", "only a plain value can stand here", node.span))
        elif isinstance(node, Call):
            problems.append(Problem("Function not allowed", "only a plain value can stand here", node.start))
    if problems:
        raise JobfileProblems(problems)
    return evaluate.value(expr, context)


def _children(node: Expr) -> Iterable[Expr]:
    match node:
        case Access():
            return [node.base, *_keys(node.steps)]
        case Reference():
            return list(_keys(node.steps))
        case Call():
            return node.args
        case Parenthesised() | Interpolation():
            return [node.inner]
        case Unary():
            return [node.operand]
        case Binary():
            return [node.left, node.right]
        case Conditional() | TemplateIf():
            return [node.condition, node.if_true, node.if_false]
        case TupleLiteral():
            return node.items
        case ObjectLiteral():
            return [part for item in node.items for part in (item.key, item.value)]
        case ForLoop():
            return [part for part in (node.collection, node.key, node.value, node.condition) if part is not None]
        case Template():
            return node.parts
        case TemplateFor():
            return [node.collection, node.content]
        case _:
            return []


def _keys(steps: tuple[Step, ...]) -> Iterator[Expr]:
    for step in steps:
        if isinstance(step, IndexStep):
            yield step.key
        elif isinstance(step, SplatStep):
            yield from _keys(step.steps)
