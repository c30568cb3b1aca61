"""The mock driver: tasks that only pretend, for tests and development. Never enabled elsewhere.

All its delays are on trio's clock, so that a test with a virtual clock lives through days at once. Its tasks are rows
in a place (files, or the memory of this process), and run on while no agent is there: see `mock_life`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from msgspec import structs

from fedsched.codec import CodecError, from_bytes, to_bytes
from fedsched.drivers.driver import (
    NOTHING,
    Capabilities,
    DriverError,
    DriverFingerprint,
    DriverMessage,
    DriverNetwork,
    ExecCommand,
    ExecResult,
    ExitResult,
    FsIsolation,
    Health,
    ResourceUse,
    RunState,
    Started,
    TaskConfig,
    TaskHandle,
    TaskInspection,
    TaskUnknown,
)
from fedsched.drivers.mock_life import MockTask, Script, knobs_from, signal_number
from fedsched.drivers.mock_places import MockPlace, place_from
from fedsched.drivers.mock_session import MockSession, script_result
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.schemas import MOCK_SCHEMA
from fedsched.drivers.task_schema import Field, Kind, TaskSchema
from fedsched.model.units import parse_duration_ns

_NS = 1_000_000_000
_EXEC_OUTPUT_MAX = 64 << 10

MOCK_AGENT_SCHEMA = TaskSchema(
    {
        "enabled": Field(Kind.BOOL),
        "fs_isolation": Field(Kind.TEXT, doc="`none`, `chroot` or `image`."),
        "shutdown_periodic_after": Field(Kind.DURATION, doc="It turns undetected after so long."),
        "shutdown_periodic_duration": Field(Kind.DURATION, doc="And comes back after so long."),
        "flap_health_every": Field(Kind.DURATION, doc="It is healthy and unhealthy in turns of so long."),
        "state_dir": Field(Kind.TEXT, doc="Where tasks are kept over a restart of the agent."),
    }
)
"""What an agent's configuration may say about this driver."""


