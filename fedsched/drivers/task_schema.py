"""What a task's driver settings may look like, checked with the same words at validation and at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fedsched.model.nearest import nearest


class Kind(Enum):
    TEXT = "a text"
    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    DURATION = 'a duration such as "30s"'
    TEXTS = "a list of texts"
    TEXT_MAP = "a table of texts"
    BLOCK = "a block"
    BLOCKS = "a list of blocks"


@dataclass(frozen=True, slots=True)
class Field:
    kind: Kind
    is_required: bool = False
    fields: Mapping[str, Field] | None = None
    """For blocks: what is inside."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class TaskSchema:
    """The settings of one driver, by name."""

    fields: Mapping[str, Field]

    def problems(self, config: Mapping[str, Any], where: str = "config") -> list[str]:
        """Everything that is wrong with a task's settings, in words; nothing if they are fine.

        Values as `jobspec` leaves them: texts that still hold `${...}` stand for anything.
        """
        return _problems(self.fields, config, where)


def _problems(fields: Mapping[str, Field], given: Mapping[str, Any], where: str) -> list[str]:
    found = [_unknown(fields, key, where) for key in given if key not in fields]
    for name, field in fields.items():
        if name not in given or given[name] is None:
            if field.is_required:
                found.append(f"{where}.{name} is required")
            continue
        found += _wrong(field, given[name], f"{where}.{name}")
    return found


def _unknown(fields: Mapping[str, Field], key: str, where: str) -> str:
    close = nearest(key, list(fields))
    return f"{where}.{key} is unknown" + (f": did you mean {close}?" if close else f"; known: {', '.join(fields)}")


def _wrong(field: Field, value: Any, where: str) -> list[str]:
    if isinstance(value, str) and "${" in value:
        return []
    if field.kind in (Kind.BLOCK, Kind.BLOCKS):
        return _wrong_blocks(field, value, where)
    return [] if _fits(field.kind, value) else [f"{where} = {value!r:.80} is not {field.kind.value}"]


def _wrong_blocks(field: Field, value: Any, where: str) -> list[str]:
    many = [value] if isinstance(value, Mapping) else value
    if not isinstance(many, Sequence) or isinstance(many, (str, bytes)):
        return [f"{where} = {value!r:.80} is not {field.kind.value}"]
    if field.kind is Kind.BLOCK and len(many) > 1:
        return [f"{where} is given {len(many)} times"]
    found: list[str] = []
    for number, one in enumerate(many):
        here = f"{where}[{number}]" if field.kind is Kind.BLOCKS else where
        if not isinstance(one, Mapping):
            found.append(f"{here} = {one!r:.80} is not a block")
        else:
            found += _problems(field.fields or {}, one, here)
    return found


def _fits(kind: Kind, value: Any) -> bool:
    match kind:
        case Kind.BOOL:
            return isinstance(value, bool) or value in ("true", "false", "1", "0")
        case Kind.INT:
            return not isinstance(value, bool) and (isinstance(value, int) or _is_whole(value))
        case Kind.NUMBER:
            return not isinstance(value, bool) and (isinstance(value, (int, float)) or _is_number(value))
        case Kind.TEXTS:
            return isinstance(value, (list, tuple)) and all(_is_scalar(one) for one in value)
        case Kind.TEXT_MAP:
            maps = value if isinstance(value, (list, tuple)) else [value]
            return all(isinstance(one, Mapping) and all(_is_scalar(inner) for inner in one.values()) for one in maps)
        case _:
            return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))


def _is_whole(value: Any) -> bool:
    return isinstance(value, str) and value.strip().removeprefix("-").isdigit()


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
