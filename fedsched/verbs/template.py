"""`-t`: a small part of Go's text templates, over the same object that `-json` prints.

There are fields (`.Job.ID`), variables (`$x := .ID`), `range`, `if`, `else if`, `with`, `else`, `end`, pipes,
parentheses, comments, trim marks (`{{-`, `-}}`) and the functions below. Scripts that format Nomad's answers keep
working; nothing here can read files, call out, or run for ever, since the only loop is over the object itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fedsched.model.errors import BadRequest

_ACTION: Final = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""\s+ | (?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`) | (?P<number>-?\d+(?:\.\d+)?)"""
    r""" | (?P<field>(?:\$\w*|\.\w+|\.)(?:\.\w+)*) | (?P<mark>:=|[|(),]) | (?P<word>\w+)""",
    re.VERBOSE,
)
_VERB: Final = re.compile(r"%([-+0 #]*)(\d*)(?:\.(\d+))?([vsdqtxfTg%])")
_BLOCKS: Final = ("if", "range", "with")
_DEPTH_MAX: Final = 50
_PAD_MAX: Final = 1000


class BadTemplate(BadRequest):
    """A template that cannot be read or does not fit the object."""

    code = "bad_template"


class Token(NamedTuple):
    kind: str
    text: str


class Text(NamedTuple):
    text: str


class Output(NamedTuple):
    tokens: list[Token]


class Block(NamedTuple):
    """`if`, `range` or `with`: the first branch whose condition holds, or the last one without any."""

    word: str
    branches: list[tuple[list[Token], list[Any]]]


Node = Text | Output | Block


def render(template: str, value: Any) -> str:
    """Fill in the template; raises `BadTemplate` naming the part that is wrong."""
    nodes, rest = _parse(_split(template), 0)
    if rest:
        raise BadTemplate(f"template has an `{rest[0].text}` that nothing opened")
    out: list[str] = []
    _run(nodes, value, {"$": value}, out)
    return "".join(out)


def _split(template: str) -> list[Text | Token]:
    """Cut into plain text and actions; a trim mark takes the blanks next to it along."""
    pieces: list[Text | Token] = []
    at = 0
    trims = False
    for match in _ACTION.finditer(template):
        before = template[at : match.start()]
        before = before.lstrip() if trims else before
        pieces.append(Text(before.rstrip() if match[1] else before))
        if not match[2].startswith("/*"):
            pieces.append(Token("action", match[2]))
        trims = bool(match[3])
        at = match.end()
    tail = template[at:]
    if "{{" in tail:
        raise BadTemplate("template has a {{ without its }}")
    pieces.append(Text(tail.lstrip() if trims else tail))
    return pieces


def _parse(pieces: list[Text | Token], depth: int) -> tuple[list[Node], list[Token]]:
    """Build nodes until an `else`, an `end` or the end of the pieces; gives back the action it stopped at."""
    if depth > _DEPTH_MAX:
        raise BadTemplate(f"template is nested deeper than {_DEPTH_MAX}")
    nodes: list[Node] = []
    while pieces:
        piece = pieces.pop(0)
        if isinstance(piece, Text):
            nodes.append(piece)
            continue
        word, _, rest = piece.text.partition(" ")
        if word in ("else", "end"):
            return nodes, [piece]
        nodes.append(_parse_block(word, rest, pieces, depth) if word in _BLOCKS else Output(_tokens(piece.text)))
    return nodes, []


def _parse_block(word: str, condition: str, pieces: list[Text | Token], depth: int) -> Block:
    branches: list[tuple[list[Token], list[Any]]] = []
    tokens = _tokens(condition)
    while True:
        inside, stop = _parse(pieces, depth + 1)
        branches.append((tokens, inside))
        if not stop:
            raise BadTemplate(f"`{word}` has no end")
        text = stop[0].text.split()
        if text == ["end"]:
            return Block(word, branches)
        tokens = _tokens(" ".join(text[2:])) if text[1:2] == ["if"] else []


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadTemplate(f"template has {text[at:]!r} where nothing fits", hint=f"in {{{{{text}}}}}")
        if match.lastgroup:
            found.append(Token(match.lastgroup, match.group()))
        at = match.end()
    return found


def _run(nodes: Sequence[Node], dot: Any, names: dict[str, Any], out: list[str]) -> None:
    for node in nodes:
        match node:
            case Text():
                out.append(node.text)
            case Output():
                declared, tokens = _declared(node.tokens)
                value = _evaluate(tokens, dot, names)
                if declared:
                    names[declared[0]] = value
                elif tokens:
                    out.append(_shown(value))
            case Block():
                _run_block(node, dot, names, out)


def _run_block(block: Block, dot: Any, names: dict[str, Any], out: list[str]) -> None:
    for tokens, inside in block.branches:
        declared, tokens = _declared(tokens)
        value = _evaluate(tokens, dot, names) if tokens else True
        if tokens and not _is_true(value):
            continue
        inner = dict(names)
        if block.word == "range" and tokens:
            _run_range(value, declared, inside, inner, out)
            return
        inner |= dict.fromkeys(declared, value)
        _run(inside, value if block.word == "with" and tokens else dot, inner, out)
        return


