"""A client for tests: real link, journal and cores; runners that only pretend, and looks at a made-up host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from fedsched.client.client import Client
from fedsched.client.context import AllocContext, ClientParts
from fedsched.client.dialling import make_dial
from fedsched.client.fingerprint.found import Fingerprinter, Found, Host
from fedsched.client.journal import Journal
from fedsched.client.journal_records import AllocReport, StoredAlloc, TaskLocal
from fedsched.client.settings import ClientSettings
from fedsched.env.real import RealEnv
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.errors import BadRequest
from fedsched.model.node_resources import NodeCPU, NodeDisk, NodeMemory
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry


class PretendedRunner:
    """Runs until it is stopped or told to end; everything that a client does with it is noted."""

    def __init__(
        self,
        parts: ClientParts,
        alloc: Allocation,
        journal: Journal,
        *,
        stored: StoredAlloc | None,
        on_change: Callable[[str], None],
    ) -> None:
        if alloc.job is not None and alloc.job.id.startswith("impossible"):
            raise BadRequest("driver 'none' is not on this node")
        self.context = AllocContext(parts, alloc, parts.settings.alloc_dir / alloc.id)
        self.was_restored = stored is not None
        self.updates: list[Allocation] = []
        self.is_stopping = False
        self.is_destroyed = False
        self._journal = journal
        self._on_change = on_change
        self._status = ClientStatus.PENDING
        self._wake = trio.Event()
        self._exit: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self._status.is_terminal

    async def run(self) -> None:
        alloc = self.context.alloc
        if alloc.job is not None and alloc.job.id.startswith("broken"):
            raise RuntimeError("a bug")
        await self._journal.put_alloc(alloc, {"main": (TaskLocal(), TaskState(state=TaskStatus.RUNNING))})
        self._set(ClientStatus.RUNNING)
        while self._exit is None and not self.is_stopping:
            await self._wake.wait()
            self._wake = trio.Event()
        self._set(ClientStatus.FAILED if self._exit else ClientStatus.COMPLETE)

    def end(self, exit_code: int = 0) -> None:
        self._exit = exit_code
        self._wake.set()

    def _set(self, status: ClientStatus) -> None:
        self._status = status
        self._on_change(self.context.alloc.id)

    def update(self, alloc: Allocation) -> None:
        self.updates.append(alloc)
        self.context.alloc = alloc

    def stop(self) -> None:
        self.is_stopping = True
        self._wake.set()

    async def restart(self, task: str = "", *, all_tasks: bool = False) -> None:
        """Nothing to restart."""

    async def signal(self, task: str, signal: str) -> None:
        """Nothing to signal."""

    def report(self) -> AllocReport:
        is_running = self._status is ClientStatus.RUNNING
        state = TaskState(
            state=TaskStatus.RUNNING if is_running else TaskStatus.DEAD if self.is_terminal else TaskStatus.PENDING,
            failed=self._status is ClientStatus.FAILED,
            events=(TaskEvent(type="Started", time_ns=1),) if self._status is not ClientStatus.PENDING else (),
        )
        return AllocReport(client_status=self._status, task_states={"main": state})

    async def destroy(self) -> None:
        self.is_destroyed = True


class MadeUpHost(Fingerprinter):
    name = "made-up"

    def find(self, host: Host) -> Found:
        return Found(
            attributes={"kernel.name": "linux", "cpu.arch": "amd64"},
            cpu=NodeCPU(cpu_shares=4000, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3)),
            memory=NodeMemory(memory_mb=8192),
            disk=NodeDisk(disk_mb=100_000),
        )


def some_settings(directory: Path, *servers: str, **changes: Any) -> ClientSettings:
    return ClientSettings(
        state_dir=directory / "client", alloc_dir=directory / "alloc", name="n1", servers=servers, **changes
    )


def a_client(settings: ClientSettings, **changes: Any) -> Client:
    changes.setdefault("make_runner", PretendedRunner)
    changes.setdefault("looks", [MadeUpHost()])
    changes.setdefault("built_in", {"mock_driver": "fedsched.drivers.mock:make_driver"})
    changes.setdefault("dial", make_dial(None))
    changes.setdefault("env", RealEnv())
    return Client(settings, log=Hub().logger("client"), metrics=Registry(), **changes)


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        yield client
        nursery.cancel_scope.cancel("done")


async def until(what: str, holds: Callable[[], Any], limit_s: float = 10.0) -> None:
    with trio.move_on_after(limit_s):
        while not holds():
            await trio.sleep(0.01)
        return
    raise AssertionError(f"not within {limit_s} s: {what}")
