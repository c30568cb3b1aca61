"""A server's disk: the log store's contract and snapshot files, with everything a real one may do at a power cut.

The log store takes one transaction per set of effects and completes them in order. What waits while a sync is under way
goes into the next sync together (group commit). At a crash the unsynced transactions are gone, except for a prefix of
whole ones that may have reached the platter after all: that is what SQLite's write-ahead log leaves behind. A failed
sync or a full disk is reported once and ends the process; a flipped bit is found by the record's own checksum when the
log is read at start, and the server then refuses to run.

Snapshot files need four steps of their own (write, sync, rename, sync the directory); a crash may fall between any two.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from fedsched.raft.entry import DamagedRecord, Entry, pack, unpack
from fedsched.raft.messages import HardState, Restored, SnapshotMeta
from fedsched.sim.world import Event, Owner, World


class Damaged(Exception):
    """The data on this disk is not what was written: the server must not start from it."""


@dataclass(slots=True)
class Transaction:
    """One write of one set of effects (or the compaction that follows a snapshot)."""

    hard_state: HardState | None = None
    reset: SnapshotMeta | None = None
    append: tuple[Entry, ...] = ()
    compact_to: int = 0
    mark: SnapshotMeta | None = None
    """The snapshot that from now on stands for the beginning of the log."""
    done: Callable[[], None] | None = None
    """For whoever submitted it: what to do when this transaction and all before it are durable."""


class LogImage:
    """What one reading of the disk would find."""

    __slots__ = ("entries", "hard_state", "mark", "prev_index", "prev_term")

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.prev_index = 0
        self.prev_term = 0
        self.entries: list[Entry] = []
        self.mark: SnapshotMeta | None = None

    @property
    def last_index(self) -> int:
        return self.prev_index + len(self.entries)

    def term_at(self, index: int) -> int | None:
        """The term at `index`; None if the log does not reach there (any more)."""
        place = index - self.prev_index
        if 0 < place <= len(self.entries):
            return self.entries[place - 1].term
        return self.prev_term if place == 0 else None

    def apply(self, write: Transaction) -> None:
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.reset is not None:
            self.prev_index, self.prev_term, self.entries = write.reset.index, write.reset.term, []
            self.mark = write.reset
        if write.append:
            place = write.append[0].index - self.prev_index - 1
            if not 0 <= place <= len(self.entries):
                raise Damaged(f"a write at index {write.append[0].index} leaves a gap after {self.last_index}")
            del self.entries[place:]
            self.entries.extend(write.append)
        if write.compact_to > self.prev_index:
            term = self.term_at(write.compact_to)
            if term is None:
                raise Damaged(f"compaction to {write.compact_to} is beyond the log's end at {self.last_index}")
            del self.entries[: write.compact_to - self.prev_index]
            self.prev_index, self.prev_term = write.compact_to, term
        if write.mark is not None and (self.mark is None or write.mark.index > self.mark.index):
            self.mark = write.mark

    def copy(self) -> LogImage:
        twin = LogImage()
        twin.hard_state = self.hard_state
        twin.prev_index, twin.prev_term = self.prev_index, self.prev_term
        twin.entries = self.entries.copy()
        twin.mark = self.mark
        return twin


@dataclass(slots=True)
class SnapshotFile:
    """One snapshot on disk and how much of it would survive a power cut."""

    meta: SnapshotMeta
    data: bytes
    is_synced: bool = False
    is_renamed: bool = False
    is_listed: bool = False
    """The directory entry is durable."""


SNAPSHOTS_KEPT = 2


class Disk:
    """One server's log and snapshots."""

    def __init__(self, world: World, owner: Owner, rng: random.Random, sync_us: int, keep_unsynced: float) -> None:
        self.durable = LogImage()
        self.ahead = LogImage()
        """What the disk will hold when everything handed over so far is durable: the process's own view."""
        self.files: dict[str, SnapshotFile] = {}
        self.is_full = False
        self.fails_next_sync = False
        self.slow_us = 0
        self.always_slow_us = 0
        self.flips: list[tuple[int, int]] = []
        """Bits turned over: (number of an entry on disk, bit)."""
        self.on_durable: Callable[[list[Transaction]], None] = lambda finished: None
        self.on_failure: Callable[[str], None] = lambda why: None
        self._world = world
        self._owner = owner
        self._rng = rng
        self._sync_us = sync_us
        self._keep_unsynced = keep_unsynced
        self._queue: list[Transaction] = []
        self._syncing: list[Transaction] = []
        self._generation = 0
        self._sync: Event | None = None

    # --- the log store ------------------------------------------------------------------------------------------------

    def will_keep(self, index: int, term: int, through_term: int | None = None) -> bool:
        """Whether no write under way takes the entry (index, term) away again.

        With `through_term`, only writes of terms up to that one count: a newer leader may overwrite what it likes.
        """
        for write in [*self._syncing, *self._queue]:
            if through_term is not None and write.hard_state is not None and write.hard_state.term > through_term:
                return True
            if write.reset is not None and write.reset.index < index:
                return False
            if write.append and write.append[0].index <= index:
                place = index - write.append[0].index
                if place >= len(write.append) or write.append[place].term != term:
                    return False
        return True

    def submit(self, write: Transaction) -> None:
        """Take a write; it comes back through `on_durable`. Reports `on_failure` if there is no room."""
        if self.is_full and (write.append or write.hard_state is not None or write.reset is not None):
            self.on_failure("no space left on the disk")
            return
        self.ahead.apply(write)
        self._queue.append(write)
        if not self._syncing:
            self._start_sync()

    def _start_sync(self) -> None:
        self._syncing, self._queue = self._queue, []
        time_us = self._sync_us // 2 + int(self._rng.random() * self._sync_us) + self.slow_us + self.always_slow_us
        self._sync = self._world.after(time_us, None, "sync", self._synced, self._generation, detail=self._owner.id)

    def heal(self) -> None:
        """Be a good disk from now on; a sync that takes its time is done soon."""
        self.is_full = self.fails_next_sync = False
        self.slow_us = self.always_slow_us = 0
        if self._sync is not None and not self._sync.is_off:
            self._sync.is_off = True
            self._sync = self._world.after(
                self._sync_us, None, "sync", self._synced, self._generation, detail=self._owner.id
            )

    def _synced(self, generation: int) -> None:
        if generation != self._generation:
            return
        if self.fails_next_sync:
            self.fails_next_sync = False
            self._world.after(0, self._owner, "diskerr", self.on_failure, "a sync failed")
            return
        finished, self._syncing = self._syncing, []
        for write in finished:
            self.durable.apply(write)
        self._world.after(0, self._owner, "stored", self.on_durable, finished)
        if self._queue:
            self._start_sync()

    # --- snapshot files -----------------------------------------------------------------------------------------------

    def create(self, meta: SnapshotMeta, data: bytes) -> SnapshotFile:
        file = SnapshotFile(meta, data)
        self.files[meta.id] = file
        return file

    def steps(self, file: SnapshotFile) -> list[Callable[[], None]]:
        """Sync, rename, sync the directory: in this order, each with time in between."""

        def sync() -> None:
            file.is_synced = True

        def rename() -> None:
            file.is_renamed = True

        def sync_directory() -> None:
            file.is_listed = file.is_renamed

        return [sync, rename, sync_directory]

    def snapshot(self, snapshot_id: str) -> SnapshotFile | None:
        """A finished snapshot, if it is here."""
        file = self.files.get(snapshot_id)
        return file if file is not None and file.is_renamed else None

    def tidy(self) -> None:
        """Remove all but the newest snapshots; never the one that the log starts from."""
        needed = {mark.id for mark in (self.durable.mark, self.ahead.mark) if mark is not None}
        listed = sorted((f for f in self.files.values() if f.is_listed), key=lambda f: (f.meta.index, f.meta.id))
        for file in listed[:-SNAPSHOTS_KEPT]:
            if file.meta.id not in needed:
                del self.files[file.meta.id]

    # --- the end of a process and the start of the next ---------------------------------------------------------------

    def crash(self) -> None:
        """The process is gone; some prefix of what was not synced is found on disk nevertheless."""
        self._generation += 1
        for write in [*self._syncing, *self._queue]:
            if self._rng.random() >= self._keep_unsynced:
                break
            self.durable.apply(write)
        self._syncing, self._queue = [], []
        self.ahead = self.durable.copy()
        self.fails_next_sync = False
        for snapshot_id, file in list(self.files.items()):
            kept = file.is_listed or (file.is_renamed and self._rng.random() < 0.5)
            if not kept:
                del self.files[snapshot_id]
                continue
            file.is_listed = True
            if not file.is_synced:
                file.data = file.data[: len(file.data) // 2]

    def recover(self) -> tuple[Restored, SnapshotFile | None]:
        """What a starting server finds; raises `Damaged` rather than answer with anything doubtful."""
        image = self.durable
        self._read_records(image)
        file: SnapshotFile | None = None
        if image.mark is not None:
            file = self.snapshot(image.mark.id)
            if file is None or blake2b(file.data, digest_size=16).digest() != image.mark.digest:
                raise Damaged(f"the log starts from snapshot {image.mark.id}, which is not whole")
        if image.prev_index > (image.mark.index if image.mark else 0):
            raise Damaged(f"the log starts after {image.prev_index}, its snapshot ends before that")
        newest = max((f for f in self.files.values() if f.is_synced), key=lambda f: f.meta.index, default=None)
        if (
            newest is not None
            and newest.meta.index > (image.mark.index if image.mark else 0)
            and self._rng.random() < 0.5
        ):
            file = newest  # fetched just before the crash: the log was not yet told to make way for it
        restored = Restored(
            hard_state=image.hard_state,
            entries=tuple(image.entries),
            snapshot=file.meta if file is not None else None,
            prev_index=image.prev_index,
            prev_term=image.prev_term,
        )
        return restored, file

    def _read_records(self, image: LogImage) -> None:
        """Read every record through its real byte form, with whatever bits have turned over."""
        if not self.flips:
            return
        records = [bytearray(pack(entry)) for entry in image.entries]
        for number, bit in self.flips:
            if records:
                record = records[number % len(records)]
                record[bit // 8 % len(record)] ^= 1 << bit % 8
        try:
            found = unpack(b"".join(records))
        except DamagedRecord as problem:
            raise Damaged(str(problem)) from problem
        if found != image.entries:
            raise AssertionError("a flipped bit was read as good data")

    def clone(self, twin: Disk) -> None:
        """Copy what is durable here onto another disk."""
        twin.durable = self.durable.copy()
        twin.ahead = self.durable.copy()
        twin.files = {
            snapshot_id: SnapshotFile(file.meta, file.data, True, True, True)
            for snapshot_id, file in self.files.items()
            if file.is_listed and file.is_synced
        }
