"""How a setting is declared, and how values for it are checked.

A section of the configuration is a frozen dataclass whose fields are made with `setting`. The declaration gives the
file key, the flag, the environment variable, the checks and the reference text; nothing about a setting is written
anywhere else. Inside, durations are seconds (`retry_interval_s`) and sizes bytes (`ballast_size_bytes`); in the file
the key is the name without the unit and the value a text such as "30s" or "64MiB".
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from fedsched.model.errors import BadRequest
from fedsched.model.nearest import nearest
from fedsched.model.units import parse_duration, parse_size

T = TypeVar("T")


class BadSetting(BadRequest):
    """A setting that is wrong or unknown; the message names file (or flag, or variable), key and value."""

    code = "bad_setting"


class Kind(enum.Enum):
    """What is written in the file; the value is what a message calls it."""

    TEXT = "a text"
    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    DURATION = 'a duration such as "30s"'
    SIZE = 'a size such as "64MiB"'
    TEXTS = "a list of texts"
    TEXT_MAP = "a table of texts"
    SECTION = "a section"
    SECTIONS = "a table of sections"
    """By a name that the operator chooses."""
    TABLES = "a table of tables"
    """By name; what is in them is checked by whoever they are for."""


FILE_ONLY = (Kind.SECTIONS, Kind.TABLES)
"""What no flag and no variable can hold."""


@dataclass(frozen=True)
class Setting:
    """What is known about one setting."""

    attr: str
    key: str
    kind: Kind
    default: Any
    doc: str
    flag: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    section: type[Any] | None = None


def setting(
    default: T,
    doc: str,
    *,
    flag: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """Declare one setting; `low` and `high` are the allowed bounds, `flag` the name of its own flag, if it has one."""
    notes = {"doc": doc, "flag": flag, "low": low, "high": high, "choices": choices}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: types.MappingProxyType({}), metadata=notes)  # type: ignore[return-value]
    return dataclasses.field(default=default, metadata=notes)


def settings_of(section: type[Any]) -> Mapping[str, Setting]:
    """Read the declarations of a section, by file key, in their order."""
    hints = get_type_hints(section)
    found = [_read(info, hints[info.name]) for info in dataclasses.fields(section)]
    return {one.key: one for one in found}


def all_settings(section: type[Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Setting]:
    """Give every setting below a section that a text can set, by its path of keys."""
    flat: dict[tuple[str, ...], Setting] = {}
    for key, one in settings_of(section).items():
        if one.kind is Kind.SECTION and one.section is not None:
            flat |= all_settings(one.section, (*path, key))
        elif one.kind not in FILE_ONLY:
            flat[(*path, key)] = one
    return flat


def check_table(section: type[Any], table: Mapping[str, Any], source: str, path: str = "") -> dict[str, Any]:
    """Turn one file's table into checked values by attribute name, nested; the first wrong one raises `BadSetting`."""
    known = settings_of(section)
    checked: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{path}{key}"
        one = known.get(key)
        if one is None:
            raise _unknown(source, path, key, value, list(known))
        if one.section is None:
            checked[one.attr] = check_value(one, value, source, where)
        elif not isinstance(value, Mapping):
            raise _wrong(one, value, source, where)
        elif one.kind is Kind.SECTION:
            checked[one.attr] = check_table(one.section, value, source, f"{where}.")
        else:
            checked[one.attr] = _check_sections(one, value, source, where)
    return checked


def _check_sections(one: Setting, table: Mapping[str, Any], source: str, where: str) -> dict[str, Any]:
    """One section under each name."""
    assert one.section is not None
    if not all(isinstance(value, Mapping) for value in table.values()):
        raise _wrong(one, table, source, where)
    return {name: check_table(one.section, value, source, f"{where}.{name}.") for name, value in table.items()}


def check_value(one: Setting, value: Any, source: str, where: str) -> Any:
    """Check one value as a TOML file gives it."""
    converted = _converted(one, value, source, where)
    if one.choices and converted not in one.choices:
        raise BadSetting(
            f"{source}: {where} = {_shown(value)} is none of {', '.join(one.choices)}",
            hint=_did_you_mean(str(value), one.choices),
        )
    if one.low is not None and converted < one.low:
        raise BadSetting(f"{source}: {where} = {_shown(value)} is too small", hint=f"at least {one.low:g}")
    if one.high is not None and converted > one.high:
        raise BadSetting(f"{source}: {where} = {_shown(value)} is too large", hint=f"at most {one.high:g}")
    return converted


def check_text(one: Setting, text: str, source: str, where: str) -> Any:
    """Check one value as a flag or an environment variable gives it: always a text."""
    value: Any = text
    match one.kind:
        case Kind.BOOL:
            value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        case Kind.INT | Kind.NUMBER:
            value = _number_or_text(text, one.kind)
        case Kind.TEXTS:
            value = [part.strip() for part in text.split(",") if part.strip()]
        case Kind.TEXT_MAP:
            pairs = [part.partition("=") for part in text.split(",") if part.strip()]
            value = {key.strip(): rest.strip() for key, equals, rest in pairs if equals}
            if len(value) != len(pairs):
                raise _wrong(one, text, source, where)
    return check_value(one, value, source, where)


