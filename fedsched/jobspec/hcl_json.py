"""HCL's JSON form: the same tree from an object.

JSON does not say what is a block and what an attribute, so a shape tells which names are blocks and how many labels
they have. A block's value is an object, or a list of them; each label is one more object around it. Everything else is
an attribute. Text in values is a template; positions point into the JSON source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.jobspec import numbers
from fedsched.jobspec.context import refuse
from fedsched.jobspec.expressions import ExpressionParser
from fedsched.jobspec.lexer import Lexer
from fedsched.jobspec.limits import MAX_DEPTH
from fedsched.jobspec.problems import JobfileProblems, in_order, too_much
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.templates import Failed
from fedsched.jobspec.tree import (
    Attribute,
    Block,
    Body,
    Expr,
    Label,
    Literal,
    ObjectItem,
    ObjectLiteral,
    Parenthesised,
    TupleLiteral,
)
from fedsched.jobspec.values import FALSE, NULL, TRUE, number

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING: Final = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"')
_WORD: Final = re.compile(r"[A-Za-z]+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|(.))")
_SIMPLE: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_KEYWORDS: Final = {"true": TRUE, "false": FALSE, "null": NULL}


@dataclass(frozen=True)
class Shape:
    """Which names inside a block are blocks. `inner` is asked when such a block is met, so shapes may be circular."""

    labels: int = 0
    blocks: Mapping[str, Callable[[], Shape]] = field(default_factory=dict)
    expressions: frozenset[str] = frozenset()
    """Attributes whose text is an expression of its own, not a template (`type`, `iterator`)."""


NO_BLOCKS: Final = Shape()


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value where it stands: dict of (key, key span, value) entries, list, str, number or keyword."""

    data: Any
    span: Span


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    span: Span
    value: Node


def parse(source: Source, shape: Shape) -> Body:
    """The tree of a JSON source. Raises `JobfileProblems`."""
    return _body(_Reader(source).whole(), shape)


