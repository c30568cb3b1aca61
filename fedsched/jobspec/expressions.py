"""The grammar of expressions: operators by precedence, then what may follow a value, then what a value may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Final

from fedsched.jobspec import numbers
from fedsched.jobspec.lexer import END, HEREDOC_OPEN, IDENT, NEWLINE, NUMBER, QUOTE_OPEN, TEMPLATE_END, Token
from fedsched.jobspec.limits import MAX_DEPTH
from fedsched.jobspec.numbers import NumberProblem
from fedsched.jobspec.problems import MAX_PROBLEMS, Problem, too_much
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.templates import Failed, TemplateParser
from fedsched.jobspec.tree import (
    Access,
    AttributeStep,
    Binary,
    Call,
    Conditional,
    Expr,
    ForLoop,
    IndexStep,
    KeyName,
    Literal,
    ObjectItem,
    ObjectLiteral,
    Parenthesised,
    Reference,
    SplatStep,
    Step,
    Template,
    TupleLiteral,
    Unary,
)
from fedsched.jobspec.values import FALSE, NULL, TRUE, Value
from fedsched.jobspec.values import number as number_value

_PRECEDENCE: Final = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    ">": 4,
    "<=": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
}
_KEYWORDS: Final = {"true": TRUE, "false": FALSE, "null": NULL}
_ENDS: Final = frozenset({END, TEMPLATE_END})


class ExpressionParser(TemplateParser):
    """Reads expressions from tokens; `Parser` adds what stands around them."""

    def __init__(self, source: Source, tokens: list[Token], problems: list[Problem]) -> None:
        self.source = source
        self.tokens = tokens
        self.problems = problems
        self.index = 0
        self.is_lost = False
        """Recovery ran to the end of the file: what is unclosed now is only a consequence."""
        self._newlines = False
        self._depth = 0

    def parse_expression(self) -> Expr:
        """A source that is one expression and nothing else."""
        expr = self.expression()
        token = self.peek()
        if token.kind != END:
            raise self.fail("Extra text after the value", "this does not belong to the value before it", token)
        return expr

    def peek(self) -> Token:
        if not self._newlines:
            while self.tokens[self.index].kind == NEWLINE:
                self.index += 1
        return self.tokens[self.index]

    def read(self) -> Token:
        token = self.peek()
        if token.kind != END:
            self.index += 1
        return token

    @contextmanager
    def newlines(self, matter: bool) -> Iterator[None]:
        """Whether a newline is a token here, or just a blank."""
        before, self._newlines = self._newlines, matter
        try:
            yield
        finally:
            self._newlines = before

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_much(f"expressions and blocks may be nested {MAX_DEPTH} deep", self.span_here())
        try:
            yield
        finally:
            self._depth -= 1

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def span_here(self) -> Span:
        token = self.tokens[self.index]
        return self.span(token.start, token.end)

    def text_of(self, token: Token) -> str:
        return self.source.text[token.start : token.end]

    def report(self, summary: str, detail: str, span: Span) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(summary, detail, span))

    def fail(self, summary: str, detail: str, token: Token) -> Failed:
        self.report(summary, detail, self.span(token.start, token.end))
        return Failed()

    def expression(self) -> Expr:
        with self.deeper():
            condition = self._binary(1)
            if self.peek().kind != "?":
                return condition
            self.read()
            if_true = self.expression()
            if self.peek().kind != ":":
                raise self.fail(
                    "Incomplete conditional", "`condition ? a : b` needs a colon and a second value", self.peek()
                )
            self.read()
            if_false = self.expression()
            span = self.span(condition.span.start, if_false.span.end)
            return Conditional(span, condition, if_true, if_false)

    def _binary(self, lowest: int) -> Expr:
        left = self._unary()
        while True:
            operator = self.peek().kind
            rank = _PRECEDENCE.get(operator, 0)
            if rank < lowest:
                return left
            self.read()
            right = self._binary(rank + 1)
            left = Binary(self.span(left.span.start, right.span.end), operator, left, right)

    def _unary(self) -> Expr:
        token = self.peek()
        if token.kind not in ("-", "!"):
            return self._postfix()
        self.read()
        with self.deeper():
            operand = self._unary()
        span = self.span(token.start, operand.span.end)
        return Unary(span, token.kind, operand, self.span(token.start, token.end))

    def _postfix(self) -> Expr:
        base = self._primary()
        steps: list[Step] = []
        while True:
            token = self.peek()
            if token.kind == ".":
                steps.append(self._dot_step())
            elif token.kind == "[":
                steps.append(self._bracket_step())
            else:
                return self._with_steps(base, steps)

    def _with_steps(self, base: Expr, steps: list[Step]) -> Expr:
        """Constant steps belong to a reference itself: should its root be unknown, all of them are kept as text."""
        if isinstance(base, Reference):
            constant = list(takewhile(_is_constant, steps))
            steps = steps[len(constant) :]
            end = constant[-1].span.end if constant else base.span.end
            base = Reference(self.span(base.span.start, end), base.root, tuple(constant))
        if not steps:
            return base
        last = steps[-1]
        end = max([last.span.end, *(s.span.end for s in last.steps)]) if isinstance(last, SplatStep) else last.span.end
        return Access(self.span(base.span.start, end), base, tuple(steps))

    def _dot_step(self) -> Step:
        dot = self.read()
        token = self.peek()
        if token.kind == IDENT:
            self.read()
            return AttributeStep(self.text_of(token), self.span(dot.start, token.end))
        if token.kind == NUMBER:
            self.read()
            return self._legacy_index(dot, token)
        if token.kind == "*":
            self.read()
            return self._splat(dot, token, brackets=False)
        raise self.fail("Attribute name expected", "after a dot comes a name", token)

    def _legacy_index(self, dot: Token, token: Token) -> Step:
        text = self.text_of(token)
        if not text.isdigit():
            raise self.fail("Invalid index", "write indexes in brackets, like [0][1]", token)
        key = Literal(self.span(token.start, token.end), self._number(token))
        return IndexStep(key, self.span(dot.start, token.end))

    def _bracket_step(self) -> Step:
        opened = self.read()
        with self.newlines(False):
            token = self.peek()
            if token.kind == "*" and self._kind_after() == "]":
                self.read()
                close = self.read()
            else:
                key = self.expression()
                close = self.peek()
                if close.kind != "]":
                    raise self._unclosed(opened, close, "Closing bracket expected", "an index ends with ]")
                self.read()
                return IndexStep(key, self.span(opened.start, close.end))
        return self._splat(opened, close, brackets=True)

    def _kind_after(self) -> str:
        at = self.index + 1
        while self.tokens[at].kind == NEWLINE:
            at += 1
        return self.tokens[at].kind

    def _splat(self, first: Token, last: Token, *, brackets: bool) -> Step:
        """`.*` takes the names that follow, `[*]` also what is in brackets."""
        steps: list[Step] = []
        with self.deeper():
            while True:
                token = self.peek()
                if token.kind == ".":
                    steps.append(self._dot_step())
                elif brackets and token.kind == "[":
                    steps.append(self._bracket_step())
                else:
                    return SplatStep(tuple(steps), self.span(first.start, last.end))

    def _primary(self) -> Expr:
        token = self.peek()
        span = self.span(token.start, token.end)
        match token.kind:
            case "name":
                return self._named(token)
            case "number":
                self.read()
                return Literal(span, self._number(token))
            case "(":
                return self._parenthesised()
            case "[":
                return self._tuple()
            case "{":
                return self._object()
            case kind if kind in (QUOTE_OPEN, HEREDOC_OPEN):
                return self.template()
            case _:
                raise self.fail("Value expected", "here should stand a value", token)

    def _number(self, token: Token) -> Value:
        try:
            parsed = numbers.parse(self.text_of(token))
        except NumberProblem as error:
            raise self.fail("Invalid number", str(error), token) from None
        assert parsed is not None, self.text_of(token)
        return number_value(parsed)

    def _named(self, token: Token) -> Expr:
        self.read()
        name = self.text_of(token)
        span = self.span(token.start, token.end)
        kind = self.tokens[self.index].kind
        if kind in ("(", "::"):
            return self._call(token)
        if name in _KEYWORDS:
            return Literal(span, _KEYWORDS[name])
        return Reference(span, name, ())

    def _call(self, first: Token) -> Expr:
        last = first
        while self.peek().kind == "::":
            self.read()
            last = self.read()
            if last.kind != IDENT:
                raise self.fail("Function name expected", "after :: comes a name", last)
        opened = self.peek()
        if opened.kind != "(":
            raise self.fail("Arguments expected", "a function's name is followed by parentheses", opened)
        self.read()
        args: list[Expr] = []
        expands = False
        with self.newlines(False):
            while self.peek().kind != ")":
                args.append(self.expression())
                token = self.peek()
                if token.kind == "...":
                    expands = True
                    self.read()
                    if self.peek().kind != ")":
                        raise self.fail("Closing parenthesis expected", "after `...` come no more arguments", token)
                elif token.kind == ",":
                    self.read()
                elif token.kind != ")":
                    raise self._unclosed(opened, token, "Comma expected", "arguments are separated by commas")
            close = self.read()
        name = self.source.text[first.start : last.end]
        return Call(
            self.span(first.start, close.end),
            name,
            tuple(args),
            expands,
            self.span(first.start, last.end),
            self.span(opened.start, opened.end),
            self.span(close.start, close.end),
        )

    def _parenthesised(self) -> Expr:
        opened = self.read()
        with self.newlines(False):
            inner = self.expression()
            close = self.peek()
            if close.kind != ")":
                raise self._unclosed(opened, close, "Closing parenthesis expected", "the parentheses hold one value")
            self.read()
        return Parenthesised(self.span(opened.start, close.end), inner)

    def _tuple(self) -> Expr:
        opened = self.read()
        with self.newlines(False):
            if self._at_for():
                return self._for(opened, "]")
            items: list[Expr] = []
            while self.peek().kind != "]":
                if self.peek().kind == END:
                    raise self._unclosed(opened, self.peek(), "", "")
                items.append(self.expression())
                token = self.peek()
                if token.kind == ",":
                    self.read()
                elif token.kind != "]":
                    raise self._unclosed(opened, token, "Comma expected", "items of a list are separated by commas")
            close = self.read()
        return TupleLiteral(self.span(opened.start, close.end), tuple(items), self.span(opened.start, opened.end))

    def _object(self) -> Expr:
        opened = self.read()
        with self.newlines(False):
            if self._at_for():
                return self._for(opened, "}")
        items: list[ObjectItem] = []
        with self.newlines(True):
            while True:
                token = self.peek()
                if token.kind == NEWLINE:
                    self.read()
                    continue
                if token.kind == "}":
                    self.read()
                    break
                if token.kind == END:
                    raise self._unclosed(opened, token, "", "")
                items.append(self._object_item(opened))
                token = self.peek()
                if token.kind in (",", NEWLINE):
                    self.read()
                elif token.kind != "}":
                    detail = "items of an object are separated by commas or newlines"
                    raise self._unclosed(opened, token, "Comma or new line expected", detail)
        return ObjectLiteral(self.span(opened.start, token.end), tuple(items), self.span(opened.start, opened.end))

    def _object_item(self, opened: Token) -> ObjectItem:
        first = self.peek()
        key = self.expression()
        token = self.peek()
        if token.kind not in ("=", ":"):
            raise self._unclosed(opened, token, "Equals sign expected", "items of an object are written `key = value`")
        self.read()
        value = self.expression()
        if isinstance(key, Reference):
            if key.steps:
                raise self.fail(
                    "Ambiguous key", "put a computed key in parentheses, or a key with dots in quotes", first
                )
            key = KeyName(key.span, key.root)
        elif isinstance(key, Literal) and first.kind == IDENT:
            key = KeyName(key.span, self.text_of(first))
        return ObjectItem(key, value)

    def _at_for(self) -> bool:
        token = self.peek()
        return token.kind == IDENT and self.text_of(token) == "for"

    def _for(self, opened: Token, closer: str) -> Expr:
        self.read()
        key_name, value_name = self.for_names()
        collection = self.expression()
        if self.peek().kind != ":":
            raise self.fail("Invalid `for`", "after the collection comes a colon", self.peek())
        self.read()
        key, value = None, self.expression()
        if self.peek().kind == "=>":
            arrow = self.read()
            if closer == "]":
                raise self.fail("Invalid `for`", "a list has no keys: use braces to build an object", arrow)
            key, value = value, self.expression()
        elif closer == "}":
            self.report("Invalid `for`", "an object needs keys: write `key => value`", value.start)
            raise Failed
        groups = self.peek().kind == "..."
        if groups:
            token = self.read()
            if closer == "]":
                raise self.fail("Invalid `for`", "`...` groups the values of equal keys, and a list has none", token)
        condition = None
        if self.peek().kind == IDENT and self.text_of(self.peek()) == "if":
            self.read()
            condition = self.expression()
        close = self.peek()
        if close.kind != closer:
            raise self._unclosed(opened, close, "Invalid `for`", f"here it should end with {closer}")
        self.read()
        span, opening = self.span(opened.start, close.end), self.span(opened.start, opened.end)
        return ForLoop(span, key_name, value_name, collection, key, value, condition, groups, opening)

    def for_names(self) -> tuple[str | None, str]:
        """`k, v in` or `v in`."""
        first = self.peek()
        if first.kind != IDENT:
            raise self.fail("Invalid `for`", "after `for` comes a name", first)
        self.read()
        key_name, value_name = None, self.text_of(first)
        if self.peek().kind == ",":
            self.read()
            second = self.peek()
            if second.kind != IDENT:
                raise self.fail("Invalid `for`", "after the comma comes the value's name", second)
            self.read()
            key_name, value_name = value_name, self.text_of(second)
        keyword = self.peek()
        if keyword.kind != IDENT or self.text_of(keyword) != "in":
            raise self.fail("Invalid `for`", "after the names comes `in`", keyword)
        self.read()
        return key_name, value_name

    def _unclosed(self, opened: Token, token: Token, summary: str, detail: str) -> Failed:
        """A closing bracket that never comes is the opening one's fault."""
        if token.kind in _ENDS:
            return self.fail("Unclosed bracket", "nothing closes this", opened)
        return self.fail(summary, detail, token)


def _is_constant(step: Step) -> bool:
    if isinstance(step, AttributeStep):
        return True
    if isinstance(step, SplatStep):
        return False
    key = step.key
    if isinstance(key, Template):
        return len(key.parts) == 1 and isinstance(key.parts[0], Literal)
    return isinstance(key, Literal)
