"""`bench store`: a million allocations through real log entries, then read, saved and restored.

The baseline is the least that could be done with the same entries: take each id out of the plan's column and put it
into a dict. It knows no node, no job, no index and no snapshot. Both take turns, a tenth of the work at a time, so that
a noisy machine is noisy for both; what counts is processor time. Memory is what the process grew by while allocations
were applied, and not what anybody thinks a record should weigh. The heap of what was there before is frozen, as a
server does after it has restored its state.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from fedsched.bench.frame import BenchOptions, BenchResult, Number
from fedsched.codec import dumps
from fedsched.model.ids import uuid_text
from fedsched.state.apply import apply_bytes
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.fields import Command, pack
from fedsched.state.image import Restorer, save
from fedsched.state.store import Store
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.jobs import JobRegister
from fedsched.state.tables.nodes import NodeUpsert
from fedsched.state.tables.plans import PlacedGroup, PlanApply

COUNT: Final = 1_000_000
PLAN: Final = 1_000
NODES: Final = 5_000
DECILES: Final = 10
UPDATES: Final = 50
LOOKUPS: Final = 5_000
PAGE: Final = 100
WARM_BYTES_PER_ALLOC: Final = 1024
"""Touched once and given back: else we would measure how fast a hypervisor hands out memory."""


def run(options: BenchOptions) -> BenchResult:
    """Measure everything above; about half a minute at full size."""
    region = _Region(options.seed, max(DECILES, (options.count or COUNT) // PLAN))
    options.say(f"{region.plans * PLAN:,} allocations on {NODES:,} nodes, in plans of {PLAN:,}")
    gc.collect()
    gc.freeze()
    pauses: list[float] = []
    with _gc_pauses(pauses):
        deciles = region.apply_all(options.say)
        rows: list[dict[str, Any]] = [*deciles]
        options.say("updates, lookups, removals")
        rows += region.updates(with_snapshot=False)
        rows += region.updates(with_snapshot=True)
        rows += region.lookups()
        rows += region.removals()
        options.say("image saved and restored")
        rows += region.image()
    longest = max(pauses, default=0.0) * 1000
    rows.append(_row("garbage collections", len(pauses), longest_ms=longest))
    applied = sum(row["apply_s"] for row in deciles)
    figures: dict[str, Number] = {
        "ratio_dict_insert": sum(row["dict_s"] for row in deciles) / applied,
        "last_over_first_decile": deciles[-1]["apply_s"] / deciles[0]["apply_s"],
        "bytes_per_alloc": region.grown_bytes / (region.plans * PLAN),
        "longest_gc_pause_ms": longest,
        "log_bytes_per_alloc": region.log_bytes / (region.plans * PLAN),
        "allocs_per_s": region.plans * PLAN / applied,
    }
    return BenchResult(figures, rows, notes=("times are processor time; us are per allocation unless a row says else",))


class _Region:
    """A store with a fleet and jobs, and what is done to it."""

    def __init__(self, seed: int, plans: int) -> None:
        self.store = Store()
        self.plans = plans
        self.log_bytes = 0
        self.grown_bytes = 0
        self._rng = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._ids: list[bytes] = []
        self._baseline: dict[bytes, int] = {}
        for number in range(NODES):
            self._do(NodeUpsert(id=f"node-{number}", name=f"node-{number}", status="ready"))
        self._created = [self._do(JobRegister(namespace="default", id=f"job-{n}", spec=b"\xa0")) for n in range(plans)]
        self._warm()

    def apply_all(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        rows = []
        share = self.plans // DECILES
        for decile in range(DECILES):
            last = self.plans if decile == DECILES - 1 else (decile + 1) * share
            entries = [self._plan(number) for number in range(decile * share, last)]
            self.log_bytes += sum(map(len, entries))
            before = _resident_bytes()
            spent = [self._timed(entry) for entry in entries]
            self.grown_bytes += max(0, _resident_bytes() - before)
            loop = self._dict_loop(self._ids[-len(entries) :])
            per = 1e6 / (len(entries) * PLAN)
            rows.append(
                {
                    "decile": decile + 1,
                    "apply_s": sum(spent),
                    "dict_s": loop,
                    "apply_us": sum(spent) * per,
                    "median_us": median(spent) * 1e6 / PLAN,
                    "dict_us": loop * per,
                    "longest_ms": max(spent) * 1000,
                }
            )
        self._baseline.clear()
        if self.grown_bytes == 0:
            self.grown_bytes = self.store.allocations.nbytes()
            say("the system does not say how large a process is: memory is computed from the columns")
        return rows

    def updates(self, *, with_snapshot: bool) -> list[dict[str, Any]]:
        held = self.store.snapshot() if with_snapshot else None
        entries = []
        for _ in range(UPDATES):
            ids = b"".join(self._random_id() for _ in range(PLAN))
            client, sizes = pack(dumps({"ClientDescription": self._rng.randbytes(90).hex()}) for _ in range(PLAN))
            update = AllocStatusUpdate(ids=ids, statuses=bytes([2]) * PLAN, client=client, client_sizes=sizes)
            entries.append(self._encode(update))
        spent = [self._timed(entry) for entry in entries]
        name = "status updates, snapshot held" if held is not None else "status updates"
        return [_row(name, UPDATES * PLAN, us=sum(spent) * 1e6 / (UPDATES * PLAN), longest_ms=max(spent) * 1000)]

    def lookups(self) -> list[dict[str, Any]]:
        allocations = self.store.allocations
        wanted = [uuid_text(self._random_id()) for _ in range(LOOKUPS)]
        pages = self._pages(LOOKUPS // PAGE)
        jobs = [f"job-{self._rng.randrange(self.plans)}" for _ in range(LOOKUPS // 50)]
        nodes = [self._rng.randrange(NODES) for _ in range(LOOKUPS // 50)]
        return [
            _each("slot by id", wanted, allocations.slot_of),
            _each("record by id", wanted, allocations.get),
            _each("slots of a job", jobs, lambda job: allocations.slots_of_job("default", job)),
            _each("slots of a node", nodes, allocations.slots_of_node),
            _each(f"page of {PAGE} slots", pages, lambda after: allocations.page(PAGE, after=after)),
            _each("snapshot", range(1000), lambda _: self._fresh_snapshot()),
        ]

    def removals(self) -> list[dict[str, Any]]:
        entries = [self._encode(Reap(allocs=b"".join(self._random_id() for _ in range(PLAN)))) for _ in range(10)]
        spent = [self._timed(entry) for entry in entries]
        return [_row("removals", 10 * PLAN, us=sum(spent) * 1e6 / (10 * PLAN), longest_ms=max(spent) * 1000)]

    def image(self) -> list[dict[str, Any]]:
        chunks: list[bytes] = []
        count = len(self.store.allocations)
        saving = _stepped(save(self.store.snapshot()), chunks.append)
        restorer = Restorer()
        restoring = _stepped(iter(chunks), restorer.feed)
        start = time.process_time()
        restored = restorer.finish()
        restoring.append(time.process_time() - start)
        assert restored.digest() == self.store.digest(), "the restored store differs"
        size = sum(map(len, chunks))
        return [
            _row(
                f"image saved ({size / 1e6:.0f} MB)", count, us=sum(saving) * 1e6 / count, longest_ms=max(saving) * 1e3
            ),
            _row("image restored", count, us=sum(restoring) * 1e6 / count, longest_ms=max(restoring) * 1e3),
        ]

    def _plan(self, number: int) -> bytes:
        self._ids.append(self._rng.randbytes(16 * PLAN))
        group = PlacedGroup(
            group="web",
            ids=self._ids[-1],
            node_slots=self._numbers.integers(0, NODES, PLAN).astype("<u4").tobytes(),
            name_indexes=np.arange(PLAN, dtype="<u4").tobytes(),
        )
        plan = PlanApply(
            namespace="default",
            job_id=f"job-{number}",
            job_create_index=self._created[number],
            job_version=0,
            evaluation_id=uuid_text(self._rng.randbytes(16)),
            snapshot_index=self.store.index,
            placed=(group,),
        )
        return self._encode(plan)

    def _dict_loop(self, columns: list[bytes]) -> float:
        """The baseline: every id of these plans into a dict."""
        table = self._baseline
        number = len(table)
        start = time.process_time()
        for ids in columns:
            for at in range(0, len(ids), 16):
                table[ids[at : at + 16]] = number
                number += 1
        return time.process_time() - start

    def _timed(self, entry: bytes) -> float:
        start = time.process_time()
        applied = apply_bytes(self.store, self.store.index + 1, entry)
        spent = time.process_time() - start
        assert applied.result.is_done, applied
        return spent

    def _do(self, command: Command) -> int:
        self._timed(self._encode(command))
        return self.store.index

    def _encode(self, command: Command) -> bytes:
        return encode_command(Envelope(command=command, time_ns=self.store.index + 1))

    def _random_id(self) -> bytes:
        ids = self._ids[self._rng.randrange(len(self._ids))]
        at = 16 * self._rng.randrange(PLAN)
        return ids[at : at + 16]

    def _pages(self, count: int) -> list[tuple[int, str]]:
        found = []
        for _ in range(count):
            row = self.store.allocations.get(uuid_text(self._random_id()))
            assert row is not None
            found.append((row.create_index, row.id))
        return found

    def _fresh_snapshot(self) -> None:
        self.store.keeper.take()

    def _warm(self) -> None:
        block = np.ones(self.plans * PLAN * WARM_BYTES_PER_ALLOC, dtype=np.uint8)
        del block


def _each(name: str, items: Sequence[Any], look: Callable[[Any], object]) -> dict[str, Any]:
    longest = 0.0
    start = time.process_time()
    for item in items:
        before = time.process_time()
        look(item)
        longest = max(longest, time.process_time() - before)
    return _row(name, len(items), us=(time.process_time() - start) * 1e6 / len(items), longest_ms=longest * 1000)


def _stepped(source: Iterator[bytes], take: Callable[[bytes], object]) -> list[float]:
    """The time of each step: one chunk from its source to whoever takes it."""
    spent: list[float] = []
    while True:
        start = time.process_time()
        chunk = next(source, None)
        if chunk is None:
            return spent
        take(chunk)
        spent.append(time.process_time() - start)


def _row(name: str, count: int, *, us: float = 0.0, longest_ms: float = 0.0) -> dict[str, Any]:
    return {"what": name, "count": count, "us": us, "longest_ms": longest_ms}


def _resident_bytes() -> int:
    """How much memory the process has now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096


@contextmanager
def _gc_pauses(found: list[float]) -> Iterator[None]:
    """Note how long each garbage collection stops everything."""
    started = 0.0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.process_time()
        else:
            found.append(time.process_time() - started)

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
