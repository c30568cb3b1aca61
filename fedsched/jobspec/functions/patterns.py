"""Functions of regular expressions, on an engine (RE2) whose time grows with the text only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fedsched.jobspec.context import FunctionFailed
from fedsched.jobspec.functions.registry import function
from fedsched.jobspec.limits import MAX_ELEMENTS, MAX_STRING_CHARS
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import STRING
from fedsched.jobspec.values import Value, make_list, make_object, make_tuple, null_of, string

if TYPE_CHECKING:
    from fedsched.jobspec.types import Type

_MAX_PATTERN: Final = 1024
_REFERENCE: Final = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")


@function("regex_replace", takes=(("str", STRING), ("pattern", STRING), ("replace", STRING)), weight=4)
def regex_replace(text: Value, pattern: Value, replacement: Value) -> Value:
    """Every match replaced; `$1` and `${name}` stand for its groups, a group that is not there for nothing."""
    compiled = compile_pattern(pattern.text)
    source, parts, at, size = text.text, [], 0, 0
    for match in _matches(compiled, source):
        put = _expanded(replacement.text, match, compiled)
        size += len(put)
        if size > MAX_STRING_CHARS:
            raise too_much("replacing would make the text too long")
        parts += [source[at : match.start()], put]
        at = match.end()
    return string("".join([*parts, source[at:]]))


@function("regex", takes=(("pattern", STRING), ("string", STRING)), weight=4)
def regex(pattern: Value, text: Value) -> Value:
    """The first match: its text, or its groups as a tuple, or as an object if they have names."""
    compiled = compile_pattern(pattern.text)
    match = compiled.search(text.text)
    if match is None:
        raise FunctionFailed("the pattern does not match")
    return _groups(compiled, match)


@function("regexall", takes=(("pattern", STRING), ("string", STRING)), weight=4)
def regexall(pattern: Value, text: Value) -> Value:
    compiled = compile_pattern(pattern.text)
    found = [_groups(compiled, match) for match in _matches(compiled, text.text)]
    return make_list(found[0].type, found) if found else make_list(_result_type(compiled), [])


def compile_pattern(pattern: str) -> Any:
    """A compiled pattern of RE2."""
    import re2

    if len(pattern) > _MAX_PATTERN:
        raise too_much(f"a pattern may have {_MAX_PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise FunctionFailed(f"the pattern cannot be read: {told}") from None


def _matches(compiled: Any, text: str) -> Iterator[Any]:
    """All of them, left to right; an empty one right after another match does not count."""
    last_end, count = -1, 0
    for match in compiled.finditer(text):
        if match.start() == match.end() == last_end:
            continue
        last_end = match.end()
        count += 1
        if count > MAX_ELEMENTS:
            raise too_much(f"the pattern matches more than {MAX_ELEMENTS} times")
        yield match


def _expanded(template: str, match: Any, compiled: Any) -> str:
    def group(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        index = int(name) if name.isdecimal() and len(name) < 6 else compiled.groupindex.get(name, -1)
        return (match.group(index) or "") if 0 <= index <= compiled.groups else ""

    return _REFERENCE.sub(group, template)


def _groups(compiled: Any, match: Any) -> Value:
    if compiled.groups == 0:
        return string(match.group(0))
    names = {index: name for name, index in compiled.groupindex.items()}
    values = [null_of(STRING) if text is None else string(text) for text in match.groups()]
    if not names:
        return make_tuple(values)
    if len(names) != len(values):
        raise FunctionFailed("either all groups have names or none")
    return make_object({names[at]: value for at, value in enumerate(values, 1)})


def _result_type(compiled: Any) -> Type:
    empty = {name: null_of(STRING) for name in compiled.groupindex}
    if compiled.groups == 0:
        return STRING
    return make_object(empty).type if empty else make_tuple([null_of(STRING)] * compiled.groups).type