def build(section: type[T], checked: Mapping[str, Any]) -> T:
    """Make the section from checked values; what is not there keeps its default."""
    values: dict[str, Any] = {}
    for one in settings_of(section).values():
        if one.attr in checked:
            values[one.attr] = _built(one, checked[one.attr])
    return section(**values)


def _built(one: Setting, given: Any) -> Any:
    if one.section is None:
        return given
    if one.kind is Kind.SECTION:
        return build(one.section, given)
    return types.MappingProxyType({name: build(one.section, inner) for name, inner in given.items()})


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one set of checked values over another: sections are merged, everything else is replaced."""
    merged = dict(under)
    for attr, value in over.items():
        below = merged.get(attr)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[attr] = merge(below, value) if both and below is not None else value
    return merged


def _read(info: dataclasses.Field[Any], hint: Any) -> Setting:
    kind = _kind_of(info.name, hint)
    key = info.name
    if kind is Kind.DURATION:
        key = key.removesuffix("_s")
    elif kind is Kind.SIZE:
        key = key.removesuffix("_bytes")
    default = info.default if info.default is not dataclasses.MISSING else types.MappingProxyType({})
    section = hint if kind is Kind.SECTION else get_args(hint)[1] if kind is Kind.SECTIONS else None
    return Setting(attr=info.name, key=key, kind=kind, default=default, section=section, **info.metadata)


def _kind_of(name: str, hint: Any) -> Kind:
    if dataclasses.is_dataclass(hint):
        return Kind.SECTION
    if hint is float and name.endswith("_s"):
        return Kind.DURATION
    if hint is int and name.endswith("_bytes"):
        return Kind.SIZE
    if get_origin(hint) is tuple and get_args(hint)[0] is str:
        return Kind.TEXTS
    if get_origin(hint) is Mapping:
        inner = get_args(hint)[1]
        if dataclasses.is_dataclass(inner):
            return Kind.SECTIONS
        return Kind.TABLES if get_origin(inner) is Mapping else Kind.TEXT_MAP
    return {str: Kind.TEXT, bool: Kind.BOOL, int: Kind.INT, float: Kind.NUMBER}[hint]


def _converted(one: Setting, value: Any, source: str, where: str) -> Any:
    match one.kind, value:
        case Kind.TEXT, str():
            return value
        case Kind.BOOL, bool():
            return value
        case ((Kind.INT | Kind.NUMBER | Kind.DURATION | Kind.SIZE), bool()):
            pass
        case Kind.INT, int():
            return value
        case Kind.NUMBER, int() | float():
            return float(value)
        case Kind.SIZE, int():
            return value
        case Kind.DURATION, str():
            return _parsed(parse_duration, one, value, source, where)
        case Kind.SIZE, str():
            return _parsed(parse_size, one, value, source, where)
        case Kind.TEXTS, list() if all(isinstance(item, str) for item in value):
            return tuple(value)
        case Kind.TABLES, Mapping() if all(isinstance(item, Mapping) for item in value.values()):
            return types.MappingProxyType({name: types.MappingProxyType(dict(inner)) for name, inner in value.items()})
        case Kind.TEXT_MAP, Mapping() if all(isinstance(item, str) for item in value.values()):
            return types.MappingProxyType(dict(value))
    raise _wrong(one, value, source, where)


def _parsed(parse: Any, one: Setting, value: str, source: str, where: str) -> Any:
    try:
        return parse(value)
    except BadRequest as error:
        raise _wrong(one, value, source, where) from error


def _number_or_text(text: str, kind: Kind) -> int | float | str:
    try:
        return int(text) if kind is Kind.INT else float(text)
    except ValueError:
        return text


def _wrong(one: Setting, value: Any, source: str, where: str) -> BadSetting:
    return BadSetting(f"{source}: {where} = {_shown(value)} is not {one.kind.value}", hint=one.doc)


def _unknown(source: str, path: str, key: str, value: Any, known: list[str]) -> BadSetting:
    inside = f"section {path.removesuffix('.')}" if path else "the top level"
    return BadSetting(
        f"{source}: unknown setting {path}{key} = {_shown(value)}",
        hint=_did_you_mean(key, known, path) or f"known in {inside}: {', '.join(sorted(known))}",
    )


def _did_you_mean(word: str, known: list[str] | tuple[str, ...], path: str = "") -> str:
    close = nearest(word, known)
    return f"did you mean {path}{close}?" if close else ""


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = f'"{value}"'
        case Mapping():
            text = "{...}"
        case _:
            text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
