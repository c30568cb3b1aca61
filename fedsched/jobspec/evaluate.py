"""From an expression to its value.

A name that nothing defines is not an error here: it is left in the text as `${name}`, for the client to fill in when
the task runs. `var` and `local` are always defined, so a slip in those is found.

Evaluation is pure and bounded: the context's budget counts every expression and loop round, values bound their own size
and depth, and the tree's depth was bounded when it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from fedsched.jobspec.calls import call
from fedsched.jobspec.context import Context, refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.numbers import NumberProblem
from fedsched.jobspec.operators import binary, unary
from fedsched.jobspec.problems import MAX_PROBLEMS, JobfileProblems, Problem, TooMuch
from fedsched.jobspec.source import Span
from fedsched.jobspec.steps import apply_steps
from fedsched.jobspec.tree import (
    Access,
    AttributeStep,
    Binary,
    Call,
    Conditional,
    Expr,
    ForLoop,
    Interpolation,
    KeyName,
    Literal,
    ObjectLiteral,
    Parenthesised,
    Reference,
    Static,
    Template,
    TemplateFor,
    TemplateIf,
    TupleLiteral,
    Unary,
)
from fedsched.jobspec.types import BOOL, STRING, Kind, unify
from fedsched.jobspec.values import Value, make_object, make_tuple, number, string

__all__ = ["Context", "value"]

T = TypeVar("T")


def value(expr: Expr, context: Context) -> Value:
    """The value of an expression. Raises `JobfileProblems`, each problem with its place."""
    context.budget.step(expr.span)
    try:
        return _KINDS[type(expr)](expr, context)
    except NumberProblem as error:
        raise refuse("Operation without a result", str(error), expr.span) from None
    except TooMuch as error:
        if error.problems[0].span is None:
            raise TooMuch([Problem(p.summary, p.detail, expr.span) for p in error.problems]) from None
        raise


def all_values(exprs: Sequence[Expr], context: Context) -> list[Value]:
    """Several at once; problems of all of them are gathered."""
    return _gathered(value, exprs, context)


def _gathered(read: Callable[[Expr, Context], T], exprs: Sequence[Expr], context: Context) -> list[T]:
    """What is read from each; everything that is wrong with any of them is told at once."""
    found: list[T] = []
    problems: list[Problem] = []
    for expr in exprs:
        try:
            found.append(read(expr, context))
        except TooMuch:
            raise
        except JobfileProblems as error:
            problems += error.problems
            if len(problems) > MAX_PROBLEMS:
                break
    if problems:
        raise JobfileProblems(problems)
    return found


def _literal(expr: Literal | Static, context: Context) -> Value:
    return expr.value


def _key_name(expr: KeyName, context: Context) -> Value:
    return string(expr.name)


def _parenthesised(expr: Parenthesised, context: Context) -> Value:
    return value(expr.inner, context)


def _reference(expr: Reference, context: Context) -> Value:
    if expr.steps and isinstance(expr.steps[0], AttributeStep):
        member = context.member(expr.root, expr.steps[0].name)
        if member is not None:
            return apply_steps(member, expr.steps[1:], context, value)
    root = context.lookup(expr.root)
    if root is None:
        return string("${" + expr.span.text + "}")
    return apply_steps(root, expr.steps, context, value)


def _access(expr: Access, context: Context) -> Value:
    return apply_steps(value(expr.base, context), expr.steps, context, value)


def _call(expr: Call, context: Context) -> Value:
    return call(expr, context, all_values)


def _unary(expr: Unary, context: Context) -> Value:
    return unary(expr, value(expr.operand, context))


def _binary(expr: Binary, context: Context) -> Value:
    chain = [expr]
    while isinstance(chain[-1].left, Binary):
        chain.append(chain[-1].left)
    left = value(chain[-1].left, context)
    for node in reversed(chain):
        context.budget.step(node.span)
        right = value(node.right, context)
        context.budget.produce(min(left.size, right.size), node.span)
        left = binary(node, left, right)
    return left


def _conditional(expr: Conditional, context: Context) -> Value:
    """Both branches are evaluated, because the result's type is what both can be; only the chosen one may fail."""
    chosen, other = expr.if_true, expr.if_false
    if not _truth(expr.condition, value(expr.condition, context)):
        chosen, other = other, chosen
    result = value(chosen, context)
    try:
        rejected = value(other, context)
    except TooMuch:
        raise
    except JobfileProblems:
        return result
    if rejected.is_null and rejected.kind is Kind.ANY:
        return result
    if result.is_null and result.kind is Kind.ANY:
        return convert(result, rejected.type)
    context.budget.produce(min(result.size, rejected.size) >> 2, expr.span)
    shared = unify([result.type, rejected.type])
    if shared is None:
        span = expr.if_true.span.to(expr.if_false.span)
        detail = f"one branch is a {result.type}, the other a {rejected.type}; no type fits both"
        raise refuse("Branches of different types", detail, span)
    return convert(result, shared)


def _tuple(expr: TupleLiteral, context: Context) -> Value:
    context.budget.produce(len(expr.items), expr.span)
    return make_tuple(all_values(expr.items, context))


