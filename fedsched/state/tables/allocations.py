"""Allocations, a million of them: columns, chains and counts instead of objects.

Everything here works on batches. The store's command handlers (in `plans` and `alloc_updates`) decide what should
change; this module keeps in step what has to: the columns, the map from ids, the chain of each node, the chain of all
by age, the slots of each job, the counts of each group, the cold bytes, and the digest. Reading is `alloc_reader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus
from fedsched.state.chains import Chains
from fedsched.state.changes import AllocChange
from fedsched.state.columns import Columns, ColumnsReader, Rows, Slots, copied, groups
from fedsched.state.digest import COLUMN_HASH_MODULUS, column_hash
from fedsched.state.id_map import IdMap, Lookup, Words
from fedsched.state.past import Keeper, Past
from fedsched.state.slot_map import SlotMap
from fedsched.state.table import OrderedMap, Table, scan
from fedsched.state.tables.alloc_columns import (
    AGE_DTYPE,
    ALLOC_DTYPE,
    CLIENT_CODES,
    CLIENT_TERMINAL,
    GROUP_DTYPE,
    LINK_DTYPE,
    PENDING,
    is_live,
)
from fedsched.state.tables.alloc_origins import GroupRow, OriginRow, Origins
from fedsched.state.tables.alloc_reader import AllocationsReader, Cold, JobSlots
from fedsched.state.tables.nodes import Nodes, NodesReader

ONLY_GROW: Final = (CLIENT_CODES[ClientStatus.COMPLETE], CLIENT_CODES[ClientStatus.FAILED])
COLD_PLAN: Final = 0
COLD_DESIRED: Final = 1
COLD_CLIENT: Final = 2
COLD_KIN: Final = 3
COLD_CRCS: Final = ("plan_crc", "desired_crc", "client_crc", "kin_crc")
NO_ID: Final = bytes(16)
FEW: Final = 6


class _IdBook:
    """Ids removed since, with the slot they had."""

    __slots__ = ("slots",)

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}

    def absorb(self, newer: _IdBook) -> None:
        for identity, slot in newer.slots.items():
            self.slots.setdefault(identity, slot)


class RemovedIds:
    """Remembers, while a snapshot is held, which slot a removed id had: the id map itself knows only the present."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._number = keeper.enrol()

    def note(self, words: Words, slots: Slots) -> None:
        if self._keeper.past is None:
            return
        known = self._keeper.past.book(self._number, _IdBook).slots
        ids = words.astype(">u8").tobytes()
        for at, slot in enumerate(slots.tolist()):
            known.setdefault(ids[at * 16 : at * 16 + 16], slot)

    def find(self, identity: bytes, past: Past) -> int:
        for book in past.chain(self._number):
            slot: int | None = book.slots.get(identity)
            if slot is not None:
                return slot
        return -1


