"""Distinctness: at most one allocation of a job per host, at most n per value of an attribute.

These are questions about the job's allocations, not about the node alone, and the answers change with every placement:
counts are taken once, when an evaluation starts, and kept from there. Each allocation counts once by its id, whatever
happens to it in the plan: updated in place it is no second allocation, and stopped it is gone however often it is said.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final, NamedTuple

from fedsched.model.constraint import Constraint
from fedsched.model.constraint_problems import DISTINCT_HOSTS, DISTINCT_PROPERTY
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.scheduler.attributes import lookup
from fedsched.scheduler.constraints import as_bool

HOSTS_REASON: Final = DISTINCT_HOSTS


class Scope(Enum):
    """Whose allocations count."""

    JOB = "job"
    GROUP = "group"


class PropertyLimit(NamedTuple):
    """At most `limit` allocations in scope on nodes with the same value of `attribute`."""

    attribute: str
    limit: int
    scope: Scope


def distinct_hosts(job: Job, group: TaskGroup) -> Scope | None:
    """Whether hosts must be distinct, and among whom; the job's own wish covers the group's."""
    if any(_is_on(constraint) for constraint in job.constraints):
        return Scope.JOB
    return Scope.GROUP if any(_is_on(constraint) for constraint in group.constraints) else None


def property_limits(job: Job, group: TaskGroup) -> tuple[PropertyLimit, ...]:
    """Give the limits that the group's placements are under, the job's first."""
    levels = ((job.constraints, Scope.JOB), (group.constraints, Scope.GROUP))
    return tuple(
        PropertyLimit(constraint.l_target, _limit(constraint.r_target), scope)
        for constraints, scope in levels
        for constraint in constraints
        if constraint.operand == DISTINCT_PROPERTY
    )


class PropertyCount:
    """How often each value is in use under one limit: existing + planned - stopped, never below 0."""

    def __init__(self, limit: PropertyLimit) -> None:
        self.limit = limit
        self._value_of: dict[str, str] = {}
        self._used: Counter[str] = Counter()

    def add(self, alloc_id: str, value: str | None) -> None:
        """An allocation in scope exists, or is planned, on a node with this value (None: a node without it)."""
        self.remove(alloc_id)
        if value is not None:
            self._value_of[alloc_id] = value
            self._used[value] += 1

    def add_many(self, value: str, count: int) -> None:
        """So many allocations, none of which will be asked about again by id."""
        self._used[value] += count

    def remove(self, alloc_id: str) -> None:
        """The allocation is stopped by the plan, or its planned placement is taken back."""
        value = self._value_of.pop(alloc_id, None)
        if value is not None:
            self._used[value] -= 1

    def used(self, value: str) -> int:
        return max(0, self._used[value])

    def left(self, value: str) -> int:
        """How many more allocations the value can take."""
        return max(0, self.limit.limit - self.used(value))

    def why_not(self, value: str | None) -> str | None:
        """Give the reason why a node with this value cannot take one more; None if it can."""
        if value is None:
            return f'missing property "{self.limit.attribute}"'
        if self.left(value) > 0:
            return None
        return f"distinct_property: {self.limit.attribute}={value} used by {self.used(value)} allocs"

    def why_not_on(self, node: Node) -> str | None:
        return self.why_not(lookup(self.limit.attribute, node))


def _is_on(constraint: Constraint) -> bool:
    """Only a clear "no" switches it off; what cannot be read is on."""
    return constraint.operand == DISTINCT_HOSTS and as_bool(constraint.r_target) is not False


def _limit(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= 1 else 1
