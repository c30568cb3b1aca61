"""Reading allocations: by id, by job, by node, by age, live or as a snapshot saw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsched.model.alloc import Allocation
from fedsched.model.ids import uuid_bytes
from fedsched.state.columns import ColumnsReader, Slots
from fedsched.state.slot_map import SlotMapReader
from fedsched.state.table import MapReader, TableReader
from fedsched.state.tables.alloc_columns import id_of, to_allocation
from fedsched.state.tables.alloc_origins import GroupRow, OriginRow
from fedsched.state.tables.nodes import NodesReader

SCAN_ROWS: Final = 1 << 14
"""Records looked at in one go where all have to be looked at: about half a millisecond."""


class JobSlots(msgspec.Struct, frozen=True, gc=False):
    """The slots of one job's allocations: the first `length` of the array. What lies behind may be filled later."""

    slots: NDArray[np.int32]
    length: int


class GroupCounts(NamedTuple):
    """The summary of one group."""

    live: int
    queued: int
    starting: int
    running: int
    complete: int
    failed: int
    lost: int
    unknown: int


class Cold(NamedTuple):
    """The bytes beside the columns; the first three in the order in which they are laid over one another."""

    plan: SlotMapReader
    desired: SlotMapReader
    client: SlotMapReader
    kin: SlotMapReader
    """The ids of the allocation before this one and of the one after it, 16 bytes each, zero if none."""


