"""Constraint, affinity and spread: the blocks with short forms, which records know nothing of.

`version = ">= 2"` says operator and value at once. Of several short forms in one block the last in the order below
wins; one that is empty counts as not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedsched.jobspec.schema import Attr, Kind, Nested, Schema, Shape, of_record
from fedsched.model.constraint import Spread, SpreadTarget

Tree = dict[str, Any]

_WITH_VALUE: Final = ("version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all")
_WITHOUT_VALUE: Final = ("is_set", "is_not_set")
_BASE: Final = (("attribute", "LTarget"), ("operator", "Operand"), ("value", "RTarget"))
_AFFINITY_ORDER: Final = ("version", "semver", "regexp", "set_contains_any", "set_contains_all", "set_contains")


def _finish_constraint(block: Tree) -> Mapping[str, str]:
    """Bring the short forms into the API form; tells which member came from which of them."""
    moved: dict[str, str] = {}
    short: Tree = {key: block.pop(key) for key in (*_WITH_VALUE, *_WITHOUT_VALUE) if key in block}
    for key in _WITH_VALUE:
        if short.get(key):
            block |= {"Operand": key, "RTarget": short[key]}
            moved |= {"Operand": key, "RTarget": key}
    for key in _WITHOUT_VALUE:
        if short.get(key):
            block |= {"Operand": key, "RTarget": ""}
            moved |= {"Operand": key}
    hosts = block.pop("distinct_hosts", None)
    if hosts is not None:
        block |= {"Operand": "distinct_hosts", "RTarget": "true" if hosts else "false"}
        moved |= {"Operand": "distinct_hosts", "RTarget": "distinct_hosts"}
    wanted = block.pop("distinct_property", "")
    if wanted:
        block |= {"Operand": "distinct_property", "LTarget": wanted}
        moved |= {"Operand": "distinct_property", "LTarget": "distinct_property"}
    block["Operand"] = block.get("Operand") or "="
    return moved


def _finish_affinity(block: Tree) -> Mapping[str, str]:
    moved: dict[str, str] = {}
    for key in _AFFINITY_ORDER:
        value = block.pop(key, "")
        if value:
            block |= {"Operand": key, "RTarget": value}
            moved |= {"Operand": key, "RTarget": key}
    block["Operand"] = block.get("Operand") or "="
    return moved


def _texts(*pairs: tuple[str, str]) -> dict[str, Attr]:
    return {key: Attr(key, name, Kind.TEXT) for key, name in pairs}


CONSTRAINT: Final = Schema(
    "constraint",
    {
        **_texts(*_BASE, *((key, key) for key in (*_WITH_VALUE, "distinct_property"))),
        **{key: Attr(key, key, Kind.TRUTH) for key in (*_WITHOUT_VALUE, "distinct_hosts")},
    },
    {},
    _finish_constraint,
)
AFFINITY: Final = Schema(
    "affinity",
    {
        **_texts(*_BASE, *((key, key) for key in _AFFINITY_ORDER)),
        "weight": Attr("weight", "Weight", Kind.WHOLE, bounds=(-100, 100)),
    },
    {},
    _finish_affinity,
)
_TARGET: Final = of_record(SpreadTarget, "target", skip={"value"}, plain=True, bounds={"percent": (0, 255)})
SPREAD: Final = of_record(
    Spread,
    "spread",
    plain={"attribute"},
    bounds={"weight": (-128, 127)},
    blocks=(Nested("target", "SpreadTarget", _TARGET, Shape.MANY, "Value"),),
)
