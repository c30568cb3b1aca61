"""What every driver must do, as one class of tests.

A driver's own test module makes a subclass, says how to open the driver, and, unless its tasks are shell scripts, how
to say "sleep for ever" or "exit with 3" in its own settings:

    class TestRawExec(DriverConformance):
        name = "raw_exec"

        def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]: ...

Two drivers opened one after the other at the same place are an agent and the one that follows it.
"""

from __future__ import annotations

import itertools
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from fedsched.drivers.driver import (
    Driver,
    DriverError,
    ExecCommand,
    ExecSession,
    ExitResult,
    FindsTasks,
    Health,
    LogLimits,
    RunState,
    TaskConfig,
    TaskDirs,
    TaskHandle,
    TaskUnknown,
)

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long anything may take before a test fails; far above what it should take."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A command to run inside a task: its words, and what the task's settings need for it."""

    argv: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


class DriverConformance:
    """Subclass this as `Test...`. Everything above the first test may be overridden."""

    name = ""
    clock: Callable[[], trio.abc.Clock | None] = staticmethod(lambda: None)
    """A virtual one, for drivers whose tasks live on trio's time."""
    has_exec = True
    has_signals = True
    has_tty = True
    collects_logs = True

    # -- how to open it

    def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]:
        """A driver that runs, with everything it keeps below `place`. Leaving the block leaves its tasks running."""
        raise NotImplementedError

    def prepare(self, dirs: TaskDirs) -> None:
        """Whatever this driver expects to find in a task's directory beside the usual ones."""

    # -- how to say things

    def shell(self, script: str) -> Mapping[str, Any]:
        """The settings of a task that runs a shell script."""
        return {"command": "/bin/sh", "args": ["-c", script]}

    def sleep_forever(self) -> Mapping[str, Any]:
        return self.shell("exec sleep 3600")

    def exit_with(self, code: int) -> Mapping[str, Any]:
        return self.shell(f"exit {code}")

    def end_by_signal(self) -> Mapping[str, Any]:
        """Kills itself with SIGTERM."""
        return self.shell("kill -TERM $$; sleep 5")

    def ignore_signals(self) -> Mapping[str, Any]:
        """Does not care for SIGINT and SIGTERM."""
        return self.shell("trap '' INT TERM; echo deaf; while :; do sleep 1; done")

    def exit_on_signal(self, signal: str, code: int) -> Mapping[str, Any]:
        return self.shell(f"trap 'exit {code}' {signal.removeprefix('SIG')}; echo ready; while :; do sleep 0.1; done")

    def print(self, text: str) -> Mapping[str, Any]:
        return self.shell(f"echo '{text}'; echo '{text}' >&2; exec sleep 3600")

    def exec_print(self, text: str) -> Inside:
        """Writes a line to its standard output and ends."""
        return Inside(("/bin/sh", "-c", f"echo {text}"))

    def exec_exit(self, code: int) -> Inside:
        return Inside(("/bin/sh", "-c", f"exit {code}"))

    def exec_sleep(self) -> Inside:
        return Inside(("/bin/sh", "-c", "sleep 3600"))

    def exec_echo(self) -> Inside:
        """Writes back what it is given, until that ends."""
        return Inside(("/bin/sh", "-c", "cat"))

    # -- tools of the tests

    def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        async def within_time() -> T:
            with trio.fail_after(PATIENCE_S if self.clock() is None else 1e9):
                return await scenario()

        return trio.run(within_time, clock=self.clock())

    def task(self, place: Path, config: Mapping[str, Any], **fields: Any) -> TaskConfig:
        """A task with all its directories, under an id that no other test uses."""
        number = next(_NUMBERS)
        alloc_id = f"00000000-0000-0000-0000-{number:012x}"
        dirs = make_dirs(place / "allocs" / alloc_id, "web")
        self.prepare(dirs)
        fields.setdefault("logs", LogLimits(max_files=2, max_file_bytes=1 << 20))
        return TaskConfig(
            id=f"{alloc_id}/web/{number:08x}",
            alloc_id=alloc_id,
            namespace="default",
            job_id="web",
            group="group",
            task="web",
            node_id="00000000-0000-0000-0000-0000000000aa",
            dirs=dirs,
            config=config,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **fields.pop("env", {})},
            **fields,
        )

    @asynccontextmanager
    async def started(self, driver: Driver, config: TaskConfig) -> AsyncIterator[TaskHandle]:
        """A task, gone again afterwards."""
        begun = await driver.start_task(config)
        try:
            yield begun.handle
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_S):
                await driver.destroy_task(config.id, force=True)

    async def output(self, config: TaskConfig, stream: str, wanted: str) -> str:
        """What is in a task's log, as soon as that has the wanted text in it."""
        path = config.dirs.logs / f"{config.task}.{stream}.0"
        while True:
            text = path.read_text() if path.exists() else ""
            if wanted in text:
                return text
            await trio.sleep(0.02)

    # -- start and end

    def test_it_is_detected_and_says_so_under_its_own_name(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                stream = driver.fingerprint()
                found = await anext(stream)
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()
                assert found.health is Health.HEALTHY, found.description
                assert all(name.startswith("driver.") for name in found.attributes), found.attributes
                assert found.attributes.get(f"driver.{driver.name}") in ("1", "true")
                assert driver.name == self.name

        self.run(scenario)

    @pytest.mark.parametrize("code", [0, 1, 3, 255])
    def test_the_exit_code_is_told(self, tmp_path: Path, code: int) -> None:
        async def scenario() -> ExitResult:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.exit_with(code))
                async with self.started(driver, config):
                    return await driver.wait_task(config.id)

        result = self.run(scenario)

        assert (result.exit_code, result.signal, result.oom_killed, result.error) == (code, 0, False, "")
        assert result.finished_at_ns > 0
        assert result.is_success is (code == 0)

    def test_an_end_by_signal_is_told(self, tmp_path: Path) -> None:
        async def scenario() -> ExitResult:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.end_by_signal())
                async with self.started(driver, config):
                    return await driver.wait_task(config.id)

        result = self.run(scenario)

        assert not result.is_success
        assert result.signal == signals.SIGTERM or result.exit_code == 128 + signals.SIGTERM

    def test_many_may_wait_and_also_afterwards(self, tmp_path: Path) -> None:
        async def scenario() -> list[ExitResult]:
            results: list[ExitResult] = []

            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.exit_with(7))

                async def wait() -> None:
                    results.append(await driver.wait_task(config.id))

                async with self.started(driver, config):
                    async with trio.open_nursery() as waiting:
                        for _ in range(3):
                            waiting.start_soon(wait)
                    await wait()
            return results

        results = self.run(scenario)

        assert len(results) == 4
        assert all(one == results[0] for one in results)

    def test_the_same_id_twice_is_refused_and_the_first_runs_on(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    with pytest.raises(DriverError):
                        await driver.start_task(config)
                    assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

        self.run(scenario)

    def test_settings_outside_its_schema_are_known_to_be_wrong(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                assert driver.task_schema.problems(self.sleep_forever()) == []
                assert driver.task_schema.problems({**self.sleep_forever(), "no_such_setting": "1"})

        self.run(scenario)

    def test_output_is_collected(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.print("hello out there"))
                async with self.started(driver, config):
                    assert "hello out there\n" in await self.output(config, "stdout", "there\n")
                    assert "hello out there\n" in await self.output(config, "stderr", "there\n")

        if self.collects_logs:
            self.run(scenario)

    # -- stop and destroy

    def test_stop_returns_when_the_task_is_dead(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    await driver.stop_task(config.id, 10.0, "SIGTERM")
                    seen = await driver.inspect_task(config.id)
                    assert seen.state is RunState.EXITED
                    assert seen.exit == await driver.wait_task(config.id)

        self.run(scenario)

    def test_a_deaf_task_is_killed_after_the_timeout_and_not_before(self, tmp_path: Path) -> None:
        async def scenario() -> tuple[float, ExitResult]:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.ignore_signals())
                async with self.started(driver, config):
                    if self.collects_logs:
                        await self.output(config, "stdout", "deaf")
                    before = trio.current_time()
                    await driver.stop_task(config.id, 0.7, "SIGTERM")
                    return trio.current_time() - before, await driver.wait_task(config.id)

        took, result = self.run(scenario)

        assert took >= 0.65
        assert not result.is_success
        assert result.signal == signals.SIGKILL or result.exit_code == 128 + signals.SIGKILL

    def test_stop_without_any_patience_kills_at_once(self, tmp_path: Path) -> None:
        async def scenario() -> ExitResult:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.ignore_signals())
                async with self.started(driver, config):
                    await driver.stop_task(config.id, 0.0, "SIGTERM")
                    return await driver.wait_task(config.id)

        assert not self.run(scenario).is_success

    def test_stopping_what_has_ended_changes_nothing(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.exit_with(4))
                async with self.started(driver, config):
                    await driver.wait_task(config.id)
                    await driver.stop_task(config.id, 1.0, "SIGTERM")
                    assert (await driver.wait_task(config.id)).exit_code == 4

        self.run(scenario)

    def test_stop_may_be_asked_for_twice_at_once(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    async with trio.open_nursery() as both:
                        both.start_soon(driver.stop_task, config.id, 10.0, "SIGTERM")
                        both.start_soon(driver.stop_task, config.id, 10.0, "SIGTERM")
                    assert (await driver.inspect_task(config.id)).state is RunState.EXITED

        self.run(scenario)

    def test_destroy_refuses_a_running_task_unless_forced(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    with pytest.raises(DriverError):
                        await driver.destroy_task(config.id)
                    assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

                    await driver.destroy_task(config.id, force=True)
                    with pytest.raises(TaskUnknown):
                        await driver.wait_task(config.id)
                    await driver.destroy_task(config.id)

        self.run(scenario)

    def test_an_ended_task_is_destroyed_without_force(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.exit_with(0))
                async with self.started(driver, config):
                    await driver.wait_task(config.id)
                    await driver.destroy_task(config.id)
                    with pytest.raises(TaskUnknown):
                        await driver.wait_task(config.id)

        self.run(scenario)

    def test_unknown_ids_are_refused(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                nobody = self.task(tmp_path, self.sleep_forever()).id
                for ask in (
                    lambda: driver.wait_task(nobody),
                    lambda: driver.stop_task(nobody, 1.0, "SIGTERM"),
                    lambda: driver.task_stats(nobody),
                    lambda: driver.signal_task(nobody, "SIGTERM"),
                    lambda: driver.exec_task(nobody, ExecCommand(("true",)), 1.0),
                ):
                    with pytest.raises(DriverError):
                        await ask()
                with pytest.raises(TaskUnknown):
                    await driver.wait_task(nobody)
                assert (await driver.inspect_task(nobody)).state is RunState.UNKNOWN
                await driver.destroy_task(nobody, force=True)

        self.run(scenario)

    # -- while it runs

    def test_inspect_tells_when_it_began_and_how_it_ended(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    running = await driver.inspect_task(config.id)
                    assert running.state is RunState.RUNNING
                    assert running.started_at_ns > 0
                    assert running.exit is None
                    await driver.stop_task(config.id, 5.0, "SIGKILL")
                    ended = await driver.inspect_task(config.id)
                    assert ended.state is RunState.EXITED
                    assert ended.exit is not None
                    assert ended.finished_at_ns >= running.started_at_ns

        self.run(scenario)

    def test_stats_say_what_was_measured(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    use = await driver.task_stats(config.id)
                    assert use.timestamp_ns > 0
                    assert use.measured
                    assert use.memory_rss >= 0

        self.run(scenario)

    def test_a_signal_reaches_the_task(self, tmp_path: Path) -> None:
        async def scenario() -> ExitResult:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.exit_on_signal("SIGUSR1", 9))
                async with self.started(driver, config):
                    if self.collects_logs:
                        await self.output(config, "stdout", "ready")
                    await driver.signal_task(config.id, "SIGUSR1")
                    return await driver.wait_task(config.id)

        if self.has_signals:
            assert self.run(scenario).exit_code == 9

    def test_a_signal_that_does_not_exist_is_refused(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                config = self.task(tmp_path, self.sleep_forever())
                async with self.started(driver, config):
                    with pytest.raises(DriverError, match="SIGNONSENSE"):
                        await driver.signal_task(config.id, "SIGNONSENSE")
                    assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

        self.run(scenario)

    # -- a new agent

    def test_a_running_task_is_found_again(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            config = self.task(tmp_path, self.sleep_forever())
            async with self.open_driver(tmp_path) as first:
                handle = (await first.start_task(config)).handle
                began = (await first.inspect_task(config.id)).started_at_ns

            async with self.open_driver(tmp_path) as second:
                await second.recover_task(handle)
                await second.recover_task(handle)
                try:
                    seen = await second.inspect_task(config.id)
                    assert (seen.state, seen.started_at_ns) == (RunState.RUNNING, began)
                    await second.stop_task(config.id, 5.0, "SIGTERM")
                    assert (await second.inspect_task(config.id)).state is RunState.EXITED
                finally:
                    await second.destroy_task(config.id, force=True)

        self.run(scenario)

    def test_an_end_while_no_agent_was_there_is_told_with_its_true_code(self, tmp_path: Path) -> None:
        async def scenario() -> tuple[ExitResult, ExitResult]:
            config = self.task(tmp_path, self.exit_with(5))
            async with self.open_driver(tmp_path) as first:
                handle = (await first.start_task(config)).handle
                before = await first.wait_task(config.id)

            async with self.open_driver(tmp_path) as second:
                await second.recover_task(handle)
                try:
                    return before, await second.wait_task(config.id)
                finally:
                    await second.destroy_task(config.id, force=True)

        before, after = self.run(scenario)

        assert after.exit_code == 5
        assert after == before

    def test_a_task_whose_handle_was_never_stored_is_found_by_its_id_or_is_gone(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            config = self.task(tmp_path, self.sleep_forever())
            async with self.open_driver(tmp_path) as first:
                handle = (await first.start_task(config)).handle

            async with self.open_driver(tmp_path) as second:
                try:
                    await second.recover_task(TaskHandle(driver=second.name, task_id=config.id))
                    assert (await second.inspect_task(config.id)).state is RunState.RUNNING
                except TaskUnknown:
                    # Then nothing of it may run: the true handle must not find a live task either.
                    with pytest.raises(TaskUnknown):
                        await second.recover_task(handle)
                finally:
                    await second.destroy_task(config.id, force=True)

        self.run(scenario)

    def test_a_destroyed_task_is_not_found_again(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            config = self.task(tmp_path, self.sleep_forever())
            async with self.open_driver(tmp_path) as first:
                handle = (await first.start_task(config)).handle
                await first.destroy_task(config.id, force=True)

            async with self.open_driver(tmp_path) as second:
                with pytest.raises(DriverError):
                    await second.recover_task(handle)
                assert (await second.inspect_task(config.id)).state is RunState.UNKNOWN

        self.run(scenario)

    def test_what_runs_here_is_listed_by_drivers_that_can(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            running = self.task(tmp_path, self.sleep_forever())
            ended = self.task(tmp_path, self.exit_with(3))
            async with self.open_driver(tmp_path) as first:
                if not isinstance(first, FindsTasks):
                    return
                for config in (running, ended):
                    await first.start_task(config)
                await first.wait_task(ended.id)
                with pytest.raises(TaskUnknown):
                    await first.recover_task(TaskHandle(driver=first.name, task_id=self.task(tmp_path, {}).id))

            async with self.open_driver(tmp_path) as second:
                assert isinstance(second, FindsTasks)
                assert sorted(await second.found_tasks()) == sorted([running.id, ended.id])
                for config in (running, ended):
                    await second.recover_task(TaskHandle(driver=second.name, task_id=config.id))
                    await second.destroy_task(config.id, force=True)
                assert await second.found_tasks() == []

        self.run(scenario)

    def test_an_intent_that_never_became_a_task_is_unknown(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            config = self.task(tmp_path, self.sleep_forever())
            async with self.open_driver(tmp_path) as driver:
                with pytest.raises(TaskUnknown):
                    await driver.recover_task(TaskHandle(driver=driver.name, task_id=config.id))

        self.run(scenario)

    @pytest.mark.parametrize("state", [b"\x00", b"{}", b"not a handle of ours", b"\xff" * 64])
    def test_a_damaged_handle_is_refused(self, tmp_path: Path, state: bytes) -> None:
        async def scenario() -> None:
            config = self.task(tmp_path, self.sleep_forever())
            async with self.open_driver(tmp_path) as driver:
                with pytest.raises(DriverError):
                    await driver.recover_task(TaskHandle(driver=driver.name, task_id=config.id, state=state))

        self.run(scenario)

    # -- commands inside

    def test_a_command_inside_gives_its_output_and_code(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                said, ended = self.exec_print("inside"), self.exec_exit(6)
                for inside, output, code in ((said, b"inside\n", 0), (ended, b"", 6)):
                    config = self.task(tmp_path, {**self.sleep_forever(), **inside.config})
                    async with self.started(driver, config):
                        result = await driver.exec_task(config.id, ExecCommand(inside.argv), 10.0)
                        assert (result.output, result.exit_code) == (output, code)

        if self.has_exec:
            self.run(scenario)

    def test_a_command_inside_that_takes_too_long_is_ended(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                inside = self.exec_sleep()
                config = self.task(tmp_path, {**self.sleep_forever(), **inside.config})
                async with self.started(driver, config):
                    with pytest.raises(DriverError, match=r"(?i)time"):
                        await driver.exec_task(config.id, ExecCommand(inside.argv), 0.3)
                    assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

        if self.has_exec:
            self.run(scenario)

    @pytest.mark.parametrize("is_tty", [False, True])
    def test_a_session_inside_takes_input_and_gives_output(self, tmp_path: Path, is_tty: bool) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                inside = self.exec_echo()
                config = self.task(tmp_path, {**self.sleep_forever(), **inside.config})
                async with (
                    self.started(driver, config),
                    driver.exec_session(config.id, ExecCommand(inside.argv, is_tty=is_tty)) as session,
                ):
                    if is_tty:
                        await session.resize(40, 120)
                    await session.send_input(b"ping\n")
                    seen = await received_until(session, b"ping")
                    assert b"ping" in seen
                    # A terminal says "no more" by a character at the start of a line.
                    await (session.send_input(b"\x04") if is_tty else session.close_input())
                    await drain(session)
                    assert (await session.wait()).exit_code == 0

        if self.has_exec and (self.has_tty or not is_tty):
            self.run(scenario)

    def test_leaving_a_session_ends_its_command_and_not_the_task(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self.open_driver(tmp_path) as driver:
                inside = self.exec_sleep()
                config = self.task(tmp_path, {**self.sleep_forever(), **inside.config})
                async with self.started(driver, config):
                    async with driver.exec_session(config.id, ExecCommand(inside.argv)):
                        pass
                    assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

        if self.has_exec:
            self.run(scenario)


_NUMBERS = itertools.count(1)


def make_dirs(alloc: Path, task: str) -> TaskDirs:
    """The directories of a task as the client makes them."""
    dirs = TaskDirs(
        alloc=alloc,
        shared=alloc / "alloc",
        task=alloc / task,
        local=alloc / task / "local",
        secrets=alloc / task / "secrets",
        private=alloc / task / "private",
        logs=alloc / "alloc" / "logs",
    )
    for path in (dirs.shared / "data", dirs.shared / "tmp", dirs.logs, dirs.local, dirs.secrets, dirs.private):
        path.mkdir(parents=True, exist_ok=True)
    (dirs.task / "tmp").mkdir(exist_ok=True)
    for open_to_all in (dirs.local, dirs.secrets, dirs.shared / "data", dirs.task / "tmp", dirs.shared / "tmp"):
        open_to_all.chmod(0o777)
    return dirs


async def received_until(session: ExecSession, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += (await session.receive()).data
    return seen


async def drain(session: ExecSession) -> bytes:
    """All that is still to come."""
    seen = b""
    while True:
        try:
            seen += (await session.receive()).data
        except trio.EndOfChannel:
            return seen
