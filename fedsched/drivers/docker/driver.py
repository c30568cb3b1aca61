"""The driver for containers, under two names: `docker`, and `podman` for its compatible socket.

Nothing about a task is only in memory: the container has it in its labels, the engine keeps its end and its output.
"""

from __future__ import annotations

import signal as signals
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
from msgspec import structs

from fedsched.drivers.docker.config import SETTINGS_SCHEMA, DockerSettings, settings_from
from fedsched.drivers.docker.container import Container
from fedsched.drivers.docker.coordinator import ImageCoordinator, Tell
from fedsched.drivers.docker.create import EngineFacts
from fedsched.drivers.docker.dangling import dangling
from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.exec_session import DockerExecSession, open_exec
from fedsched.drivers.docker.faults import EngineRefused
from fedsched.drivers.docker.fingerprint import Fingerprints
from fedsched.drivers.docker.labels import ALLOC_ID, HANDLE, TASK_ID, HandleState, handle_state_from
from fedsched.drivers.docker.messages import Messages
from fedsched.drivers.docker.networking import driver_network
from fedsched.drivers.docker.starting import Starter
from fedsched.drivers.docker.task_config import task_settings_from
from fedsched.drivers.docker.transport import Transport
from fedsched.drivers.docker.usage import resource_use
from fedsched.drivers.driver import (
    Capabilities,
    DriverError,
    DriverFingerprint,
    DriverMessage,
    ExecCommand,
    ExecResult,
    ExitResult,
    FsIsolation,
    ResourceUse,
    RunState,
    Started,
    TaskConfig,
    TaskHandle,
    TaskInspection,
    TaskUnknown,
)
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.schemas import DOCKER_TASK_SCHEMA
from fedsched.telemetry.log import Logger, get_logger

EXEC_OUTPUT_MAX: Final = 64 << 10
RECOVER_S: Final = 60.0
"""An engine that starts together with the agent may take so long."""
RECOVER_RETRY_S: Final = 1.0


