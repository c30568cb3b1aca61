"""A host for allocation runners in tests: virtual time, mock tasks, a journal in memory, and agents that can be killed.

A `World` outlives its agents. `agent()` is one of them; leaving its block, or a fault, ends it without a word, and the
next one finds what the journal and the host hold.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import trio
from msgspec import structs

from fedsched.client.alloc_runner import AllocRunner
from fedsched.client.check_book import CheckBook
from fedsched.client.context import ClientParts, Servers
from fedsched.client.hooks.hook import AllocHook, TaskHook
from fedsched.client.journal_records import AllocLocal, AllocReport, StoredAlloc, TaskLocal
from fedsched.client.settings import ClientSettings
from fedsched.client.state_writer import RowChange
from fedsched.codec import from_bytes, to_bytes
from fedsched.drivers.driver import Driver, DriverError, Started, TaskConfig, TaskHandle
from fedsched.drivers.mock import MockDriver
from fedsched.drivers.mock_life import MockTask
from fedsched.drivers.mock_places import MemoryPlace
from fedsched.env.fixed import FixedEnv
from fedsched.model.alloc import Allocation
from fedsched.model.declare import EMPTY
from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.task_state import TaskState
from fedsched.telemetry.log import get_logger
from fedsched.telemetry.metrics import Registry
from tests.builders import a_group, a_job, a_node, an_id

WALL_NS = 1_700_000_000_000_000_000


class DiskFull(FedschedError):
    code = "journal_failed"


class Faults:
    """Points at which an agent can be killed, numbered as they are passed."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.kill_at = 0
        self.killed = trio.Event()

    async def point(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.kill_at:
            self.killed.set()
            await trio.sleep_forever()


class MemoryJournal:
    """Keeps rows as bytes; every write takes a moment, and can fail or be the agent's last."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.allocs: dict[str, bytes] = {}
        self.locals: dict[str, bytes] = {}
        self.tasks: dict[str, dict[str, tuple[bytes, bytes]]] = {}
        self.faults = faults or Faults()
        self.is_full: Callable[[str], bool] = lambda name: False
        self.history: list[tuple[str, TaskLocal, TaskState]] = []
        self._hurried: dict[RowChange, trio.Event] = {}
        self.nursery: trio.Nursery
        """The agent's."""

    async def put_alloc(self, alloc: Allocation, tasks: Mapping[str, tuple[TaskLocal, TaskState]] = EMPTY) -> None:
        async with self._writing("alloc"):
            self.allocs[alloc.id] = to_bytes(alloc)
            for task, record in tasks.items():
                self._put_task(alloc.id, task, *record)

    def submit(self, change: RowChange, delay_s: float = 0.0) -> None:
        self._hurried[change] = trio.Event()
        self.nursery.start_soon(self._write_change, change, delay_s)

    def hurry(self, change: RowChange) -> None:
        self._hurried[change].set()

    async def _write_change(self, change: RowChange, delay_s: float) -> None:
        with trio.move_on_after(delay_s):
            await self._hurried[change].wait()
        number, record = change.take()
        try:
            async with self._writing(change.task or "local"):
                number, record = change.take()
                if change.task:
                    self._put_task(change.alloc_id, change.task, *record)
                else:
                    self.locals[change.alloc_id] = to_bytes(record)
        except DiskFull as error:
            change.done(number, record, error)
        else:
            change.done(number, record, None)

    def _put_task(self, alloc_id: str, task: str, local: TaskLocal, state: TaskState) -> None:
        self.tasks.setdefault(alloc_id, {})[task] = (to_bytes(local), to_bytes(state))
        self.history.append((task, local, state))

    async def forget(self, alloc_id: str) -> None:
        async with self._writing("forget"):
            for rows in (self.allocs, self.locals, self.tasks):
                rows.pop(alloc_id, None)

    def load(self) -> list[StoredAlloc]:
        return [
            StoredAlloc(
                alloc=from_bytes(row, Allocation),
                local=from_bytes(self.locals[alloc_id], AllocLocal) if alloc_id in self.locals else AllocLocal(),
                tasks={
                    name: (from_bytes(local, TaskLocal), from_bytes(state, TaskState))
                    for name, (local, state) in self.tasks.get(alloc_id, {}).items()
                },
            )
            for alloc_id, row in self.allocs.items()
            if self.tasks.get(alloc_id)
        ]

    @asynccontextmanager
    async def _writing(self, name: str) -> AsyncIterator[None]:
        await self.faults.point(f"before writing {name}")
        await trio.sleep(0.001)
        if self.is_full(name):
            raise DiskFull(f"no space left to write {name}")
        yield
        await self.faults.point(f"after writing {name}")


@dataclass
class Life:
    """One start of a task on the host."""

    name: str
    task_id: str
    began_ns: int
    ended_ns: int | None = None


class RecordingPlace(MemoryPlace):
    """A host that notes who lived when."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        super().__init__()
        self._now_ns = now_ns
        self.lives: dict[str, Life] = {}

    def save(self, task: MockTask) -> None:
        super().save(task)
        name = task.id.rsplit("/", 1)[0]
        self.lives.setdefault(task.id, Life(name, task.id, task.started_at_ns))

    def remove(self, task_id: str) -> None:
        task = self.load(task_id)
        if task is not None:
            self.lives[task_id].ended_ns = min(task.ending()[0], self._now_ns())
        super().remove(task_id)

    def runs(self, name: str) -> list[Life]:
        return [life for life in self.lives.values() if life.name.endswith(f"/{name}")]

    def check_no_overlap(self) -> None:
        """No task ever ran beside itself."""
        for life in self.lives.values():
            left = self.tasks.get(life.task_id)
            if life.ended_ns is None and left is not None:
                life.ended_ns = left.ending()[0]
        by_name: dict[str, list[Life]] = {}
        for life in sorted(self.lives.values(), key=lambda life: life.began_ns):
            by_name.setdefault(life.name, []).append(life)
        for name, lives in by_name.items():
            for before, after in itertools.pairwise(lives):
                ended_ns = before.ended_ns
                assert ended_ns is not None, (name, before)
                assert ended_ns <= after.began_ns, (name, before, after)


class FaultyDriver(MockDriver):
    """A mock driver in which an agent can be killed around everything that changes the host."""

    faults: Faults

    async def start_task(self, config: TaskConfig) -> Started:
        await self.faults.point("before the start")
        started = await super().start_task(config)
        await self.faults.point("after the start")
        return started

    async def stop_task(self, task_id: str, timeout_s: float, signal: str) -> None:
        await self.faults.point("before the stop")
        await super().stop_task(task_id, timeout_s, signal)
        await self.faults.point("after the stop")

    async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
        await self.faults.point("before the removal")
        await super().destroy_task(task_id, force=force)
        await self.faults.point("after the removal")

    async def recover_task(self, handle: TaskHandle) -> None:
        await self.faults.point("before the recovery")
        await super().recover_task(handle)
        await self.faults.point("after the recovery")


class VirtualEnv(FixedEnv):
    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return WALL_NS / 1e9 + trio.current_time()


@dataclass
class FakeServers:
    last_contact: float = 0.0
    is_connected: bool = True
    is_alive: bool = True
    """Answers all heartbeats."""

    async def caller(self) -> Any:
        await trio.sleep_forever()


class LiveServers(FakeServers):
    @property  # type: ignore[override]
    def last_contact(self) -> float:
        return trio.current_time()

    @last_contact.setter
    def last_contact(self, value: float) -> None:
        del value


class Agent:
    """One agent's part that matters here."""

    def __init__(self, world: World, driver: MockDriver, *, has_contact: bool) -> None:
        self.world = world
        self.driver = driver
        self.parts = world.parts(driver, has_contact=has_contact)
        self.changes: list[tuple[float, AllocReport]] = []
        self.nursery: trio.Nursery
        self.runner: AllocRunner
        self.is_over = trio.Event()

    def take_up(self, alloc: Allocation | None = None) -> AllocRunner:
        """Run a new allocation, or the one that the journal knows."""
        stored = next((one for one in self.world.journal.load() if alloc is None or one.alloc.id == alloc.id), None)
        alloc = alloc if stored is None else stored.alloc
        assert alloc is not None
        self.runner = AllocRunner(
            self.parts,
            alloc,
            self.world.journal,
            stored=stored,
            on_change=lambda _: self.changes.append((trio.current_time(), self.runner.report())),
            task_hooks=self.world.task_hooks,
            alloc_hooks=self.world.alloc_hooks,
        )
        self.nursery.start_soon(self._run, self.runner)
        return self.runner

    async def _run(self, runner: AllocRunner) -> None:
        await runner.run()
        self.is_over.set()


@dataclass
class World:
    """The host, its disk, and the servers."""

    root: Path
    task_hooks: Iterable[type[TaskHook]] = ()
    alloc_hooks: Iterable[type[AllocHook]] = ()
    servers: FakeServers = field(default_factory=LiveServers)
    faults: Faults = field(default_factory=Faults)
    checks: CheckBook = field(default_factory=CheckBook)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task_hooks, self.alloc_hooks = tuple(self.task_hooks), tuple(self.alloc_hooks)
        self.place = RecordingPlace(self.now_ns)
        self.journal = MemoryJournal(self.faults)

    @staticmethod
    def now_ns() -> int:
        return WALL_NS + round(trio.current_time() * 1e9)

    def parts(self, driver: Driver, *, has_contact: bool) -> ClientParts:
        contact = trio.Event()
        if has_contact:
            contact.set()

        def drivers(name: str) -> Driver:
            if name != driver.name:
                raise DriverError(f"driver {name!r} is not on this node")
            return driver

        settings = {"state_dir": self.root / "state", "alloc_dir": self.root / "allocs", **self.settings}
        return ClientParts(
            settings=ClientSettings(**settings),
            env=VirtualEnv(),
            log=get_logger("client"),
            metrics=Registry(),
            node=a_node,
            region="global",
            servers=cast("Servers", self.servers),
            drivers=drivers,
            checks=self.checks,
            has_contact=contact,
            other_alloc=lambda _: None,
            now_ns=self.now_ns,
        )

    @asynccontextmanager
    async def agent(self, *, has_contact: bool = True) -> AsyncIterator[Agent]:
        """An agent, killed at the end of the block."""
        driver = FaultyDriver(place=self.place, now_ns=self.now_ns)
        driver.faults = self.faults
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            agent = Agent(self, driver, has_contact=has_contact)
            agent.nursery = self.journal.nursery = nursery
            yield agent
            nursery.cancel_scope.cancel()


def an_allocation(group: TaskGroup | None = None, job: Job | None = None, number: int = 7, **fields: Any) -> Allocation:
    """An allocation of a group, whole enough to be run."""
    job = job or a_job(groups=[group or a_group()])
    return Allocation(
        id=an_id(number), job=job, job_id=job.id, task_group=job.task_groups[0].name, node_id=an_id(1), **fields
    )


def changed(alloc: Allocation, **fields: Any) -> Allocation:
    return structs.replace(alloc, **fields)


def events_of(runner: AllocRunner, task: str = "web") -> list[str]:
    return [event.type for event in runner.task_states[task].events]
