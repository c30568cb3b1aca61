"""What a client must not forget, kept on its own disk.

One thread writes. Writes that are awaited at the same time share a transaction and its sync; a write has returned when
a power cut can no longer undo it. Rows that change often (a task, an allocation's state) are handed over as changes and
encoded when their turn comes, as they are then. An entry that cannot be decoded is logged and kept aside; it never
stops the others.

The job of an allocation is stored once for all allocations that run the same version of it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import trio
from msgspec import structs

from fedsched.client.journal_records import AllocLocal, AllocReport, StoredAlloc, TaskLocal
from fedsched.client.journal_store import JournalFailed, JournalStore, Put, Row, StateLock
from fedsched.client.state_writer import RowChange
from fedsched.codec import CodecError, Limits, from_bytes, to_bytes_sparse
from fedsched.model.alloc import Allocation
from fedsched.model.declare import EMPTY, Record
from fedsched.model.errors import FedschedError
from fedsched.model.ids import is_uuid
from fedsched.model.job import Job
from fedsched.model.task_state import TaskState
from fedsched.telemetry.log import Logger

LIMITS: Final = Limits(bytes_max=64 << 20, depth_max=64, nodes_max=2_000_000)
JOBS_REMEMBERED: Final = 64
"""Jobs whose encoded form is known by the object, so that many allocations of one job cost one encoding."""
WAITING_MAX: Final = 4_096
"""Writes that wait for the thread; whoever comes after that waits for room."""
GROUP_MAX: Final = 64
"""Writes in one transaction: whoever waited for them is told in one go, which must not keep the event loop."""
BUSY: Final = 4
GATHER_S: Final = 0.003
"""After a group of so many, more come at once: a moment's wait makes fewer and larger groups of them, and whoever
hands something over meanwhile need not wake the thread."""
ALLOC, JOB, LOCAL, TASK, ACKED, REFUSED, NODE = "alloc", "job", "local", "task", "acked", "refused", "node"

T = TypeVar("T", bound=Record)


class JournalTask(Record):
    """One task's row."""

    local: TaskLocal = TaskLocal()
    state: TaskState = TaskState()


class StoredAllocation(Record):
    """An allocation's row: its job is in a row of its own."""

    alloc: Allocation
    job: str = ""


class Refused(Record):
    """An allocation that this client could not even construct."""

    alloc_modify_index: int = 0
    reason: str = ""
    is_acked: bool = False


