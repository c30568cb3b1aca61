"""What can be wrong with constraints, affinities and spreads, wherever they stand.

Whether a pattern or a version compiles is asked by the code that will run it; here is only what needs no engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.problem import Problem

DISTINCT_HOSTS = "distinct_hosts"
DISTINCT_PROPERTY = "distinct_property"
COMPARISONS = frozenset({"=", "==", "is", "!=", "not", "<", "<=", ">", ">="})
WITH_VALUE = COMPARISONS | {"version", "semver", "regexp", "set_contains", "set_contains_all", "set_contains_any"}
WITHOUT_VALUE = frozenset({"is_set", "is_not_set"})
OPERATORS = WITH_VALUE | WITHOUT_VALUE | {DISTINCT_HOSTS, DISTINCT_PROPERTY}
NODE_NAMES = frozenset({"node.unique.id", "node.datacenter", "node.unique.name", "node.class", "node.pool"})
NODE_PREFIXES = ("attr.", "meta.", "device.")

Found = Iterator[Problem]


def placement_problems(
    path: str,
    constraints: tuple[Constraint, ...],
    affinities: tuple[Affinity, ...],
    spreads: tuple[Spread, ...] = (),
    *,
    may_be_distinct: bool = True,
) -> Found:
    """Check all placement blocks of one level; tasks and devices may not ask for distinctness."""
    for number, constraint in enumerate(constraints, 1):
        causes = tuple(_constraint(constraint, may_be_distinct))
        if causes:
            yield Problem(f"{path}Constraints[{number - 1}]", f"Constraint {number} validation failed", causes)
    for number, affinity in enumerate(affinities, 1):
        causes = tuple(_affinity(affinity))
        if causes:
            yield Problem(f"{path}Affinities[{number - 1}]", f"Affinity {number} validation failed", causes)
    for number, spread in enumerate(spreads, 1):
        causes = tuple(_spread(spread))
        if causes:
            yield Problem(f"{path}Spreads[{number - 1}]", f"Spread {number} validation failed", causes)


def _constraint(constraint: Constraint, may_be_distinct: bool) -> Found:
    operand, value = constraint.operand, constraint.r_target
    if operand not in OPERATORS:
        yield Problem("Operand", f'Unknown constraint type "{operand}"')
        return
    if operand in (DISTINCT_HOSTS, DISTINCT_PROPERTY) and not may_be_distinct:
        yield Problem("Operand", f"{operand} may only be used on job and group level")
    if operand in WITH_VALUE and not value:
        yield Problem("RTarget", f'Operator "{operand}" requires an RTarget')
    if operand in WITHOUT_VALUE and value:
        yield Problem("RTarget", f'Operator "{operand}" does not support an RTarget')
    if operand == DISTINCT_PROPERTY and value and not (value.isdecimal() and int(value) >= 1):
        yield Problem("RTarget", f'Distinct Property must have an allowed count of 1 or greater: "{value}"')
    if operand != DISTINCT_HOSTS:
        yield from _attribute(constraint.l_target, "LTarget")


def _affinity(affinity: Affinity) -> Found:
    if affinity.operand not in WITH_VALUE:
        yield Problem("Operand", f'Unknown affinity operator "{affinity.operand}"')
    elif not affinity.r_target:
        yield Problem("RTarget", f'Operator "{affinity.operand}" requires an RTarget')
    yield from _attribute(affinity.l_target, "LTarget")
    if affinity.weight == 0 or not -100 <= affinity.weight <= 100:
        yield Problem("Weight", f"Affinity weight must be within the range [-100,100] and not 0; got {affinity.weight}")


def _spread(spread: Spread) -> Found:
    if not spread.attribute:
        yield Problem("Attribute", "Missing spread attribute")
    else:
        yield from _attribute(spread.attribute, "Attribute")
    if not 1 <= spread.weight <= 100:
        yield Problem("Weight", f"Spread block must have a positive weight from 1 to 100; got {spread.weight}")
    seen: set[str] = set()
    for target in spread.spread_target:
        if target.value in seen:
            yield Problem("SpreadTarget", f'Spread target value "{target.value}" already defined')
        seen.add(target.value)
        if not 0 <= target.percent <= 100:
            text = f'Spread target percentage for value "{target.value}" must be between 0 and 100'
            yield Problem("SpreadTarget", text)
    total = sum(target.percent for target in spread.spread_target)
    if total > 100:
        yield Problem("SpreadTarget", f"Sum of spread target percentages must not be greater than 100%; got {total}%")


def _attribute(text: str, field: str) -> Found:
    if not text:
        yield Problem(field, "No LTarget provided but is required by constraint")
    elif text.startswith("$"):
        inner = text[2:-1] if text.startswith("${") and text.endswith("}") else ""
        if inner not in NODE_NAMES and not inner.startswith(NODE_PREFIXES):
            yield Problem(field, f'unsupported attribute "{text}"')