class _Reader:
    """JSON with positions."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._text = source.text
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._value()
        self._skip()
        if self._at < len(self._text):
            raise refuse("Extra text", "the file holds one JSON object", self._here())
        return node

    def _value(self) -> Node:
        self._skip()
        char = self._text[self._at : self._at + 1]
        start = self._at
        if char == "{":
            return Node(self._nested(self._entries), self._span(start))
        if char == "[":
            return Node(self._nested(self._items), self._span(start))
        if char == '"':
            return Node(self._string(), self._span(start))
        match = _NUMBER.match(self._text, start) or _WORD.match(self._text, start)
        if match is None:
            raise refuse(
                "JSON value expected", "here should stand an object, a list, a text, a number or a word", self._here()
            )
        self._at = match.end()
        if match[0][0].isalpha():
            if match[0] not in _KEYWORDS:
                raise refuse(
                    "Unknown word", f"JSON knows true, false and null, not {match[0][:20]!r}", self._span(start)
                )
            return Node(_KEYWORDS[match[0]], self._span(start))
        try:
            found = numbers.parse(match[0])
        except numbers.NumberProblem as error:
            raise refuse("Invalid number", str(error), self._span(start)) from None
        assert found is not None
        return Node(number(found), self._span(start))

    def _nested(self, read: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_much(f"JSON may be nested {MAX_DEPTH} deep", self._here())
        self._at += 1
        found = read()
        self._depth -= 1
        return found

    def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        while not self._closes("}", bool(entries)):
            start = self._at
            if self._text[start : start + 1] != '"':
                raise refuse("Name expected", "names stand in double quotes", self._here())
            key = self._string()
            span = self._span(start)
            self._skip()
            if self._text[self._at : self._at + 1] != ":":
                raise refuse("Colon expected", "after a name comes a colon", self._here())
            self._at += 1
            entries.append(Entry(key, span, self._value()))
        return entries

    def _items(self) -> list[Node]:
        items: list[Node] = []
        while not self._closes("]", bool(items)):
            items.append(self._value())
        return items

    def _closes(self, closer: str, needs_comma: bool) -> bool:
        self._skip()
        char = self._text[self._at : self._at + 1]
        if char == closer:
            self._at += 1
            return True
        if needs_comma:
            if char != ",":
                raise refuse("Comma expected", f"here should stand a comma or {closer}", self._here())
            self._at += 1
            self._skip()
        return False

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise refuse("Invalid text", "a text has no closing quote, or holds a line end", self._here())
        start = self._at
        self._at = match.end()
        return _ESCAPE.sub(lambda found: self._unescaped(found, start), match[1]) if "\\" in match[1] else match[1]

    def _unescaped(self, found: re.Match[str], start: int) -> str:
        if found[1] is None:
            if found[3] not in _SIMPLE:
                raise refuse("Invalid escape", f"\\{found[3]} means nothing in JSON", self._span(start))
            return _SIMPLE[found[3]]
        first = int(found[1], 16)
        if found[2] is not None and 0xD800 <= first < 0xDC00:
            return chr(0x10000 + ((first - 0xD800) << 10) + (int(found[2], 16) - 0xDC00))
        alone = "\ufffd" if 0xD800 <= first <= 0xDFFF else chr(first)
        return alone if found[2] is None else alone + "\ufffd"

    def _skip(self) -> None:
        match = _BLANK.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _here(self) -> Span:
        return Span(self._source, self._at, min(self._at + 1, len(self._text)))

    def _span(self, start: int) -> Span:
        return Span(self._source, start, self._at)


def _body(node: Node, shape: Shape) -> Body:
    attributes: dict[str, Attribute] = {}
    blocks: list[Block] = []
    for entry in _object(node):
        if entry.key == "//":
            continue
        inner = shape.blocks.get(entry.key)
        if inner is not None and _is_block(entry.value):
            _add_blocks(blocks, entry.key, entry.span, entry.value, inner(), [])
            continue
        if entry.key in attributes:
            raise refuse("Attribute set twice", f"{entry.key!r} has already been set", entry.span)
        expr = _expression(entry.value, entry.key in shape.expressions)
        attributes[entry.key] = Attribute(entry.key, _kept_whole(expr), entry.span, entry.span.to(entry.value.span))
    return Body(attributes, blocks, node.span)


def _add_blocks(blocks: list[Block], type_: str, span: Span, node: Node, shape: Shape, labels: list[Label]) -> None:
    for one in node.data if isinstance(node.data, list) and not _is_entries(node.data) else [node]:
        if len(labels) < shape.labels:
            for entry in _object(one):
                _add_blocks(blocks, type_, span, entry.value, shape, [*labels, Label(entry.key, entry.span)])
            continue
        inner = shape
        if type_ == "dynamic":
            inner = Shape(0, {"content": shape.blocks.get(labels[0].text, Shape)}, frozenset({"iterator"}))
        brace = Span(one.span.source, one.span.start, one.span.start + 1)
        blocks.append(Block(type_, labels, _body(one, inner), span, span, brace))


def _object(node: Node) -> list[Entry]:
    if not _is_entries(node.data):
        raise refuse("Object expected", "a block is written as an object in braces", node.span)
    found: list[Entry] = node.data
    return found


def _is_entries(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(entry, Entry) for entry in data)


def _is_block(node: Node) -> bool:
    """Objects and lists of objects; a name that is a block in one place may be a plain attribute in another."""
    if not isinstance(node.data, list):
        return False
    return _is_entries(node.data) or all(isinstance(item, Node) and _is_entries(item.data) for item in node.data)


def _kept_whole(expr: Expr) -> Expr:
    """An object as an attribute's value is data, not a block in disguise."""
    return Parenthesised(expr.span, expr) if isinstance(expr, ObjectLiteral) else expr


def _expression(node: Node, is_code: bool = False) -> Expr:
    data = node.data
    if isinstance(data, str):
        return _code(data, node.span) if is_code else _template(data, node.span)
    if not isinstance(data, list):
        return Literal(node.span, data)
    opening = Span(node.span.source, node.span.start, node.span.start + 1)
    if node.span.source.text[node.span.start] == "[":
        return TupleLiteral(node.span, tuple(_expression(item) for item in data), opening)
    items = tuple(ObjectItem(_template(entry.key, entry.span), _expression(entry.value)) for entry in data)
    return ObjectLiteral(node.span, items, opening)


def _template(text: str, span: Span) -> Expr:
    return _parsed(text, span, ExpressionParser.whole_template, template=True)


def _code(text: str, span: Span) -> Expr:
    return _parsed(text, span, ExpressionParser.parse_expression, template=False)


def _parsed(text: str, span: Span, read: Callable[[ExpressionParser], Expr], *, template: bool) -> Expr:
    inside = Span(span.source, span.start + 1, span.end)
    source = Source(text, span.filename, base=inside)
    lexer = Lexer(source)
    parser = ExpressionParser(source, lexer.scan_template() if template else lexer.scan(), lexer.problems)
    try:
        expr = read(parser)
    except Failed:
        raise JobfileProblems(in_order(parser.problems)) from None
    if parser.problems:
        raise JobfileProblems(in_order(parser.problems))
    return expr
