"""Records to and from Nomad's JSON form, compiled once per record class.

`to_api` gives plain dicts and lists that any JSON encoder takes; free-form parts (driver config) are shared with the
record, not copied: read them only. `from_api` is as forgiving as Nomad's own reader: keys match in any case, unknown
keys are passed over (or reported), null means absent, durations may be texts. It is not more forgiving than that: a
value of the wrong kind is refused with its path.
"""

from __future__ import annotations

import base64
import binascii
import enum
import functools
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

from msgspec import NODEFAULT

from fedsched.model import units
from fedsched.model.declare import (
    FieldInfo,
    InJson,
    Record,
    Unit,
    api_name,
    fields_of,
    is_record,
    is_recursive,
    strip_none,
)
from fedsched.model.errors import BadRequest

R = TypeVar("R", bound=Record)

Encode = Callable[[Any], Any]
Decode = Callable[[Any, "list[str] | None"], Any]

MAX_FREE_DEPTH = 64
"""Deepest nesting of free-form data; Nomad's driver configs stay below ten."""


class Malformed(BadRequest):
    """Plain data that does not fit the record; the message starts with the path."""

    code = "malformed"


class _Mismatch(Exception):
    """Travels up from the value to the record, gathering the path backwards."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.path: list[str] = []


def to_api(record: Record) -> dict[str, Any]:
    """Give the record as Nomad's HTTP API would send it."""
    result: dict[str, Any] = _encoder_of(type(record))(record)
    return result


def from_api(record: type[R], plain: Any, *, unknown: list[str] | None = None) -> R:
    """Read a record from plain data in Nomad's form.

    Absent members take the declared default (fields without one: the zero of their type); so do nulls, unless the field
    may be None. Raises `Malformed`. Paths of keys that no field claims are appended to `unknown`, if given.
    """
    found: list[str] | None = None if unknown is None else []
    try:
        result: R = _decoder_of(record)(plain, found)
    except _Mismatch as err:
        raise Malformed(f"{_join(record.__name__, err.path)}: {err.message}") from None
    if unknown is not None and found is not None:
        unknown += [_join(record.__name__, [path]) for path in found]
    return result


def tidy(record: type[Record], plain: Any) -> Any:
    """Give a request as it was meant: exact names at every depth, nulls gone. What no field claims stays as it is.

    Only for data that `from_api` accepts; it is the way to learn what a request said and what it left open.
    """
    if not isinstance(plain, dict):
        return plain
    folded = {info.api_name.lower(): info for info in fields_of(record)}
    tree: dict[str, Any] = {}
    for key, value in plain.items():
        info = folded.get(key.lower())
        if info is None:
            tree[key] = value
        elif value is not None:
            tree[info.api_name] = _tidy_value(strip_none(info.type)[0], value)
    return tree


def _tidy_value(kind: Any, value: Any) -> Any:
    if is_record(kind):
        return tidy(kind, value)
    items = get_args(kind)
    if get_origin(kind) is tuple and is_record(items[0]) and isinstance(value, list):
        return [tidy(items[0], item) for item in value]
    if get_origin(kind) is dict and is_record(items[1]) and isinstance(value, dict):
        return {key: tidy(items[1], item) for key, item in value.items()}
    return value


def field_to_api(info: FieldInfo, value: Any) -> Any:
    """Give one field's value as the API form has it."""
    encode = _value_encoder(info.type, info.unit, InJson.KEEP_EMPTY in info.in_json)
    return value if encode is None else encode(value)


# --- writing


@functools.cache
def _encoder_of(record: type[Record]) -> Encode:
    """Write one function that builds the dict: about four times as fast as a loop over the fields."""
    names: dict[str, Any] = {}
    lines = ["def encode(r):", "    out = {}"]
    for i, info in enumerate(fields_of(record)):
        if not info.in_api or InJson.INPUT_ONLY in info.in_json:
            continue
        if InJson.REDACTED in info.in_json:
            lines.append(f"    out[{info.api_name!r}] = ''")
            continue
        encode = _value_encoder(info.type, info.unit, InJson.KEEP_EMPTY in info.in_json)
        if encode is not None:
            names[f"e{i}"] = encode
        value = f"r.{info.name}" if encode is None else f"e{i}(r.{info.name})"
        guard = _presence(info, i) if InJson.OMIT_EMPTY in info.in_json else ""
        names[f"z{i}"] = info.default
        lines.append(f"{guard}    out[{info.api_name!r}] = {value}")
    lines += [f"    out[{api_name(name)!r}] = r.{name}" for name in record.derived]
    lines.append("    return out")
    exec("\n".join(lines), names)
    encoder: Encode = names["encode"]
    return encoder


def _presence(info: FieldInfo, i: int) -> str:
    """Give the condition under which a sparse member is sent; absent must read back as what was left out."""
    if is_record(info.type):
        return f"    if r.{info.name} != z{i}:\n    "
    if info.default is None:
        return f"    if r.{info.name} is not None:\n    "
    if info.default is NODEFAULT or not info.default:
        return f"    if r.{info.name}:\n    "
    return ""


