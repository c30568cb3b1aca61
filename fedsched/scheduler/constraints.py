"""The operators of constraints and affinities, on texts: what nodes are asked.

Devices have typed attributes with units and compare by other rules: see `device_values`. A test that cannot be made
(unknown operator, a pattern or version that does not parse) is a test that fails, never an error: the job was checked
when it was registered, and a node that cannot be judged is a node that is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from fedsched.model.constraint import Affinity, Constraint
from fedsched.model.constraint_problems import DISTINCT_HOSTS, DISTINCT_PROPERTY
from fedsched.model.node import Node
from fedsched.model.patterns import found_in
from fedsched.model.versions import satisfies
from fedsched.scheduler.attributes import getter, is_unique

Value = TypeVar("Value", int, float, str)
Test = Callable[[Node], bool]

EQUAL: Final = frozenset({"=", "==", "is"})
UNEQUAL: Final = frozenset({"!=", "not"})
ORDERED: Final = frozenset({"<", "<=", ">", ">="})
DISTINCT: Final = frozenset({DISTINCT_HOSTS, DISTINCT_PROPERTY})
INT64: Final = range(-(2**63), 2**63)
MAX_NUMBER_TEXT: Final = 400
"""Characters; a float of Go's has at most about 330 before it is refused as out of range."""


def holds(operand: str, left: str | None, right: str | None) -> bool:
    """Whether the comparison is true; None stands for a side that was not found."""
    if operand in EQUAL:
        return left is not None and left == right
    if operand in UNEQUAL:
        return left != right
    if operand == "is_set":
        return left is not None
    if operand == "is_not_set":
        return left is None
    if operand in DISTINCT:
        return True  # asked elsewhere, of the allocations and not of the node
    return left is not None and right is not None and compares(operand, left, right)


def compares(operand: str, left: str, right: str) -> bool:
    """Judge the operators that need both sides."""
    if operand in ORDERED:
        return in_order(operand, left, right)
    match operand:
        case "version":
            return satisfies(left, right)
        case "semver":
            return satisfies(left, right, semver=True)
        case "regexp":
            return found_in(right, left)
        case "set_contains" | "set_contains_all":
            return _items(right) <= _items(left)
        case "set_contains_any":
            return not _items(right).isdisjoint(_items(left))
        case _:
            return False


def test_of(wanted: Constraint | Affinity) -> Test:
    """Make the function that puts the test to a node."""
    operand, left, right = wanted.operand, getter(wanted.l_target), getter(wanted.r_target)
    return lambda node: holds(operand, left(node), right(node))


def matches(wanted: Constraint | Affinity, node: Node) -> bool:
    """Whether one node passes the test."""
    return test_of(wanted)(node)


def escapes(wanted: Constraint | Affinity) -> bool:
    """Whether nodes of one class may answer differently."""
    return is_unique(wanted.l_target) or is_unique(wanted.r_target)


def reason_of(constraint: Constraint) -> str:
    """Give the text under which nodes that fail are counted."""
    return f"{constraint.l_target} {constraint.operand} {constraint.r_target}"


def in_order(operand: str, left: str, right: str) -> bool:
    """Compare as 64-bit integers if both are, else as floats if both are, else as texts."""
    mine, other = as_integer(left), as_integer(right)
    if mine is not None and other is not None:
        return _before(operand, mine, other)
    real, other_real = as_float(left), as_float(right)
    if real is not None and other_real is not None:
        return _before(operand, real, other_real)
    return _before(operand, left, right)


def as_integer(text: str) -> int | None:
    """Read a decimal 64-bit integer as Go does: a sign and digits, nothing around them."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(digits) > MAX_NUMBER_TEXT or not (digits.isascii() and digits.isdigit()):
        return None
    value = int(text)
    return value if value in INT64 else None


def as_float(text: str) -> float | None:
    """Read a float as Go does: no blanks, no underscores, nothing beyond its range."""
    if len(text) > MAX_NUMBER_TEXT or not text.isascii() or "_" in text or text != text.strip():
        return None
    lower = text.lower()
    is_hex = lower.lstrip("+-").startswith("0x")
    if is_hex and "p" not in lower:
        return None
    try:
        value = float.fromhex(text) if is_hex else float(text)
    except (ValueError, OverflowError):
        return None
    return None if math.isinf(value) and "inf" not in lower else value


def as_bool(text: str) -> bool | None:
    """Read a truth value as Go does."""
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    return None


def _before(operand: str, left: Value, right: Value) -> bool:
    match operand:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _items(text: str) -> set[str]:
    return {item.strip() for item in text.split(",")}
