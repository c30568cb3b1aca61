"""A client with allocations that only exist as directories, and a driver whose commands are real processes."""

from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from fedsched.client.access import ClientAccess
from fedsched.client.context import AllocContext, ClientParts, TaskContext
from fedsched.client.node_meta import applied, merged
from fedsched.client.settings import ClientSettings
from fedsched.drivers.driver import (
    Capabilities,
    Driver,
    ExecCommand,
    ExecOutput,
    ExecResult,
    ExitResult,
    ResourceUse,
    TaskDirs,
    TaskUnknown,
)
from fedsched.env.real import RealEnv
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.node_calls import NodeMetaReply
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from tests.builders import a_group, a_job, a_node, a_task, an_alloc, an_id

SCENARIO_S = 30.0
NOW_NS = 1_787_308_401 * 10**9


class ProcessSession:
    """A real process with pipes or a terminal."""

    def __init__(self, command: ExecCommand, cwd: Path) -> None:
        self._is_tty = command.is_tty
        self._sent, self._received = trio.open_memory_channel[ExecOutput](4)
        env = {"PATH": os.environ["PATH"], **command.env}
        if command.is_tty:
            self._terminal, inner = pty.openpty()
            self._process = subprocess.Popen(
                command.argv, stdin=inner, stdout=inner, stderr=inner, cwd=cwd, env=env, start_new_session=True,
                preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
            )  # fmt: skip
            os.close(inner)
            self._input, self._outputs = self._terminal, {self._terminal: False}
        else:
            ends = [os.pipe() for _ in range(3)]
            self._process = subprocess.Popen(
                command.argv, stdin=ends[0][0], stdout=ends[1][1], stderr=ends[2][1], cwd=cwd, env=env
            )
            for fd in (ends[0][0], ends[1][1], ends[2][1]):
                os.close(fd)
            self._input, self._outputs = ends[0][1], {ends[1][0]: False, ends[2][0]: True}
        for fd in {self._input, *self._outputs}:
            os.set_blocking(fd, False)
        self._open = {self._input, *self._outputs}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery, self._sent:
            for fd, is_stderr in self._outputs.items():
                nursery.start_soon(self._pump, fd, is_stderr, self._sent.clone())

    async def _pump(self, fd: int, is_stderr: bool, sent: trio.MemorySendChannel[ExecOutput]) -> None:
        async with sent:
            while True:
                await trio.lowlevel.wait_readable(fd)
                try:
                    data = os.read(fd, 65536)
                except OSError:
                    return  # a terminal whose other end is closed
                if not data:
                    return
                await sent.send(ExecOutput(data, is_stderr))

    async def send_input(self, data: bytes) -> None:
        while data:
            await trio.lowlevel.wait_writable(self._input)
            data = data[os.write(self._input, data) :]

    async def close_input(self) -> None:
        if self._is_tty:
            await self.send_input(b"\x04")
        else:
            self._close(self._input)

    async def resize(self, height: int, width: int) -> None:
        ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        os.kill(self._process.pid, signal.SIGWINCH)

    async def receive(self) -> ExecOutput:
        return await self._received.receive()

    async def wait(self) -> ExecResult:
        code = await trio.to_thread.run_sync(self._process.wait)
        return ExecResult(code if code >= 0 else 0, signal=-code if code < 0 else 0)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for fd in list(self._open):
            self._close(fd)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)


