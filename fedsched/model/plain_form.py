"""Records to and from the internal form: what the log, snapshots and links between servers carry.

Reading is msgspec's own (see `converting`). Writing is ours, for one reason: equal records must give equal data,
because servers compare digests of their state. msgspec leaves a default out only when it is the very same object, so a
value that was decoded is written and an equal one that was defaulted is not. Here a field is left out when it *equals*
its default; maps keep their order. The full form of `msgspec.to_builtins(record, builtin_types=(bytes,))` reads back as
well.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from fedsched.model.api_form import Malformed
from fedsched.model.converting import convert
from fedsched.model.declare import FieldInfo, Record, fields_of, is_record, is_recursive, strip_none

T = TypeVar("T")

Encode = Callable[[Any], Any]


def to_plain(value: Any) -> Any:
    """Give a record, or lists and maps of them, as plain data. Equal values give equal data."""
    if isinstance(value, Record):
        return _encoder_of(type(value))(value)
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def from_plain(kind: type[T], plain: Any) -> T:
    """Read back what `to_plain` gave. Raises `Malformed` when the data does not fit."""
    try:
        return convert(plain, kind)
    except msgspec.ValidationError as err:
        raise Malformed(f"{getattr(kind, '__name__', kind)}: {err}") from err


@functools.cache
def _encoder_of(record: type[Record]) -> Encode:
    names: dict[str, Any] = {}
    config = record.__struct_config__
    first = f"{config.tag_field!r}: {config.tag!r}" if config.tag is not None else ""
    lines = ["def encode(r):", f"    out = {{{first}}}"]
    for i, info in enumerate(fields_of(record)):
        names[f"d{i}"] = info.default
        encode = _value_encoder(info.type)
        value = "v"
        if encode is not None:
            names[f"e{i}"] = encode
            value = f"e{i}(v)"
        lines += [f"    v = r.{info.name}", f"{_guard(info, i)}    out[{info.internal_name!r}] = {value}"]
    lines.append("    return out")
    exec("\n".join(lines), names)
    encoder: Encode = names["encode"]
    return encoder


def _guard(info: FieldInfo, i: int) -> str:
    """Give the condition under which the field is written at all, and the indent of what follows."""
    if info.default is NODEFAULT:
        return ""
    if info.default is None:
        return "    if v is not None:\n    "
    if info.default in ((), {}):
        return "    if v:\n    "
    return f"    if v != d{i}:\n    "


def _value_encoder(kind: Any) -> Encode | None:
    """Give the function for values of this type; None when they are plain already."""
    inner, optional = strip_none(kind)
    encode = _some_encoder(inner)
    if encode is None or not optional or encode is to_plain:
        return encode
    return lambda value: None if value is None else encode(value)


def _some_encoder(kind: Any) -> Encode | None:
    origin = get_origin(kind)
    if kind in (str, int, bool, bytes, Any):
        return None
    if kind is float:
        return float
    if origin is tuple and len(get_args(kind)) == 2:
        return _list_encoder(_value_encoder(get_args(kind)[0]))
    if origin is dict:
        return _map_encoder(_value_encoder(get_args(kind)[1]))
    if is_record(kind) and kind.__struct_config__.tag is None:
        return _encoder_of(kind) if not is_recursive(kind) else to_plain
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return lambda value: value.value
    return to_plain


def _list_encoder(item: Encode | None) -> Encode:
    return list if item is None else lambda values: [item(value) for value in values]


def _map_encoder(item: Encode | None) -> Encode:
    return dict if item is None else lambda values: {key: item(value) for key, value in values.items()}
