"""Filter expressions over API objects: `Status == "blocked" and Priority != 50`, `"web" in JobID`, `NodeID is empty`.

The language is the one that Nomad's lists take. A selector is a dotted path of API names; a key with odd characters is
written `Meta["a.b"]`. Nothing is greater or less than anything. What the object does not have does not match; what no
object of the kind can have is an error, which the caller finds out by giving `known`, the names at the top.

An expression is read by descent: `or` binds weakest, then `and`, then `not`. Length and depth are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from fedsched.model.errors import BadRequest
from fedsched.model.nearest import nearest

CHARS_MAX: Final = 4096
DEPTH_MAX: Final = 50

Test = Callable[[Mapping[str, Any]], bool]
Path = tuple[str, ...]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<quoted>"(?:[^"\\]|\\.)*"|`[^`]*`)
      | (?P<sign>==|!=|[()\[\]{}])
      | (?P<word>[^\s()\[\]{}"`=!]+)
    )""",
    re.VERBOSE,
)
_WORDS: Final = frozenset({"and", "or", "not", "in", "contains", "matches", "is", "empty", "any", "all", "as"})


class BadFilter(BadRequest):
    """An expression that cannot be read; the message says from where on."""

    code = "bad_filter"


def compile_filter(text: str, known: Collection[str] = ()) -> Test:
    """Give the test that an expression stands for. With `known`, a selector must begin with one of these names."""
    if len(text) > CHARS_MAX:
        raise BadFilter(f"the filter has {len(text)} characters", hint=f"at most {CHARS_MAX} are read")
    return _Reader(text, known).whole()


class _Reader:
    """Reads one expression, token by token."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._known = known
        self._bound: list[str] = []
        """Names that an `any` or `all` around us has given."""

    def whole(self) -> Test:
        test = self._or()
        if self._at < len(self._tokens):
            raise self._unexpected("`and`, `or`, or the end")
        return test

    def _or(self) -> Test:
        tests = [self._and()]
        while self._take("or"):
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda value: any(test(value) for test in tests)

    def _and(self) -> Test:
        tests = [self._not()]
        while self._take("and"):
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda value: all(test(value) for test in tests)

    def _not(self) -> Test:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadFilter("the filter is nested too deeply", hint=f"at most {DEPTH_MAX} levels are read")
        try:
            if self._take("not"):
                inner = self._not()
                return lambda value: not inner(value)
            if self._take("("):
                inside = self._or()
                self._expect(")")
                return inside
            return self._collection() or self._comparison()
        finally:
            self._depth -= 1

    def _collection(self) -> Test | None:
        """`any TaskGroups as group { group.Count == 3 }`; None if there is no such thing here."""
        if self._peek() not in ("any", "all"):
            return None
        of_all = self._next("") == "all"
        path = self._selector()
        self._expect("as")
        name = self._next("a name for each")
        self._expect("{")
        self._bound.append(name)
        inner = self._or()
        self._bound.pop()
        self._expect("}")
        every = all if of_all else any

        def test(value: Mapping[str, Any]) -> bool:
            found = _get(value, path)
            each = found if isinstance(found, (list, tuple)) else ()
            return every(inner({**value, name: one}) for one in each)

        return test

    def _comparison(self) -> Test:
        if self._is_value_first():
            wanted = self._next("a value")
            turned = self._take("not")
            self._expect("in")
            return _contains(self._selector(), _unquoted(wanted), turned=turned)
        path = self._selector()
        match word := self._next("==, !=, in, contains, matches or is"):
            case "==" | "!=":
                return _equals(path, _unquoted(self._next("a value")), turned=word == "!=")
            case "is":
                turned = self._take("not")
                self._expect("empty")
                return lambda value: (not _get(value, path)) != turned
        turned = word == "not"
        match self._next("contains or matches") if turned else word:
            case "contains":
                return _contains(path, _unquoted(self._next("a value")), turned=turned)
            case "matches":
                return _matches(path, _unquoted(self._next("a pattern")), turned=turned)
        self._at -= 1
        raise self._unexpected("==, !=, in, contains, matches or is")

    def _is_value_first(self) -> bool:
        """`"web" in JobID`: what comes first is a value if `in` follows it."""
        after = self._tokens[self._at + 1 : self._at + 3]
        return after[:1] == ["in"] or after == ["not", "in"]

    def _selector(self) -> Path:
        start = self._at
        word = self._next("a name, such as Status")
        if word in _WORDS or word[0] in '"`()[]{}=!':
            self._at = start
            raise self._unexpected("a name, such as Status")
        path = [part for part in word.split(".") if part]
        while self._take("["):
            path.append(_unquoted(self._next("a key")))
            self._expect("]")
            if self._at < len(self._tokens) and self._tokens[self._at].startswith("."):
                path += [part for part in self._tokens[self._at].split(".") if part]
                self._at += 1
        if self._known and path[0] not in self._known and path[0] not in self._bound:
            close = nearest(path[0], self._known)
            raise BadFilter(
                f"nothing here has {path[0]!r}",
                hint=f"did you mean {close}?" if close else f"there are {', '.join(sorted(self._known))}",
            )
        return tuple(path)

    # ------------------------------------------------------------------ tokens

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _next(self, wanted: str) -> str:
        if self._at >= len(self._tokens):
            raise self._unexpected(wanted)
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._unexpected(f"`{token}`")

    def _unexpected(self, wanted: str) -> BadFilter:
        got = f"{self._peek()!r}" if self._at < len(self._tokens) else "nothing more"
        return BadFilter(f"in the filter there is {got} where {wanted} should be", hint='such as Status == "blocked"')


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            raise BadFilter(
                f"the filter cannot be read from {text[at:].strip()[:20]!r} on", hint="are all quotes closed?"
            )
        found.append(match.group(match.lastgroup or 0))
        at = match.end()
    return found


def _unquoted(token: str) -> str:
    if token.startswith("`"):
        return token[1:-1]
    if token.startswith('"'):
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def _get(value: Any, path: Path) -> Any:
    for name in path:
        if isinstance(value, Mapping):
            value = value.get(name)
        else:
            return None
    return value


def _equals(path: Path, wanted: str, *, turned: bool) -> Test:
    return lambda value: (_text(_get(value, path)) == wanted) != turned


def _contains(path: Path, wanted: str, *, turned: bool) -> Test:
    """A part of a text, an element of a list, or a key of a map."""

    def test(value: Mapping[str, Any]) -> bool:
        found = _get(value, path)
        if isinstance(found, str):
            return (wanted in found) != turned
        if isinstance(found, Mapping):
            return (wanted in found) != turned
        inside = found if isinstance(found, Sequence) else ()
        return (wanted in {_text(one) for one in inside}) != turned

    return test


def _matches(path: Path, pattern: str, *, turned: bool) -> Test:
    from fedsched.model.patterns import found_in, pattern_problem  # few filters have one

    wrong = pattern_problem(pattern)
    if wrong:
        raise BadFilter(f"the pattern {pattern[:40]!r} cannot be used: {wrong}", hint="it is RE2, as in constraints")
    return lambda value: found_in(pattern, _text(_get(value, path))) != turned


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