def _value_encoder(kind: Any, unit: Unit | None, keep_empty: bool) -> Encode | None:
    """Give the function that turns a value of this type into its JSON form; None when it already is."""
    inner, optional = strip_none(kind)
    encode = _UNIT_ENCODERS[unit] if unit else _plain_encoder(inner, keep_empty or optional)
    if encode is None or not optional:
        return encode
    some = encode
    return lambda value: None if value is None else some(value)


def _plain_encoder(kind: Any, keep_empty: bool) -> Encode | None:
    origin = get_origin(kind)
    if origin is tuple:
        return _list_encoder(_value_encoder(get_args(kind)[0], None, True), keep_empty)
    if origin is dict:
        return _map_encoder(_value_encoder(get_args(kind)[1], None, True), keep_empty)
    if kind is bytes:
        return lambda value: base64.b64encode(value).decode() if value else None
    if is_record(kind):
        return _encoder_of(kind) if not is_recursive(kind) else lambda value: _encoder_of(kind)(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return lambda value: value.value
    return None


def _list_encoder(item: Encode | None, keep_empty: bool) -> Encode:
    if item is None:
        return list if keep_empty else lambda values: list(values) or None
    if keep_empty:
        return lambda values: [item(value) for value in values]
    return lambda values: [item(value) for value in values] or None


def _map_encoder(item: Encode | None, keep_empty: bool) -> Encode:
    if item is None:
        return dict if keep_empty else lambda values: dict(values) or None
    if keep_empty:
        return lambda values: {key: item(value) for key, value in values.items()}
    return lambda values: {key: item(value) for key, value in values.items()} or None


_UNIT_ENCODERS: dict[Unit, Encode | None] = {
    Unit.DURATION_NS: units.ns_from_seconds,
    Unit.DURATION_TEXT: units.format_duration,
    Unit.DURATION_TEXT_OR_EMPTY: lambda value: units.format_duration(value) if value else "",
    Unit.TIME_NS: None,
    Unit.TIME_S: None,
    Unit.TIME_TEXT: lambda value: units.format_time(value) if value else None,
    Unit.TIME_TEXT_YEAR_1: lambda value: units.format_time(value) if value else "0001-01-01T00:00:00Z",
}


# --- reading


@functools.cache
def _decoder_of(record: type[Record]) -> Decode:
    exact: dict[str, tuple[str, str, Decode]] = {}
    required: dict[str, Callable[[], Any]] = {}
    for info in fields_of(record):
        if info.in_api:
            exact[info.api_name] = (info.name, info.api_name, _value_decoder(info.type, info.unit))
        if info.is_required:
            required[info.name] = _zero_of(info)
    nullable = {info.name for info in fields_of(record) if strip_none(info.type)[1]}
    derived = {api_name(name) for name in record.derived}
    folded = {name.lower(): entry for name, entry in exact.items()}

    def decode(plain: Any, unknown: list[str] | None) -> Any:
        if not isinstance(plain, dict):
            raise _expected("object", plain)
        given: dict[str, Any] = {}
        for key, value in plain.items():
            entry = exact.get(key) or folded.get(key.lower() if isinstance(key, str) else key)
            if entry is None:
                if unknown is not None and key not in derived:
                    unknown.append(str(key))
            elif value is not None:
                given[entry[0]] = _step(entry[2], value, entry[1], unknown)
            elif entry[0] in nullable:
                given[entry[0]] = None
        for name, zero in required.items():
            if name not in given:
                given[name] = zero()
        return record(**given)

    return decode


def _step(decode: Decode, value: Any, name: str, unknown: list[str] | None) -> Any:
    """Decode one step down, putting `name` before whatever path comes back."""
    seen = len(unknown) if unknown is not None else 0
    try:
        result = decode(value, unknown)
    except _Mismatch as err:
        err.path.append(name)
        raise
    if unknown is not None and len(unknown) > seen:
        unknown[seen:] = [_join(name, [path]) for path in unknown[seen:]]
    return result


def _value_decoder(kind: Any, unit: Unit | None) -> Decode:
    inner, optional = strip_none(kind)
    if optional:
        some = _value_decoder(inner, unit)
        return lambda plain, unknown: None if plain is None else some(plain, unknown)
    if unit is not None:
        return _UNIT_DECODERS[unit]
    if inner in _SCALARS:
        return _SCALARS[inner]
    origin = get_origin(inner)
    if origin is tuple:
        return _list_decoder(_item_decoder(get_args(inner)[0]))
    if origin is dict:
        return _map_decoder(_item_decoder(get_args(inner)[1]))
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return _enum_decoder(inner)
    if is_record(inner):
        return lambda plain, unknown: _decoder_of(inner)(plain, unknown)
    raise TypeError(f"no JSON form for {inner!r}")


def _item_decoder(kind: Any) -> Decode:
    """Inside a list or map, a null list or map is an empty one, as Go writes it."""
    decode = _value_decoder(kind, None)
    empty = get_origin(kind)
    if empty not in (tuple, dict):
        return decode
    return lambda plain, unknown: empty() if plain is None else decode(plain, unknown)


def _list_decoder(item: Decode) -> Decode:
    def decode(plain: Any, unknown: list[str] | None) -> Any:
        if not isinstance(plain, (list, tuple)):
            raise _expected("list", plain)
        return tuple(_step(item, value, f"[{i}]", unknown) for i, value in enumerate(plain))

    return decode


def _map_decoder(item: Decode) -> Decode:
    def decode(plain: Any, unknown: list[str] | None) -> Any:
        if not isinstance(plain, dict):
            raise _expected("object", plain)
        return {_text(key, None): _step(item, value, f"[{key!r}]", unknown) for key, value in plain.items()}

    return decode


def _enum_decoder(kind: type[enum.Enum]) -> Decode:
    by_value = {member.value: member for member in kind}
    valid = ", ".join(repr(value) for value in by_value)

    def decode(plain: Any, _unknown: list[str] | None) -> Any:
        try:
            return by_value[plain]
        except (KeyError, TypeError):
            raise _Mismatch(f"expected one of {valid}, got {_describe(plain)}") from None

    return decode


def _text(plain: Any, _unknown: list[str] | None) -> str:
    if not isinstance(plain, str):
        raise _expected("string", plain)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise _Mismatch("expected valid Unicode, got half of a surrogate pair") from None
    return plain


def _integer(plain: Any, _unknown: list[str] | None) -> int:
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise _expected("integer", plain)
    if not -(2**63) <= plain < 2**64:
        raise _Mismatch("expected an integer of 64 bits, got a larger one")
    return plain


def _number(plain: Any, _unknown: list[str] | None) -> float:
    if not isinstance(plain, (int, float)) or isinstance(plain, bool):
        raise _expected("number", plain)
    return float(plain)


def _boolean(plain: Any, _unknown: list[str] | None) -> bool:
    if not isinstance(plain, bool):
        raise _expected("boolean", plain)
    return plain


def _base64(plain: Any, _unknown: list[str] | None) -> bytes:
    try:
        return base64.b64decode(_text(plain, None), validate=True)
    except binascii.Error as err:
        raise _Mismatch(f"expected base64, got {_describe(plain)} ({err})") from None


def _free(plain: Any, _unknown: list[str] | None, depth: int = 0) -> Any:
    """Check free-form data: bounded depth, text keys, nothing that a later encoder would choke on."""
    if depth > MAX_FREE_DEPTH:
        raise _Mismatch(f"nested deeper than {MAX_FREE_DEPTH} levels")
    if isinstance(plain, dict):
        return {_text(key, None): _free(value, None, depth + 1) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_free(value, None, depth + 1) for value in plain]
    if isinstance(plain, str):
        return _text(plain, None)
    if plain is None or isinstance(plain, (bool, float)):
        return plain
    return _integer(plain, None)


def _duration(plain: Any, _unknown: list[str] | None) -> float:
    if isinstance(plain, str):
        return _in_units(units.parse_duration_ns, plain) / units.NS_PER_S if plain else 0.0
    try:
        ns = _integer(plain, None)
    except _Mismatch:
        raise _expected("duration (nanoseconds or text)", plain) from None
    if abs(ns) > units.MAX_NS:
        raise _Mismatch("expected a duration of at most 292 years, got a longer one")
    return ns / units.NS_PER_S


def _time_text(plain: Any, _unknown: list[str] | None) -> int:
    return _in_units(units.parse_time, _text(plain, None)) if plain != "" else 0


def _in_units(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except BadRequest as err:
        raise _Mismatch(str(err)) from None


_SCALARS: dict[Any, Decode] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _boolean,
    bytes: _base64,
    Any: _free,
}
_UNIT_DECODERS: dict[Unit, Decode] = {
    Unit.DURATION_NS: _duration,
    Unit.DURATION_TEXT: _duration,
    Unit.DURATION_TEXT_OR_EMPTY: _duration,
    Unit.TIME_NS: _integer,
    Unit.TIME_S: _integer,
    Unit.TIME_TEXT: _time_text,
    Unit.TIME_TEXT_YEAR_1: _time_text,
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    ((list, tuple), "list"),
    (dict, "object"),
)


def _zero_of(info: FieldInfo) -> Callable[[], Any]:
    kind, optional = strip_none(info.type)
    origin = get_origin(kind) or kind
    if optional:
        return lambda: None
    if origin in (str, int, float, bool, bytes, tuple, dict):
        zero: Callable[[], Any] = origin
        return zero
    if is_record(kind):
        return lambda: _decoder_of(kind)({}, None)

    def missing() -> Any:
        err = _Mismatch("missing")
        err.path.append(info.api_name)
        raise err

    return missing


def _expected(what: str, plain: Any) -> _Mismatch:
    return _Mismatch(f"expected {what}, got {_describe(plain)}")


def _describe(plain: Any) -> str:
    kind = next((name for kinds, name in _KINDS if isinstance(plain, kinds)), type(plain).__name__)
    if kind in ("null", "list", "object"):
        return kind
    shown = repr(plain)
    return f"{kind} {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _join(head: str, backwards: list[str]) -> str:
    for part in reversed(backwards):
        head += part if part.startswith("[") else f".{part}"
    return head