def _object(expr: ObjectLiteral, context: Context) -> Value:
    context.budget.produce(len(expr.items), expr.span)
    entries: dict[str, Value] = {}
    problems: list[Problem] = []
    for item in expr.items:
        try:
            key = value(item.key, context)
            if key.is_null:
                raise refuse("Null as a key", "keys are texts", item.value.span)
            entries[_key_text(key, item.key.span)] = value(item.value, context)
        except TooMuch:
            raise
        except JobfileProblems as error:
            problems += error.problems
            if len(problems) > MAX_PROBLEMS:
                break
    if problems:
        raise JobfileProblems(problems)
    return make_object(entries)


def _for(expr: ForLoop, context: Context) -> Value:
    items: list[Value] = []
    entries: dict[str, Value] = {}
    groups: dict[str, list[Value]] = {}
    for inner in _rounds(expr.collection, expr.key_name, expr.value_name, context):
        if expr.condition is not None and not _truth(expr.condition, value(expr.condition, inner)):
            continue
        if expr.key is None:
            items.append(value(expr.value, inner))
            continue
        key_value = value(expr.key, inner)
        if key_value.is_null:
            raise refuse("Null as a key", "keys are texts", expr.key.span)
        key = _key_text(key_value, expr.key.span)
        if expr.groups:
            groups.setdefault(key, []).append(value(expr.value, inner))
        elif key in entries:
            detail = f"{key!r} comes twice; write `...` after the value to gather equal keys into lists"
            raise refuse("Key used twice", detail, expr.key.span)
        else:
            entries[key] = value(expr.value, inner)
    if expr.key is None:
        return make_tuple(items)
    return make_object({key: make_tuple(group) for key, group in groups.items()} if expr.groups else entries)


def _interpolation(expr: Interpolation, context: Context) -> Value:
    inner = expr.inner
    if isinstance(inner, Reference) and not expr.strips and context.lookup(inner.root) is None:
        return string(_as_written(inner.span))
    return value(inner, context)


def _template(expr: Template, context: Context) -> Value:
    result = "".join(_gathered(_part_text, expr.parts, context))
    context.budget.produce(len(result), expr.span)
    return string(result)


def _part_text(part: Expr, context: Context) -> str:
    found = value(part, context)
    span = part.inner.span if isinstance(part, Interpolation) else part.span
    if found.is_null:
        raise refuse("Null in a template", "null has no text", span)
    try:
        return convert(found, STRING).text
    except Mismatch as error:
        raise refuse("No text for a template", str(error), span) from None


def _template_if(expr: TemplateIf, context: Context) -> Value:
    truth = _truth(expr.condition, value(expr.condition, context))
    return value(expr.if_true if truth else expr.if_false, context)


def _template_for(expr: TemplateFor, context: Context) -> Value:
    texts = []
    for inner in _rounds(expr.collection, expr.key_name, expr.value_name, context):
        text = value(expr.content, inner).text
        context.budget.produce(len(text), expr.span)
        texts.append(text)
    return string("".join(texts))


def pairs(collection: Value, span: Span) -> Iterator[tuple[Value, Value]]:
    """Key and value of each element; a set's element is its own key."""
    if collection.is_null:
        raise refuse("Null instead of a collection", "null has no elements to go through", span)
    if collection.is_mapping:
        for key, element in collection.entries.items():
            yield string(key), element
    elif collection.is_sequence:
        for at, element in enumerate(collection.elements):
            yield (element if collection.kind is Kind.SET else number(at)), element
    else:
        raise refuse("Not a collection", f"a {collection.type} has no elements to go through", span)


def _rounds(collection: Expr, key_name: str | None, value_name: str, context: Context) -> Iterator[Context]:
    for key, element in pairs(value(collection, context), collection.span):
        context.budget.step(collection.span)
        context.budget.produce(1, collection.span)
        names = {value_name: element}
        if key_name is not None:
            names = {key_name: key, value_name: element}
        yield context.with_names(names)


def _truth(expr: Expr, found: Value) -> bool:
    if found.is_null:
        raise refuse("Null as a condition", "a condition is true or false", expr.span)
    try:
        return bool(convert(found, BOOL).raw)
    except Mismatch as error:
        raise refuse("Not a condition", str(error), expr.span) from None


def _key_text(key: Value, span: Span) -> str:
    try:
        return convert(key, STRING).text
    except Mismatch as error:
        raise refuse("Not a key", str(error), span) from None


def _as_written(span: Span) -> str:
    """A run-time reference with the blanks that its author put between it and the braces."""
    text = span.source.text
    start, end = span.start, span.end
    while text[start - 1].isspace():
        start -= 1
    while text[end : end + 1].isspace():
        end += 1
    if text[start - 2 : start] == "${" and text[end : end + 1] == "}":
        return text[start - 2 : end + 1]
    return "${" + span.text + "}"


_KINDS: Final[dict[type[Expr], Callable[[Any, Context], Value]]] = {
    Literal: _literal,
    Static: _literal,
    KeyName: _key_name,
    Parenthesised: _parenthesised,
    Reference: _reference,
    Access: _access,
    Call: _call,
    Unary: _unary,
    Binary: _binary,
    Conditional: _conditional,
    TupleLiteral: _tuple,
    ObjectLiteral: _object,
    ForLoop: _for,
    Interpolation: _interpolation,
    Template: _template,
    TemplateIf: _template_if,
    TemplateFor: _template_for,
}
