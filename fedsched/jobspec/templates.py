"""Templates: quoted strings and heredocs with `${...}` and `%{...}` in them.

Reading goes in two rounds. The first gives a flat list of pieces (text, values, directives), with escapes resolved, `~`
applied and the common indent of a `<<-` heredoc removed; the second pairs the directives up.

A heredoc's text comes line by line, so `~` strips within its own line only: back over blanks, or forward up to and
including the newline. The line after such a newline is no longer the beginning of a line, and keeps its indent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fedsched.jobspec.graphemes import SPACES, split_graphemes
from fedsched.jobspec.lexer import (
    CONTROL,
    END,
    HEREDOC_CLOSE,
    HEREDOC_OPEN,
    IDENT,
    INTERPOLATION,
    QUOTE_CLOSE,
    TEMPLATE_END,
    TEXT,
    Token,
)
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.tree import Expr, Interpolation, Literal, Template, TemplateFor, TemplateIf
from fedsched.jobspec.values import string

_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_HEX_DIGITS: Final = {"u": 4, "U": 8}
_HEX: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(slots=True)
class _Text:
    text: str
    span: Span


@dataclass(slots=True)
class _Directive:
    """`%{ keyword ... }`; the names and the expression as far as the keyword has them."""

    keyword: str
    span: Span
    expr: Expr | None = None
    key_name: str | None = None
    value_name: str = ""


_Piece = _Text | Interpolation | _Directive


class Failed(Exception):
    """The current item cannot be read; its problem has been reported."""


class TemplateParser:
    """The half of the parser that reads templates; `ExpressionParser` provides the rest."""

    source: Source
    tokens: list[Token]
    index: int

    if TYPE_CHECKING:

        def peek(self) -> Token: ...
        def read(self) -> Token: ...
        def span(self, start: int, end: int) -> Span: ...
        def text_of(self, token: Token) -> str: ...
        def report(self, summary: str, detail: str, span: Span) -> None: ...
        def fail(self, summary: str, detail: str, token: Token) -> Failed: ...
        def newlines(self, matter: bool) -> AbstractContextManager[None]: ...
        def deeper(self) -> AbstractContextManager[None]: ...
        def expression(self) -> Expr: ...
        def for_names(self) -> tuple[str | None, str]: ...

    def template(self) -> Expr:
        """From the opening quote (or heredoc marker) to the closing one."""
        opened = self.read()
        is_heredoc = opened.kind == HEREDOC_OPEN
        flushes = is_heredoc and self.source.text.startswith("<<-", opened.start)
        with self.deeper(), self.newlines(True):
            pieces, close = self._pieces(HEREDOC_CLOSE if is_heredoc else QUOTE_CLOSE, opened)
            if flushes:
                _remove_indent(pieces)
            end = self.span(close.start, close.end)
            return self._assembled(pieces, self.span(opened.start, close.end), end)

    def whole_template(self) -> Expr:
        """A source that is a template from beginning to end."""
        with self.deeper(), self.newlines(True):
            pieces, close = self._pieces(END, None)
            end = self.span(close.start, close.end)
            return self._assembled(pieces, self.span(0, close.end), end)

    def _assembled(self, pieces: list[_Piece], span: Span, end: Span) -> Expr:
        if len(pieces) == 1 and isinstance(pieces[0], Interpolation):
            return Interpolation(span, pieces[0].inner, pieces[0].strips)
        stream = iter(pieces)
        parts, closing = self._nested(stream, None, end)
        if closing is not None:
            raise self._unbalanced(closing)
        if not parts:
            parts = [Literal(self.span(end.end, end.end), string(""))]
        return Template(span, tuple(parts))

    def _pieces(self, closer: str, opened: Token | None) -> tuple[list[_Piece], Token]:
        pieces: list[_Piece] = []
        strip_next = False
        while True:
            token = self.read()
            strips_left, strip_next = strip_next, False
            if token.kind == closer:
                return pieces, token
            if token.kind == TEXT:
                text = self.unescape(token, quoted=closer == QUOTE_CLOSE)
                text = text.lstrip(SPACES) if strips_left else text
                following = self.tokens[self.index]
                if following.kind in (INTERPOLATION, CONTROL) and following.strips:
                    text = text.rstrip(SPACES)
                pieces.append(_Text(text, self.span(token.start, token.end)))
            elif token.kind in (INTERPOLATION, CONTROL):
                with self.newlines(False):
                    piece, ended = self._sequence(token)
                strip_next = ended.strips
                pieces.append(piece)
            else:
                line = self.span(opened.start, opened.end).first.line if opened else 1
                raise self.fail("Unterminated text", f"nothing closes the text that begins in line {line}", token)

    def _sequence(self, opened: Token) -> tuple[_Piece, Token]:
        if opened.kind == INTERPOLATION:
            inner = self.expression()
            ended = self._sequence_end("}")
            return Interpolation(self.span(opened.start, ended.end), inner, opened.strips or ended.strips), ended
        token = self.peek()
        if token.kind != IDENT:
            raise self.fail("Invalid directive", "here should stand if, else, endif, for or endfor", token)
        self.read()
        keyword = self.text_of(token)
        expr, key_name, value_name = None, None, ""
        if keyword == "if":
            expr = self.expression()
        elif keyword == "for":
            key_name, value_name = self.for_names()
            expr = self.expression()
        elif keyword not in ("else", "endif", "endfor"):
            raise self.fail("Invalid directive", f"{keyword!r} is none of if, else, endif, for and endfor", token)
        ended = self._sequence_end("}")
        return _Directive(keyword, self.span(opened.start, ended.end), expr, key_name, value_name), ended

    def _sequence_end(self, closer: str) -> Token:
        token = self.peek()
        if token.kind != TEMPLATE_END:
            raise self.fail("Extra text in a template", f"here should stand the closing {closer}", token)
        self.read()
        return token

    def _nested(
        self, stream: Iterator[_Piece], opener: _Directive | None, end: Span
    ) -> tuple[list[Expr], _Directive | None]:
        """Parts up to the directive that ends this level, which is given too."""
        parts: list[Expr] = []
        for piece in stream:
            if isinstance(piece, _Text):
                parts.append(Literal(piece.span, string(piece.text)))
            elif isinstance(piece, Interpolation):
                parts.append(piece)
            elif piece.keyword == "if":
                with self.deeper():
                    parts.append(self._if(stream, piece, end))
            elif piece.keyword == "for":
                with self.deeper():
                    parts.append(self._for_directive(stream, piece, end))
            else:
                return parts, piece
        if opener is not None:
            line = opener.span.first.line
            self.report("Unfinished template", f"the {opener.keyword!r} in line {line} has no end{opener.keyword}", end)
            raise Failed
        return parts, None

    def _if(self, stream: Iterator[_Piece], opener: _Directive, end: Span) -> Expr:
        assert opener.expr is not None
        if_true, closing = self._nested(stream, opener, end)
        if_false: list[Expr] = []
        if closing is not None and closing.keyword == "else":
            if_false, closing = self._nested(stream, opener, end)
        if closing is None or closing.keyword != "endif":
            raise self._unbalanced(closing or opener)
        span = opener.span.to(closing.span)
        return TemplateIf(span, opener.expr, self._content(if_true, span), self._content(if_false, span))

    def _for_directive(self, stream: Iterator[_Piece], opener: _Directive, end: Span) -> Expr:
        assert opener.expr is not None
        content, closing = self._nested(stream, opener, end)
        if closing is None or closing.keyword != "endfor":
            raise self._unbalanced(closing or opener)
        span = opener.span.to(closing.span)
        return TemplateFor(span, opener.key_name, opener.value_name, opener.expr, self._content(content, span))

    def _content(self, parts: list[Expr], span: Span) -> Expr:
        return Template(span, tuple(parts) or (Literal(span, string("")),))

    def _unbalanced(self, directive: _Directive) -> Failed:
        self.report("Unexpected directive", f"{directive.keyword!r} ends nothing that is open here", directive.span)
        return Failed()

    def unescape(self, token: Token, *, quoted: bool) -> str:
        """The text that a token stands for."""
        raw = self.text_of(token)
        if "{" in raw:
            raw_parts = _split_template_escapes(raw)
        else:
            raw_parts = [(0, raw)]
        if not quoted or "\\" not in raw:
            return "".join(part for _, part in raw_parts)
        return "".join(self._backslashes(part, token.start + offset) for offset, part in raw_parts)

    def _backslashes(self, text: str, start: int) -> str:
        pieces: list[str] = []
        at = 0
        while (found := text.find("\\", at)) >= 0:
            pieces.append(text[at:found])
            selector = text[found + 1 : found + 2]
            at = found + 2
            if selector in _ESCAPES:
                pieces.append(_ESCAPES[selector])
            elif selector in _HEX_DIGITS:
                at = found + 2
                while at < len(text) and at - found - 2 < _HEX_DIGITS[selector] and text[at] in _HEX:
                    at += 1
                pieces.append(self._code_point(text[found + 2 : at], selector, self.span(start + found, start + at)))
            else:
                detail = f'\\{selector} means nothing; known are \\n, \\r, \\t, \\", \\\\, \\u and \\U'
                self.report("Invalid escape", detail, self.span(start + found, start + at))
        pieces.append(text[at:])
        return "".join(pieces)

    def _code_point(self, digits: str, selector: str, span: Span) -> str:
        if len(digits) != _HEX_DIGITS[selector]:
            self.report("Invalid escape", f"\\{selector} needs {_HEX_DIGITS[selector]} hexadecimal digits", span)
            return ""
        code = int(digits, 16)
        return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else "\ufffd"


def _split_template_escapes(raw: str) -> list[tuple[int, str]]:
    """Pieces with their offsets, `$${` and `%%{` shortened by the doubled sign."""
    parts: list[tuple[int, str]] = []
    at = start = 0
    while at < len(raw):
        if raw.startswith(("$${", "%%{"), at):
            parts += [(start, raw[start:at]), (at + 1, raw[at + 1 : at + 3])]
            at = start = at + 3
        else:
            at += 1
    parts.append((start, raw[start:]))
    return parts


def _remove_indent(pieces: list[_Piece]) -> None:
    """Take the smallest indent off every line; blank lines do not count, characters do (a tab is one)."""
    smallest: int | None = None
    line_starts: list[_Text] = []
    at_start = True
    for piece in pieces:
        text = piece.text if isinstance(piece, _Text) else ""
        if at_start:
            at_start = False
            indent = _indent(text)
            if not isinstance(piece, _Text):
                smallest = 0
            elif len(indent) < len(text) or not text.endswith("\n"):
                line_starts.append(piece)
                width = sum(1 for _ in split_graphemes(indent))
                smallest = width if smallest is None else min(smallest, width)
        if text.endswith("\n"):
            at_start = True
    for line in line_starts:
        taken = list(split_graphemes(_indent(line.text)))[: smallest or 0]
        line.text = line.text[len("".join(taken)) :]


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(SPACES))]
