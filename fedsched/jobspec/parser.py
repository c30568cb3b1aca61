"""Bodies, blocks and attributes: the outer half of the grammar (`expressions` has the inner one).

One wrong line does not hide the next: after a problem the parser skips to the end of that item, over everything that
was opened in it, and goes on. Each brace, bracket and template counts as one level of depth, which is bounded.
"""

from __future__ import annotations

from typing import Final

from fedsched.jobspec import lexer
from fedsched.jobspec.expressions import ExpressionParser
from fedsched.jobspec.lexer import END, IDENT, NEWLINE, QUOTE_CLOSE, QUOTE_OPEN, TEXT, Token
from fedsched.jobspec.source import Span
from fedsched.jobspec.templates import Failed
from fedsched.jobspec.tree import Attribute, Block, Body, Label

_CLOSES: Final = {
    "}": "{",
    "]": "[",
    ")": "(",
    QUOTE_CLOSE: QUOTE_OPEN,
    lexer.HEREDOC_CLOSE: lexer.HEREDOC_OPEN,
}
_OPENS: Final = frozenset({*_CLOSES.values(), lexer.INTERPOLATION, lexer.CONTROL})


class Parser(ExpressionParser):
    """Reads one file."""

    def parse_file(self) -> Body:
        """The whole source; problems are in `self.problems`."""
        with self.newlines(True):
            return self._body(END, None)

    def _body(self, closer: str, opened: Token | None) -> Body:
        attributes: dict[str, Attribute] = {}
        blocks: list[Block] = []
        start = opened.start if opened is not None else 0
        with self.deeper():
            while True:
                token = self.peek()
                if token.kind == NEWLINE:
                    self.read()
                elif token.kind == closer:
                    self.read()
                    return Body(attributes, blocks, self.span(start, token.end))
                elif token.kind == END:
                    if opened is not None and not self.is_lost:
                        self.report(
                            "Unclosed block", "no closing brace before the end of the file", self.span_of(opened)
                        )
                    return Body(attributes, blocks, self.span(start, token.end))
                else:
                    self._item(attributes, blocks)

    def _item(self, attributes: dict[str, Attribute], blocks: list[Block]) -> None:
        begin = self.index
        try:
            self._read_item(attributes, blocks)
        except Failed:
            self._recover(begin)

    def _read_item(self, attributes: dict[str, Attribute], blocks: list[Block]) -> None:
        token = self.peek()
        if token.kind == QUOTE_OPEN:
            raise self.fail("Quoted name", "names of attributes and blocks stand without quotes", token)
        if token.kind != IDENT:
            raise self.fail("Attribute or block expected", "here should stand `name = value` or `name { ... }`", token)
        self.read()
        following = self.peek()
        if following.kind == "=":
            self._attribute(token, attributes)
            self._end_of_item("attribute")
        elif following.kind in (IDENT, QUOTE_OPEN, "{"):
            blocks.append(self._block(token))
            self._end_of_item("block")
        else:
            detail = f"to set {self.text_of(token)}, write `{self.text_of(token)} = value`"
            raise self.fail("Attribute or block expected", detail, token)

    def _attribute(self, name: Token, attributes: dict[str, Attribute]) -> None:
        self.read()
        expr = self.expression()
        text = self.text_of(name)
        attribute = Attribute(text, expr, self.span_of(name), self.span(name.start, expr.span.end))
        first = attributes.setdefault(text, attribute)
        if first is not attribute:
            detail = f"{text!r} has already been set in line {first.name_span.first.line}"
            self.report("Attribute set twice", detail, attribute.name_span)

    def _end_of_item(self, what: str) -> None:
        token = self.peek()
        if token.kind in (NEWLINE, END):
            return
        if token.kind == ",":
            raise self.fail("Unexpected comma", f"after an {what} comes a new line, not a comma", token)
        raise self.fail("New line expected", f"this does not belong to the {what} before it", token)

    def _block(self, name: Token) -> Block:
        labels = self._labels()
        brace = self.read()
        header_end = labels[-1].span.end if labels else name.end
        body = self._block_body(brace)
        return Block(
            self.text_of(name),
            labels,
            body,
            self.span(name.start, header_end),
            self.span_of(name),
            self.span_of(brace),
        )

    def _labels(self) -> list[Label]:
        labels: list[Label] = []
        while True:
            token = self.peek()
            if token.kind == "{":
                return labels
            if token.kind == IDENT:
                self.read()
                labels.append(Label(self.text_of(token), self.span_of(token)))
            elif token.kind == QUOTE_OPEN:
                labels.append(self._quoted_label())
            elif token.kind == NEWLINE:
                raise self.fail(
                    "Block without content", "the opening brace must stand on the line of the block's name", token
                )
            else:
                raise self.fail("Invalid block", "here should stand a label or the opening brace", token)

    def _quoted_label(self) -> Label:
        opened = self.read()
        text = ""
        while True:
            token = self.read()
            if token.kind == QUOTE_CLOSE:
                return Label(text, self.span(opened.start, token.end))
            if token.kind != TEXT:
                raise self.fail("Invalid label", "a label is plain text, without ${...}", token)
            text += self.unescape(token, quoted=True)

    def _block_body(self, brace: Token) -> Body:
        token = self.peek()
        if token.kind in (NEWLINE, "}", END):
            return self._body("}", brace)
        attributes: dict[str, Attribute] = {}
        name = self.read()
        if name.kind != IDENT or self.peek().kind != "=":
            detail = "a block on one line holds one attribute and no block; put the braces' content on its own lines"
            raise self.fail("Attribute expected", detail, name)
        self._attribute(name, attributes)
        closing = self.peek()
        if closing.kind != "}":
            detail = "a block on one line holds one attribute; put each on its own line"
            raise self.fail("Closing brace expected", detail, closing)
        self.read()
        return Body(attributes, [], self.span(brace.start, closing.end))

    def _recover(self, begin: int) -> None:
        """Skip the rest of an item in which something was wrong."""
        failed_at = self.index
        opened: list[str] = []
        self.index = begin
        while True:
            token = self.tokens[self.index]
            if token.kind == END:
                self.is_lost = self.is_lost or bool(opened)
                return
            if token.kind == NEWLINE and not opened and self.index >= failed_at - 1:
                return
            if token.kind in _OPENS:
                opened.append(token.kind)
            elif token.kind == lexer.TEMPLATE_END:
                if opened and opened[-1] in (lexer.INTERPOLATION, lexer.CONTROL):
                    opened.pop()
            elif token.kind in _CLOSES:
                opener = _CLOSES[token.kind]
                if opener not in opened:
                    if token.kind == "}" and self.index > begin:
                        return
                else:
                    while opened.pop() != opener:
                        pass
            self.index += 1

    def span_of(self, token: Token) -> Span:
        return self.span(token.start, token.end)
