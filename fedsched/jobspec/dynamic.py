"""`dynamic` blocks: blocks made from a collection, one per element.

Expansion goes one level at a time, as the tree is read: the generated blocks carry the context that knows their
iterator, and what is inside them is expanded when their own bodies are.
"""

from __future__ import annotations

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context, refuse
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.tree import Block, Body, Expr, Label, Reference, TupleLiteral
from fedsched.jobspec.types import STRING
from fedsched.jobspec.values import make_object


def expand(body: Body, context: Context) -> Body:
    """The body with generated blocks in place of its `dynamic` ones, in order. Raises all problems together."""
    if not any(block.type == "dynamic" for block in body.blocks):
        return body
    blocks: list[Block] = []
    problems: list[Problem] = []
    for block in body.blocks:
        if block.type != "dynamic":
            blocks.append(block)
            continue
        try:
            blocks += _generated(block, block.context or context)
        except JobfileProblems as error:
            if error.code == "job_file_too_large":
                raise
            problems += error.problems
    if problems:
        raise JobfileProblems(problems)
    return Body(body.attributes, blocks, body.span)


def _generated(block: Block, context: Context) -> list[Block]:
    label = _type_label(block)
    content = _content(block)
    for_each, iterator, labels = _settings(block, label.text)
    collection = evaluate.value(for_each, context)
    made: list[Block] = []
    for key, element in evaluate.pairs(collection, for_each.span):
        context.budget.block(block.span)
        inner = context.with_names({iterator: make_object({"key": key, "value": element})})
        named = [Label(_label_text(expr, inner), expr.span) for expr in labels]
        made.append(Block(label.text, named, content.body, block.span, label.span, content.brace_span, inner))
    return made


def _type_label(block: Block) -> Label:
    if not block.labels:
        raise refuse("Missing label", "`dynamic` is followed by the type of the blocks to make", block.brace_span)
    if len(block.labels) > 1:
        raise refuse(
            "Extra label", "`dynamic` takes one label; labels of the blocks go into `labels`", block.labels[1].span
        )
    return block.labels[0]


def _content(block: Block) -> Block:
    found = None
    for inner in block.body.blocks:
        if inner.type != "content":
            raise refuse("Unexpected block", "a dynamic block holds only a `content` block", inner.type_span)
        if found is not None:
            raise refuse("Second content block", "a dynamic block has one `content`", inner.type_span)
        found = inner
    if found is None:
        detail = "a dynamic block needs a `content` block that says what each made block holds"
        raise refuse("Missing content block", detail, block.body.missing_span)
    return found


def _settings(block: Block, type_: str) -> tuple[Expr, str, tuple[Expr, ...]]:
    attributes = block.body.attributes
    for name, attribute in attributes.items():
        if name not in ("for_each", "iterator", "labels"):
            detail = f"a dynamic block has for_each, iterator and labels, not {name!r}"
            raise refuse("Unexpected attribute", detail, attribute.name_span)
    if "for_each" not in attributes:
        raise refuse("Missing attribute", "a dynamic block needs `for_each`", block.body.missing_span)
    iterator = type_
    if "iterator" in attributes:
        expr = attributes["iterator"].expr
        if not isinstance(expr, Reference) or expr.steps:
            raise refuse("Invalid iterator", "the iterator is a name, without quotes", expr.span)
        iterator = expr.root
    labels: tuple[Expr, ...] = ()
    if "labels" in attributes:
        given = attributes["labels"].expr
        if not isinstance(given, TupleLiteral):
            raise refuse("Invalid labels", "the labels are written as a list", given.start)
        labels = given.items
    return attributes["for_each"].expr, iterator, labels


def _label_text(expr: Expr, context: Context) -> str:
    found = evaluate.value(expr, context)
    if found.is_null:
        raise refuse("Invalid label", "null is no label", expr.span)
    try:
        return convert(found, STRING).text
    except Mismatch as error:
        raise refuse("Invalid label", str(error), expr.span) from None
