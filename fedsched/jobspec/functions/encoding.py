"""Functions of base64, CSV, JSON and URLs."""

from __future__ import annotations

import binascii
import csv
import io
import json
from typing import Any, NoReturn
from urllib.parse import quote_plus

from fedsched.jobspec import numbers
from fedsched.jobspec.context import FunctionFailed
from fedsched.jobspec.functions.registry import function, nullable
from fedsched.jobspec.limits import MAX_ELEMENTS, MAX_VALUE_DEPTH
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import ANY, STRING, Kind, object_of
from fedsched.jobspec.values import NULL, Value, boolean, make_list, make_object, make_tuple, number, string

_STR = ("str", STRING)


@function("base64encode", takes=(_STR,))
def base64encode(text: Value) -> Value:
    return string(binascii.b2a_base64(text.text.encode(), newline=False).decode())


@function("base64decode", takes=(_STR,))
def base64decode(text: Value) -> Value:
    try:
        return string(decode_base64(text.text).decode())
    except UnicodeDecodeError:
        raise FunctionFailed("the decoded bytes are no text (UTF-8)") from None


def decode_base64(text: str) -> bytes:
    """Strict base64 with padding; line ends do not count."""
    try:
        return binascii.a2b_base64(text.replace("\r", "").replace("\n", "").encode(), strict_mode=True)
    except (ValueError, UnicodeEncodeError):
        raise FunctionFailed(f"{text[:40]!r} is no base64") from None


@function("csvdecode", takes=(_STR,), weight=1)
def csvdecode(text: Value) -> Value:
    try:
        rows = [row for row in csv.reader(io.StringIO(text.text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise FunctionFailed(f"no CSV: {error}") from None
    if not rows:
        raise FunctionFailed("the header line is missing")
    header = rows[0]
    for at, name in enumerate(header):
        if name in header[:at]:
            raise FunctionFailed(f"column {name!r} comes twice")
    if len(rows) * len(header) > MAX_ELEMENTS:
        raise too_much(f"a table may have {MAX_ELEMENTS} fields")
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise FunctionFailed(f"record {line} has {len(row)} fields, the header {len(header)}")
    records = [make_object({k: string(v) for k, v in zip(header, row, strict=True)}) for row in rows[1:]]
    return make_list(object_of(dict.fromkeys(header, STRING)), records)


@function("jsondecode", takes=(_STR,), weight=1)
def jsondecode(text: Value) -> Value:
    if _json_depth(text.text) > MAX_VALUE_DEPTH:
        raise too_much(f"values may be nested {MAX_VALUE_DEPTH} deep")
    try:
        found = json.loads(
            text.text, parse_int=_json_number, parse_float=_json_number, parse_constant=_no_json_constant
        )
    except json.JSONDecodeError as error:
        raise FunctionFailed(f"no JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    return _from_json(found)


@function("jsonencode", takes=(nullable("val", ANY),), weight=1)
def jsonencode(value: Value) -> Value:
    return string(to_json(value))


@function("urlencode", takes=(_STR,))
def urlencode(text: Value) -> Value:
    return string(quote_plus(text.text))


def to_json(value: Value) -> str:
    """Compact JSON with sorted keys; characters that HTML or scripts could trip over are escaped."""
    if value.is_null:
        return "null"
    if value.kind is Kind.STRING:
        return json_text(value.text)
    if value.kind is Kind.NUMBER:
        if value.number.infinite:
            raise FunctionFailed("JSON has no infinity")
        return value.number.text()
    if value.kind is Kind.BOOL:
        return "true" if value.raw else "false"
    if value.is_sequence:
        return "[" + ",".join(to_json(element) for element in value.elements) + "]"
    return "{" + ",".join(f"{json_text(key)}:{to_json(item)}" for key, item in value.entries.items()) + "}"


def json_text(text: str) -> str:
    encoded = json.dumps(text, ensure_ascii=False)
    for char, escape in _ESCAPED:
        if char in encoded:
            encoded = encoded.replace(char, escape)
    return encoded


_ESCAPED = tuple((char, f"\\u{ord(char):04x}") for char in ("<", ">", "&", "\u2028", "\u2029"))


def _json_number(text: str) -> Value:
    try:
        found = numbers.parse(text)
    except numbers.NumberProblem as error:
        raise FunctionFailed(str(error)) from None
    assert found is not None, text
    return number(found)


def _no_json_constant(text: str) -> NoReturn:
    raise FunctionFailed(f"JSON has no {text}")


def _from_json(found: Any) -> Value:
    if isinstance(found, Value):
        return found
    if found is None:
        return NULL
    if isinstance(found, bool):
        return boolean(found)
    if isinstance(found, str):
        return string(found)
    if isinstance(found, list):
        return make_tuple([_from_json(item) for item in found])
    return make_object({string(key).text: _from_json(item) for key, item in found.items()})


def _json_depth(text: str) -> int:
    """How deep brackets go, strings left out; told before anything recursive sees the text."""
    depth = deepest = at = 0
    while at < len(text):
        char = text[at]
        if char == '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
        at += 1
    return deepest
