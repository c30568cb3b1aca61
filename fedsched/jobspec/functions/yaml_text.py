"""`yamldecode` and `yamlencode`.

Text is read as PyYAML's events; what a plain word means is decided here, by the rules job files already rely on: y, yes
and on are true (n, no, off false), 017 is seventeen, 1_000 is text, a date is its time in UTC. Aliases are counted, so
that a short text cannot unfold into a long one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from fedsched.jobspec import numbers
from fedsched.jobspec.context import Context, FunctionFailed
from fedsched.jobspec.functions.encoding import decode_base64
from fedsched.jobspec.functions.registry import function, nullable
from fedsched.jobspec.limits import MAX_VALUE_DEPTH, MAX_YAML_CHARS
from fedsched.jobspec.numbers import NumberProblem
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import ANY, STRING, Kind
from fedsched.jobspec.values import FALSE, NULL, TRUE, Value, make_object, make_tuple, number, string

_TRUE: Final = frozenset(["y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"])
_FALSE: Final = frozenset(["n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"])
_NULL: Final = frozenset(["", "~", "null", "Null", "NULL"])
_INFINITE: Final = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_RADIX: Final = re.compile(r"([-+]?)0([xob])([0-9a-fA-F]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DATE: Final = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:(?:[Tt]|[ \t]+)(\d\d?):(\d\d):(\d\d)(\.\d+)?[ \t]*(Z|[-+]\d\d:\d\d)?)?", re.ASCII
)
_TAG: Final = "tag:yaml.org,2002:"
_MAX_EVENTS: Final = 200_000


@function("yamldecode", takes=(("src", STRING),), context=True, weight=64)
def yamldecode(context: Context, source: Value) -> Value:
    import yaml

    if len(source.text) > MAX_YAML_CHARS:
        raise too_much(f"a YAML text may have {MAX_YAML_CHARS} characters")
    try:
        return _Reader(_events(source.text), context).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise FunctionFailed(f"no YAML: {where}{getattr(error, 'problem', None) or 'it cannot be read'}") from None


@function("yamlencode", takes=(nullable("value", ANY),), weight=1)
def yamlencode(value: Value) -> Value:
    if value.is_sequence or value.is_mapping:
        return string("\n".join(_block(value)) + "\n")
    text = _scalar(value, "  ")
    plain = value.is_null or value.kind is not Kind.STRING
    return string(text + ("\n...\n" if plain else "\n"))


def _events(text: str) -> Iterator[Any]:
    import yaml

    for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        if count > _MAX_EVENTS:
            raise too_much(f"a YAML text may have {_MAX_EVENTS} parts")
        yield event


class _Reader:
    """Builds values from events; collections inside one another are bounded, aliases cost what they unfold to."""

    def __init__(self, events: Iterator[Any], context: Context) -> None:
        self._events = events
        self._context = context
        self._anchors: dict[str, Value] = {}

    def document(self) -> Value:
        import yaml

        value, documents = NULL, 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise FunctionFailed("only one document can be decoded")
                value = self._value(next(self._events), 1)
        return value

    def _value(self, event: Any, depth: int) -> Value:
        import yaml

        if depth > MAX_VALUE_DEPTH:
            raise too_much(f"values may be nested {MAX_VALUE_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise FunctionFailed(f"nothing is named {event.anchor!r} before it is used")
            found = self._anchors[event.anchor]
            self._context.budget.produce(_count(found), None)
            return found
        if isinstance(event, yaml.ScalarEvent):
            found = _resolved(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(inner, depth + 1))
            found = make_tuple(items)
        else:
            found = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = found
        return found

    def _mapping(self, depth: int) -> Value:
        import yaml

        entries: dict[str, Value] = {}
        merged: dict[str, Value] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = NULL if is_merge else self._value(event, depth + 1)
            value = self._value(next(self._events), depth + 1)
            if is_merge:
                for source in _merge_sources(value):
                    merged = {**source.entries, **merged}
            else:
                entries[_key(key)] = value
        return make_object({**merged, **entries})


def _merge_sources(value: Value) -> list[Value]:
    sources = list(value.elements) if value.is_sequence else [value]
    for source in sources:
        if not source.is_mapping:
            raise FunctionFailed(f"a {source.type} cannot be merged into a mapping")
    return sources


def _key(value: Value) -> str:
    if value.is_null or value.is_sequence or value.is_mapping:
        raise FunctionFailed("keys must be texts, numbers or truths")
    if value.kind is Kind.NUMBER:
        return value.number.text()
    if value.kind is Kind.BOOL:
        return "true" if value.raw else "false"
    return value.text


def _resolved(event: Any) -> Value:
    text, tag = event.value, event.tag
    if tag is None or tag == "!":
        return _plain(text) if event.implicit[0] else string(text)
    kind = tag.removeprefix(_TAG)
    found = _plain(text)
    if kind == "str":
        return string(text)
    if kind == "binary":
        return string(decode_base64("".join(text.split())).decode(errors="replace"))
    fits = {
        "int": found.kind is Kind.NUMBER,
        "float": found.kind is Kind.NUMBER,
        "bool": found.kind is Kind.BOOL,
        "null": found.is_null,
        "timestamp": _DATE.fullmatch(text) is not None,
    }
    if kind not in fits:
        raise FunctionFailed(f"the tag {tag[:60]!r} is not known")
    if not fits[kind]:
        raise FunctionFailed(f"{text[:40]!r} is no {kind}")
    return found


def _plain(text: str) -> Value:
    if text in _NULL:
        return NULL
    if text in _TRUE:
        return TRUE
    if text in _FALSE:
        return FALSE
    if text[0] not in "+-.0123456789":
        return string(text)
    infinite = _INFINITE.fullmatch(text)
    if infinite:
        return number(float("-inf") if infinite[1] == "-" else float("inf"))
    radix = _RADIX.fullmatch(text)
    if radix:
        return _radix_number(radix, text)
    if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
        try:
            found = numbers.parse(text)
        except NumberProblem as error:
            raise FunctionFailed(str(error)) from None
        return string(text) if found is None else number(found)
    date = _DATE.fullmatch(text)
    return string(_stamp(date)) if date else string(text)


def _radix_number(match: re.Match[str], text: str) -> Value:
    if len(text) > 500:
        raise FunctionFailed("the number is too large")
    try:
        value = int(match[3], {"x": 16, "o": 8, "b": 2}[match[2]])
    except ValueError:
        return string(text)
    return number(-value if match[1] == "-" else value)


def _stamp(match: re.Match[str]) -> str:
    date = f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}"
    if match[4] is None:
        return f"{date}T00:00:00Z"
    fraction = (match[7] or "").rstrip("0").rstrip(".")
    return f"{date}T{int(match[4]):02}:{match[5]}:{match[6]}{fraction}{match[8] or 'Z'}"


def _count(value: Value) -> int:
    if value.is_sequence:
        return 1 + sum(_count(element) for element in value.elements)
    if value.is_mapping:
        return 1 + sum(_count(element) for element in value.entries.values())
    return 1 + (len(value.raw) if isinstance(value.raw, str) else 0)


def _block(value: Value) -> list[str]:
    """The lines of a collection; what is nested moves two to the right, except lists directly below a key."""
    if value.is_sequence:
        if not value.elements:
            return ["[]"]
        return [line for item in value.elements for line in _after("- ", item)]
    if not value.entries:
        return ["{}"]
    lines: list[str] = []
    for key, item in value.entries.items():
        name = f"{_quoted(key)}:"
        if (item.is_sequence and item.elements) or (item.is_mapping and item.entries):
            margin = "" if item.is_sequence else "  "
            lines += [name, *(margin + line for line in _block(item))]
        elif item.is_sequence or item.is_mapping:
            lines.append(f"{name} {_block(item)[0]}")
        else:
            lines += f"{name} {_scalar(item, '  ')}".split("\n")
    return lines


def _after(mark: str, item: Value) -> list[str]:
    lines = _block(item) if item.is_sequence or item.is_mapping else _scalar(item, "").split("\n")
    return [mark + lines[0], *("  " + line if line else line for line in lines[1:])]


def _scalar(value: Value, margin: str) -> str:
    if value.is_null:
        return "null"
    if value.kind is Kind.BOOL:
        return "true" if value.raw else "false"
    if value.kind is Kind.NUMBER:
        if value.number.infinite:
            return "-.inf" if value.number.negative else ".inf"
        return value.number.text()
    text = value.text
    if "\n" not in text or not _fits_block(text):
        return _quoted(text)
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    chomp = "-" if ends == 0 else "" if ends == 1 else "+"
    hint = "2" if text[0] in " \n" else ""
    lines = text.split("\n")[: None if ends == 0 else -1]
    return f"|{hint}{chomp}\n" + "\n".join(margin + line if line else line for line in lines)


def _fits_block(text: str) -> bool:
    """Whether the text survives being written line by line."""
    return text.strip("\n") != "" and not text.endswith(" ") and all(c in "\n\t" or c.isprintable() for c in text)


def _quoted(text: str) -> str:
    """A text in double quotes."""
    return json.dumps(text, ensure_ascii=False)
