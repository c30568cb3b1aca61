"""A simulated daemon's disk: the log store that stands in for the thread, and the rest of the data directory.

`VirtualStore` has the face of `StoreThread` and keeps its contract: writes complete in order, whatever waits while a
sync is under way shares the next one, the first failure is reported once and nothing completes after it. Syncs take
virtual time. A power cut loses what was not synced, except for a prefix of whole groups that may have made it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import trio

from fedsched.model.errors import Conflict
from fedsched.raft.assemble import IMAGES_KEPT, OpenedDisk
from fedsched.raft.datadir import Space
from fedsched.raft.messages import Restored, SnapshotMeta
from fedsched.raft.storage import StoreFailed
from fedsched.raft.store_group import StoreWrite
from fedsched.raft.store_thread import StoreThreadStatistics
from fedsched.sim.disk import LogImage, Transaction
from fedsched.sim.virtual_snapshots import MemorySnapshots

PLANNED_FAILURE = "planned: a sync failed"

OnDone = Callable[[int], None]
OnFailed = Callable[[BaseException], None]


class VirtualDisk:
    """What outlives a daemon's process."""

    def __init__(self, server_id: str, rng: random.Random, *, sync_s: float, keep_unsynced: float) -> None:
        self.server_id = server_id
        self.log = LogImage()
        """What is durable of the log."""
        self.cluster_id = ""
        self.files: dict[str, MemorySnapshots] = {
            "snapshots": MemorySnapshots(),
            "images": MemorySnapshots(keep=IMAGES_KEPT, by_arrival=True),
        }
        self.room = Space.OK
        self.slow_s = 0.0
        self.fails_next_sync = False
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._sync_s = sync_s
        self._keep_unsynced = keep_unsynced

    def sync_time(self) -> float:
        return self._sync_s * (0.5 + self._rng.random()) + self.slow_s

    def opened(self) -> OpenedDisk:
        """What a starting daemon finds, in the shape that `make_runner` takes."""
        log, snapshots = self.log, self.files["snapshots"]
        restored = Restored(
            hard_state=log.hard_state,
            entries=tuple(log.entries),
            prev_index=log.prev_index,
            prev_term=log.prev_term,
        )
        restored = replace(restored, snapshot=snapshots.usable(log.prev_index))
        snapshots.cluster_id = self.cluster_id
        stand_in = cast(Any, self)
        return OpenedDisk(stand_in, stand_in, cast(Any, snapshots), cast(Any, self.files["images"]), restored, ())

    def join_cluster(self, cluster_id: str) -> None:
        if self.cluster_id not in ("", cluster_id):
            raise Conflict(f"this disk belongs to cluster {self.cluster_id}, not {cluster_id}")
        self.cluster_id = cluster_id

    def space(self) -> Space:
        return self.room

    def take_ballast(self) -> None:
        """There is none here."""

    def power_cut(self, unsynced: list[Transaction]) -> None:
        """Some prefix of what was under way is there nevertheless, and some of a half-fetched file."""
        for write in unsynced:
            if self._rng.random() >= self._keep_unsynced:
                self.counts["unsynced writes lost"] += 1
                break
            self.log.apply(write)
        for files in self.files.values():
            files.power_cut(self._rng)
        self.fails_next_sync = False

    def heal(self) -> None:
        self.room = Space.OK
        self.slow_s = 0.0
        self.fails_next_sync = False


class VirtualStore:
    """Stands in for `StoreThread` in one life of a daemon. Its child runs beside the daemon, not inside it."""

    def __init__(
        self,
        disk: VirtualDisk,
        nursery: trio.Nursery,
        on_done: OnDone,
        on_failed: OnFailed,
        note: Callable[[str, str], None],
    ) -> None:
        """`note` is told of every write and every sync, by kind and detail."""
        self._disk = disk
        self._note = note
        self._nursery = nursery
        self._on_done = on_done
        self._on_failed = on_failed
        self._queue: deque[tuple[int, Transaction]] = deque()
        self._syncing: list[tuple[int, Transaction]] = []
        self._filled = trio.Event()
        self._scope = trio.CancelScope()
        self._is_closing = False
        self._is_gone = False
        self._has_failed = False
        self._busy_since: float | None = None
        self._sync_last_s = 0.0
        self._sync_total_s = 0.0
        self._groups = 0
        self.is_started = False
        self.has_ended = trio.Event()

    @property
    def is_syncing(self) -> bool:
        return bool(self._syncing)

    def start(self) -> None:
        self.is_started = True
        self._nursery.start_soon(self._run)

    def submit(self, write: StoreWrite) -> None:
        self._put(write.number, Transaction(hard_state=write.hard_state, reset=write.reset, append=write.append))

    def truncate_prefix(self, index: int, snapshot: SnapshotMeta | None = None) -> None:
        self._put(0, Transaction(compact_to=index, mark=snapshot))

    def close(self, wait_s: float) -> bool:
        """Take no more; what was submitted is finished. Whoever must wait for that waits for `has_ended`."""
        self._is_closing = True
        self._filled.set()
        return True

    def power_cut(self) -> None:
        self._is_gone = True
        self._scope.cancel()
        self._disk.power_cut([write for _, write in [*self._syncing, *self._queue]])
        self.has_ended.set()

    def statistics(self) -> StoreThreadStatistics:
        now = trio.current_time()
        return StoreThreadStatistics(
            groups=self._groups,
            writes=0,
            waiting=len(self._queue),
            waiting_bytes=0,
            busy_s=0.0 if self._busy_since is None else now - self._busy_since,
            sync_last_s=self._sync_last_s,
            sync_max_s=0.0,
            sync_total_s=self._sync_total_s,
            sync_counts=(),
        )

    def _put(self, number: int, write: Transaction) -> None:
        if self._is_gone:
            return
        if self._has_failed:
            raise StoreFailed(PLANNED_FAILURE)
        if self._is_closing:
            raise StoreFailed("the store is closed: it takes no more writes")
        self._queue.append((number, write))
        self._filled.set()
        self._note("write", str(number))

    async def _run(self) -> None:
        with self._scope:
            while await self._turn():
                pass
            self.has_ended.set()

    async def _turn(self) -> bool:
        """One group; False when there will never be another."""
        while not self._queue:
            if self._is_closing:
                return False
            self._filled = trio.Event()
            await self._filled.wait()
        self._syncing, self._queue = list(self._queue), deque()
        self._busy_since = started = trio.current_time()
        await trio.sleep(self._disk.sync_time())
        self._sync_last_s, self._busy_since = trio.current_time() - started, None
        self._sync_total_s += self._sync_last_s
        if self._disk.fails_next_sync:
            self._disk.fails_next_sync = False
            self._is_closing = self._has_failed = True
            self._syncing, self._queue = [], deque()
            self._on_failed(StoreFailed(PLANNED_FAILURE))
            return False
        done, self._syncing = self._syncing, []
        self._groups += 1
        for _, write in done:
            self._disk.log.apply(write)
        number = max(number for number, _ in done)
        self._note("synced", str(number))
        if number:
            self._on_done(number)
        return True