class AllocationsReader:
    """Allocations, live or as a snapshot saw them. Slots are for code; ids and records are for everybody else."""

    def __init__(
        self,
        *,
        columns: ColumnsReader,
        links: ColumnsReader,
        ages: ColumnsReader,
        origins: TableReader[OriginRow],
        groups: TableReader[GroupRow],
        counts: ColumnsReader,
        job_slots: MapReader[JobSlots],
        cold: Cold,
        nodes: NodesReader,
        find_slot: Callable[[bytes], int],
    ) -> None:
        self.columns = columns
        self.links = links
        self.ages = ages
        self.origins = origins
        self.groups = groups
        self.counts = counts
        self.cold = cold
        self._job_slots = job_slots
        self._nodes = nodes
        self._find_slot = find_slot

    def slot_of(self, alloc_id: str) -> int:
        """The slot of an allocation, -1 if there is none of this id."""
        return self._find_slot(uuid_bytes(alloc_id))

    def get(self, alloc_id: str) -> Allocation | None:
        slot = self.slot_of(alloc_id)
        return None if slot < 0 else self.records(np.array([slot], dtype=np.int64))[0]

    def slots_of_job(self, namespace: str, job_id: str) -> Slots:
        """The slots of a job's allocations, ascending, also of one that was purged."""
        known = self._job_slots.get((namespace, job_id))
        if known is None:
            return np.empty(0, dtype=np.int64)
        return np.sort(known.slots[: known.length].astype(np.int64))

    def slots_of_node(self, node_slot: int) -> Slots:
        """The slots of the allocations on a node, in the order in which they came there."""
        if not 0 <= node_slot < self._nodes.slots.high:
            return np.empty(0, dtype=np.int64)
        head = int(self._nodes.slots.one(node_slot)["head"])
        return np.array(self.links.follow(head - 1, "next_node"), dtype=np.int64)

    def records(self, slots: Slots) -> list[Allocation]:
        """Whole records, for reading by people and schedulers. Their job is left out: ask the jobs for its version."""
        return [self._record(slot, row) for slot, row in zip(slots.tolist(), self.columns.read(slots), strict=True)]

    def origin_of(self, slot: int) -> OriginRow:
        """What the allocation in this slot shares with others: job, version, group, evaluation, deployment."""
        origin = self.origins.get(int(self.columns.one(slot)["origin"]))
        assert origin is not None, f"no allocation in slot {slot}"
        return origin

    def page(self, limit: int, *, after: tuple[int, str] | None = None, back: bool = False) -> list[int]:
        """Slots from the oldest on, `after` the one with this create index and id (the cursor of a list).

        With `back` the other way round: from the newest on.
        """
        if after is not None:
            slot = self._slot_after(*after, back)
        else:
            slot = int(self.ages.one(0)["tail" if back else "head"]) - 1 if self.ages.high else -1
        return self.links.follow(slot, _link(back), limit)

    def with_prefix(self, prefix: str) -> Iterator[int]:
        """Slots whose id begins with these hex digits (dashes are ignored). Looks at every id, a segment at a time."""
        digits = prefix.replace("-", "")[:16]
        low = np.uint64(int(digits.ljust(16, "0"), 16)) if digits else np.uint64(0)
        high = np.uint64(int(digits.ljust(16, "f"), 16))
        wanted = prefix.replace("-", "")
        for start in range(0, self.columns.high, SCAN_ROWS):
            slots = np.arange(start, min(start + SCAN_ROWS, self.columns.high), dtype=np.int64)
            rows = self.columns.read(slots)
            top = rows["id"][:, 0]
            hits = np.flatnonzero((rows["used"] != 0) & (top >= low) & (top <= high))
            for hit in hits.tolist():
                if id_of(rows[hit]).replace("-", "").startswith(wanted):
                    yield int(slots[hit])

    def group_counts(self, namespace: str, job_id: str, job_create_index: int) -> dict[str, GroupCounts]:
        """The summary of each group of a job that ever had an allocation."""
        summary = {}
        for row in self.groups.scan(namespace, job_id, job_create_index):
            record = self.counts.one(row.slot)
            summary[row.group] = GroupCounts(int(record["live"]), *(int(n) for n in record["by_status"]))
        return summary

    def has_live(self, namespace: str, job_id: str, job_create_index: int) -> bool:
        """Whether any allocation of this job is not terminal."""
        rows = self.groups.scan(namespace, job_id, job_create_index)
        return any(int(self.counts.one(row.slot)["live"]) > 0 for row in rows)

    def _slot_after(self, create_index: int, alloc_id: str, back: bool) -> int:
        slot = self.slot_of(alloc_id)
        if slot >= 0:
            return int(self.links.one(slot)[_link(back)]) - 1
        return self._next_beyond(create_index, back)

    def _next_beyond(self, create_index: int, back: bool) -> int:
        """Where a list goes on when the allocation it stopped at has been removed; a look through all of them."""
        best, best_index = -1, None
        for start in range(0, self.columns.high, SCAN_ROWS):
            slots = self.columns.in_use(start, start + SCAN_ROWS)
            indexes = self.columns.read(slots)["create_index"].astype(np.int64)
            beyond = np.flatnonzero(indexes < create_index if back else indexes > create_index)
            if not len(beyond):
                continue
            at = beyond[np.argmax(indexes[beyond]) if back else np.argmin(indexes[beyond])]
            if best_index is None or (indexes[at] > best_index if back else indexes[at] < best_index):
                best, best_index = int(slots[at]), indexes[at]
        return self._first_of_its_index(best, back) if best >= 0 else -1

    def _first_of_its_index(self, slot: int, back: bool) -> int:
        index = self.columns.one(slot)["create_index"]
        while (before := int(self.links.one(slot)[_link(not back)]) - 1) >= 0:
            if self.columns.one(before)["create_index"] != index:
                break
            slot = before
        return slot

    def _record(self, slot: int, row: np.void) -> Allocation:
        origin = self.origins.get(int(row["origin"]))
        node = self._nodes.at(int(row["node"]))
        assert origin is not None
        assert node is not None
        *cold, kin = (part.get(slot) or b"" for part in self.cold)
        return to_allocation(row, origin, node_id=node.node_id, node_name=node.name, cold=tuple(cold), kin=kin)


def _link(back: bool) -> str:
    return "prev_age" if back else "next_age"
