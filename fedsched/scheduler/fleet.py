"""The fleet in columns: what every node has, what is taken, and who may be placed there.

Kept beside the state, not in it: `Fleet.of(state)` looks at everything once, `note(state, changes)` follows each
command at the cost of what it changed. Columns are indexed by the node's slot.

Two sums per node answer two questions. `occupied` is what allocations take that have not ended on their client: a
stopped one still runs until its client says otherwise, and a scheduler must not count on its place. `held` is what
allocations take that nobody has stopped either: the plan applier lets a plan use what was stopped by it or before it.

What is not committed yet can be counted in advance and taken back (see `fleet_plans`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.codec import CodecError
from fedsched.model.node import Eligibility, Node, NodeStatus
from fedsched.scheduler.fit import Capacity
from fedsched.scheduler.fleet_columns import FleetColumns, Names, Slots
from fedsched.scheduler.fleet_kinds import Kinds
from fedsched.scheduler.fleet_plans import Reservation, place_planned, release, reserve_plan, set_aside
from fedsched.scheduler.fleet_specials import Specials
from fedsched.scheduler.fleet_usage import Usage, Usages, read_allocated, usage_of
from fedsched.scheduler.special import HeldPort, Special, written_volumes
from fedsched.state.changes import Changes
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_TERMINAL, is_live
from fedsched.state.tables.nodes import NodeRow
from fedsched.state.tables.plans import PlanApply

SCAN_ROWS: Final = 1 << 14
NODES_KEPT: Final = 8192
"""Decoded node records kept at hand."""
OCCUPIES: Final = 1
HOLDS: Final = 2
NODE_STATUSES: Final = tuple(NodeStatus)
"""The `status` column has positions in this."""
_STATUS_CODES: Final = {str(status): code for code, status in enumerate(NODE_STATUSES)}


def read_node(row: NodeRow) -> Node:
    """The whole record of a node; of one that cannot be read just the little that stands beside it, without room."""
    try:
        return row.node()
    except CodecError:
        return Node(
            id=row.id,
            name=row.name,
            datacenter=row.datacenter,
            node_pool=row.node_pool,
            node_class=row.node_class,
            computed_class=row.computed_class,
        )


ALLOC_STEPS: Final = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 25)
_OF_ALLOCS: Final = ("_alloc_usage", "_alloc_node", "_alloc_flags", "_alloc_true")


class Fleet(FleetColumns):
    """All nodes of a region, in columns."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = Kinds()
        self.usages = Usages()
        self.pools = Names()
        self.datacenters = Names()
        self.classes = Names()
        self.special = Specials()
        """Per node slot and allocation slot what goes beyond plain numbers, of allocations that occupy their node.
        Allocations of plans in flight have negative numbers instead of a slot."""
        self.index = 0
        """How far the state was followed."""
        self._slot_of: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._nodes: OrderedDict[int, Node] = OrderedDict()
        self._said: dict[int, tuple[bytes, str, str, str, str]] = {}
        """What each node was last read from."""
        self._alloc_usage: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._alloc_node: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._alloc_flags: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        """As counted in the columns: without what plans in flight take away."""
        self._alloc_true: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        """As the state has it."""
        self._allocs_high = 0
        """One more than the highest slot of an allocation seen so far."""
        self._leaving: dict[int, int] = {}
        """Allocations that plans in flight stop, and by how many: they no longer hold their place."""
        self._away: dict[int, int] = {}
        """Allocations whose place the evaluation at work may use."""
        self._next_key = -1

    @classmethod
    def of(cls, state: State) -> Fleet:
        """The fleet as this state has it."""
        fleet = cls()
        fleet._read_all(state)
        return fleet

    def copy(self) -> Fleet:
        """One that goes on from here by itself: good on another thread."""
        other = Fleet()
        self.copy_columns_to(other)
        other.kinds = self.kinds.copy()
        other.usages = self.usages.copy()
        other.pools, other.datacenters, other.classes = self.pools.copy(), self.datacenters.copy(), self.classes.copy()
        other.special = self.special.duplicate()
        other.index = self.index
        other._slot_of, other._ids, other._nodes = dict(self._slot_of), dict(self._ids), OrderedDict(self._nodes)
        other._said = dict(self._said)
        for name in _OF_ALLOCS:
            setattr(other, name, getattr(self, name)[: self._allocs_high].copy())
        other._allocs_high = self._allocs_high
        other._leaving, other._away, other._next_key = dict(self._leaving), dict(self._away), self._next_key
        return other

    def note(self, state: State, changes: Changes) -> None:
        """Follow what a command changed. `state` may be newer than the changes: what is read is how things are now."""
        if changes.is_everything:
            self.__init__()  # type: ignore[misc]
            self._read_all(state)
            return
        self.ensure(state.nodes.slots.high)
        for key in changes.keys("nodes"):
            self._note_node(state, key[0])
        for change in changes.allocs:
            self._note_allocs(state, change.slots)
        self.index = max(self.index, changes.index)

    def ensure(self, slots: int) -> None:
        """Make room for node slots below `slots`."""
        if self.grow(slots):
            self.kinds.grow(self.size)

    # ------------------------------------------------------------------ reading
    @property
    def kind(self) -> NDArray[np.int32]:
        """The kind of the node in each slot (see `kinds`)."""
        return self.kinds.of_slot

    def slot_of(self, node_id: str) -> int | None:
        """The slot of a node that is there."""
        return self._slot_of.get(node_id)

    def node_id(self, slot: int) -> str:
        """The id of the node in a slot, empty if there is none."""
        return self._ids.get(slot, "")

    def node(self, state: State, slot: int) -> Node | None:
        """The whole record of the node in a slot; decoded when first asked for."""
        known = self._nodes.get(slot)
        if known is None and slot in self._ids:
            row = state.nodes.get(self._ids[slot])
            assert row is not None, f"the fleet has node {self._ids[slot]}, the state does not"
            known = self._nodes[slot] = read_node(row)
            if len(self._nodes) > NODES_KEPT:
                self._nodes.popitem(last=False)
        return known

    def usage_of(self, alloc_slots: Slots) -> NDArray[np.float64]:
        """What these allocations take: one line of cpu, memory, disk each."""
        return self.usages.table[self._alloc_usage[alloc_slots]]

    def flags_of(self, alloc_slots: Slots) -> NDArray[np.uint8]:
        """Whether these allocations occupy and hold their place: bits `OCCUPIES` and `HOLDS`."""
        return self._alloc_flags[alloc_slots]

    def nodes_of(self, alloc_slots: Slots) -> Slots:
        """The node slots of these allocations."""
        return self._alloc_node[alloc_slots].astype(np.int64)

    def specials(self, node_slot: int, *, held: bool = False) -> Iterator[tuple[int, Special]]:
        """What goes beyond plain numbers on a node: of allocations that occupy it, or only of those that hold it."""
        wanted = HOLDS if held else OCCUPIES
        for alloc_slot, special in self.special.get(node_slot, {}).items():
            if alloc_slot < 0 or self._alloc_flags[alloc_slot] & wanted:
                yield alloc_slot, special

    def specials_sharing(self, node_slot: int, wanted: Sequence[Special]) -> Iterator[tuple[int, Special]]:
        """The same for those that hold their place, but only such as have anything of what is wanted."""
        known = self.special.get(node_slot, {})
        for alloc_slot in self.special.sharing(node_slot, wanted):
            if alloc_slot < 0 or self._alloc_flags[alloc_slot] & HOLDS:
                yield alloc_slot, known[alloc_slot]

    def ports_held(self, node_slot: int, value: int) -> Iterator[HeldPort]:
        """Who occupies the node and has a port of this number there, on whatever address."""
        known = self.special.get(node_slot, {})
        for key in self.special.with_port(node_slot, value):
            if key < 0 or self._alloc_flags[key] & OCCUPIES:
                yield from (port for port in known[key].ports if port.value == value)

    # ------------------------------------------------------------- in advance
    def reserve(self, state: State, plan: PlanApply) -> Reservation:
        """Count a plan that is on its way into the log; `release` it when it is there (before `note`) or has failed."""
        return reserve_plan(self, state, plan)

    def set_aside(self, alloc_slots: Slots) -> Reservation:
        """Let the evaluation at work use the place of allocations that its own plan stops. Take it back afterwards."""
        return set_aside(self, alloc_slots)

    def place(self, node_slots: Slots, usage: Usage, special: Sequence[Special | None] = ()) -> Reservation:
        """Count allocations that are only planned, all alike, one per node slot given (slots may repeat)."""
        return place_planned(self, node_slots, usage, special)

    def release(self, reservation: Reservation) -> None:
        """Take back what was counted in advance. A second time does nothing."""
        release(self, reservation)

    def shift_flags(self, slots: list[int], by: int, *, away: bool) -> None:
        """Allocations leave in advance (`by` 1) or come back (-1); for `fleet_plans`."""
        counts = self._away if away else self._leaving
        for slot in slots:
            left = counts.get(slot, 0) + by
            if left:
                counts[slot] = left
            else:
                counts.pop(slot, None)
        if slots:
            where = np.array(slots, dtype=np.int64)
            nodes, usage = self._alloc_node[where], self._alloc_usage[where]
            self._recount(where, nodes, usage, self._alloc_true[where])

    def add_special(self, node_slot: int, special: Special) -> int:
        """Lay what a planned allocation holds beside the others; the key by which to take it away."""
        key = self._next_key
        self._next_key -= 1
        self.special.put(node_slot, key, special)
        return key

    def drop_special(self, node_slot: int, key: int) -> None:
        self.special.drop(node_slot, key)

    # ---------------------------------------------------------------- following
    def _read_all(self, state: State) -> None:
        self.ensure(state.nodes.slots.high)
        for row in state.nodes.rows.scan():
            self._note_node(state, row.id)
        columns = state.allocations.columns
        for start in range(0, columns.high, SCAN_ROWS):
            self._note_allocs(state, columns.in_use(start, start + SCAN_ROWS))
        self.index = state.index

    def _note_node(self, state: State, node_id: str) -> None:
        row = state.nodes.get(node_id)
        known = self._slot_of.get(node_id)
        if known is not None and (row is None or row.slot != known):
            self._drop_node(node_id, known)
        if row is None:
            return
        slot = row.slot
        other = self._ids.get(slot)
        if other is not None and other != node_id:
            self._drop_node(other, slot)
        self._slot_of[node_id], self._ids[slot] = slot, node_id
        said = (row.body, row.datacenter, row.node_pool, row.node_class, row.computed_class)
        if self._said.get(slot) != said:  # most changes are of the status alone, and decoding is dear
            node = read_node(row)
            self._said[slot] = said
            self.kinds.put(slot, node)
            self._write_node(slot, node, row)
        self._nodes.pop(slot, None)  # read again when it is asked for
        self._write_status(slot, row)
        self.node_version += 1
        self.touch_one(slot)

    def _write_node(self, slot: int, node: Node, row: NodeRow) -> None:
        room = Capacity.of(node)
        self.pool[slot] = self.pools.id_of(row.node_pool)
        self.datacenter[slot] = self.datacenters.id_of(row.datacenter)
        self.node_class[slot] = self.classes.id_of(row.node_class)
        self.cap_cpu[slot] = max(0, room.cpu)
        self.cap_memory[slot] = max(0, room.memory_mb)
        self.cap_disk[slot] = max(0, room.disk_mb)
        self.max_allocs[slot] = room.max_allocs

    def _write_status(self, slot: int, row: NodeRow) -> None:
        self.present[slot] = True
        self.status[slot] = _STATUS_CODES.get(row.status, 0)
        self.eligible[slot] = row.eligibility == Eligibility.ELIGIBLE.value
        self.draining[slot] = row.draining
        self.ready[slot] = row.is_ready

    def _drop_node(self, node_id: str, slot: int) -> None:
        """Its allocations stay counted: they go one by one as the state forgets them."""
        del self._slot_of[node_id], self._ids[slot]
        self._nodes.pop(slot, None)
        self._said.pop(slot, None)
        self.kinds.drop(slot)
        self.clear_node(slot)

    def _note_allocs(self, state: State, slots: Slots) -> None:
        """Count these allocations as they are now instead of as they were counted before."""
        if not len(slots):
            return
        self._ensure_allocs(int(slots.max()) + 1)
        slots = np.unique(slots)
        rows = state.allocations.columns.read(slots)
        in_use = rows["used"] != 0
        flags = np.zeros(len(slots), dtype=np.uint8)
        flags[in_use & ~CLIENT_TERMINAL[rows["client_status"]]] |= OCCUPIES
        flags[in_use & is_live(rows)] |= HOLDS
        usage = np.zeros(len(slots), dtype=np.int32)
        nodes = np.where(in_use, rows["node"], self._alloc_node[slots])
        self._forget_special(slots)
        self._read_usage(state, slots, rows, in_use, flags, usage)
        self._recount(slots, nodes, usage, flags)

    def _recount(self, slots: Slots, nodes: Any, usage: Any, true: Any) -> None:
        """Move what these allocations add to the columns."""
        flags = true
        if self._leaving or self._away:
            flags = true.copy()
            for at, slot in enumerate(slots.tolist()):
                if slot in self._away:
                    flags[at] = 0
                elif slot in self._leaving:
                    flags[at] &= ~HOLDS & 0xFF
        before, was, where = self._alloc_usage[slots], self._alloc_flags[slots], self._alloc_node[slots]
        differ = (before != usage) | (was != flags) | (where != nodes)
        if differ.any():
            self._move(differ, where, before, was, -1)
            self._move(differ, nodes, usage, flags, 1)
        self._alloc_usage[slots], self._alloc_node[slots] = usage, nodes
        self._alloc_flags[slots], self._alloc_true[slots] = flags, true

    def _move(self, which: Any, nodes: Any, usage: Any, flags: Any, sign: int) -> None:
        which = which & (flags != 0)
        amounts = self.usages.table[usage[which]] * sign
        where = nodes[which].astype(np.int64)
        held = (flags[which] & HOLDS) != 0
        self.add(where, amounts, sign, occupied=True, held=False)
        self.add(where[held], amounts[held], sign, occupied=False, held=True)

    def _read_usage(self, state: State, slots: Slots, rows: Any, in_use: Any, flags: Any, usage: Any) -> None:
        """Fill in what they take; those with fields of their own are looked at one by one."""
        refs, place = np.unique(rows["origin"][in_use], return_inverse=True)
        given = [self.usages.given(state, ref) for ref in refs.tolist()]
        usage[in_use] = np.array([one.usage_id for one in given], dtype=np.int32)[place] if given else 0
        closer = np.array([bool(one.special or one.volumes) for one in given], dtype=np.bool_)
        look = np.zeros(len(slots), dtype=np.bool_)
        if len(closer):
            look[in_use] = closer[place]
        look |= in_use & (rows["plan_crc"] != 0)
        origin_of = dict(zip(refs.tolist(), given, strict=True))
        for at in np.flatnonzero(look).tolist():
            self._look_closer(state, int(slots[at]), rows[at], origin_of, at, flags, usage)

    def _look_closer(self, state: State, slot: int, row: Any, origin_of: Any, at: int, flags: Any, usage: Any) -> None:
        shared = origin_of[int(row["origin"])]
        own = read_allocated(state.allocations.cold.plan.get(slot) or b"") if row["plan_crc"] else None
        allocated = own if own is not None else shared.allocated
        if own is not None:
            usage[at] = self.usages.id_of(usage_of(own))
        if not flags[at] & OCCUPIES:
            return
        special = Special.of(allocated) if own is not None and allocated is not None else shared.special
        written = tuple(written_volumes(shared.volumes.values(), int(row["name_index"])))
        if written:
            special = (special or Special())._replace(volumes=written)
        if special is not None:
            self.special.put(int(row["node"]), slot, special)

    def _forget_special(self, slots: Slots) -> None:
        if not self.special:
            return
        for slot, node in zip(slots.tolist(), self._alloc_node[slots].tolist(), strict=True):
            self.drop_special(node, slot)

    def _ensure_allocs(self, wanted: int) -> None:
        """Rows of zeros cost addresses and no memory until they are used; copying what was there before takes time. So
        there are few steps, and large ones."""
        if wanted > len(self._alloc_usage):
            size = next((step for step in ALLOC_STEPS if step >= wanted), 2 * wanted)
            for name in _OF_ALLOCS:
                old = getattr(self, name)
                grown = np.zeros(size, dtype=old.dtype)
                grown[: len(old)] = old
                setattr(self, name, grown)
        self._allocs_high = max(self._allocs_high, wanted)
