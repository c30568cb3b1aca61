"""Blocks that belong to others (driver config, scaling policy, secret config): kept as plain data in Nomad's form.

A block becomes a list of maps, so that it may be repeated; each of its labels is one more such level. An attribute
whose value is written out as `{...}` looks like a block to older drivers and is treated as one; an object that comes
from a call, a variable or parentheses stays an object. Nothing in here is expanded: `dynamic` is a name like any other.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from fedsched.jobspec.context import Context
from fedsched.jobspec.evaluate import value
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.tree import Attribute, Block, Body, ObjectLiteral


class Reporter(Protocol):
    """Takes what is wrong."""

    def report(self, problem: Problem) -> None: ...

    def refuse(self, error: JobfileProblems) -> None: ...


def free_form(body: Body, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Read a body without a schema. What cannot be evaluated is reported and left out."""
    found: dict[str, Any] = {}
    for attribute in body.attributes.values():
        _take_attribute(found, attribute, context, reporter)
    for block in body.blocks:
        _take_block(found, block, context, reporter)
    return found


def _take_attribute(found: dict[str, Any], attribute: Attribute, context: Context, reporter: Reporter) -> None:
    try:
        plain = value(attribute.expr, context).to_python()
    except JobfileProblems as error:
        reporter.refuse(error)
        return
    if plain is None:
        return
    if not _is_sayable(plain):
        detail = f"{attribute.name!r} holds an infinite number, which no driver can be told"
        reporter.report(Problem("Unsuitable value", detail, attribute.expr.start))
        return
    found[attribute.name] = [plain] if isinstance(attribute.expr, ObjectLiteral) else plain


def _is_sayable(plain: Any) -> bool:
    """Whether JSON has words for it: it knows no infinity."""
    if isinstance(plain, float):
        return math.isfinite(plain)
    if isinstance(plain, list):
        return all(_is_sayable(item) for item in plain)
    return not isinstance(plain, dict) or all(_is_sayable(item) for item in plain.values())


def _take_block(found: dict[str, Any], block: Block, context: Context, reporter: Reporter) -> None:
    inner: dict[str, Any] = free_form(block.body, block.context or context, reporter)
    for label in reversed(block.labels):
        inner = {label.text: [inner]}
    before = found.setdefault(block.type, [])
    if isinstance(before, list):
        before.append(inner)
    else:
        detail = f"{block.type!r} is an attribute already"
        reporter.report(Problem("Attribute and block of one name", detail, block.type_span))