class Journal:
    """The store of one client. Open it, read it, then write to it; `close` when nobody writes any more."""

    def __init__(self, state_dir: Path, log: Logger) -> None:
        self._dir = state_dir
        self._log = log
        self._store = JournalStore(state_dir, log)
        self._lock: StateLock
        self._stored: list[StoredAlloc] = []
        self.refused: dict[str, Refused] = {}
        """Allocations that could not be constructed, by id."""
        self.node: dict[str, bytes] = {}
        """Small facts about this node, by name."""
        self._job_of: dict[str, str] = {}
        self._tasks_of: dict[str, set[str]] = {}
        self._job_uses: Counter[str] = Counter()
        self._jobs_written: set[str] = set()
        self._job_encoded = ("", b"")
        """The last one: a job's allocations come together, and none may count on the others' writes."""
        self._job_keys: dict[int, tuple[Job, str]] = {}
        self._writer = _Writer(self._store, _puts_of)

    # ---- life -----------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Lock the directory and read everything. Blocks: call it off the event loop. Starts the thread."""
        self._lock = StateLock(self._dir)
        try:
            self._read(self._store.open())
        except BaseException:
            self._lock.release()
            raise
        self._writer.start()
        return self

    def close(self) -> None:
        """Write what was handed over, end the thread, let the directory go. Blocks."""
        self._writer.close()
        self._store.close()
        self._lock.release()

    def load(self) -> list[StoredAlloc]:
        """Everything that was kept when the journal was opened, by allocation id."""
        return list(self._stored)

    def set_aside(self) -> list[tuple[Row, str]]:
        """Rows that could not be read, with the reasons."""
        return self._store.aside()

    # ---- writing --------------------------------------------------------------------------------------------

    async def put_alloc(self, alloc: Allocation, tasks: Mapping[str, tuple[TaskLocal, TaskState]] = EMPTY) -> None:
        """An allocation as servers want it; with its job, if that is not here already, and its tasks if it is new."""
        self._tasks_of.setdefault(alloc.id, set()).update(tasks)
        puts = [_task_row(alloc.id, name, *record) for name, record in tasks.items()]
        job_key = ""
        if alloc.job is not None:
            job_key = self._key_of(alloc.job)
            if job_key not in self._jobs_written:
                if self._job_encoded[0] != job_key:
                    self._job_encoded = (job_key, to_bytes_sparse(alloc.job))
                puts.append(Put(JOB, *self._job_encoded))
        row = StoredAllocation(alloc=structs.replace(alloc, job=None), job=job_key)
        before = self._job_of.get(alloc.id)
        if before != job_key:
            self._job_uses[job_key] += 1
            self._job_of[alloc.id] = job_key
            puts += self._without_job(before)
        puts.append(Put(ALLOC, alloc.id, to_bytes_sparse(row)))
        await self._write(puts)
        if job_key and self._job_uses[job_key] > 0:
            self._jobs_written.add(job_key)

    def submit(self, change: RowChange, delay_s: float = 0.0) -> None:
        """A task, or an allocation's own state, has changed; see `state_writer`. Never waits."""
        if change.task:
            self._tasks_of.setdefault(change.alloc_id, set()).add(change.task)
        self._writer.submit(change, delay_s)

    def hurry(self, change: RowChange) -> None:
        """Somebody waits for this one now."""
        self._writer.hurry(change)

    async def put_acked(self, reports: Mapping[str, AllocReport]) -> None:
        """What servers have acknowledged, by allocation."""
        known = ((alloc_id, report) for alloc_id, report in reports.items() if alloc_id in self._job_of)
        await self._write([Put(ACKED, alloc_id, to_bytes_sparse(report)) for alloc_id, report in known])

    async def put_refused(self, alloc_id: str, refused: Refused) -> None:
        """This allocation cannot be constructed here."""
        self.refused[alloc_id] = refused
        await self._write([Put(REFUSED, alloc_id, to_bytes_sparse(refused))])

    async def put_node(self, name: str, value: bytes) -> None:
        """A fact about this node."""
        self.node[name] = value
        await self._write([Put(NODE, name, value)])

    async def forget(self, alloc_id: str) -> None:
        """Everything about one allocation."""
        self.refused.pop(alloc_id, None)
        kinds = (ALLOC, LOCAL, ACKED, REFUSED)
        puts = [Put(kind, alloc_id, None) for kind in kinds]
        puts += [Put(TASK, f"{alloc_id}/{task}", None) for task in sorted(self._tasks_of.pop(alloc_id, ()))]
        puts += self._without_job(self._job_of.pop(alloc_id, None))
        await self._write(puts)

    async def _write(self, puts: list[Put]) -> None:
        if puts:
            await self._writer.write(puts)

    def _without_job(self, key: str | None) -> list[Put]:
        """One allocation less runs this job."""
        if not key:
            return []
        self._job_uses[key] -= 1
        if self._job_uses[key] > 0:
            return []
        del self._job_uses[key]
        self._jobs_written.discard(key)
        return [Put(JOB, key, None)]

    def _key_of(self, job: Job) -> str:
        known = self._job_keys.get(id(job))
        if known is not None and known[0] is job:
            return known[1]
        key = blake2b(to_bytes_sparse(job), digest_size=16).hexdigest()
        while len(self._job_keys) >= JOBS_REMEMBERED:
            del self._job_keys[next(iter(self._job_keys))]
        self._job_keys[id(job)] = (job, key)
        return key

    # ---- reading --------------------------------------------------------------------------------------------

    def _read(self, rows: list[Row]) -> None:
        reader = _Reader(rows)
        jobs = {row.key: (row, job) for row, job in reader.of(JOB, Job)}
        allocs = {row.key: (row, stored) for row, stored in reader.of(ALLOC, StoredAllocation)}
        locals_ = {row.key: local for row, local in reader.of(LOCAL, AllocLocal)}
        acked = {row.key: report for row, report in reader.of(ACKED, AllocReport)}
        tasks: dict[str, dict[str, tuple[TaskLocal, TaskState]]] = {}
        for row, task in reader.of(TASK, JournalTask):
            alloc_id, _, name = row.key.partition("/")
            tasks.setdefault(alloc_id, {})[name] = (task.local, task.state)
        self.refused = {row.key: refused for row, refused in reader.of(REFUSED, Refused)}
        self.node = {row.key: row.body for row in rows if row.kind == NODE}
        for alloc_id, (row, stored) in sorted(allocs.items()):
            if not is_uuid(alloc_id) or stored.alloc.id != alloc_id or (stored.job and stored.job not in jobs):
                reader.bad.append((row, "its job is missing" if stored.alloc.id == alloc_id else "it is misplaced"))
                continue
            local = structs.replace(locals_.get(alloc_id, AllocLocal()), acked=acked.get(alloc_id))
            alloc = structs.replace(stored.alloc, job=jobs[stored.job][1] if stored.job else None)
            self._job_of[alloc_id] = stored.job
            self._job_uses[stored.job] += 1
            self._jobs_written.add(stored.job)
            self._tasks_of[alloc_id] = set(tasks.get(alloc_id, ()))
            self._stored.append(StoredAlloc(alloc=alloc, local=local, tasks=tasks.get(alloc_id, {})))
        self._tidy(rows, jobs.keys(), reader.bad)

    def _tidy(self, rows: list[Row], jobs: Iterable[str], bad: list[tuple[Row, str]]) -> None:
        """Set aside what cannot be read, and drop what belongs to nothing any more."""
        for row, why in bad:
            self._log.error("state_entry_unreadable", kind=row.kind, key=row.key, why=why)
        gone = {(row.kind, row.key) for row, _ in bad}
        orphans = [
            row for row in rows if row.kind in (LOCAL, TASK, ACKED) and row.key.partition("/")[0] not in self._job_of
        ]
        bad += [(row, "its allocation is missing") for row in orphans if (row.kind, row.key) not in gone]
        if bad:
            self._store.set_aside(bad)
        unused = [key for key in jobs if not self._job_uses[key]]
        if unused:
            self._store.write(Put(JOB, key, None) for key in unused)


