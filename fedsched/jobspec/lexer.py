"""From text to tokens. Strings and heredocs hold templates, and templates hold expressions: the scanner keeps a stack.

A token is its kind and two offsets; the kind of an operator or bracket is its own text. What cannot be a token is
reported as a problem and left out or replaced, so that the parser can go on and find more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fedsched.jobspec.limits import MAX_DEPTH, MAX_TOKENS
from fedsched.jobspec.problems import MAX_PROBLEMS, Problem, too_much
from fedsched.jobspec.source import Source, Span

IDENT: Final = "name"
NUMBER: Final = "number"
NEWLINE: Final = "newline"
QUOTE_OPEN: Final = "opening quote"
QUOTE_CLOSE: Final = "closing quote"
HEREDOC_OPEN: Final = "heredoc"
HEREDOC_CLOSE: Final = "end of heredoc"
TEXT: Final = "text"
INTERPOLATION: Final = "${"
CONTROL: Final = "%{"
TEMPLATE_END: Final = "end of template sequence"
INVALID: Final = "invalid"
END: Final = "end of file"


class Token(NamedTuple):
    kind: str
    start: int
    end: int
    strips: bool = False
    """A `~` stands inside this beginning or end of a template sequence."""


_NORMAL = re.compile(
    r"""(?P<blank>[ \t]+|\r(?=\n))
    |(?P<newline>\n)
    |(?P<comment>(?:\#|//)[^\n]*|/\*.*?\*/)
    |(?P<name>[^\W\d][\w-]*)
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<heredoc><<-?(?P<marker>[^\W\d][\w-]*)\r?\n)
    |(?P<operator>&&|\|\||==|!=|<=|>=|=>|\.\.\.|::|[-+*/%<>!?:=,.()\[\]{}])
    |(?P<quote>")
    |(?P<strip>~\})""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED_STOP = re.compile(r'["\\\n]|\$\$\{|\$\{|%%\{|%\{')
_HEREDOC_STOP = re.compile(r"\n|\$\$\{|\$\{|%%\{|%\{")

_REASONS: Final = {
    "'": ("Invalid character", 'strings stand in double quotes (")'),
    "`": ("Invalid character", 'for text of several lines use a heredoc: "<<EOT" and a line with "EOT" below'),
    ";": ("Invalid character", "attributes and blocks are separated by newlines, items of a list by commas"),
    "&": ("Unsupported operator", 'there are no bit operators; "and" is written &&'),
    "|": ("Unsupported operator", 'there are no bit operators; "or" is written ||'),
    "~": ("Unsupported operator", 'there are no bit operators; "not" is written !'),
    "^": ("Unsupported operator", "there are no bit operators; powers are written pow(base, exponent)"),
}


class _Quoted:
    """Inside a quoted string."""


class _Heredoc:
    """Inside a heredoc that ends at a line holding only this marker."""

    def __init__(self, marker: str) -> None:
        self.marker = marker


class _Code:
    """Inside `${` or `%{`, or outside all strings; counts braces to find its own end."""

    def __init__(self, in_template: bool) -> None:
        self.in_template = in_template
        self.braces = 0


class Lexer:
    """One pass over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._text = source.text
        self._at = 1 if source.text.startswith("\ufeff") else 0
        self._tokens: list[Token] = []
        self._stack: list[_Code | _Quoted | _Heredoc] = []
        self.problems: list[Problem] = []

    def scan(self) -> list[Token]:
        """Tokens of a whole file or expression."""
        self._stack = [_Code(in_template=False)]
        return self._run()

    def scan_template(self) -> list[Token]:
        """Tokens of a text that is a template as a whole (strings of HCL's JSON form); it has no closing token."""
        self._stack = [_Heredoc("")]
        return self._run()

    def _run(self) -> list[Token]:
        length = len(self._text)
        while self._at < length:
            mode = self._stack[-1]
            if isinstance(mode, _Code):
                self._code(mode)
            elif isinstance(mode, _Quoted):
                self._quoted()
            else:
                self._heredoc(mode)
            if len(self._tokens) > MAX_TOKENS:
                raise too_much(f"a file may have {MAX_TOKENS} tokens", self._span(self._at, self._at))
        self._add(END, length, length)
        return self._tokens

    def _code(self, mode: _Code) -> None:
        match = _NORMAL.match(self._text, self._at)
        if match is None:
            self._invalid()
            return
        start, self._at = self._at, match.end()
        match match.lastgroup:
            case "blank" | "comment":
                pass
            case "newline":
                self._add(NEWLINE, start, self._at)
            case "name":
                self._add(IDENT, start, self._at)
            case "number":
                self._add(NUMBER, start, self._at)
            case "heredoc":
                self._add(HEREDOC_OPEN, start, self._at)
                self._push(_Heredoc(match["marker"]))
            case "quote":
                self._add(QUOTE_OPEN, start, self._at)
                self._push(_Quoted())
            case "strip":
                self._strip(mode, start)
            case _:
                self._operator(mode, match[0], start)

    def _operator(self, mode: _Code, text: str, start: int) -> None:
        if text == "{":
            mode.braces += 1
        elif text == "}":
            if mode.in_template and mode.braces == 0:
                self._stack.pop()
                self._add(TEMPLATE_END, start, self._at)
                return
            mode.braces = max(0, mode.braces - 1)
        self._add(text, start, self._at)

    def _strip(self, mode: _Code, start: int) -> None:
        if mode.in_template and mode.braces == 0:
            self._stack.pop()
            self._tokens.append(Token(TEMPLATE_END, start, self._at, strips=True))
        else:
            self._at = start
            self._invalid()

    def _invalid(self) -> None:
        char = self._text[self._at]
        summary, detail = _REASONS.get(char, ("Invalid character", "this character has no meaning here"))
        self._report(summary, detail, self._at, self._at + 1)
        self._add(INVALID, self._at, self._at + 1)
        self._at += 1

    def _quoted(self) -> None:
        start = at = self._at
        text = self._text
        while True:
            match = _QUOTED_STOP.search(text, at)
            if match is None:
                self._literal(start, len(text))
                self._at = len(text)
                return
            found = match[0]
            if found == "\\":
                at = min(match.end() + 1, len(text))
                if text[match.end() : at] == "\n":
                    at -= 1
            elif len(found) == 3:
                at = match.end()
            else:
                break
        self._literal(start, match.start())
        self._at = match.end()
        if found == '"':
            self._stack.pop()
            self._add(QUOTE_CLOSE, match.start(), self._at)
        elif found == "\n":
            self._report(
                "Newline in a string",
                'a quoted string ends on its line; write \\n, or use a heredoc ("<<EOT")',
                match.start(),
                match.end(),
            )
            self._stack.pop()
            self._add(QUOTE_CLOSE, match.start(), match.start())
            self._at = match.start()
        else:
            self._sequence(found, match.start())

    def _heredoc(self, mode: _Heredoc) -> None:
        start = at = self._at
        text = self._text
        if mode.marker and (start == 0 or text[start - 1] == "\n"):
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            if text[start:end].strip() == mode.marker:
                begin = text.index(mode.marker, start)
                self._stack.pop()
                self._at = begin + len(mode.marker)
                self._add(HEREDOC_CLOSE, begin, self._at)
                return
        while True:
            match = _HEREDOC_STOP.search(text, at)
            if match is None:
                self._literal(start, len(text))
                self._at = len(text)
                return
            if match[0] == "\n":
                self._literal(start, match.end())
                self._at = match.end()
                return
            if len(match[0]) == 3:
                at = match.end()
                continue
            self._literal(start, match.start())
            self._at = match.end()
            self._sequence(match[0], match.start())
            return

    def _sequence(self, opening: str, start: int) -> None:
        strips = self._text.startswith("~", self._at) and not self._text.startswith("~}", self._at)
        if strips:
            self._at += 1
        self._tokens.append(Token(opening, start, self._at, strips))
        self._push(_Code(in_template=True))

    def _literal(self, start: int, end: int) -> None:
        if end > start:
            self._add(TEXT, start, end)

    def _push(self, mode: _Code | _Quoted | _Heredoc) -> None:
        if len(self._stack) > 2 * MAX_DEPTH:
            raise too_much(f"strings and templates may be nested {MAX_DEPTH} deep", self._span(self._at, self._at))
        self._stack.append(mode)

    def _add(self, kind: str, start: int, end: int) -> None:
        self._tokens.append(Token(kind, start, end))

    def _report(self, summary: str, detail: str, start: int, end: int) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(summary, detail, self._span(start, end)))

    def _span(self, start: int, end: int) -> Span:
        return Span(self._source, start, end)