def _run_range(value: Any, declared: list[str], inside: list[Any], names: dict[str, Any], out: list[str]) -> None:
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = sorted(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        raise BadTemplate(f"range needs a list or a map, got {_shown(value)!r}")
    for key, item in items:
        if len(declared) == 2:
            names[declared[0]] = key
        if declared:
            names[declared[-1]] = item
        _run(inside, item, names, out)


def _declared(tokens: list[Token]) -> tuple[list[str], list[Token]]:
    """Take `$x :=` or `$k, $v :=` off the front."""
    at = next((at for at, token in enumerate(tokens) if token.text == ":="), None)
    if at is None:
        return [], tokens
    return [token.text for token in tokens[:at] if token.text.startswith("$")], tokens[at + 1 :]


def _evaluate(tokens: list[Token], dot: Any, names: Mapping[str, Any]) -> Any:
    """Work a pipeline out: each part gets the value of the one before it as its last argument."""
    value: Any = None
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "mark" else 0
        if token == ("mark", "|") and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    for number, part in enumerate(parts):
        value = _command(part, dot, names, [value] if number else [])
    return value


def _command(tokens: list[Token], dot: Any, names: Mapping[str, Any], piped: list[Any]) -> Any:
    if not tokens:
        if piped:
            raise BadTemplate("template has a pipe that leads nowhere")
        return None
    left = list(tokens)
    operands: list[Any] = []
    function: Callable[..., Any] | None = None
    if left[0].kind == "word" and left[0].text not in ("true", "false", "nil"):
        name = left.pop(0).text
        function = _FUNCTIONS.get(name)
        if function is None:
            raise BadTemplate(f"template has no function {name!r}", hint=f"there are {', '.join(sorted(_FUNCTIONS))}")
    while left:
        operands.append(_operand(left, dot, names))
    if function is None:
        if len(operands) != 1 or piped:
            raise BadTemplate(f"template cannot call {tokens[0].text!r}: it is no function")
        return operands[0]
    try:
        return function(*operands, *piped)
    except (TypeError, ValueError, LookupError) as error:
        raise BadTemplate(f"template: {tokens[0].text}: {error}") from error


def _operand(left: list[Token], dot: Any, names: Mapping[str, Any]) -> Any:
    token = left.pop(0)
    match token.kind:
        case "text":
            return _unquoted(token.text)
        case "number":
            return float(token.text) if "." in token.text else int(token.text)
        case "field":
            return _field(token.text, dot, names)
        case "word" if token.text in ("true", "false", "nil"):
            return {"true": True, "false": False, "nil": None}[token.text]
        case "mark" if token.text == "(":
            inside: list[Token] = []
            depth = 1
            while left:
                inner = left.pop(0)
                depth += {"(": 1, ")": -1}.get(inner.text, 0) if inner.kind == "mark" else 0
                if depth == 0:
                    return _evaluate(inside, dot, names)
                inside.append(inner)
            raise BadTemplate("template has a ( without its )")
    raise BadTemplate(f"template has {token.text!r} where a value belongs")


def _field(path: str, dot: Any, names: Mapping[str, Any]) -> Any:
    head, *rest = path.split(".")
    if head.startswith("$") and head not in names:
        raise BadTemplate(f"template has no variable {head}")
    value = names[head] if head else dot
    for name in rest:
        if not name or value is None:
            continue
        if not isinstance(value, Mapping) or name not in value:
            known = (
                f"known: {', '.join(map(str, value))}" if isinstance(value, Mapping) else f"{_shown(value)!r} has none"
            )
            raise BadTemplate(f"template: no field {name!r} in {path}", hint=known)
        value = value[name]
    return value


def _unquoted(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), text[1:-1])


def _shown(value: Any) -> str:
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return f"map[{' '.join(f'{key}:{_shown(item)}' for key, item in sorted(value.items()))}]"
        case list() | tuple():
            return f"[{' '.join(map(_shown, value))}]"
        case _:
            return str(value)


def _is_true(value: Any) -> bool:
    return bool(value)


def _printf(form: str, *values: Any) -> str:
    left = list(values)

    def one(match: re.Match[str]) -> str:
        marks, pad, precision, kind = match.groups()
        if kind == "%":
            return "%"
        if not left:
            raise ValueError(f"{form!r} wants more values than it was given")
        value = left.pop(0)
        text = _format_one(value, kind, precision)
        width = min(int(pad or 0), _PAD_MAX)
        if "-" in marks:
            return text.ljust(width)
        return text.zfill(width) if "0" in marks else text.rjust(width)

    return _VERB.sub(one, form)


def _format_one(value: Any, kind: str, precision: str | None) -> str:
    match kind:
        case "q":
            import json

            return json.dumps(_shown(value), ensure_ascii=False)
        case "d":
            return str(int(value))
        case "x":
            return f"{int(value):x}" if isinstance(value, int) else str(value).encode().hex()
        case "f" | "g":
            return f"{float(value):.{min(int(precision or 6), 100)}{kind}}"
        case "T":
            return {bool: "bool", int: "int", float: "float64", str: "string", list: "[]interface {}"}.get(
                type(value), "map"
            )
        case _:
            return _shown(value)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else value[key]
    return value


def _slice(value: Any, start: int = 0, stop: int | None = None) -> Any:
    return value[start:stop]


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "len": len,
    "printf": _printf,
    "print": lambda *values: "".join(map(_shown, values)),
    "println": lambda *values: " ".join(map(_shown, values)) + "\n",
    "join": lambda values, by: by.join(map(_shown, values)),
    "index": _index,
    "slice": _slice,
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": lambda first, second: first != second,
    "lt": lambda first, second: first < second,
    "le": lambda first, second: first <= second,
    "gt": lambda first, second: first > second,
    "ge": lambda first, second: first >= second,
    "and": _and,
    "or": _or,
    "not": lambda value: not value,
}
