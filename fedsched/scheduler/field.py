"""Where a job may go: which nodes it can use at all, which of them a group can use, and why not the others.

Everything is a mask over node slots. What depends on a node's kind is asked once per kind and gathered; only a group
that looks at single nodes (their own attributes, host volumes) has them looked at one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.model.constraint import Affinity, Spread
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.scheduler.ask import Ask
from fedsched.scheduler.attributes import getter, is_unique
from fedsched.scheduler.constraints import escapes, test_of
from fedsched.scheduler.feasible import ALL_POOLS, ClassEligibility, GroupNeeds, check_kind, check_node, in_datacenters
from fedsched.scheduler.fleet import NODE_STATUSES, Fleet
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel_request import NO_VALUE
from fedsched.scheduler.reconcile.held import TAINT_OF_STATUS, Taint, Taints
from fedsched.state.store import State

Mask = NDArray[np.bool_]
LOOKS_PIECE: Final = 512
"""Nodes looked at one by one between two pauses."""

_TAINT_OF_STATUS: Final = np.array(
    [TAINT_OF_STATUS.get(status.value, Taint.NONE) for status in NODE_STATUSES], dtype=np.uint8
)


def taints_of_fleet(fleet: Fleet) -> Taints:
    """Per node slot why nothing can be expected of the node there."""
    taints = _TAINT_OF_STATUS[fleet.status]
    taints[(taints == Taint.NONE) & fleet.draining] = Taint.DRAINING
    taints[~fleet.present] = Taint.MISSING
    return taints


class Values(NamedTuple):
    """What each node has of one attribute, as small numbers."""

    of_slot: NDArray[np.int64]
    """`NO_VALUE` where the node does not have it."""
    ids: dict[str, int]

    def id_of(self, text: str) -> int:
        """The number of a value, also of one that no node has."""
        return self.ids.setdefault(text, len(self.ids))

    def used(self, node_slots: NDArray[np.int64]) -> dict[int, int]:
        """How often each value comes among these slots."""
        values = self.of_slot[node_slots[node_slots < len(self.of_slot)]]
        counts = np.bincount(values[values != NO_VALUE])
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}


class JobField:
    """The nodes in a job's pool and datacenters."""

    def __init__(
        self, state: State, fleet: Fleet, job: Job, config: SchedulerConfiguration, *, is_stored: bool = True
    ) -> None:
        self.state = state
        self.is_stored = is_stored
        """Whether the job is that of the state: then what is found out about kinds of nodes may be remembered."""
        self.fleet = fleet
        self.job = job
        self.config = config
        self.eligibility = ClassEligibility()
        self._values: dict[str, Values] = {}
        self._groups: dict[tuple[int, str], GroupField] = {}

    @cached_property
    def in_pool(self) -> Mask:
        fleet = self.fleet
        present: Mask = fleet.present
        if self.job.node_pool == ALL_POOLS:
            return present
        number = fleet.pools.find(self.job.node_pool)
        mask: Mask = present & (fleet.pool == (-1 if number is None else number))
        return mask

    @cached_property
    def in_scope(self) -> Mask:
        """In pool and datacenters, ready or not."""
        fleet = self.fleet
        globs = self.job.datacenters
        wanted = np.array([in_datacenters(globs, name) for name in fleet.datacenters.names], dtype=np.bool_)
        return self.in_pool & wanted[fleet.datacenter]

    @cached_property
    def ready(self) -> Mask:
        return self.in_scope & self.fleet.ready

    @cached_property
    def available(self) -> dict[str, int]:
        """Nodes to be considered, by datacenter; a datacenter that was asked for by name is listed even if empty."""
        names = self.fleet.datacenters.names
        counts = np.bincount(self.fleet.datacenter[self.ready], minlength=len(names)).tolist()
        known = {name: count for name, count in zip(names, counts, strict=True) if count}
        return {**{name: 0 for name in self.job.datacenters if "*" not in name}, **known}

    @cached_property
    def pool_count(self) -> int:
        return int((self.in_pool & self.fleet.ready).sum())

    def values(self, target: str) -> Values:
        """What the nodes have of an attribute; looked up once per kind unless nodes of a kind differ in it."""
        known = self._values.get(target)
        if known is None:
            known = self._values[target] = self._read_values(target)
        return known

    def group(self, group: TaskGroup, job: Job | None = None) -> GroupField:
        """The field of one group, of this version of the job or an older one."""
        job = job or self.job
        known = self._groups.get((job.version, group.name))
        if known is None:
            known = self._groups[job.version, group.name] = GroupField(self, job, group)
        return known

    def _read_values(self, target: str) -> Values:
        read = getter(target)
        ids: dict[str, int] = {}

        def number(node: Node | None) -> int:
            value = read(node) if node is not None else None
            return NO_VALUE if value is None else ids.setdefault(value, len(ids))

        fleet = self.fleet
        if is_unique(target):
            column = np.full(fleet.size, NO_VALUE, dtype=np.int64)
            for slot in np.flatnonzero(self.in_scope).tolist():
                column[slot] = number(fleet.node(self.state, slot))
            return Values(column, ids)
        per_kind = np.full(int(fleet.kind.max(initial=0)) + 1, NO_VALUE, dtype=np.int64)
        for kind, node in fleet.kinds.representatives():
            if kind < len(per_kind):
                per_kind[kind] = number(node)
        return Values(per_kind[fleet.kind], ids)


