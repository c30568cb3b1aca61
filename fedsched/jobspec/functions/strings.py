"""Functions of text. What counts as one character is what a reader sees as one."""

from __future__ import annotations

import unicodedata

from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.functions.registry import function, whole
from fedsched.jobspec.graphemes import SPACES, count_graphemes, split_graphemes
from fedsched.jobspec.limits import MAX_ELEMENTS, MAX_STRING_CHARS
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import NUMBER, STRING, list_of
from fedsched.jobspec.values import Value, boolean, make_list, number, string

_STR = ("str", STRING)


@function("chomp", takes=(_STR,))
def chomp(text: Value) -> Value:
    return string(text.text.rstrip("\r\n"))


@function("indent", takes=(("spaces", NUMBER), _STR))
def indent(spaces: Value, text: Value) -> Value:
    count = whole(spaces)
    if count < 0:
        raise FunctionFailed("the number of spaces must not be negative")
    if text.text.count("\n") * count > MAX_STRING_CHARS:
        raise too_much("indenting would make the text too long")
    return string(text.text.replace("\n", "\n" + " " * count)) if "\n" in text.text else text


@function("join", takes=(("separator", STRING),), rest=("lists", list_of(STRING)))
def join(separator: Value, *lists: Value) -> Value:
    parts: list[str] = []
    for at, values in enumerate(lists, 1):
        for index, value in enumerate(values.elements):
            if value.is_null:
                raise ArgumentFailed(at, f"element {index} is null")
            parts.append(value.text)
    if len(parts) * len(separator.text) > MAX_STRING_CHARS:
        raise too_much("joining would make the text too long")
    return string(separator.text.join(parts))


@function("lower", takes=(_STR,), weight=1)
def lower(text: Value) -> Value:
    return string("".join(char.lower()[0] for char in text.text))


@function("upper", takes=(_STR,), weight=1)
def upper(text: Value) -> Value:
    return string("".join(_upper(char) for char in text.text))


@function("title", takes=(_STR,), weight=1)
def title(text: Value) -> Value:
    before = " "
    parts = []
    for char in text.text:
        parts.append(_upper(char) if _separates(before) else char)
        before = char
    return string("".join(parts))


@function("replace", takes=(_STR, ("substring", STRING), ("replace", STRING)))
def replace(text: Value, substring: Value, replacement: Value) -> Value:
    times = text.text.count(substring.text)
    if times * len(replacement.text) > MAX_STRING_CHARS:
        raise too_much("replacing would make the text too long")
    return string(text.text.replace(substring.text, replacement.text))


@function("split", takes=(("separator", STRING), _STR))
def split(separator: Value, text: Value) -> Value:
    parts = text.text.split(separator.text, MAX_ELEMENTS) if separator.text else list(text.text[: MAX_ELEMENTS + 1])
    return make_list(STRING, [string(part) for part in parts])


@function("strlen", takes=(_STR,), weight=4)
def strlen(text: Value) -> Value:
    return number(count_graphemes(text.text))


@function("strrev", "reverse", takes=(_STR,), weight=4)
def strrev(text: Value) -> Value:
    return string("".join(reversed(list(split_graphemes(text.text)))))


@function("substr", takes=(_STR, ("offset", NUMBER), ("length", NUMBER)), weight=4)
def substr(text: Value, offset: Value, length: Value) -> Value:
    """Counted from the end if the offset is negative; to the end if the length is."""
    clusters = list(split_graphemes(text.text))
    start, count = whole(offset), whole(length)
    if start < 0:
        start = max(0, start + len(clusters))
    end = len(clusters) if count < 0 else start + count
    return string("".join(clusters[start:end]))


@function("trim", takes=(_STR, ("cutset", STRING)))
def trim(text: Value, cutset: Value) -> Value:
    return string(text.text.strip(cutset.text)) if cutset.text else text


@function("trimprefix", takes=(_STR, ("prefix", STRING)))
def trimprefix(text: Value, prefix: Value) -> Value:
    return string(text.text.removeprefix(prefix.text))


@function("trimsuffix", takes=(_STR, ("suffix", STRING)))
def trimsuffix(text: Value, suffix: Value) -> Value:
    return string(text.text.removesuffix(suffix.text))


@function("trimspace", takes=(_STR,))
def trimspace(text: Value) -> Value:
    return string(text.text.strip(SPACES))


@function("startswith", takes=(_STR, ("prefix", STRING)))
def startswith(text: Value, prefix: Value) -> Value:
    return boolean(text.text.startswith(prefix.text))


@function("endswith", takes=(_STR, ("suffix", STRING)))
def endswith(text: Value, suffix: Value) -> Value:
    return boolean(text.text.endswith(suffix.text))


@function("strcontains", takes=(_STR, ("substr", STRING)))
def strcontains(text: Value, part: Value) -> Value:
    return boolean(part.text in text.text)


def _upper(char: str) -> str:
    """One character for one: sharp s has no capital."""
    found = char.upper()
    return found if len(found) == 1 else char


def _separates(char: str) -> bool:
    """Whether a word may begin after this character."""
    if char.isascii():
        return not (char.isalnum() or char == "_")
    return not unicodedata.category(char).startswith(("L", "N")) and char in SPACES