class Allocations(AllocationsReader):
    """The live allocations."""

    def __init__(self, keeper: Keeper, nodes: Nodes) -> None:
        self.live = Columns(keeper, ALLOC_DTYPE)
        self.live_links = Columns(keeper, LINK_DTYPE)
        self.live_ages = Columns(keeper, AGE_DTYPE)
        self.live_counts = Columns(keeper, GROUP_DTYPE)
        self.live_origins = Origins(keeper)
        self.group_table: Table[GroupRow] = Table(keeper, GroupRow)
        self.live_job_slots: OrderedMap[JobSlots] = OrderedMap(keeper)
        self.live_cold = (SlotMap(keeper), SlotMap(keeper), SlotMap(keeper), SlotMap(keeper))
        self.live_nodes = nodes
        self.ids = IdMap(self._ids_in, self._id_at)
        self.digest = 0
        self.counts_digest = 0
        self.gone = RemovedIds(keeper)
        self._by_node = Chains(self.live_links, nodes.columns, "node")
        self._by_age = Chains(self.live_links, self.live_ages, "age")
        self._group_job: dict[int, tuple[str, str]] = {}
        super().__init__(
            columns=self.live,
            links=self.live_links,
            ages=self.live_ages,
            origins=self.live_origins.rows,
            groups=self.group_table,
            counts=self.live_counts,
            job_slots=self.live_job_slots,
            cold=Cold(*self.live_cold),
            nodes=nodes,
            find_slot=self.ids.find_one,
        )

    def __len__(self) -> int:
        return self.live.count

    def view(self, past: Past, nodes: NodesReader) -> AllocationsReader:
        columns = self.live.view(past)
        return AllocationsReader(
            columns=columns,
            links=self.live_links.view(past),
            ages=self.live_ages.view(past),
            origins=self.live_origins.rows.view(past),
            groups=self.group_table.view(past),
            counts=self.live_counts.view(past),
            job_slots=self.live_job_slots.view(past),
            cold=Cold(*(part.view(past) for part in self.live_cold)),
            nodes=nodes,
            find_slot=lambda identity: self._find_in_past(identity, columns, past),
        )

    def find(self, words: Words) -> Slots:
        """The slot of each id, -1 where there is none."""
        return self.ids.find(words)

    def look_up(self, words: Words) -> Lookup:
        """The same for ids that may be placed right afterwards: remembers where they will go."""
        return self.ids.look_up(words)

    def place(
        self,
        origin: OriginRow,
        *,
        words: Words,
        known: Lookup,
        node_slots: Slots,
        name_indexes: NDArray[np.int32],
        index: int,
        time_ns: int,
        flags: int,
    ) -> Slots:
        """Store new allocations, all of one origin. Ids (`known` is what was found for them) and nodes are checked."""
        count = len(words)
        slots = self.live.claim(count)
        rows = np.zeros(count, dtype=ALLOC_DTYPE)
        rows["used"] = 1
        rows["desired"] = 1
        rows["client_status"] = PENDING
        rows["flags"] = flags
        rows["id"] = words
        rows["node"] = node_slots
        rows["origin"] = origin.ref
        rows["name_index"] = name_indexes
        for field in ("create_index", "modify_index", "alloc_modify_index"):
            rows[field] = index
        rows["create_time"] = rows["modify_time"] = time_ns
        if origin.scores:
            rows["score_at"] = np.arange(1, count + 1)
        self.live.write(slots, rows)
        self._link(slots, node_slots)
        self.ids.add(known, slots)
        self._add_to_job(origin.job_key, slots)
        self.live_origins.put(origin, count)
        self._add_hash(slots, rows)
        self._count_placed(origin.group_slot, count)
        return slots

    def rewrite(self, slots: Slots, before: Rows, after: Rows) -> None:
        """Replace records by changed copies of themselves (never their id, node or links)."""
        self._subtract_hash(slots, before)
        self._add_hash(slots, after)
        self.live.write(slots, after)

    def change(self, slots: Slots, rows: Rows, *, removed: bool = False) -> AllocChange:
        """The change that says these allocations differ."""
        ids = rows["id"].astype(">u8").tobytes()
        jobs = self.live_origins.jobs(rows["origin"])
        return AllocChange(slots, rows["node"].astype(np.int64), jobs, ids, removed)

    def remove(self, slots: Slots) -> Iterator[OriginRow]:
        """Forget allocations; yields the origins that went with them. Must be exhausted."""
        rows = self.live.read(slots)
        self._subtract_hash(slots, rows)
        words = np.ascontiguousarray(rows["id"])
        self.gone.note(words, slots)
        self.ids.remove(words, slots)
        node_slots = rows["node"].astype(np.int64)
        links = self.live_links.read(slots)
        self._by_node.remove(slots, links, node_slots)
        self._by_age.remove(slots, links, np.zeros(len(slots), dtype=np.int64))
        self.live_links.release(slots)
        self._drop_from_jobs(slots, rows)
        for part in self.live_cold:
            part.drop(slots.tolist())
        self.live.release(slots)
        self.live_nodes.free_empty(np.unique(node_slots))
        yield from self.live_origins.unuse(rows["origin"])

    def recount(self, before: Rows, after: Rows) -> list[tuple[str, str]]:
        """Move the counts of all groups concerned; the jobs that got their first live allocation or lost their last.

        Removed allocations have an `after` of zeros. Complete and failed only ever grow,
        and what was removed after its end stays in the summary.
        """
        origins = np.where(after["used"] != 0, after["origin"], before["origin"])
        group_slots, place = np.unique(self.live_origins.group_slots(origins), return_inverse=True)
        records = self.live_counts.read(group_slots)
        delta = np.zeros((len(group_slots), 7), dtype=np.int32)
        was, now = before["client_status"], after["client_status"]
        moved = was != now
        stays = np.isin(was, ONLY_GROW) | ((now == 0) & CLIENT_TERMINAL[was])
        leaves = moved & (was != 0) & ~stays
        arrives = moved & (now != 0)
        np.add.at(delta, (place[leaves], was[leaves]), -1)
        np.add.at(delta, (place[arrives], now[arrives]), 1)
        live = np.zeros(len(group_slots), dtype=np.int32)
        np.add.at(live, place, is_live(after).astype(np.int32) - is_live(before).astype(np.int32))
        changed = copied(records)
        changed["by_status"] += delta
        changed["live"] += live
        self._write_counts(group_slots, records, changed)
        crossed = group_slots[(records["live"] > 0) != (changed["live"] > 0)]
        return sorted({self._group_job[slot] for slot in crossed.tolist()})

    def _count_placed(self, group_slot: int, count: int) -> None:
        """What `recount` would do for new allocations of one group, without looking at each."""
        slots = np.array([group_slot], dtype=np.int64)
        before = self.live_counts.read(slots)
        after = copied(before)
        after["by_status"][:, PENDING] += count
        after["live"] += count
        self._write_counts(slots, before, after)

    def set_queued(self, group: GroupRow, queued: int) -> None:
        """How many of a group are still to be placed, as its latest evaluation found."""
        slots = np.array([group.slot], dtype=np.int64)
        before = self.live_counts.read(slots)
        after = copied(before)
        after["by_status"][:, 0] = queued
        self._write_counts(slots, before, after)

    def ensure_group(self, namespace: str, job_id: str, job_create_index: int, group: str) -> GroupRow:
        """The group's row, made if need be."""
        row = self.group_table.get(namespace, job_id, job_create_index, group)
        if row is None:
            slots = self.live_counts.claim(1)
            row = GroupRow(
                namespace=namespace,
                job_id=job_id,
                job_create_index=job_create_index,
                group=group,
                slot=int(slots[0]),
            )
            record = np.zeros(1, dtype=GROUP_DTYPE)
            record["used"] = 1
            self.live_counts.write(slots, record)
            self._shift_counts_digest(self._counts_hash(slots, record))
            self.group_table.put(row)
            self._group_job[row.slot] = (namespace, job_id)
        return row

    def drop_group(self, row: GroupRow) -> None:
        """Forget a group's counts; no allocation may be left in it."""
        slots = np.array([row.slot], dtype=np.int64)
        before = self.live_counts.read(slots)
        self._shift_counts_digest(-self._counts_hash(slots, before))
        self.live_counts.release(slots)
        self.group_table.delete(*row.key)
        del self._group_job[row.slot]

    def put_cold(self, part: int, slots: Slots, rows: Rows, values: list[bytes]) -> None:
        """Lay bytes beside records that are about to be rewritten; `rows` gets their checksums (0 is for none)."""
        self.live_cold[part].put(slots.tolist(), values)
        rows[COLD_CRCS[part]] = [crc32(value) or 1 for value in values]

    def adopt(self, slots: Slots, rows: Rows) -> None:
        """File records that were just copied in from an image: what follows from them is made anew."""
        words = np.ascontiguousarray(rows["id"])
        self.ids.add(self.ids.look_up(words), slots)
        self._add_hash(slots, rows)
        refs, place = np.unique(rows["origin"], return_inverse=True)
        for number, ref in enumerate(refs.tolist()):
            mine = slots[place == number]
            origin = self.live_origins.rows.get(ref)
            if origin is None:
                raise ValueError(f"allocations of an origin {ref} that is not in the image")
            self._add_to_job(origin.job_key, mine)
            self.live_origins.use(ref, len(mine))

    def adopt_counts(self, slots: Slots, rows: Rows) -> None:
        self._shift_counts_digest(self._counts_hash(slots, rows))

    def adopt_group(self, row: GroupRow) -> None:
        self._group_job[row.slot] = (row.namespace, row.job_id)

    def nbytes(self) -> int:
        """Memory of the hot table: columns, id map, job and group indexes. Cold bytes are not in it."""
        jobs = sum(known.slots.nbytes for _, known in scan(self.live_job_slots))
        counts = self.live_counts.nbytes() + self.live_nodes.columns.nbytes()
        return self.live.nbytes() + self.live_links.nbytes() + self.ids.nbytes() + jobs + counts

    def _link(self, slots: Slots, node_slots: Slots) -> None:
        """Put new allocations at the end of their nodes' chains and of the chain of all."""
        if not self.live_ages.high:
            record = np.zeros(1, dtype=AGE_DTYPE)
            record["used"] = 1
            self.live_ages.write(self.live_ages.claim(1), record)
        links = np.zeros(len(slots), dtype=LINK_DTYPE)
        links["used"] = 1
        claimed = self.live_links.claim(len(slots))
        assert claimed[0] == slots[0], "links and records of allocations have come apart"
        self._by_node.append(slots, node_slots, links)
        self._by_age.append_to_one(slots, 0, links)
        self.live_links.write(slots, links)

    def _add_to_job(self, job: tuple[str, str], slots: Slots) -> None:
        known = self.live_job_slots.get(job)
        array, length = (known.slots, known.length) if known is not None else (np.empty(0, dtype=np.int32), 0)
        wanted = length + len(slots)
        if wanted > len(array):
            grown = np.empty(max(wanted, len(array) * 3 // 2), dtype=np.int32)
            grown[:length] = array[:length]
            array = grown
        array[length:wanted] = slots  # behind what any snapshot of this array looks at
        self.live_job_slots.put(job, JobSlots(array, wanted))

    def _drop_from_jobs(self, slots: Slots, rows: Rows) -> None:
        gone: dict[tuple[str, str], list[Slots]] = {}
        for ref, where in groups(rows["origin"]):
            gone.setdefault(self._origin(ref).job_key, []).append(slots[where])
        for job in sorted(gone):
            known = self.live_job_slots.get(job)
            assert known is not None
            array = known.slots[: known.length]
            left = _without(array, np.concatenate(gone[job]))
            if len(left):
                self.live_job_slots.put(job, JobSlots(left, len(left)))
            else:
                self.live_job_slots.pop(job)

    def _origin(self, ref: int) -> OriginRow:
        row = self.live_origins.rows.get(ref)
        assert row is not None
        return row

    def _ids_in(self, slots: Slots) -> Words:
        return self.live.read(slots)["id"]

    def _id_at(self, slot: int) -> tuple[int, int]:
        high, low = self.live.value(slot, "id").tolist()
        return high, low

    def _find_in_past(self, identity: bytes, columns: ColumnsReader, past: Past) -> int:
        slot = self.gone.find(identity, past)
        if slot < 0:
            slot = self.ids.find_one(identity)
        if not 0 <= slot < columns.high:
            return -1
        row = columns.one(slot)
        known = int(row["id"][0]).to_bytes(8, "big") + int(row["id"][1]).to_bytes(8, "big")
        return slot if row["used"] and known == identity else -1

    def _write_counts(self, slots: Slots, before: Rows, after: Rows) -> None:
        self._shift_counts_digest(self._counts_hash(slots, after) - self._counts_hash(slots, before))
        self.live_counts.write(slots, after)

    def _shift_counts_digest(self, by: int) -> None:
        self.counts_digest = (self.counts_digest + by) % COLUMN_HASH_MODULUS

    def _counts_hash(self, slots: Slots, rows: Rows) -> int:
        return column_hash(_words(rows), slots.astype(np.uint64))

    def _add_hash(self, slots: Slots, rows: Rows) -> None:
        added = column_hash(_words(rows), slots.astype(np.uint64))
        self.digest = (self.digest + added) % COLUMN_HASH_MODULUS

    def _subtract_hash(self, slots: Slots, rows: Rows) -> None:
        gone = column_hash(_words(rows), slots.astype(np.uint64))
        self.digest = (self.digest - gone) % COLUMN_HASH_MODULUS


def _without(array: NDArray[np.int32], gone: Slots) -> NDArray[np.int32]:
    """The array without these numbers; a few are looked for one by one, which is cheaper than sorting."""
    if len(gone) > FEW:
        left: NDArray[np.int32] = array[~np.isin(array, gone)]
        return left
    for number in gone.tolist():
        array = array[array != number]
    return array


def _words(rows: Rows) -> Words:
    """Records as 64-bit words, one line each."""
    return np.ascontiguousarray(rows).view(np.uint64).reshape(len(rows), rows.dtype.itemsize // 8)