class GroupField:
    """The nodes that one group can use."""

    def __init__(self, field: JobField, job: Job, group: TaskGroup) -> None:
        self.field = field
        self.job = job
        self.group = group
        self.needs = GroupNeeds.of(job, group)
        self.ask = Ask.of(job, group, oversubscription=field.config.memory_oversubscription_enabled)
        self.usage = Usage(self.ask.cpu, self.ask.memory_mb, self.ask.disk_mb)
        self._node_reasons: dict[int, str] = {}
        self._mask: Mask | None = None
        field.eligibility.note_needs(self.needs)

    @property
    def mask(self) -> Mask:
        """Ready and feasible, whether there is room or not."""
        if self._mask is None:
            for _ in self.look():
                pass
            assert self._mask is not None
        return self._mask

    def look(self) -> Iterator[None]:
        """Find out about all nodes, with a pause now and then if they have to be looked at one by one."""
        if self._mask is not None:
            return
        mask = self.field.ready & self._kind_mask
        if not self.needs.is_by_kind:
            mask = mask.copy()
            for number, slot in enumerate(np.flatnonzero(mask).tolist(), 1):
                mask[slot] = self._look_at(slot)
                if not number % LOOKS_PIECE:
                    yield
        self._mask = mask

    def allows(self, slots: NDArray[np.int64]) -> Mask:
        """Whether allocations that are on these nodes may stay there: in scope and feasible, ready or not."""
        good = self.field.in_scope[slots] & self._kind_mask[slots]
        if not self.needs.is_by_kind:
            for at in np.flatnonzero(good).tolist():
                good[at] = self._look_at(int(slots[at]))
        return good

    @cached_property
    def _kind_mask(self) -> Mask:
        job, group, kinds = self.job, self.group, self.field.fleet.kinds
        if not self.field.is_stored:
            per_kind = np.zeros(int(kinds.of_slot.max(initial=0)) + 1, dtype=np.bool_)
            for kind, node in kinds.representatives():
                if kind < len(per_kind):
                    per_kind[kind] = check_kind(self.needs, node) is None
            return per_kind[kinds.of_slot]
        key = (job.namespace, job.id, job.create_index, job.version, job.job_modify_index, group.name)
        return kinds.mask(key, lambda node: check_kind(self.needs, node) is None)

    def _look_at(self, slot: int) -> bool:
        node = self.field.fleet.node(self.field.state, slot)
        reason = check_node(self.needs, node) if node is not None else None
        if reason is not None:
            self._node_reasons[slot] = reason.text
        return node is not None and reason is None

    def note_classes(self) -> None:
        """Tell the job's eligibility what every class of node in the field came to, for a blocked evaluation."""
        fleet, eligibility = self.field.fleet, self.field.eligibility
        if eligibility.escaped:
            return
        for kind in np.unique(fleet.kind[self.field.in_scope]).tolist():
            node = fleet.kinds.node(kind)
            if node is not None:
                eligibility.note(node.computed_class, check_kind(self.needs, node))

    @cached_property
    def filtered(self) -> Filtered:
        """The ready nodes that the group cannot use, by reason and by class."""
        field = self.field
        fleet = field.fleet
        out = field.ready & ~self.mask
        reasons = Counter(text for slot, text in self._node_reasons.items() if out[slot])
        by_kind = np.bincount(fleet.kind[out & ~self._kind_mask])
        for kind in np.flatnonzero(by_kind).tolist():
            node = fleet.kinds.node(kind)
            reason = check_kind(self.needs, node) if node is not None else None
            if reason is not None:
                reasons[reason.text] += int(by_kind[kind])
        by_class = np.bincount(fleet.node_class[out], minlength=1).tolist()
        classes = {fleet.classes.names[number]: count for number, count in enumerate(by_class) if count}
        classes.pop("", None)
        return Filtered(int(out.sum()), dict(reasons), classes)

    @cached_property
    def affinity(self) -> NDArray[np.float64] | None:
        """Per slot how well the node matches the affinities of job, group and tasks; None if there are none."""
        job, group = self.job, self.group
        wanted = (*job.affinities, *group.affinities, *(one for task in group.tasks for one in task.affinities))
        total = sum(abs(one.weight) for one in wanted)
        if not total:
            return None
        column = np.zeros(self.field.fleet.size)
        for one in wanted:
            column += self._matches(one) * (one.weight / total)
        return column

    def _matches(self, affinity: Affinity) -> NDArray[Any]:
        field, passes = self.field, test_of(affinity)
        fleet = field.fleet
        if escapes(affinity):
            column = np.zeros(fleet.size)
            for slot in np.flatnonzero(self.mask).tolist():
                node = fleet.node(field.state, slot)
                column[slot] = node is not None and passes(node)
            return column
        key = ("affinity", affinity.l_target, affinity.operand, affinity.r_target)
        return fleet.kinds.mask(key, passes)

    @property
    def spreads(self) -> tuple[Spread, ...]:
        return (*self.job.spreads, *self.group.spreads)


class Filtered(NamedTuple):
    """Nodes that cannot be used whatever room they have."""

    nodes: int
    reasons: Mapping[str, int]
    classes: Mapping[str, int]