def _puts_of(change: RowChange, record: Any) -> list[Put]:
    """The row of a change. In the journal's thread: encoding it needs nobody else."""
    if change.task:
        return [_task_row(change.alloc_id, change.task, *record)]
    # What was acknowledged is kept apart (`put_acked`).
    return [Put(LOCAL, change.alloc_id, to_bytes_sparse(structs.replace(record, acked=None)))]


def _task_row(alloc_id: str, task: str, local: TaskLocal, state: TaskState) -> Put:
    return Put(TASK, f"{alloc_id}/{task}", to_bytes_sparse(JournalTask(local=local, state=state)))


class _Reader:
    """Decodes rows, and gathers those that it cannot."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self.bad: list[tuple[Row, str]] = []

    def of(self, kind: str, record: type[T]) -> list[tuple[Row, T]]:
        found = []
        for row in self._rows:
            if row.kind == kind:
                try:
                    found.append((row, from_bytes(row.body, record, LIMITS)))
                except CodecError as error:
                    self.bad.append((row, str(error)))
        return found


class _Writer:
    """The thread, and those who wait for it."""

    def __init__(self, store: JournalStore, puts_of: Callable[[RowChange, Any], list[Put]]) -> None:
        self._store = store
        self._puts_of = puts_of
        self._changed = threading.Condition()
        self._waiting: deque[_Puts | RowChange] = deque()
        self._later: list[tuple[float, int, RowChange]] = []
        """A heap of changes that may wait, by the time they may not any more."""
        self._is_later: dict[RowChange, int] = {}
        """The entry of `_later` that counts for each of them; hurried ones leave theirs behind."""
        self._numbers = itertools.count()
        self._wakes_at = math.inf
        """When the thread looks again by itself."""
        self._room = trio.lowlevel.ParkingLot()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="client-journal", daemon=True)
        self._token: trio.lowlevel.TrioToken
        self.groups = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    async def write(self, puts: list[Put]) -> None:
        """Returns when it is on the disk, with everything handed over before. Not undone by being cancelled."""
        while len(self._waiting) >= WAITING_MAX:
            await self._room.park()
        one = _Puts(puts, trio.Event())
        if not self._hand_over(one):
            raise _closed()
        await one.done.wait()
        if one.error is not None:
            raise one.error

    def submit(self, change: RowChange, delay_s: float) -> None:
        """Of one row there is never more than one here, so that their number is bounded by that of the tasks."""
        if delay_s <= 0:
            if not self._hand_over(change):
                refused: list[_Puts | _Taken] = [_Taken(change, *change.take(), _closed())]
                trio.lowlevel.current_trio_token().run_sync_soon(self._release, refused)
            return
        due = time.monotonic() + delay_s
        with self._changed:
            self._token = trio.lowlevel.current_trio_token()
            number = self._is_later[change] = next(self._numbers)
            heapq.heappush(self._later, (due, number, change))
            if due < self._wakes_at:
                self._changed.notify()

    def hurry(self, change: RowChange) -> None:
        with self._changed:
            if self._is_later.pop(change, None) is not None:
                self._waiting.append(change)
                self._changed.notify()

    def _hand_over(self, one: _Puts | RowChange) -> bool:
        with self._changed:
            if self._is_closing:
                return False
            self._token = trio.lowlevel.current_trio_token()
            self._waiting.append(one)
            self._changed.notify()
        return True

    def _run(self) -> None:
        while group := self._next_group():
            self._write_group(group)
            try:
                self._token.run_sync_soon(self._release, group)
            except trio.RunFinishedError:
                continue  # the event loop has ended, and nobody waits any more
            if len(group) >= BUSY and not self._is_closing:
                time.sleep(GATHER_S)

    def _next_group(self) -> list[_Puts | _Taken]:
        """Waits for something to write; nothing when the journal is closed and all is written."""
        with self._changed:
            while True:
                self._ripen(math.inf if self._is_closing else time.monotonic())
                if self._waiting or self._is_closing:
                    break
                self._wakes_at = self._later[0][0] if self._later else math.inf
                self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - time.monotonic())
            self._wakes_at = -math.inf
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
        return [_Taken(one, *one.take()) if isinstance(one, RowChange) else one for one in taken]

    def _ripen(self, now: float) -> None:
        """Those that have waited long enough wait no longer."""
        while self._later and self._later[0][0] <= now:
            _, number, change = heapq.heappop(self._later)
            if self._is_later.get(change) == number:
                del self._is_later[change]
                self._waiting.append(change)

    def _write_group(self, group: list[_Puts | _Taken]) -> None:
        puts: list[Put] = []
        for one in group:
            if isinstance(one, _Puts):
                puts += one.puts
                continue
            try:
                puts += self._puts_of(one.change, one.record)
            except Exception as error:  # a record that cannot be encoded is no reason to write none of the others
                one.error = JournalFailed(f"{one.change.alloc_id}/{one.change.task} cannot be stored: {error}")
        try:
            self._store.write(puts)
        except FedschedError as error:
            for one in group:
                one.error = error
            return
        self.groups += 1

    def _release(self, group: list[_Puts | _Taken]) -> None:
        """On the event loop: tell all who waited for this group."""
        for one in group:
            if isinstance(one, _Puts):
                one.done.set()
            else:
                one.change.done(one.number, one.record, one.error)
        self._room.unpark_all()


@dataclass(slots=True)
class _Puts:
    """Rows that somebody waits for."""

    puts: list[Put]
    done: trio.Event
    error: FedschedError | None = None


@dataclass(slots=True)
class _Taken:
    """A changed row as it is being written."""

    change: RowChange
    number: int
    record: Any
    error: FedschedError | None = None


def _closed() -> JournalFailed:
    return JournalFailed("the journal is closed", hint="the agent is stopping")
