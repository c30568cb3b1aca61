"""Types as job files write them: `string`, `list(number)`, `object({ a = bool })`."""

from __future__ import annotations

from typing import Final

from fedsched.jobspec.context import refuse
from fedsched.jobspec.problems import nearest
from fedsched.jobspec.tree import Call, Expr, KeyName, ObjectLiteral, Parenthesised, Reference, TupleLiteral
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Kind, Type, object_of, tuple_of

_SIMPLE: Final = {"string": STRING, "number": NUMBER, "bool": BOOL, "any": ANY}
_COLLECTIONS: Final = {"list": Kind.LIST, "set": Kind.SET, "map": Kind.MAP}
_NAMES: Final = (*_SIMPLE, *_COLLECTIONS, "tuple", "object")


def type_of(expr: Expr, *, allow_open: bool) -> Type:
    """The type that an expression names; `any` and `optional` only where a type may be left open."""
    if isinstance(expr, Parenthesised):
        return type_of(expr.inner, allow_open=allow_open)
    if isinstance(expr, Reference) and not expr.steps:
        return _simple(expr, allow_open)
    if isinstance(expr, Call):
        return _constructed(expr, allow_open)
    raise refuse("Invalid type", "write a type without quotes, such as string or list(number)", expr.span)


def _simple(expr: Reference, allow_open: bool) -> Type:
    name = expr.root
    if name == "any" and not allow_open:
        raise refuse("Invalid type", "`any` cannot be used here: the type must be exact", expr.span)
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in _NAMES:
        raise refuse("Invalid type", f"{name} needs to know what it holds, in parentheses", expr.span)
    raise refuse("Invalid type", f"{name!r} is no type.", expr.span, nearest(name, _NAMES))


def _constructed(expr: Call, allow_open: bool) -> Type:
    if expr.name == "optional" and allow_open and expr.args:
        return type_of(expr.args[0], allow_open=allow_open)
    if expr.name == "optional":
        raise refuse("Invalid type", "`optional` cannot be used here: the type must be exact", expr.name_span)
    if expr.name not in (*_COLLECTIONS, "tuple", "object"):
        raise refuse("Invalid type", f"{expr.name!r} is no type of types.", expr.name_span, nearest(expr.name, _NAMES))
    if len(expr.args) != 1:
        span = expr.args[1].start if expr.args else expr.close_span
        raise refuse("Invalid type", f"{expr.name} takes one argument", span)
    argument = expr.args[0]
    if expr.name in _COLLECTIONS:
        return Type(_COLLECTIONS[expr.name], type_of(argument, allow_open=allow_open))
    if expr.name == "tuple":
        if not isinstance(argument, TupleLiteral):
            raise refuse("Invalid type", "tuple takes a list of types", argument.start)
        return tuple_of([type_of(item, allow_open=allow_open) for item in argument.items])
    if not isinstance(argument, ObjectLiteral):
        raise refuse("Invalid type", "object takes its attributes and their types in braces", argument.start)
    attributes: dict[str, Type] = {}
    for item in argument.items:
        if not isinstance(item.key, KeyName):
            raise refuse("Invalid type", "attribute names stand without quotes", item.key.span)
        attributes[item.key.name] = type_of(item.value, allow_open=allow_open)
    return object_of(attributes)
