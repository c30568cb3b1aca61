"""Hypothesis strategies for any record, read off its declarations."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

import fedsched.model
from fedsched.model.declare import FieldInfo, Record, Unit, fields_of, is_record, strip_none

TEXTS = st.text(alphabet=st.characters(codec="utf-8", max_codepoint=0x2FF), max_size=6)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
MILLISECONDS = st.integers(-(10**9), 10**9).map(lambda ms: ms / 1000)
MOMENTS = st.integers(1, 2**62)
FREE = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def all_records() -> list[type[Record]]:
    """Every record class of the model, in a stable order."""
    found: set[type[Record]] = set()
    for module in pkgutil.iter_modules(fedsched.model.__path__):
        names = vars(importlib.import_module(f"fedsched.model.{module.name}"))
        found.update(kind for kind in names.values() if is_record(kind) and kind is not Record)
    return sorted(found, key=lambda kind: kind.__qualname__)


def records(kind: type[Record], depth: int = 0) -> st.SearchStrategy[Any]:
    """Records of one class: some fields set, the others at their default."""
    chosen: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for info in fields_of(kind):
        (chosen if info.is_required else optional)[info.name] = _values(info, depth)
    return st.fixed_dictionaries(chosen, optional=optional if depth < 3 else {}).map(lambda given: kind(**given))


def _values(info: FieldInfo, depth: int) -> st.SearchStrategy[Any]:
    kind, may_be_none = strip_none(info.type)
    values = _of_unit(info.unit) if info.unit else _of_type(kind, depth)
    return st.none() | values if may_be_none else values


def _of_unit(unit: Unit) -> st.SearchStrategy[Any]:
    if unit in (Unit.DURATION_NS, Unit.DURATION_TEXT, Unit.DURATION_TEXT_OR_EMPTY):
        return MILLISECONDS
    return MOMENTS


def _of_type(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    simple = {str: TEXTS, int: INTEGERS, bool: st.booleans(), bytes: st.binary(max_size=4), Any: FREE}
    if kind in simple:
        return simple[kind]
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if get_origin(kind) is tuple:
        return st.lists(_item(get_args(kind)[0], depth), max_size=2).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(TEXTS, _item(get_args(kind)[1], depth), max_size=2)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    return st.deferred(lambda: records(kind, depth + 1))


def _item(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    inner, may_be_none = strip_none(kind)
    values = _of_type(inner, depth)
    return st.none() | values if may_be_none else values
