"""Which part of a plan still holds, seen from the newest fleet, in which plans in flight are counted already.

A scheduler decides from a state that is a little old. Whatever changed since, and whatever other plans have taken in
the meantime, is looked at here, node by node: a node's whole share of the plan stands or falls together, stops
included, because the scheduler made room with the one for the other.

Plain resources are compared for all nodes at once; only nodes on which the plan gives away ports, cores, devices or
volumes are looked at one by one, with the scheduler's own code (see `fit`). The cost goes with the size of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus
from fedsched.model.node import NodeStatus
from fedsched.scheduler.fit import EMPTY, PLAIN_DIMENSIONS, NodeRoom, PlainColumns, dimensions
from fedsched.scheduler.fleet import HOLDS, NODE_STATUSES, Fleet
from fedsched.scheduler.fleet_usage import Given, read_allocated, usage_of
from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.special import Special, written_volumes
from fedsched.server.leader.plan_trim import trimmed
from fedsched.state.columns import Slots
from fedsched.state.fields import unpack
from fedsched.state.id_map import words_of
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import CLIENT_CODES, CLIENT_TERMINAL, RUN
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch

Amounts = NDArray[np.float64]
"""One line per node or allocation: cpu, memory, disk, allocations."""

NO_SLOTS: Final[Slots] = np.empty(0, dtype=np.int64)
UNKNOWN: Final = CLIENT_CODES[ClientStatus.UNKNOWN]
READY: Final = NODE_STATUSES.index(NodeStatus.READY)
DOWN: Final = NODE_STATUSES.index(NodeStatus.DOWN)
DISCONNECTED: Final = NODE_STATUSES.index(NodeStatus.DISCONNECTED)


class Verdict(NamedTuple):
    """What may be committed of a plan."""

    command: PlanApply
    """The plan itself if nothing was refused."""
    rejected: dict[int, str]
    """Node slots that were refused, and why."""
    refresh_index: int = 0
    """From where the scheduler has to look again; 0 if nothing was refused."""

    @property
    def is_whole(self) -> bool:
        return not self.rejected

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        command = self.command
        parts = (command.placed, command.stopped, command.updated, command.deployments, command.deployment_updates)
        return not any((*parts, command.evaluations, command.ends, command.ineligible_nodes))


def check_plan(plan: PlanApply, *, store: Store, fleet: Fleet, all_at_once: bool = False) -> Verdict:
    """Judge a plan. Changes nothing."""
    rejected = _Look(plan, store, fleet).rejected()
    if not rejected:
        return Verdict(plan, {})
    refresh = max(store.table_index("nodes"), store.table_index("allocations"))
    if all_at_once:
        return Verdict(_emptied(plan), rejected, refresh)
    return Verdict(trimmed(plan, store, np.array(sorted(rejected), dtype=np.int64)), rejected, refresh)


def _emptied(plan: PlanApply) -> PlanApply:
    nothing = ("placed", "stopped", "updated", "deployments", "deployment_updates", "evaluations", "ends")
    return structs.replace(plan, **dict.fromkeys(nothing, ()))


class _Placed(NamedTuple):
    """A group's placements, ready to be added up."""

    nodes: Slots
    each: Amounts
    """What one placement takes; the last of the four numbers is 1: an allocation."""
    differing: dict[int, Amounts]
    """How much more those take that say themselves what they are given, by their position."""
    specials: list[tuple[int, Special]]
    """Node and what is given away there."""


