"""The one thread that owns the log store, and group commit.

The event loop hands over writes without waiting. While one group is being synced the next ones gather; when the sync
returns, whatever gathered (up to a limit) becomes the next group. There is no artificial delay: a lone write is synced
at once, and under load the disk itself sets the size of the groups.

Completions arrive on the event loop in the order of submission. The first failure is reported once, and nothing
completes after it: what was waiting then has an unknown fate that only a restart can tell.

How a completion gets to the event loop is the caller's affair (`post`; with trio, the token's `run_sync_soon`), so this
module knows no event loop.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

from fedsched.raft.entry import packed_size
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.storage import Store, StoreFailed
from fedsched.raft.store_group import StoreWrite

GROUP_BYTES_MAX: Final = 1024 * 1024
"""A group of this much costs a few syncs' worth of time; more would only make the first of it wait longer."""
QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Four times what a leader may have uncommitted: if this much waits, the disk has stopped."""
IDLE_S: Final = 0.05
"""Quiet for this long is a good moment for a checkpoint."""
SYNC_BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
STOP_S: Final = 5.0

Job = Callable[[Store], object]


@dataclass(frozen=True, slots=True)
class StoreThreadStatistics:
    """For metrics; a consistent copy."""

    groups: int
    writes: int
    waiting: int
    waiting_bytes: int
    busy_s: float
    """Since when the store has been at its present job; 0 when idle. A slow disk shows here before it answers."""
    sync_last_s: float
    sync_max_s: float
    sync_total_s: float
    sync_counts: tuple[int, ...]
    """Groups per bucket of `SYNC_BUCKETS_S`, and one more for all slower ones; not cumulative."""


class StoreThread:
    """Runs `store` on a thread of its own from `start` to `close`.

    `on_done(number)` says that every write up to `number` is durable; `on_failed(error)` that nothing more will be.
    Both are called through `post`.
    """

    def __init__(
        self,
        store: Store,
        on_done: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        *,
        post: Callable[[Callable[[], None]], None],
        group_bytes_max: int = GROUP_BYTES_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._on_done = on_done
        self._on_failed = on_failed
        self._post = post
        self._group_bytes_max = group_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[StoreWrite, int] | Job] = deque()
        """Writes with their sizes, and jobs, in order of submission."""
        self._queue_bytes = 0
        self._is_closing = False
        self._failure: BaseException | None = None
        self._has_tidied = True
        self._groups = 0
        self._writes = 0
        self._busy_since: float | None = None
        self._sync_last_s = 0.0
        self._sync_max_s = 0.0
        self._sync_total_s = 0.0
        self._sync_counts = [0] * (len(SYNC_BUCKETS_S) + 1)
        self._thread = threading.Thread(target=self._run, name="raft-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, write: StoreWrite) -> None:
        """Queue one write and return at once. Raises `StoreFailed` when the disk has stopped taking anything."""
        size = packed_size(write.append)
        with self._changed:
            self._check_open("writes")
            if self._queue_bytes + size > self._queue_bytes_max:
                raise StoreFailed(
                    f"{self._queue_bytes} bytes wait for the disk, at most {self._queue_bytes_max} may",
                    hint="the disk has stalled; look at it before starting the server again",
                )
            self._queue.append((write, size))
            self._queue_bytes += size
            self._changed.notify()

    def run_exclusive(self, job: Job) -> None:
        """Have the thread call `job(store)` between two groups, after what was submitted before. Never waits.

        A job that returns True is called again after whatever waits by then: that is how long work is sliced. An error
        in a job is a failure of the store.
        """
        with self._changed:
            self._check_open("work")
            self._queue.append(job)
            self._changed.notify()

    def truncate_prefix(self, index: int, snapshot: SnapshotMeta | None = None) -> None:
        """Shorten the log slice by slice, never holding up a group for more than one slice."""
        self.run_exclusive(lambda store: store.truncate_prefix(index, snapshot))

    def close(self, wait_s: float = STOP_S) -> bool:
        """Finish what was submitted, then end the thread. False if the disk did not let it end in time.

        Waits, so call it off the event loop. The store itself stays open; closing it is its owner's business.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def statistics(self) -> StoreThreadStatistics:
        with self._changed:
            return StoreThreadStatistics(
                groups=self._groups,
                writes=self._writes,
                waiting=len(self._queue),
                waiting_bytes=self._queue_bytes,
                busy_s=0.0 if self._busy_since is None else self._clock() - self._busy_since,
                sync_last_s=self._sync_last_s,
                sync_max_s=self._sync_max_s,
                sync_total_s=self._sync_total_s,
                sync_counts=tuple(self._sync_counts),
            )

    def _check_open(self, what: str) -> None:
        """Whoever comes too late hears why, and after a failure that is the failure itself."""
        if isinstance(self._failure, StoreFailed):
            raise StoreFailed(self._failure.message, hint=self._failure.hint) from self._failure
        if self._is_closing:
            raise StoreFailed(f"the store is closed: it takes no more {what}") from self._failure

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # whatever it is, the store's promise is off
            self._fail(error)

    def _turn(self) -> bool:
        """One group or one job, then house-keeping; False when there will never be another."""
        item = self._take()
        match item:
            case None:
                return False
            case []:
                self._store.tidy(is_idle=True)
                self._has_tidied = True
            case list():
                self._write(item)
                self._store.tidy(is_idle=False)
            case _:
                if item(self._store) is True:
                    self._again(item)
                self._store.tidy(is_idle=False)
        with self._changed:
            self._busy_since = None
        return True

    def _take(self) -> list[StoreWrite] | Job | None:
        """The next group or job; an empty group after a quiet moment; None at the end."""
        with self._changed:
            while not self._queue:
                if self._is_closing:
                    return None
                if not self._changed.wait(None if self._has_tidied else IDLE_S) and not self._queue:
                    return []
            self._has_tidied = False
            self._busy_since = self._clock()
            if callable(self._queue[0]):
                return cast(Job, self._queue.popleft())
            return self._gather()

    def _gather(self) -> list[StoreWrite]:
        """Writes from the head of the queue, up to the limit but at least one, and never past a job."""
        group: list[StoreWrite] = []
        group_bytes = 0
        while self._queue and not callable(item := self._queue[0]):
            write, size = item
            if group and group_bytes + size > self._group_bytes_max:
                break
            self._queue.popleft()
            group.append(write)
            group_bytes += size
        self._queue_bytes -= group_bytes
        return group

    def _again(self, job: Job) -> None:
        with self._changed:
            if not self._is_closing:
                self._queue.append(job)

    def _write(self, group: list[StoreWrite]) -> None:
        started = self._clock()
        self._store.write(group)
        took_s = self._clock() - started
        with self._changed:
            self._groups += 1
            self._writes += len(group)
            self._sync_last_s = took_s
            self._sync_max_s = max(self._sync_max_s, took_s)
            self._sync_total_s += took_s
            self._sync_counts[bisect_left(SYNC_BUCKETS_S, took_s)] += 1
        number = group[-1].number
        self._tell(lambda: self._on_done(number))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._is_closing = True
            self._failure = error
            self._queue.clear()
            self._queue_bytes = 0
        self._tell(lambda: self._on_failed(error))

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop has ended: nobody is left to tell, and nothing will leave either
            self._post(what)
