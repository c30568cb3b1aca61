"""Tokens to a tree, by descent, within limits of depth. What is not part of the subset is refused by name and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.template.errors import Source, TemplateError
from fedsched.template.lexer import Action, Text, Token, split
from fedsched.template.tree import (
    BranchNode,
    Command,
    Dot,
    Fields,
    Function,
    JumpNode,
    Literal,
    Node,
    Operand,
    OutputNode,
    Pipeline,
    TextNode,
    Variable,
)

DEPTH_MAX: Final = 64
"""Blocks and parentheses inside one another."""
BRANCHES: Final = ("if", "with", "range")
NOT_HERE: Final = {
    "define": "templates inside templates are not supported: repeat the text, or use a variable",
    "template": "templates inside templates are not supported: repeat the text, or use a variable",
    "block": "templates inside templates are not supported: repeat the text, or use a variable",
}

CheckName = Callable[[str], tuple[str, str] | None]
"""Why a function may not be used, and what to do instead; None if it may."""


def parse(source: Source, check_name: CheckName, *, left: str = "{{", right: str = "}}") -> tuple[Node, ...]:
    """Read a template; raises `TemplateError` with the place of what is wrong."""
    return _Parser(source, split(source, left or "{{", right or "}}"), check_name).whole()


class _Parser:
    def __init__(self, source: Source, pieces: list[Text | Action], check_name: CheckName) -> None:
        self._source = source
        self._pieces = pieces
        self._at = 0
        self._check_name = check_name
        self._loops = 0
        self._scopes: list[set[str]] = [{"$"}]

    def whole(self) -> tuple[Node, ...]:
        nodes, stop = self._nodes(0)
        if stop is not None:
            raise self._error(stop.at, f"`{stop.tokens[0].text}` without a block that it ends")
        return nodes

    def _nodes(self, depth: int) -> tuple[tuple[Node, ...], Action | None]:
        """Nodes up to an `else` or `end`, which is given back."""
        nodes: list[Node] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            self._at += 1
            if isinstance(piece, Text):
                nodes.append(TextNode(piece.text))
                continue
            if not piece.tokens:
                raise self._error(piece.at, "an action with nothing in it")
            first = piece.tokens[0]
            word = first.text if first.kind == "word" else ""
            if word in ("else", "end"):
                return tuple(nodes), piece
            if word in NOT_HERE:
                raise self._error(first.at, f"`{word}` is not part of these templates", hint=NOT_HERE[word])
            if word in BRANCHES:
                nodes.append(self._branch(word, piece, 1, depth))
            elif word in ("break", "continue"):
                nodes.append(self._jump(piece))
            else:
                nodes.append(OutputNode(self._pipeline(_Words(piece, 0), depth)))
        return tuple(nodes), None

    def _jump(self, piece: Action) -> JumpNode:
        first = piece.tokens[0]
        if len(piece.tokens) > 1:
            raise self._error(piece.tokens[1].at, f"`{first.text}` takes nothing")
        if not self._loops:
            raise self._error(first.at, f"`{first.text}` outside of a range")
        return JumpNode(first.at, first.text)

    def _branch(self, word: str, piece: Action, start: int, depth: int) -> BranchNode:
        if depth >= DEPTH_MAX:
            raise self._error(piece.at, f"blocks are nested deeper than {DEPTH_MAX}")
        self._scopes.append(set())
        pipeline = self._pipeline(_Words(piece, start), depth, is_range=word == "range")
        self._loops += word == "range"
        inside, stop = self._scoped(depth)
        self._loops -= word == "range"
        otherwise: tuple[Node, ...] = ()
        if stop is not None and stop.tokens[0].text == "else":
            otherwise, stop = self._otherwise(word, stop, depth)
        if stop is None:
            raise self._error(piece.at, f"`{word}` has no end")
        if len(stop.tokens) > 1:
            raise self._error(stop.tokens[1].at, "`end` takes nothing")
        self._scopes.pop()
        return BranchNode(piece.at, word, pipeline, inside, otherwise)

    def _otherwise(self, word: str, stop: Action, depth: int) -> tuple[tuple[Node, ...], Action | None]:
        if len(stop.tokens) == 1:
            return self._scoped(depth)
        inner = stop.tokens[1]
        if inner.text != word or word == "range":
            raise self._error(inner.at, f"`else {inner.text}` does not fit `{word}`", hint=f"`else`, or `else {word}`")
        # `else if` is an `if` inside the `else`, and both end together.
        return (self._branch_ending_together(word, stop, depth), Action((Token("word", "end", stop.at),), stop.at))

    def _branch_ending_together(self, word: str, stop: Action, depth: int) -> tuple[Node, ...]:
        return (self._branch(word, stop, 2, depth + 1),)

    def _scoped(self, depth: int) -> tuple[tuple[Node, ...], Action | None]:
        self._scopes.append(set())
        found = self._nodes(depth + 1)
        self._scopes.pop()
        return found

    # ---- pipelines ------------------------------------------------------------------------------------------

    def _pipeline(self, words: _Words, depth: int, *, is_range: bool = False, closing: bool = False) -> Pipeline:
        start = words.here
        declares, assigns = ((), False) if closing else self._declared(words, is_range=is_range)
        commands = [self._command(words, depth)]
        while (token := words.peek()) is not None and token.text == "|" and token.kind == "mark":
            words.take()
            commands.append(self._command(words, depth))
        token = words.peek()
        if closing:
            if token is None or token.text != ")":
                raise self._error(start, "a ( without its )")
            words.take()
        elif token is not None:
            raise self._error(token.at, f"{token.text!r} does not fit here")
        for name in declares:
            if not assigns:
                self._scopes[-1].add(name)
        return Pipeline(start, tuple(commands), declares, assigns)

    def _declared(self, words: _Words, *, is_range: bool) -> tuple[tuple[str, ...], bool]:
        """`$x :=`, `$x =` or, in a range, `$k, $v :=`."""
        names: list[Token] = []
        mark = words.at
        while (token := words.peek()) is not None and token.kind == "variable" and len(names) < 2:
            names.append(words.take())
            following = words.peek()
            if following is None or following.text != ",":
                break
            words.take()
        following = words.peek()
        if not names or following is None or following.text not in (":=", "="):
            words.at = mark
            return (), False
        words.take()
        assigns = following.text == "="
        if len(names) > 1 and not is_range:
            raise self._error(names[1].at, "two variables are for `range` only")
        for token in names:
            if token.text == "$":
                raise self._error(token.at, "`$` cannot be given another value")
            if assigns:
                self._check_variable(token)
        return tuple(token.text for token in names), assigns

    def _command(self, words: _Words, depth: int) -> Command:
        start = words.here
        operands: list[Operand] = []
        while (token := words.peek()) is not None and not (token.kind == "mark" and token.text in ("|", ")")):
            operands.append(self._operand(words, depth))
        if not operands:
            raise self._error(start, "a pipeline with an empty part")
        if len(operands) > 1 and not isinstance(operands[0], Function):
            raise self._error(start, "a value is given arguments, and only functions take some")
        return Command(start, tuple(operands))

    def _operand(self, words: _Words, depth: int) -> Operand:
        token = words.take()
        base: Operand
        match token.kind:
            case "literal":
                return Literal(token.at, token.value)
            case "dot":
                return Dot(token.at)
            case "field":
                return self._with_fields(words, Dot(token.at), token)
            case "variable":
                self._check_variable(token)
                base = Variable(token.at, token.text)
            case "word":
                problem = self._check_name(token.text)
                if problem is not None:
                    raise self._error(token.at, problem[0], hint=problem[1])
                base = Function(token.at, token.text)
            case "mark" if token.text == "(":
                if depth >= DEPTH_MAX:
                    raise self._error(token.at, f"parentheses are nested deeper than {DEPTH_MAX}")
                base = self._pipeline(words, depth + 1, closing=True)
            case _:
                raise self._error(token.at, f"{token.text!r} does not fit here")
        return self._with_fields(words, base, None)

    def _with_fields(self, words: _Words, base: Operand, first: Token | None) -> Operand:
        names = [first.text[1:]] if first is not None else []
        while (token := words.peek()) is not None and token.kind == "field" and not token.space_before:
            names.append(words.take().text[1:])
        return Fields(base.at, base, tuple(names)) if names else base

    def _check_variable(self, token: Token) -> None:
        if not any(token.text in scope for scope in self._scopes):
            raise self._error(
                token.at, f"variable {token.text} is not known here", hint=f"{token.text} := ... makes it"
            )

    def _error(self, at: int, message: str, *, hint: str = "") -> TemplateError:
        return TemplateError(self._source, at, message, hint=hint)


class _Words:
    """The tokens of one action, one after the other."""

    def __init__(self, action: Action, start: int) -> None:
        self._action = action
        self.at = start

    @property
    def here(self) -> int:
        token = self.peek()
        if token is not None:
            return token.at
        return self._action.tokens[-1].at if self._action.tokens else self._action.at

    def peek(self) -> Token | None:
        return self._action.tokens[self.at] if self.at < len(self._action.tokens) else None

    def take(self) -> Token:
        token = self._action.tokens[self.at]
        self.at += 1
        return token