class DockerDriver:
    """Runs tasks as containers of one engine."""

    task_schema = DOCKER_TASK_SCHEMA

    def __init__(self, name: str, settings: DockerSettings, *, log: Logger | None = None, node_id: str = "") -> None:
        self.name = name
        self.capabilities = Capabilities(
            fs_isolation=FsIsolation.IMAGE,
            default_kill_signal="",
            takes_host_env=False,
            collects_logs=settings.collects_logs,
        )
        self._settings = settings
        self._log = log or get_logger("drivers", driver=name)
        self._engine = Engine(Transport(settings.open_endpoint()))
        self._images = ImageCoordinator(self._engine, settings, self._log)
        self._starter = Starter(self._engine, self._images, settings, self._log)
        self._messages = Messages()
        self._tasks: dict[str, Container] = {}
        self._starting: set[str] = set()
        self._node_ids = {node_id} if node_id else set()
        self._nursery: trio.Nursery | None = None
        self._facts: EngineFacts | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await nursery.start(self._images.run)
                if self._settings.dangling.is_enabled:
                    nursery.start_soon(self._sweep_for_ever)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        return Fingerprints(self.name, self._engine, self._settings).watch()

    def messages(self) -> AsyncIterator[DriverMessage]:
        return self._messages.read()

    # starting and finding again

    async def start_task(self, config: TaskConfig) -> Started:
        if config.id in self._tasks or config.id in self._starting:
            raise DriverError(f"task {config.id} was started before", hint="every start needs an id of its own")
        settings = task_settings_from(config.config, self._settings)
        self._node_ids.add(config.node_id)
        self._starting.add(config.id)
        try:
            facts = await self._engine_facts()
            handle, found = await self._starter.start(config, settings, facts, self._teller(config.id))
            container = self._keep(handle)
        finally:
            self._starting.discard(config.id)
        try:
            network = driver_network(config, settings.values, found)
        except DriverError:
            await self._destroy(container)
            raise
        state = handle.to_bytes()
        return Started(TaskHandle(driver=self.name, task_id=config.id, state=state), network)

    async def recover_task(self, handle: TaskHandle) -> None:
        if handle.task_id in self._tasks:
            return
        state = handle_state_from(handle.state) if handle.state else None
        if state is not None and (state.task_id != handle.task_id or not state.container_id):
            raise DriverError(f"the handle of {handle.task_id} is about {state.task_id!r:.80}")
        found = await self._find_patiently(handle.task_id, state)
        if handle.task_id not in self._tasks:
            self._images.hold(found.image_id, found.task_id)
            self._node_ids.add(found.node_id)
            self._keep(found)

    async def _find_patiently(self, task_id: str, state: HandleState | None) -> HandleState:
        """Asks again while the engine is not there, for a while."""
        give_up_at = trio.current_time() + RECOVER_S
        while True:
            try:
                return await self._find(task_id, state)
            except DriverError as error:
                if not error.is_recoverable or trio.current_time() >= give_up_at:
                    raise
                self._log.debug("recover_retried", task_id=task_id, error=str(error))
            await trio.sleep(RECOVER_RETRY_S)

    async def _find(self, task_id: str, state: HandleState | None) -> HandleState:
        """The container of a task. One that never ran is removed: nobody was told that it exists."""
        unknown = TaskUnknown(f"there is no container of task {task_id}")
        container_id = state.container_id if state is not None else await self._id_by_label(task_id)
        if not container_id:
            raise unknown
        try:
            found = await self._engine.inspect(container_id)
        except EngineRefused as error:
            if error.status == 404:
                raise unknown from None
            raise
        if found.labels.get(TASK_ID) != task_id:
            raise TaskUnknown(f"container {container_id:.12} is not of task {task_id}")
        if not found.state.running and not found.state.was_started and not found.state.has_ended:
            await self._engine.remove(container_id, force=True)
            raise unknown
        return state or structs.replace(handle_state_from(found.labels.get(HANDLE, "")), container_id=container_id)

    async def _id_by_label(self, task_id: str) -> str:
        found = await self._engine.containers([f"{TASK_ID}={task_id}"])
        return found[0].id if found else ""

    # while they run

    async def wait_task(self, task_id: str) -> ExitResult:
        result = await self._task(task_id).wait()
        if result is None:
            raise TaskUnknown(f"task {task_id} was destroyed")
        return result

    async def stop_task(self, task_id: str, timeout_s: float, signal: str) -> None:
        task = self._task(task_id)
        await task.stop(timeout_s, signal_name(signal) if signal else "")

    async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
        task = self._tasks.get(task_id)
        if task is None:
            if force:
                await self._remove_unknown(task_id)
            return
        if task.result is None:
            if not force:
                raise DriverError(f"task {task_id} still runs", hint="stop it first")
            await self._stop_hard(task)
        await self._destroy(task)

    async def inspect_task(self, task_id: str) -> TaskInspection:
        task = self._tasks.get(task_id)
        return TaskInspection(RunState.UNKNOWN) if task is None else await task.inspect()

    async def task_stats(self, task_id: str) -> ResourceUse:
        task = self._task(task_id)
        return resource_use(await self._engine.stats(task.id), time.time_ns())

    async def signal_task(self, task_id: str, signal: str) -> None:
        task = self._task(task_id)
        await self._engine.kill(task.id, signal_name(signal))

    # commands inside

    async def exec_task(self, task_id: str, command: ExecCommand, timeout_s: float) -> ExecResult:
        output = b""
        with trio.move_on_after(timeout_s):
            task = self._task(task_id)
            async with open_exec(self._engine, task.id, command, takes_input=False) as session:
                while True:
                    try:
                        piece = await session.receive()
                    except trio.EndOfChannel:
                        break
                    output = (output + piece.data)[:EXEC_OUTPUT_MAX]
                ended = await session.wait()
                return ExecResult(ended.exit_code, ended.signal, output)
        raise DriverError(f"{command.argv[0]!r:.80} took more time than its {timeout_s:g} s", is_recoverable=True)

    @asynccontextmanager
    async def exec_session(self, task_id: str, command: ExecCommand) -> AsyncIterator[DockerExecSession]:
        task = self._task(task_id)
        async with open_exec(self._engine, task.id, command) as session:
            yield session

    # inside

    def _task(self, task_id: str) -> Container:
        task = self._tasks.get(task_id)
        if task is None:
            raise TaskUnknown(f"there is no task {task_id} here")
        return task

    def _keep(self, handle: HandleState) -> Container:
        if self._nursery is None:
            raise DriverError("the driver does not run", is_recoverable=True)
        container = Container(self._engine, handle, self._log, time.time_ns)
        self._tasks[handle.task_id] = container
        self._nursery.start_soon(container.run)
        return container

    def _teller(self, task_id: str) -> Tell:
        return lambda words: self._messages.add(DriverMessage(task_id, words))

    async def _engine_facts(self) -> EngineFacts:
        if self._facts is None:
            version = await self._engine.version()
            info = await self._engine.info()
            self._facts = EngineFacts(version.is_podman, max(1, info.ncpu))
        return self._facts

    async def _stop_hard(self, task: Container) -> None:
        try:
            await task.stop(0, "SIGKILL")
        except EngineRefused as error:
            if error.status != 404:
                raise

    async def _destroy(self, task: Container) -> None:
        if self._settings.removes_containers:
            await task.drain()
            await self._engine.remove(task.id, force=True)
        await task.forget()
        self._images.release(task.handle.image_id, task.handle.task_id)
        self._tasks.pop(task.handle.task_id, None)

    async def _remove_unknown(self, task_id: str) -> None:
        """What an earlier agent may have left of a task that was never found again."""
        try:
            container_id = await self._id_by_label(task_id)
            if container_id:
                await self._engine.remove(container_id, force=True)
        except DriverError as error:
            self._log.warn("container_left_behind", task_id=task_id, error=str(error))

    # containers that nobody knows

    async def _sweep_for_ever(self) -> None:
        """The first time only after a period: by then every task of an earlier agent has been found again."""
        while True:
            await trio.sleep(self._settings.dangling.period_s)
            try:
                await self.sweep()
            except DriverError as error:
                self._log.debug("dangling_not_swept", error=str(error))

    async def sweep(self) -> list[str]:
        """Remove containers of this node that belong to no task here; gives their ids."""
        settings = self._settings.dangling
        doomed = dangling(
            await self._engine.containers([ALLOC_ID]),
            known={task.id for task in self._tasks.values()},
            node_ids=self._node_ids,
            now_s=time.time(),
            grace_s=settings.creation_grace_s,
            keeps_ended=not self._settings.removes_containers,
        )
        for container_id in doomed:
            self._log.info("dangling_container", container=container_id, is_dry_run=settings.is_dry_run)
            if not settings.is_dry_run:
                await self._engine.remove(container_id, force=True)
        return doomed


class DriverMaker:
    """Makes the driver under one of its names."""

    settings_schema = SETTINGS_SCHEMA

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, host: DriverHost) -> DockerDriver:
        return DockerDriver(self._name, settings_from(host.settings, self._name), log=host.log, node_id=host.node_id)


make_driver: Final = DriverMaker("docker")
make_podman: Final = DriverMaker("podman")


def signal_name(text: str) -> str:
    """`SIGTERM` for `SIGTERM`, `TERM` or `15`; others are refused."""
    name = text.strip().upper()
    try:
        return (
            signals.Signals(int(name)).name
            if name.isdigit()
            else signals.Signals[f"SIG{name.removeprefix('SIG')}"].name
        )
    except (KeyError, ValueError):
        raise DriverError(f"{text!r:.40} is not a signal", hint="such as SIGTERM or SIGUSR1") from None
