"""Cuts a template into plain text and the tokens of its actions, each with its place.

Delimiters are the template's own. A trim mark (`{{- `, ` -}}`) takes the white space next to it along; a comment
(`{{/* ... */}}`) leaves nothing behind.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from fedsched.template.errors import Source, TemplateError

SPACE: Final = " \t\r\n"
TOKENS_MAX: Final = 50_000
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<raw>`[^`]*`)
      | (?P<char>'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?))
      | (?P<variable>\$[A-Za-z0-9_]*)
      | (?P<field>\.[A-Za-z_][A-Za-z0-9_]*)
      | (?P<dot>\.)
      | (?P<mark>:=|=|\||\(|\)|,)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_PLAIN_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Token(NamedTuple):
    """One word of an action. `space_before` matters: `.a .b` are two values, `.a.b` is one."""

    kind: str
    text: str
    at: int
    value: Any = None
    space_before: bool = False


class Text(NamedTuple):
    """Plain text between actions."""

    text: str


class Action(NamedTuple):
    """What stands between delimiters."""

    tokens: tuple[Token, ...]
    at: int


def split(source: Source, left: str = "{{", right: str = "}}") -> list[Text | Action]:
    """Cut a template up."""
    pieces: list[Text | Action] = []
    text, at = source.text, 0
    trims, count = False, 0
    while True:
        start = text.find(left, at)
        plain = text[at:] if start < 0 else text[at:start]
        plain = plain.lstrip(SPACE) if trims else plain
        if start < 0:
            _add_text(pieces, plain)
            return pieces
        inside = start + len(left)
        trims_left = text.startswith("-", inside) and text[inside + 1 : inside + 2] in tuple(SPACE)
        _add_text(pieces, plain.rstrip(SPACE) if trims_left else plain)
        inside += 2 if trims_left else 0
        tokens, at, trims = _action(source, start, inside, right)
        if tokens is not None:
            count += len(tokens)
            if count > TOKENS_MAX:
                raise TemplateError(source, start, f"the template has more than {TOKENS_MAX} words in its actions")
            pieces.append(Action(tokens, start))


def _action(source: Source, start: int, inside: int, right: str) -> tuple[tuple[Token, ...] | None, int, bool]:
    """The tokens of one action (None for a comment), where it ends, and whether it trims what follows."""
    text = source.text
    if text.startswith("/*", inside):
        close = text.find("*/", inside)
        if close < 0:
            raise TemplateError(source, start, "a comment has no end")
        end, trims = _closing(text, close + 2, right)
        if end < 0:
            raise TemplateError(source, start, "a comment ends before its action does")
        return None, end, trims
    tokens: list[Token] = []
    at = inside
    space_before = False
    while at < len(text):
        end, trims = (
            _closing(text, at, right) if not tokens or space_before or text.startswith(right, at) else (-1, False)
        )
        if end >= 0:
            return tuple(tokens), end, trims
        match = _TOKEN.match(text, at)
        if match is None:
            raise TemplateError(source, at, f"{_next(text, at)!r} is not understood", hint=_why(text, at))
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_token(source, kind, match[0], at, space_before))
        space_before = kind == "space"
        at = match.end()
    raise TemplateError(source, start, "an action has no end", hint=f"it wants a {right}")


def _closing(text: str, at: int, right: str) -> tuple[int, bool]:
    """Where the action ends if it ends here, else -1; and whether it trims what follows."""
    if text.startswith(right, at):
        return at + len(right), False
    if text[at : at + 1] in tuple(SPACE) and text.startswith(f"-{right}", at + 1):
        return at + 2 + len(right), True
    if at and text[at - 1] in SPACE and text.startswith(f"-{right}", at):
        return at + 1 + len(right), True
    return -1, False


def _token(source: Source, kind: str, text: str, at: int, space_before: bool) -> Token:
    match kind:
        case "text":
            return Token("literal", text, at, _unquoted(source, text[1:-1], at), space_before)
        case "raw":
            return Token("literal", text, at, text[1:-1].replace("\r", ""), space_before)
        case "char":
            value = _unquoted(source, text[1:-1], at)
            if len(value) != 1:
                raise TemplateError(
                    source, at, f"{text} is not one character", hint="texts are written in double quotes"
                )
            return Token("literal", text, at, ord(value), space_before)
        case "number":
            return Token("literal", text, at, _number(source, text, at), space_before)
        case "word" if text in ("true", "false", "nil"):
            return Token("literal", text, at, {"true": True, "false": False}.get(text), space_before)
    return Token(kind, text, at, None, space_before)


def _number(source: Source, text: str, at: int) -> int | float:
    if len(text) > 40:
        raise TemplateError(source, at, f"the number {text[:20]}... is too long")
    if "x" in text or "X" in text:
        return int(text, 16)
    return float(text) if any(char in text for char in ".eE") else int(text)


def _unquoted(source: Source, text: str, at: int) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
        elif len(code) == 3:
            number = int(code, 8)
        elif code in _PLAIN_ESCAPES:
            return _PLAIN_ESCAPES[code]
        elif code in "\\\"'":
            return code
        else:
            raise TemplateError(source, at, f"\\{code} is no escape", hint=r"write \\ for a backslash")
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise TemplateError(source, at, f"\\{code} is no character")
        return chr(number)

    return _ESCAPE.sub(one, text)


def _add_text(pieces: list[Text | Action], text: str) -> None:
    if text:
        pieces.append(Text(text))


def _next(text: str, at: int) -> str:
    return text[at : at + 12].split("\n")[0] or "the end"


def _why(text: str, at: int) -> str:
    first = text[at : at + 1]
    if first in ('"', "`", "'"):
        return "the text has no end"
    if first in "+-*/<>!&":
        return "there are no operators: use add, subtract, eq, lt, not, and"
    return ""
