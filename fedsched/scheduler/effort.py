"""How long an attempt will take, about: to know beforehand whether it should pause for others.

Guessed from what is there, without deciding anything: how many allocations are missing or out of date, how each is
placed, and whether nodes have to be looked at one by one. A guess that is too high costs a copy of the fleet.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.scheduler.attributes import is_unique
from fedsched.scheduler.constraints import escapes
from fedsched.scheduler.devices import asks_for_ids
from fedsched.scheduler.field import GroupField, taints_of_fleet
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.reconcile.held import Taint
from fedsched.state.columns import Slots
from fedsched.state.store import EvaluationView, State
from fedsched.state.tables.alloc_columns import is_live

PLAIN_US: Final = 2.0
TIED_US: Final = 12.0
CLOSE_US: Final = 120.0
"""What one placement costs about: by columns alone; with spread blocks, limits or nodes to avoid, which tie nodes to
one another; with ports, cores, devices or volumes, for which single nodes are looked at."""
PIECE_US: Final = 4_000
"""How long a piece may take, about: the loop's limit is 10 ms."""
LONG_US: Final = 5_000
"""From here on an attempt pauses for others."""
KNOWN_US: Final = 3.0
"""An allocation of the job that has to be looked at by itself."""
NODE_US: Final = 8.0
"""A node that has to be looked at by itself."""
NODES_PIECE: Final = 64
"""Nodes read in one piece; a record that was not read before takes a hundred microseconds."""
PROPERTY: Final = "distinct_property"
ON_EVERY_NODE: Final = frozenset({JobType.SYSTEM.value, JobType.SYSBATCH.value})


def effort_us(view: EvaluationView, fleet: Fleet, *, placements_max: int, looks_max: int) -> float:
    """What one attempt takes about, in microseconds, if it places so many at most (of these, so many with a look)."""
    job = view.job
    settled = _settled(view, fleet, job)
    total = KNOWN_US * (len(view.slots) - settled) + 0.2 * settled
    if job is None or job.stop:
        return total
    nodes = int(fleet.ready.sum())
    wanted = sum(nodes if job.type in ON_EVERY_NODE else group.count for group in job.task_groups)
    missing = min(max(0, wanted - settled), placements_max)
    each = max((_placement_us(job, group) for group in job.task_groups), default=0.0)
    if each == CLOSE_US:
        missing = min(missing, looks_max)
    return total + missing * each + sum(NODE_US * nodes for group in job.task_groups if _needs_nodes(job, group))


def placement_us(group: GroupField, *, is_tied: bool = False) -> float:
    """What one placement of a group costs about, in microseconds."""
    if group.ask.needs_special:
        return CLOSE_US
    is_tied = is_tied or bool(group.spreads or group.needs.property_limits)
    return TIED_US if is_tied else PLAIN_US


def piece_of(group: GroupField, *, is_tied: bool = False) -> int:
    """How many placements of a group make a piece."""
    return max(1, round(PIECE_US / placement_us(group, is_tied=is_tied)))


def read_nodes(state: State, fleet: Fleet, job: Job | None) -> Pieces[None]:
    """Have the records at hand that the job's groups look at one by one, so that nothing has to be read in between."""
    if job is None or not any(_needs_nodes(job, group) for group in job.task_groups):
        return
    slots: Slots = np.flatnonzero(fleet.ready)
    for number, slot in enumerate(slots.tolist()):
        if slot < fleet.size and fleet.ready[slot]:
            fleet.node(state, slot)
        if number % NODES_PIECE == NODES_PIECE - 1:
            yield


def _settled(view: EvaluationView, fleet: Fleet, job: Job | None) -> int:
    """How many of the job's allocations are as they should be: of its version, alive, on a node that is fine."""
    if not len(view.slots) or job is None:
        return 0
    current = [
        ref
        for ref, origin in view.origins.items()
        if (origin.job_create_index, origin.job_version) == (job.create_index, job.version)
    ]
    nodes = view.allocs["node"]
    inside = nodes < fleet.size
    fine = inside & (taints_of_fleet(fleet)[np.where(inside, nodes, 0)] == Taint.NONE)
    return int((is_live(view.allocs) & fine & np.isin(view.allocs["origin"], current)).sum())


def _placement_us(job: Job, group: TaskGroup) -> float:
    resources = [task.resources for task in group.tasks]
    if group.networks or group.volumes or any(one.networks or one.devices or one.cores for one in resources):
        return CLOSE_US
    is_tied = job.spreads or group.spreads or any(one.operand == PROPERTY for one in _constraints(job, group))
    return TIED_US if is_tied else PLAIN_US


def _needs_nodes(job: Job, group: TaskGroup) -> bool:
    """Whether what nodes do not share decides anything for the group."""
    affinities = (*job.affinities, *group.affinities, *(one for task in group.tasks for one in task.affinities))
    return (
        bool(group.volumes)
        or any(map(escapes, _constraints(job, group)))
        or any(map(escapes, affinities))
        or any(is_unique(spread.attribute) for spread in (*job.spreads, *group.spreads))
        or any(asks_for_ids(request) for task in group.tasks for request in task.resources.devices)
    )


def _constraints(job: Job, group: TaskGroup) -> tuple[Constraint, ...]:
    return (*job.constraints, *group.constraints, *(one for task in group.tasks for one in task.constraints))