class _Live:
    """A task that this driver knows."""

    def __init__(self, task: MockTask) -> None:
        self.task = task
        self.changed = trio.Event()
        self.is_forgotten = False

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class MockDriver:
    """Pretends to run tasks. `now_ns` is the wall clock; without one, real time that moves with trio's clock."""

    name = "mock_driver"
    task_schema = MOCK_SCHEMA

    def __init__(
        self,
        config: Mapping[str, Any] = NOTHING,
        *,
        place: MockPlace | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        problems = MOCK_AGENT_SCHEMA.problems(config, "mock_driver")
        if problems:
            raise DriverError("; ".join(problems), hint="see the settings of mock_driver")
        self._config = config
        self._trusts_handles = place is None and not config.get("state_dir")
        self._place = place or place_from(config)
        self._now_ns = now_ns or _AnchoredClock()
        self._live: dict[str, _Live] = {}
        self._nursery: trio.Nursery | None = None
        self.capabilities = Capabilities(fs_isolation=FsIsolation(str(config.get("fs_isolation") or "none")))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        up = DriverFingerprint(Health.HEALTHY, "Healthy", {"driver.mock_driver": "1"})
        flap_s = self._agent_seconds("flap_health_every")
        shut_after_s = self._agent_seconds("shutdown_periodic_after")
        yield up
        if flap_s:
            for is_up in itertools.cycle((False, True)):
                await trio.sleep(flap_s)
                yield up if is_up else DriverFingerprint(Health.UNHEALTHY, "flapping", up.attributes)
        if shut_after_s:
            await trio.sleep(shut_after_s)
            yield DriverFingerprint(Health.UNDETECTED, "shut down as its settings say")
            back_s = self._agent_seconds("shutdown_periodic_duration")
            if back_s:
                await trio.sleep(back_s)
                yield up
        await trio.sleep_forever()

    async def start_task(self, config: TaskConfig) -> Started:
        if config.id in self._live or self._place.load(config.id) is not None:
            raise DriverError(f"task {config.id} was started before", hint="every start needs an id of its own")
        knobs = knobs_from(config.config)
        if knobs.start_block_for_s:
            await trio.sleep(knobs.start_block_for_s)
        if knobs.start_error:
            raise DriverError(knobs.start_error, is_recoverable=knobs.start_error_recoverable)
        task = MockTask(
            id=config.id,
            task=config.task,
            log_dir="" if config.logs.is_disabled else str(config.dirs.logs),
            started_at_ns=self._now_ns(),
            attempt=self._place.count_start(f"{config.alloc_id}/{config.task}"),
            knobs=knobs,
        )
        self._place.save(task)
        self._follow(task)
        network = None
        if knobs.driver_ip or knobs.driver_port_map:
            network = DriverNetwork(knobs.driver_ip, knobs.driver_port_map, knobs.driver_advertise)
        return Started(TaskHandle(driver=self.name, task_id=task.id, state=to_bytes(task)), network)

    async def recover_task(self, handle: TaskHandle) -> None:
        if handle.task_id in self._live:
            return
        stored = self._stored(handle)
        if stored.id != handle.task_id:
            raise DriverError(f"the handle of {handle.task_id} speaks of {stored.id}", hint="it is damaged")
        if stored.knobs.recover_error:
            raise DriverError(stored.knobs.recover_error)
        self._follow(stored)

    async def found_tasks(self) -> list[str]:
        return self._place.ids()

    async def wait_task(self, task_id: str) -> ExitResult:
        live = self._known(task_id)
        while True:
            at, result = live.task.ending()
            changed = live.changed
            left_s = (at - self._now_ns()) / _NS
            if left_s <= 0:
                return result
            with trio.move_on_after(left_s):
                await changed.wait()
            if live.is_forgotten:
                if self._live.get(task_id) is None and self._place.load(task_id) is None:
                    raise _unknown(task_id)
                raise DriverError("the driver went away", hint="it is asked again", is_recoverable=True)

    async def stop_task(self, task_id: str, timeout_s: float, signal: str) -> None:
        live = self._known(task_id)
        number = signal_number(signal or "SIGTERM")
        knobs = live.task.knobs
        if knobs.stop_error and (not knobs.stop_error_count or live.task.stops_failed < knobs.stop_error_count):
            self._change(live, stops_failed=live.task.stops_failed + 1)
            raise DriverError(knobs.stop_error, is_recoverable=True)
        if not live.task.stop_at_ns:
            self._change(live, stop_at_ns=self._now_ns(), stop_timeout_s=timeout_s, stop_signal=number)
        await self.wait_task(task_id)

    async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
        live = self._live.get(task_id)
        if live is None:
            if force:
                self._place.remove(task_id)
            return
        if not force and self._is_running(live.task):
            raise DriverError(f"task {task_id} is running", hint="stop it first")
        self._place.remove(task_id)
        self._forget(task_id)

    async def inspect_task(self, task_id: str) -> TaskInspection:
        live = self._live.get(task_id)
        if live is None:
            return TaskInspection(RunState.UNKNOWN)
        if self._is_running(live.task):
            return TaskInspection(RunState.RUNNING, live.task.started_at_ns)
        at, result = live.task.ending()
        return TaskInspection(RunState.EXITED, live.task.started_at_ns, at, result)

    async def task_stats(self, task_id: str) -> ResourceUse:
        """Numbers that grow with the task's age, so that graphs of them look like something."""
        live = self._known(task_id)
        age_ns = max(0, self._now_ns() - live.task.started_at_ns)
        return ResourceUse(
            timestamp_ns=self._now_ns(),
            memory_rss=64 << 20,
            memory_usage=64 << 20,
            memory_max_usage=64 << 20,
            cpu_user_ns=age_ns // 10,
            cpu_system_ns=age_ns // 100,
            measured=("RSS", "Usage", "Max Usage", "User Mode", "System Mode"),
        )

    async def signal_task(self, task_id: str, signal: str) -> None:
        live = self._known(task_id)
        number = signal_number(signal)
        knobs = live.task.knobs
        if knobs.signal_error:
            raise DriverError(knobs.signal_error)
        if not self._is_running(live.task):
            raise DriverError(f"task {task_id} has ended", hint="only running tasks are signalled")
        code = knobs.exit_on_signal.get(signal)
        if signal == "SIGKILL":
            code = 128 + number
        if code is not None:
            self._change(live, signalled_at_ns=self._now_ns(), signalled_code=code)

    async def exec_task(self, task_id: str, command: ExecCommand, timeout_s: float) -> ExecResult:
        script = self._inside(task_id)
        with trio.move_on_after(timeout_s):
            await trio.sleep(script.run_for_s)
            output = (script.stdout * (1 + script.stdout_repeat) + script.stderr * (1 + script.stderr_repeat)).encode()
            result = script_result(script)
            return ExecResult(result.exit_code, result.signal, output[:_EXEC_OUTPUT_MAX])
        raise DriverError(f"{command.argv[0]} took more time than {timeout_s:g} s", is_recoverable=True)

    @asynccontextmanager
    async def exec_session(self, task_id: str, command: ExecCommand) -> AsyncIterator[MockSession]:
        session = MockSession(self._inside(task_id), is_tty=command.is_tty)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            yield session
            nursery.cancel_scope.cancel()

    async def messages(self) -> AsyncIterator[DriverMessage]:
        """It never says anything."""
        silence: tuple[DriverMessage, ...] = ()
        for message in silence:
            yield message

    # -- inside

    def _stored(self, handle: TaskHandle) -> MockTask:
        stored = self._place.load(handle.task_id)
        if stored is None and handle.state and self._trusts_handles:
            try:
                stored = from_bytes(handle.state, MockTask)
            except CodecError as error:
                raise DriverError(f"the handle of {handle.task_id} cannot be read: {error}") from error
            self._place.save(stored)
        if stored is None:
            raise _unknown(handle.task_id)
        return stored

    def _follow(self, task: MockTask) -> None:
        live = self._live[task.id] = _Live(task)
        knobs = task.knobs
        if task.log_dir:
            script = knobs.script
            self._write(live, "stdout", script.stdout, script.stdout_repeat, script.stdout_every_s)
            self._write(live, "stderr", script.stderr, script.stderr_repeat, script.stderr_every_s)
        dies_in_s = knobs.plugin_exit_after_s - (self._now_ns() - task.started_at_ns) / _NS
        if knobs.plugin_exit_after_s and dies_in_s > 0 and self._nursery is not None:
            self._nursery.start_soon(self._go_away, dies_in_s)

    def _write(self, live: _Live, stream: str, text: str, repeat: int, every_s: float) -> None:
        if not text:
            return
        if not repeat:
            self._write_up_to(live.task, stream, text, 1)
        elif self._nursery is not None:
            self._nursery.start_soon(self._keep_writing, live, stream, text, repeat + 1, every_s)

    async def _keep_writing(self, live: _Live, stream: str, text: str, times: int, every_s: float) -> None:
        for number in range(times):
            due_s = live.task.started_at_ns / _NS + number * every_s
            await trio.sleep(max(0.0, due_s - self._now_ns() / _NS))
            if live.is_forgotten or not self._is_running(live.task):
                return
            self._write_up_to(live.task, stream, text, number + 1)

    @staticmethod
    def _write_up_to(task: MockTask, stream: str, text: str, times: int) -> None:
        """Bring a log file to so many repetitions; what an earlier agent wrote counts."""
        path = Path(task.log_dir) / f"{task.task}.{stream}.0"
        line = text.encode()
        with path.open("ab") as file:
            missing = times - file.tell() // len(line)
            if missing > 0:
                file.write(line * missing)

    async def _go_away(self, after_s: float) -> None:
        await trio.sleep(after_s)
        for task_id in list(self._live):
            self._forget(task_id)

    def _forget(self, task_id: str) -> None:
        live = self._live.pop(task_id)
        live.is_forgotten = True
        live.wake()

    def _change(self, live: _Live, **fields: Any) -> None:
        live.task = structs.replace(live.task, **fields)
        self._place.save(live.task)
        live.wake()

    def _is_running(self, task: MockTask) -> bool:
        return task.ending()[0] > self._now_ns()

    def _known(self, task_id: str) -> _Live:
        live = self._live.get(task_id)
        if live is None:
            raise _unknown(task_id)
        return live

    def _inside(self, task_id: str) -> Script:
        live = self._known(task_id)
        if not self._is_running(live.task):
            raise DriverError(f"task {task_id} has ended", hint="commands run inside running tasks")
        if live.task.knobs.inside is None:
            raise DriverError("this task has no exec_command", hint="give one in the task's config")
        return live.task.knobs.inside

    def _agent_seconds(self, name: str) -> float:
        value = self._config.get(name) or 0
        return float(value) if isinstance(value, (int, float)) else parse_duration_ns(str(value)) / _NS


def make_driver(host: DriverHost) -> MockDriver:
    """The driver as an agent's registry makes it: its tasks are kept in the agent's state directory."""
    return MockDriver({"state_dir": str(host.state_dir), **host.settings})


class _AnchoredClock:
    """Wall time at its first look, moving on with trio's clock from there."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def __call__(self) -> int:
        now_ns = round(trio.current_time() * _NS)
        if self._offset_ns is None:
            self._offset_ns = time.time_ns() - now_ns
        return self._offset_ns + now_ns


def _unknown(task_id: str) -> TaskUnknown:
    return TaskUnknown(f"no task {task_id}", hint="it was never started here, or was destroyed")
