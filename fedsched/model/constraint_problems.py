"""What can be wrong with constraints, affinities and spreads, wherever they stand.

Whether a pattern or a version can be read is asked of `text_checks`, or of the engines themselves if the caller has
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.nearest import nearest
from fedsched.model.problem import Problem, one_of
from fedsched.model.text_checks import GRAMMAR, TextChecks

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
    texts: TextChecks = GRAMMAR,
) -> Found:
    """Check all placement blocks of one level; tasks and devices may not ask for distinctness."""
    for number, constraint in enumerate(constraints, 1):
        where = f"{path}Constraints[{number - 1}]"
        causes = tuple(_constraint(constraint, where, may_be_distinct, texts))
        if causes:
            yield Problem(where, f"Constraint {number} validation failed", causes)
    for number, affinity in enumerate(affinities, 1):
        where = f"{path}Affinities[{number - 1}]"
        causes = tuple(_affinity(affinity, where, texts))
        if causes:
            yield Problem(where, f"Affinity {number} validation failed", causes)
    for number, spread in enumerate(spreads, 1):
        where = f"{path}Spreads[{number - 1}]"
        causes = tuple(_spread(spread, where))
        if causes:
            yield Problem(where, f"Spread {number} validation failed", causes)


def _constraint(constraint: Constraint, path: str, may_be_distinct: bool, texts: TextChecks) -> Found:
    operand, value = constraint.operand, constraint.r_target
    if operand not in OPERATORS:
        yield Problem(f"{path}.Operand", f'Unknown constraint type "{operand}"', hint=one_of(operand, OPERATORS))
        return
    if operand in (DISTINCT_HOSTS, DISTINCT_PROPERTY) and not may_be_distinct:
        yield Problem(f"{path}.Operand", f"{operand} may only be used on job and group level")
    if operand in WITH_VALUE and not value:
        yield Problem(
            f"{path}.RTarget", f'Operator "{operand}" requires an RTarget', hint="say what it is compared with"
        )
    if operand in WITHOUT_VALUE and value:
        yield Problem(f"{path}.RTarget", f'Operator "{operand}" does not support an RTarget')
    if operand == DISTINCT_PROPERTY and value and not (value.isdecimal() and int(value[:18]) >= 1):
        yield Problem(f"{path}.RTarget", f'Distinct Property must have an allowed count of 1 or greater: "{value}"')
    yield from _compiles(operand, value, f"{path}.RTarget", texts)
    if operand != DISTINCT_HOSTS:
        yield from _attribute(constraint.l_target, f"{path}.LTarget")


def _affinity(affinity: Affinity, path: str, texts: TextChecks) -> Found:
    if affinity.operand not in WITH_VALUE:
        hint = one_of(affinity.operand, WITH_VALUE)
        yield Problem(f"{path}.Operand", f'Unknown affinity operator "{affinity.operand}"', hint=hint)
    elif not affinity.r_target:
        yield Problem(f"{path}.RTarget", f'Operator "{affinity.operand}" requires an RTarget')
    yield from _compiles(affinity.operand, affinity.r_target, f"{path}.RTarget", texts)
    yield from _attribute(affinity.l_target, f"{path}.LTarget")
    if affinity.weight == 0 or not -100 <= affinity.weight <= 100:
        text = f"Affinity weight must be within the range [-100,100] and not 0; got {affinity.weight}"
        yield Problem(f"{path}.Weight", text)


def _compiles(operand: str, value: str, path: str, texts: TextChecks) -> Found:
    """A value that cannot be read would match nothing, silently, on every node."""
    if not value:
        return
    if operand == "regexp" and (wrong := texts.regexp(value)):
        yield Problem(path, f"Regular expression failed to compile: {wrong}")
    elif operand == "version" and (wrong := texts.version(value)):
        yield Problem(path, f"Version constraint is invalid: {wrong}", hint='write bounds such as ">= 1.2, < 2"')
    elif operand == "semver" and (wrong := texts.semver(value)):
        yield Problem(path, f"Semver constraint is invalid: {wrong}", hint='write bounds such as ">= 1.2.0, < 2.0.0"')


def _spread(spread: Spread, path: str) -> Found:
    if not spread.attribute:
        yield Problem(f"{path}.Attribute", "Missing spread attribute")
    else:
        yield from _attribute(spread.attribute, f"{path}.Attribute")
    if not 1 <= spread.weight <= 100:
        text = f"Spread block must have a positive weight from 1 to 100; got {spread.weight}"
        yield Problem(f"{path}.Weight", text)
    seen: set[str] = set()
    for i, target in enumerate(spread.spread_target):
        where = f"{path}.SpreadTarget[{i}]"
        if target.value in seen:
            yield Problem(where, f'Spread target value "{target.value}" already defined')
        seen.add(target.value)
        if not 0 <= target.percent <= 100:
            text = f'Spread target percentage for value "{target.value}" must be between 0 and 100'
            yield Problem(f"{where}.Percent", text)
    total = sum(target.percent for target in spread.spread_target)
    if total > 100:
        text = f"Sum of spread target percentages must not be greater than 100%; got {total}%"
        yield Problem(f"{path}.SpreadTarget", text)


def _attribute(text: str, path: str) -> Found:
    if not text:
        yield Problem(path, "No LTarget provided but is required by constraint")
    elif text.startswith("$"):
        inner = text[2:-1] if text.startswith("${") and text.endswith("}") else ""
        if inner not in NODE_NAMES and not inner.startswith(NODE_PREFIXES):
            yield Problem(path, f'unsupported attribute "{text}"', hint=_attribute_hint(inner))


def _attribute_hint(inner: str) -> str:
    if inner:
        close = nearest(inner, NODE_NAMES)
        if close:
            return f'did you mean "${{{close}}}"?'
    return "a node's ${attr...}, ${meta...}, ${node.class}, ${node.datacenter}, ${node.pool}, ${node.unique...}"