class _Look:
    """One plan seen from one state."""

    def __init__(self, plan: PlanApply, store: Store, fleet: Fleet) -> None:
        self._plan = plan
        self._store = store
        self._fleet = fleet
        fleet.ensure(store.nodes.columns.high)
        self._placed = [self._read_group(group) for group in plan.placed]
        self._new_nodes = np.unique(_joined(one.nodes for one in self._placed))

    def rejected(self) -> dict[int, str]:
        """The nodes whose share of the plan is refused."""
        told = [(batch, self._nodes_of_unended(batch.ids)) for batch in self._plan.stopped if batch.desired == RUN]
        kept = [(StoppedBatch(ids=group.ids, desired=RUN), self._nodes_of(group.ids)) for group in self._plan.updated]
        told += kept
        nodes = np.unique(_joined((self._new_nodes, *(where for _, where in told))))
        if not len(nodes):
            return {}
        refused = self._by_status(nodes, told)
        refused.update(self._by_room({*refused}))
        return refused

    # ------------------------------------------------------------------ the state of the node

    def _by_status(self, nodes: Slots, told: list[tuple[StoppedBatch, Slots]]) -> dict[int, str]:
        """What a node's state alone decides; only nodes that are not plainly ready are looked at one by one."""
        refused: dict[int, str] = {}
        inside = nodes < self._fleet.size
        places = np.where(inside, nodes, 0)
        is_new = np.isin(nodes, self._new_nodes, assume_unique=True)
        records = self._store.nodes.columns.read(np.where(nodes < self._store.nodes.columns.high, nodes, 0))
        present = inside & self._fleet.present[places]
        present &= ~is_new | (records["create_index"] <= self._plan.snapshot_index)
        plain = present & (self._fleet.status[places] == READY) & (~is_new | self._fleet.ready[places])
        for at in np.flatnonzero(~plain).tolist():
            node = int(nodes[at])
            if not present[at]:
                refused[node] = "node does not exist"
            elif why := self._why_status(node, bool(is_new[at]), told):
                refused[node] = why
        return refused

    def _why_status(self, node: int, is_new: bool, told: list[tuple[StoppedBatch, Slots]]) -> str:
        status = int(self._fleet.status[node])
        if status == READY:
            return "node is not eligible" if is_new else ""
        here = [(batch, self._slots_at(node, batch, where)) for batch, where in told if (where == node).any()]
        is_fine = not is_new and all(self._are_unknown(*one) for one in here)
        if status == DISCONNECTED:
            return "" if is_fine else "node is disconnected and allocs are not unknown"
        if status == DOWN:
            is_fine = is_fine and not any(self._want_replacing(slots) for _, slots in here)
            return "" if is_fine else "node is down and allocs are neither lost nor unknown for good"
        return f"node is {NODE_STATUSES[status].value}, not ready for placements"

    def _slots_at(self, node: int, batch: StoppedBatch, where: Slots) -> Slots:
        """Those of a batch that are on this node."""
        ids = [batch.ids[16 * at : 16 * at + 16] for at in np.flatnonzero(where == node).tolist()]
        slots = self._store.allocations.find(words_of(b"".join(ids)))
        return slots[slots >= 0]

    def _are_unknown(self, batch: StoppedBatch, slots: Slots) -> bool:
        """Whether the plan says of these that they are unknown, or goes on with such as are."""
        if batch.client_status:
            return batch.client_status == UNKNOWN
        return bool((self._store.allocations.live.read(slots)["client_status"] == UNKNOWN).all())

    def _want_replacing(self, slots: Slots) -> bool:
        """Whether one of these is of a group that replaces what is unknown: then it is lost instead.

        The version that was planned for decides, as it does for the planner.
        """
        plan = self._plan
        job = self._store.jobs.version_by_key((plan.namespace, plan.job_id, plan.job_create_index, plan.job_version))
        if job is None:
            return True
        groups = {self._store.allocations.origin_of(slot).group for slot in slots.tolist()}
        return any((group := job.group(name)) is None or CutOff.of(group).may_replace for name in groups)

    def _nodes_of(self, ids: bytes) -> Slots:
        """Where these allocations are, in their order; -1 for those that are gone."""
        slots = self._store.allocations.find(words_of(ids)) if ids else NO_SLOTS
        known = slots >= 0
        nodes = np.full(len(slots), -1, dtype=np.int64)
        nodes[known] = self._store.allocations.live.read(slots[known])["node"]
        return nodes

    def _nodes_of_unended(self, ids: bytes) -> Slots:
        """The same, but -1 also for those that have ended: what is noted about them asks nothing of their node."""
        slots = self._store.allocations.find(words_of(ids)) if ids else NO_SLOTS
        nodes = np.full(len(slots), -1, dtype=np.int64)
        known = np.flatnonzero(slots >= 0)
        rows = self._store.allocations.live.read(slots[known])
        ended = CLIENT_TERMINAL[rows["client_status"]]
        nodes[known[~ended]] = rows["node"][~ended]
        return nodes

    # ------------------------------------------------------------------ the room on it

    def _by_room(self, known: set[int]) -> dict[int, str]:
        """Whoever gets something new must have room for all that is there, on its way there, and meant for it."""
        nodes = self._new_nodes
        if known:
            nodes = nodes[~np.isin(nodes, np.array(sorted(known), dtype=np.int64))]
        if not len(nodes):
            return {}
        asked = self._sum_of(nodes, self._placed)
        freed = self._freed()
        used = asked + self._held(nodes) - self._amounts_at(nodes, freed) + self._growth(nodes)
        short = dimensions(self._room(nodes), PlainColumns(*used.T), EMPTY)
        refused = {int(nodes[at]): PLAIN_DIMENSIONS[short[at]] for at in np.flatnonzero(short).tolist()}
        gone = frozenset(freed.tolist())
        for node, given in self._specials().items():
            if node not in refused and node not in known and (why := self._why_special(node, given, gone)):
                refused[node] = why
        return refused

    def _held(self, nodes: Slots) -> Amounts:
        fleet = self._fleet
        return np.column_stack(
            (fleet.held_cpu[nodes], fleet.held_memory[nodes], fleet.held_disk[nodes], fleet.held_allocs[nodes])
        )

    def _room(self, nodes: Slots) -> PlainColumns:
        fleet = self._fleet
        return PlainColumns(
            fleet.cap_cpu[nodes], fleet.cap_memory[nodes], fleet.cap_disk[nodes], fleet.max_allocs[nodes]
        )

    def _freed(self) -> Slots:
        ids = b"".join(batch.ids for batch in self._plan.stopped if batch.desired != RUN)
        return self._held_slots(ids)

    def _held_slots(self, ids: bytes) -> Slots:
        """The slots of those of these allocations that hold their place, each once; a plan in flight may free them."""
        found = self._store.allocations.find(words_of(ids)) if ids else NO_SLOTS
        slots = np.unique(found[found >= 0])
        held: Slots = slots[(self._fleet.flags_of(slots) & HOLDS) != 0] if len(slots) else slots
        return held

    def _amounts_at(self, nodes: Slots, allocs: Slots) -> Amounts:
        """What these allocations take, added up per node."""
        total = np.zeros((len(nodes), 4))
        where, here = _positions(nodes, self._fleet.nodes_of(allocs)) if len(allocs) else (NO_SLOTS, NO_SLOTS)
        if len(here):
            lines = np.column_stack((self._fleet.usage_of(allocs[here]), np.ones(len(here))))
            np.add.at(total, where, lines)
        return total

    def _growth(self, nodes: Slots) -> Amounts:
        """How much more the updated allocations take than before."""
        total = np.zeros((len(nodes), 4))
        for group in self._plan.updated:
            allocated = read_allocated(group.shared)
            slots = self._held_slots(group.ids) if allocated is not None else NO_SLOTS
            if not len(slots) or allocated is None:
                continue
            where, here = _positions(nodes, self._fleet.nodes_of(slots))
            more = np.array(usage_of(allocated), dtype=np.float64) - self._fleet.usage_of(slots[here])
            np.add.at(total, where, np.column_stack((more, np.zeros(len(here)))))
        return total

    def _specials(self) -> dict[int, list[Special]]:
        found: dict[int, list[Special]] = {}
        for one in self._placed:
            for node, special in one.specials:
                found.setdefault(node, []).append(special)
        return found

    def _why_special(self, node: int, given: list[Special], gone: frozenset[int]) -> str:
        """Only those on the node are looked at that have something of what is given: nobody else can mind."""
        held = [special for slot, special in self._fleet.specials_sharing(node, given) if slot not in gone]
        record = self._fleet.node(self._store, node)
        assert record is not None
        return NodeRoom(record, specials=held).conflict_with(given) or ""

    # ------------------------------------------------------------------ reading the plan

    def _sum_of(self, nodes: Slots, placed: list[_Placed]) -> Amounts:
        total = np.zeros((len(nodes), 4))
        for one in placed:
            where, here = _positions(nodes, one.nodes)
            total += np.bincount(where, minlength=len(nodes))[:, np.newaxis] * one.each
            for at in one.differing.keys() & set(here.tolist()) if one.differing else ():
                total[np.searchsorted(nodes, one.nodes[at])] += one.differing[at]
        return total

    def _read_group(self, group: PlacedGroup) -> _Placed:
        plan = self._plan
        nodes = np.frombuffer(group.node_slots, dtype="<u4").astype(np.int64)
        version = (plan.namespace, plan.job_id, plan.job_create_index, plan.job_version)
        given = self._fleet.usages.given_by(self._store, group.shared, version, group.group)
        each = np.append(self._fleet.usages.table[given.usage_id], 1.0)
        differing: dict[int, Amounts] = {}
        own = self._own_specials(group, each, differing) if group.own_at else {}
        if not (own or given.special or given.volumes):
            return _Placed(nodes, each, differing, [])
        return _Placed(nodes, each, differing, self._each_special(group, nodes, given, own))

    def _own_specials(
        self, group: PlacedGroup, each: Amounts, differing: dict[int, Amounts]
    ) -> dict[int, Special | None]:
        """Of those placements that say themselves what they are given, that; and how much more it is."""
        found: dict[int, Special | None] = {}
        positions = np.frombuffer(group.own_at, dtype="<u4").tolist()
        for at, fields in zip(positions, unpack(group.own, group.own_sizes), strict=True):
            allocated = read_allocated(fields)
            if allocated is not None:
                differing[at] = np.array([*usage_of(allocated), 1.0]) - each
                found[at] = Special.of(allocated)
        return found

    def _each_special(
        self, group: PlacedGroup, nodes: Slots, given: Given, own: dict[int, Special | None]
    ) -> list[tuple[int, Special]]:
        names = np.frombuffer(group.name_indexes, dtype="<u4")
        positions = range(len(nodes)) if given.special or given.volumes else sorted(own)
        specials = []
        for at in positions:
            special = own.get(at, given.special)
            written = tuple(written_volumes(given.volumes.values(), int(names[at])))
            if written:
                special = (special or Special())._replace(volumes=written)
            if special is not None:
                specials.append((int(nodes[at]), special))
        return specials


def _joined(parts: Iterable[Slots]) -> Slots:
    listed = list(parts)
    joined = np.concatenate(listed) if listed else NO_SLOTS
    found: Slots = joined[joined >= 0]
    return found


def _positions(nodes: Slots, wanted: Slots) -> tuple[Slots, Slots]:
    """Where in `nodes` (ascending) the wanted ones stand, and which of the wanted ones do stand there."""
    if not len(nodes):
        return NO_SLOTS, NO_SLOTS
    where = np.minimum(np.searchsorted(nodes, wanted), len(nodes) - 1)
    here = np.flatnonzero(nodes[where] == wanted)
    return where[here], here
