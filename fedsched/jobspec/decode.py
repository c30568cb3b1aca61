"""From a block of a job file to the API form of what it says: names checked, values turned into what the schema wants.

Nothing stops at the first mistake. What cannot be read is reported and left out; a misspelt name is reported and then
read as the one that was most likely meant, so that the checks of the whole job can go on and say what else is wrong.
"""

from __future__ import annotations

from typing import Any, Final

from fedsched.jobspec import convert, evaluate
from fedsched.jobspec.config_values import free_form
from fedsched.jobspec.context import Context
from fedsched.jobspec.dynamic import expand
from fedsched.jobspec.places import Places, Tree
from fedsched.jobspec.problems import MAX_PROBLEMS, JobfileProblems, Problem, TooMuch, nearest
from fedsched.jobspec.schema import Attr, Content, Kind, Nested, Schema, Shape
from fedsched.jobspec.source import Span
from fedsched.jobspec.tree import Attribute, Block, Body, Expr, Label
from fedsched.jobspec.values import Value

MAX_KEPT: Final = 10 * MAX_PROBLEMS
"""Problems gathered before they are sorted and cut."""


class Decoder:
    """Decodes the blocks of one file, gathering problems and places."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.places = Places()

    def block(self, block: Block, schema: Schema, context: Context) -> Tree:
        """Read a block and everything in it."""
        tree: Tree = {}
        self.places.begin(tree, block.span)
        context = block.context or context
        body = self._expanded(block.body, context)
        for attribute in body.attributes.values():
            self._attribute(tree, attribute, schema, body, context)
        first: dict[str, Span] = {}
        for inner in body.blocks:
            self._nested(tree, inner, schema, first, context)
        self._fill(tree, schema, body)
        if schema.finish is not None:
            for name, before in (schema.finish(tree) or {}).items():
                self.places.moved(tree, name, before)
        return tree

    def report(self, problem: Problem) -> None:
        """Keep a problem; past a number that nobody reads, they are dropped."""
        if len(self.problems) < MAX_KEPT:
            self.problems.append(problem)

    def refuse(self, error: JobfileProblems) -> None:
        """Keep the problems of one value and go on, unless the file asks for too much altogether."""
        if isinstance(error, TooMuch):
            raise error
        for problem in error.problems:
            self.report(problem)

    def _expanded(self, body: Body, context: Context) -> Body:
        try:
            return expand(body, context)
        except JobfileProblems as error:
            self.refuse(error)
            kept = [block for block in body.blocks if block.type != "dynamic"]
            return Body(body.attributes, kept, body.span)

    # --- attributes

    def _attribute(self, tree: Tree, attribute: Attribute, schema: Schema, body: Body, context: Context) -> None:
        attr = schema.attrs.get(attribute.name)
        nested = schema.blocks.get(attribute.name)
        if attr is not None:
            self._value(tree, attr, attribute, schema, context)
        elif nested is not None and nested.as_attribute:
            self._value(tree, Attr(nested.key, nested.name, Kind.TEXT_MAP), attribute, schema, context)
        else:
            meant = self._unknown_attribute(attribute, schema)
            if meant and meant.key not in body.attributes:
                self._value(tree, meant, attribute, schema, context)

    def _unknown_attribute(self, attribute: Attribute, schema: Schema) -> Attr | None:
        detail = f"{_here(schema)} has no attribute {attribute.name!r}."
        suggestion = ""
        if attribute.name in schema.blocks:
            detail = f"{attribute.name!r} is a block: write it without the equals sign."
        else:
            suggestion = nearest(attribute.name, schema.keys)
        self.report(Problem("Unsupported argument", detail, attribute.name_span, suggestion))
        return schema.attrs.get(suggestion)

    def _value(self, tree: Tree, attr: Attr, attribute: Attribute, schema: Schema, context: Context) -> None:
        expr = attribute.expr
        self.places.note(tree, attr.name, expr.start)
        try:
            value = evaluate.value(expr, context)
            if value.is_null and attr.may_be_null and attr.kind is not Kind.DURATION:
                return
            found = _in_kind(value, attr, expr.start)
        except JobfileProblems as error:
            self.refuse(error)
            self.places.damage(tree, "" if schema.finish else attr.name)
            return
        if attr.choices and found and found not in attr.choices:
            self._wrong_choice(found, attr, expr)
            self.places.damage(tree, attr.name)
            return
        tree[attr.name] = found

    def _wrong_choice(self, found: str, attr: Attr, expr: Expr) -> None:
        only = " or ".join(repr(choice) for choice in attr.choices)
        self.report(Problem(f"Invalid {attr.key}", f"{found!r} is not {only}.", expr.start))

    def _fill(self, tree: Tree, schema: Schema, body: Body) -> None:
        for attr in schema.attrs.values():
            if attr.is_required and attr.key not in body.attributes:
                detail = f"{_here(schema)} needs the attribute {attr.key!r}."
                self.report(Problem("Missing required argument", detail, body.missing_span))
                self.places.damage(tree, attr.name)
            if attr.default is not None and attr.name not in tree:
                tree[attr.name] = attr.default

    # --- blocks

    def _nested(self, tree: Tree, block: Block, schema: Schema, first: dict[str, Span], context: Context) -> None:
        nested = schema.blocks.get(block.type)
        if nested is None:
            nested = self._unknown_block(block, schema)
            if nested is None:
                return
        if nested.shape is Shape.ONE and self._is_again(nested, block, tree, first):
            return
        label = self._label(nested, block)
        found = self._content(nested, block, context)
        if nested.label:
            self._note_label(found, nested, label)
        if nested.shape is Shape.ONE:
            tree[nested.name] = found
            self.places.note(tree, nested.name, block.span)
        elif nested.shape is Shape.MANY:
            tree.setdefault(nested.name, []).append(found)
        else:
            tree.setdefault(nested.name, {})[label.text if label else ""] = found

    def _unknown_block(self, block: Block, schema: Schema) -> Nested | None:
        detail = f"{_here(schema)} has no block {block.type!r}."
        suggestion = ""
        if block.type in schema.attrs:
            detail = f"{block.type!r} is an attribute: write it with an equals sign."
        else:
            suggestion = nearest(block.type, schema.keys)
        self.report(Problem("Unsupported block type", detail, block.type_span, suggestion))
        return schema.blocks.get(suggestion)

    def _is_again(self, nested: Nested, block: Block, tree: Tree, first: dict[str, Span]) -> bool:
        """Report a block that may stand once and stands a second time."""
        before = first.setdefault(nested.key, block.span)
        if before is block.span and nested.name not in tree:
            return False
        where = f" The first is at {before}." if before is not block.span else ""
        detail = f"{nested.key!r} may be given once.{where}"
        self.report(Problem(f"Duplicate {nested.key} block", detail, block.type_span))
        return True

    def _label(self, nested: Nested, block: Block) -> Label | None:
        wanted = 1 if nested.label else 0
        if len(block.labels) < wanted:
            detail = f'write {nested.key} "name" {{ ... }}.'
            self.report(Problem(f"Missing name for {nested.key}", detail, block.brace_span))
        for extra in block.labels[wanted:]:
            takes = "takes one label" if wanted else "takes no label"
            self.report(Problem(f"Extraneous label for {nested.key}", f"{nested.key!r} {takes}.", extra.span))
        return block.labels[0] if block.labels and wanted else None

    def _note_label(self, found: Tree, nested: Nested, label: Label | None) -> None:
        if label is None:
            found[nested.label] = ""
            self.places.damage(found, nested.label)
            return
        text = label.text
        if nested.label_words is not None:
            text = nested.label_words.get(label.text.lower(), "")
            if not text:
                known = " or ".join(repr(word) for word in nested.label_words)
                self.report(Problem(f"Invalid {nested.key} label", f"{label.text!r} is not {known}.", label.span))
        found[nested.label] = text
        self.places.note(found, nested.label, label.span)

    def _content(self, nested: Nested, block: Block, context: Context) -> Tree:
        if nested.content is Content.FREE:
            return free_form(block.body, block.context or context, self)
        if isinstance(nested.content, Content):
            return self._texts(block, nested.content, context)
        return self.block(block, nested.content, context)

    def _texts(self, block: Block, content: Content, context: Context) -> Tree:
        """A block whose attributes are the user's own names."""
        found: Tree = {}
        self.places.begin(found, block.span)
        context = block.context or context
        for attribute in block.body.attributes.values():
            span = attribute.expr.start
            try:
                value = evaluate.value(attribute.expr, context)
                as_it_should = convert.as_strings if content is Content.TEXT_LISTS else convert.as_string
                found[attribute.name] = as_it_should(value, span)
                self.places.note(found, attribute.name, span)
            except JobfileProblems as error:
                self.refuse(error)
        for inner in block.body.blocks:
            detail = f"{block.type!r} holds only name = value."
            self.report(Problem("Unsupported block type", detail, inner.type_span))
        return found


def _here(schema: Schema) -> str:
    return f"{schema.title!r}"


def _in_kind(value: Value, attr: Attr, span: Span) -> Any:
    if attr.kind is Kind.WHOLE:
        return convert.as_int(value, span, *attr.bounds)
    return _CONVERT[attr.kind](value, span)


_CONVERT: Final = {
    Kind.TEXT: convert.as_string,
    Kind.TRUTH: convert.as_bool,
    Kind.TEXTS: lambda value, span: [] if value.is_null else convert.as_strings(value, span),
    Kind.TEXT_MAP: convert.as_string_map,
    Kind.DURATION: convert.as_duration,
}