class FakeDriver:
    """Tasks are only names; commands inside them are real."""

    name = "fake"

    def __init__(self, cwd: Path) -> None:
        self.capabilities = Capabilities()
        self.cwd = cwd
        self.task_ended = trio.Event()
        self.sessions: list[ProcessSession] = []
        self.signals: list[tuple[str, str]] = []
        self.uses: list[ResourceUse] = []

    @asynccontextmanager
    async def exec_session(self, task_id: str, command: ExecCommand) -> AsyncIterator[ProcessSession]:
        session = ProcessSession(command, self.cwd)
        self.sessions.append(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            try:
                yield session
            finally:
                nursery.cancel_scope.cancel()
                session.end()

    async def wait_task(self, task_id: str) -> ExitResult:
        await self.task_ended.wait()
        return ExitResult()

    async def task_stats(self, task_id: str) -> ResourceUse:
        if not self.uses:
            raise TaskUnknown("gone")
        return self.uses.pop(0)


class FakeRunner:
    """An allocation that is there, with its directory."""

    def __init__(self, context: AllocContext) -> None:
        self.context = context
        self.restarts: list[tuple[str, bool]] = []
        self.signals: list[tuple[str, str]] = []

    async def restart(self, task: str = "", *, all_tasks: bool = False) -> None:
        self.restarts.append((task, all_tasks))

    async def signal(self, task: str, signal: str) -> None:
        self.signals.append((task, signal))


class FakeClient:
    """A client whose allocations a test makes by hand."""

    def __init__(self, directory: Path, *, node_number: int = 1, **settings: Any) -> None:
        self.hub = Hub()
        self.events = self.hub.subscribe("debug", capacity=1_000)
        self.directory = directory
        self.node = a_node(node_number)
        self.runners: dict[str, FakeRunner] = {}
        self.collected: list[str] = []
        self.checks: dict[str, dict[str, Any]] = {}
        self.dynamic: dict[str, str | None] = {}
        allocs = directory / "allocs"
        allocs.mkdir(parents=True, exist_ok=True)
        self.driver = FakeDriver(directory)
        self.parts = ClientParts(
            settings=ClientSettings(state_dir=directory / "state", alloc_dir=allocs, **settings),
            env=RealEnv(),
            log=self.hub.logger("client"),
            metrics=Registry(),
            node=lambda: self.node,
            region="eu",
            servers=cast(Any, None),
            drivers=lambda name: cast(Driver, self.driver),
            checks=cast(Any, SimpleNamespace(of=lambda alloc_id: self.checks.get(alloc_id, {}))),
            has_contact=trio.Event(),
            other_alloc=lambda alloc_id: None,
            now_ns=lambda: NOW_NS,
        )

    def runner(self, alloc_id: str) -> FakeRunner | None:
        return self.runners.get(alloc_id)

    async def collect_garbage(self, alloc_id: str = "") -> int:
        self.collected.append(alloc_id)
        return 1 if alloc_id else 3

    def meta(self) -> NodeMetaReply:
        static = self.parts.settings.meta
        return NodeMetaReply(meta=merged(static, self.dynamic), dynamic=dict(self.dynamic), static=dict(static))

    async def apply_meta(self, change: Mapping[str, str | None]) -> None:
        self.dynamic = applied(self.parts.settings.meta, self.dynamic, change)

    def add(self, number: int = 1, *, tasks: tuple[str, ...] = ("web",), is_running: bool = True) -> FakeRunner:
        """One more allocation, with all directories of its tasks."""
        alloc_id = an_id(number)
        root = self.parts.settings.alloc_dir / alloc_id
        job = a_job(groups=[a_group(tasks=[a_task(name) for name in tasks])])
        alloc = an_alloc(number, job=job, node_id=self.node.id)
        context = AllocContext(self.parts, alloc, root)
        for name in ("data", "logs", "tmp"):
            (root / "alloc" / name).mkdir(parents=True)
        for name in tasks:
            dirs = TaskDirs(
                alloc=root, shared=root / "alloc", task=root / name, local=root / name / "local",
                secrets=root / name / "secrets", private=root / name / "private", logs=root / "alloc" / "logs",
            )  # fmt: skip
            for one in (dirs.local, dirs.secrets, dirs.private):
                one.mkdir(parents=True)
            task = TaskContext(context, name, dirs, cast(Driver, self.driver), cast(Any, None))
            task.task_id = f"{alloc_id}/{name}/00000001" if is_running else ""
            task.environment = lambda name=name: SimpleNamespace(values={"NOMAD_TASK_NAME": name})  # type: ignore[method-assign,assignment,misc]
            context.tasks[name] = task
        self.runners[alloc_id] = FakeRunner(context)
        return self.runners[alloc_id]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [dict(one.fields) for one in self.events.take() if one.name == event]


class LogWriter:
    """Writes a rotated log as supervisors do."""

    def __init__(self, logs: Path, task: str = "web", kind: str = "stdout", *, max_bytes: int, max_files: int) -> None:
        self._logs = logs
        self._prefix = f"{task}.{kind}."
        self._max_bytes, self._max_files = max_bytes, max_files
        self.number = 0
        self._file = self._open()

    def write(self, data: bytes) -> None:
        if self._file.tell() and self._file.tell() + len(data) > self._max_bytes:
            self._file.close()
            self.number += 1
            self._file = self._open()
            if self.number >= self._max_files:
                (self._logs / f"{self._prefix}{self.number - self._max_files}").unlink()
        self._file.write(data)

    def _open(self) -> Any:
        return open(self._logs / f"{self._prefix}{self.number}", "ab", buffering=0)

    def close(self) -> None:
        self._file.close()


Story = Callable[[FakeClient, LocalCaller], Awaitable[None]]


def with_client(directory: Path, story: Story, **settings: Any) -> None:
    """Run a story against a client that is asked within the process."""

    async def main() -> None:
        with trio.fail_after(SCENARIO_S):
            async with trio.open_nursery() as nursery:
                client = FakeClient(directory, **settings)
                access = ClientAccess(client)
                await nursery.start(access.run)
                await story(client, LocalCaller(access.calls))
                nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
