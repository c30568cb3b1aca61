"""What all drivers with supervised processes share; each of them only plans how its task is launched.

The client's promises rest on two things. A task's key comes from its id, so that a start whose handle was never stored
is found by the id alone. And a caller that gives up in the middle of a start leaves a task that is killed, or one that
the same id finds again: never one that nobody knows of.
"""

from __future__ import annotations

import hashlib
import os
import signal as signals
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import trio

from fedsched.drivers import cgroups
from fedsched.drivers.cgroups import CgroupMode, Cgroups, TaskGroup
from fedsched.drivers.driver import (
    Capabilities,
    DriverError,
    DriverFingerprint,
    DriverMessage,
    ExecCommand,
    ExecResult,
    ExecSession,
    ExitResult,
    ResourceUse,
    RunState,
    Started,
    TaskConfig,
    TaskHandle,
    TaskInspection,
    TaskUnknown,
)
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervised_task import SupervisedTask
from fedsched.drivers.supervisor.supervisors import LaunchError, Supervisors
from fedsched.drivers.task_schema import TaskSchema
from fedsched.drivers.usage import usage

EXEC_OUTPUT_MAX: Final = 64 << 10
MESSAGES: Final = 256
"""Things said about tasks that nobody has listened to yet; the newest are dropped beyond that."""
KEY_MAX: Final = 200
LOOK_AGAIN_S: Final = 30.0
CLEAN_UP_S: Final = 25.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a driver wants one task launched."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    oom_score_adj: int = 0
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    group: TaskGroup | None = None
    """Other cgroups than the usual ones."""
    isolation: dict[str, Any] | None = None


