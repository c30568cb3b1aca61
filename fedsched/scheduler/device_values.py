"""Typed attributes of devices: numbers with units, truth values and texts.

`11 GiB` is more than `11264 MB` and can never be compared with `1500 MHz`. A device's plugin reports typed values; what
a job file says is text and gets its type by how it is written. Numbers are exact fractions, so that a value in
milliwatts equals the same one in watts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from fedsched.scheduler.constraints import EQUAL, ORDERED, UNEQUAL, as_bool, as_float, as_integer, compares

_DECIMAL: Final = {"kB": 1, "KB": 1, "MB": 2, "GB": 3, "TB": 4, "PB": 5, "EB": 6}
_BINARY: Final = {"KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}
_BYTES: Final = {name: Fraction(1000**power) for name, power in _DECIMAL.items()} | {
    name: Fraction(1024**power) for name, power in _BINARY.items()
}
UNITS: Final[dict[str, tuple[str, Fraction]]] = {
    **{name: ("byte", factor) for name, factor in _BYTES.items()},
    **{f"{name}/s": ("byte rate", factor) for name, factor in _BYTES.items()},
    "MHz": ("hertz", Fraction(10**6)),
    "GHz": ("hertz", Fraction(10**9)),
    "mW": ("watt", Fraction(1, 1000)),
    "W": ("watt", Fraction(1)),
    "kW": ("watt", Fraction(10**3)),
    "MW": ("watt", Fraction(10**6)),
    "GW": ("watt", Fraction(10**9)),
}
"""What each unit measures, and how many of the base unit it is."""

_LONGEST_FIRST: Final = sorted(UNITS, key=lambda name: (-len(name), name))


class Value(NamedTuple):
    """One typed value; `measures` is empty for numbers without a unit and for all that is no number."""

    content: Fraction | bool | str
    measures: str = ""


def text_value(text: str) -> Value:
    return Value(text)


def parse_value(text: str) -> Value:
    """Give written text its type: a number with or without unit, a truth value, or else text."""
    unit = ""
    if text and text[-1].isalpha():
        unit = next((name for name in _LONGEST_FIRST if text.endswith(name)), "")
    number = _number(text.removesuffix(unit).strip() if unit else text)
    if number is not None:
        return _measured(number, unit)
    truth = as_bool(text)
    return Value(text if truth is None else truth)


def reported_value(reported: Any) -> Value | None:
    """Read what a plugin reported: `{"Int": 11264, "Unit": "MiB"}`, or a plain JSON value; None if it is neither."""
    if isinstance(reported, Mapping):
        unit = str(reported.get("Unit") or "")
        for name in ("Float", "Int", "Bool", "String"):
            if reported.get(name) is not None:
                return _plain_value(reported[name], unit)
        return None
    return _plain_value(reported, "")


def values_hold(operand: str, left: Value | None, right: Value | None) -> bool:
    """Whether the comparison of two typed values is true; None is a side that was not found."""
    if operand == "is_set":
        return left is not None
    if operand == "is_not_set":
        return left is None
    if operand in UNEQUAL and (left is None or right is None):
        return (left is None) != (right is None)
    if left is None or right is None:
        return False
    if operand in EQUAL or operand in UNEQUAL or operand in ORDERED:
        return _typed_holds(operand, left, right)
    if operand in ("version", "semver"):
        return compares(operand, _version_text(left), _version_text(right))
    if isinstance(left.content, str) and isinstance(right.content, str):
        return compares(operand, left.content, right.content)
    return False


def _typed_holds(operand: str, left: Value, right: Value) -> bool:
    mine, other = left.content, right.content
    if left.measures != right.measures:
        return False
    if isinstance(mine, bool) and isinstance(other, bool):
        return operand not in ORDERED and (mine == other) == (operand in EQUAL)
    if isinstance(mine, str) and isinstance(other, str):
        return _by_order(operand, (mine > other) - (mine < other))
    if isinstance(mine, Fraction) and isinstance(other, Fraction):
        return _by_order(operand, (mine > other) - (mine < other))
    return False


def _by_order(operand: str, order: int) -> bool:
    if operand in EQUAL:
        return order == 0
    if operand in UNEQUAL:
        return order != 0
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operand]


def _number(text: str) -> Fraction | None:
    whole = as_integer(text)
    if whole is not None:
        return Fraction(whole)
    real = as_float(text)
    return Fraction(real) if real is not None and math.isfinite(real) else None


def _measured(number: Fraction, unit: str) -> Value:
    if unit not in UNITS:
        return Value(number)
    measures, factor = UNITS[unit]
    return Value(number * factor, measures)


def _plain_value(content: Any, unit: str) -> Value | None:
    if isinstance(content, (bool, str)):
        return Value(content)
    if isinstance(content, int) or (isinstance(content, float) and math.isfinite(content)):
        return _measured(Fraction(content), unit)
    return None


def _version_text(value: Value) -> str:
    content = value.content
    if isinstance(content, str):
        return content
    return str(content.numerator) if isinstance(content, Fraction) and content.denominator == 1 else ""