class ProcessDriver:
    """Base of drivers whose tasks are processes of this host. See `drivers.driver.Driver` for the contract."""

    name: str = ""
    capabilities: Capabilities = Capabilities()
    task_schema: TaskSchema = TaskSchema({})
    isolates: ClassVar[bool] = False
    """Its tasks need `drivers.isolation.enter`: the warm process has it ready."""

    def __init__(self, host: DriverHost, *, host_cgroups: Cgroups | None = None, python: str = sys.executable) -> None:
        self.host = host
        self.cgroups = host_cgroups or cgroups.detect(parent=host.cgroup_parent)
        self._sender, self._receiver = trio.open_memory_channel[DriverMessage](MESSAGES)
        self._supervisors = Supervisors(host.state_dir, self._say, isolates=self.isolates, python=python)
        self._tasks: dict[str, SupervisedTask] = {}
        self._starting: set[str] = set()

    # What a driver decides

    async def plan(self, config: TaskConfig) -> LaunchPlan:
        """How this task is launched. Raises `DriverError`."""
        raise NotImplementedError

    async def detect(self) -> DriverFingerprint:
        """What is found on this host now."""
        raise NotImplementedError

    # The contract

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The driver's own children, until cancelled. Tasks run on."""
        try:
            await trio.to_thread.run_sync(self.cgroups.prepare)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            self.cgroups = Cgroups(CgroupMode.NONE, self.cgroups.parent, reason=reason)
        try:
            await self._supervisors.run(task_status=task_status)
        finally:
            if self.host.is_dev:  # such an agent leaves nothing
                with trio.move_on_after(1, shield=True):
                    await self._supervisors.retire()

    async def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        """What it finds, now and whenever that changes."""
        last = None
        while True:
            found = await self.detect()
            if found != last:
                yield found
                last = found
            await trio.sleep(LOOK_AGAIN_S)

    async def start_task(self, config: TaskConfig) -> Started:
        """Start a task; the same id twice is an error."""
        if config.id in self._tasks or config.id in self._starting:
            raise DriverError(f"task {config.id} was started already")
        self._starting.add(config.id)
        try:
            spec = self._spec(config, await self.plan(config))
            self._tasks[config.id] = await self._launch(spec)
        finally:
            self._starting.discard(config.id)
        return Started(TaskHandle(driver=self.name, task_id=config.id, state=spec.key.encode()))

    async def recover_task(self, handle: TaskHandle) -> None:
        """Find a task again, by its id alone if need be."""
        key = key_of(handle.task_id)
        if handle.state not in (b"", key.encode()):
            raise TaskUnknown(f"the handle of task {handle.task_id} is damaged, or belongs to another")
        if handle.task_id not in self._tasks:
            self._tasks[handle.task_id] = await self._supervisors.find(key, may_be_starting=not handle.state)

    async def found_tasks(self) -> list[str]:
        """Ids of all tasks that have a supervisor here, or left an end that nobody has acknowledged."""
        return await trio.to_thread.run_sync(self._supervisors.task_ids)

    async def wait_task(self, task_id: str) -> ExitResult:
        return await self._task(task_id).wait()

    async def stop_task(self, task_id: str, timeout_s: float, signal: str) -> None:
        number = signal_number(signal or self.capabilities.default_kill_signal)
        await self._task(task_id).stop(number, timeout_s)

    async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
        task = self._tasks.get(task_id)
        if task is None:
            return
        if task.result is None:
            if not force:
                raise DriverError(f"task {task_id} is running", hint="stop it first, or force it")
            await task.stop(int(signals.SIGKILL), 0.0)
        await task.acknowledge()
        self._tasks.pop(task_id, None)

    async def inspect_task(self, task_id: str) -> TaskInspection:
        task = self._tasks.get(task_id)
        await trio.lowlevel.checkpoint()
        if task is None:
            return TaskInspection(RunState.UNKNOWN)
        attributes = {"pid": str(task.pid)}
        if task.result is None:
            attributes["supervisor"] = str(task.supervisor_pid)  # afterwards it may be another task's
            return TaskInspection(RunState.RUNNING, task.started_at_ns, attributes=attributes)
        ended = task.result
        return TaskInspection(RunState.EXITED, task.started_at_ns, ended.finished_at_ns, ended, attributes)

    async def task_stats(self, task_id: str) -> ResourceUse:
        task = self._task(task_id)
        if task.result is None:
            found = await trio.to_thread.run_sync(usage, task.cgroups, task.supervisor_pid)
            if task.result is None:
                return found
        raise TaskUnknown(f"task {task_id} has ended")

    async def signal_task(self, task_id: str, signal: str) -> None:
        await self._task(task_id).signal(signal_number(signal))

    async def exec_task(self, task_id: str, command: ExecCommand, timeout_s: float) -> ExecResult:
        """Run a command inside the task to its end; output is stdout and stderr together, at most 64 KiB."""
        output = bytearray()
        with trio.move_on_after(timeout_s):
            async with self.exec_session(task_id, command) as session:
                await session.close_input()
                try:
                    while True:
                        piece = await session.receive()
                        output += piece.data[: EXEC_OUTPUT_MAX - len(output)]
                except trio.EndOfChannel:
                    ended = await session.wait()
            return ExecResult(ended.exit_code, ended.signal, bytes(output))
        raise DriverError(f"{' '.join(command.argv):.200} did not end in the {timeout_s:g} s it had: timed out")

    @asynccontextmanager
    async def exec_session(self, task_id: str, command: ExecCommand) -> AsyncIterator[ExecSession]:
        """Run a command inside the task; leaving the block ends it."""
        async with self._task(task_id).open_session(command) as session:
            yield session

    async def messages(self) -> AsyncIterator[DriverMessage]:
        """What it has to say about its tasks."""
        async for message in self._receiver:
            yield message

    # How

    def _task(self, task_id: str) -> SupervisedTask:
        found = self._tasks.get(task_id)
        if found is None:
            raise TaskUnknown(f"{self.name} knows no task {task_id}")
        return found

    async def _launch(self, spec: LaunchSpec) -> SupervisedTask:
        try:
            return await self._supervisors.launch(spec)
        except trio.Cancelled:
            with trio.move_on_after(CLEAN_UP_S, shield=True):
                await self._supervisors.undo(spec.key)
            raise

    def _spec(self, config: TaskConfig, plan: LaunchPlan) -> LaunchSpec:
        group = plan.group or self.cgroups.group(f"{config.alloc_id}.{config.task}", config.limits)
        return LaunchSpec(
            key=key_of(config.id),
            task_id=config.id,
            directory=str(self._supervisors.directory),
            argv=list(plan.argv),
            env=dict(plan.env),
            cwd=plan.cwd,
            uid=plan.uid,
            gid=plan.gid,
            groups=None if plan.groups is None else list(plan.groups),
            cgroups=list(group.paths),
            cgroup_files=[list(pair) for pair in group.files],
            cgroup_kill=group.kill,
            oom_files=list(group.oom_files),
            limits={name: list(pair) for name, pair in plan.rlimits.items()},
            oom_score_adj=plan.oom_score_adj,
            log_directory="" if config.logs.is_disabled else str(config.dirs.logs),
            log_name=config.task,
            max_files=config.logs.max_files,
            max_file_bytes=config.logs.max_file_bytes,
            isolation=plan.isolation,
            netns="" if plan.isolation or config.network_namespace is None else str(config.network_namespace),
        )

    def _say(self, task_id: str, message: str) -> None:
        try:
            self._sender.send_nowait(DriverMessage(task_id, message))
        except trio.WouldBlock:
            return  # nobody listens: what is said about tasks is for people who look


def key_of(task_id: str) -> str:
    """The name of a task's supervisor's files. Always the same for one id."""
    key = task_id.replace("/", ".")
    if len(os.fsencode(key)) <= KEY_MAX and not key.startswith(".") and "\0" not in key:
        return key
    return hashlib.sha256(task_id.encode(errors="surrogateescape")).hexdigest()


def signal_number(name: str) -> int:
    """The number of a signal; `DriverError` for one that does not exist."""
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise DriverError(f"there is no signal {name!r:.40}", hint="give a name such as SIGHUP") from None


__all__ = ["LaunchError", "LaunchPlan", "ProcessDriver", "key_of", "signal_number"]
