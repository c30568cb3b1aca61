"""The mock driver: the shared class, and its own knobs."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fedsched.drivers.driver import (
    Driver,
    DriverError,
    ExecCommand,
    ExitResult,
    FsIsolation,
    Health,
    RunState,
    TaskHandle,
    TaskUnknown,
)
from fedsched.drivers.mock import MockDriver
from fedsched.drivers.mock_life import knobs_from
from fedsched.drivers.mock_places import FilePlace, MemoryPlace
from fedsched.drivers.schemas import MOCK_SCHEMA
from tests.drivers.conformance import DriverConformance, Inside


def virtual_ns() -> int:
    return 1_700_000_000_000_000_000 + round(trio.current_time() * 1e9)


@asynccontextmanager
async def running(driver: MockDriver) -> AsyncIterator[MockDriver]:
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


class Words(DriverConformance):
    """The vocabulary of the mock driver."""

    name = "mock_driver"
    clock = staticmethod(lambda: MockClock(autojump_threshold=0))

    @asynccontextmanager
    async def open_driver(self, place: Path) -> AsyncIterator[Driver]:
        config = {"state_dir": str(place / "mock")}
        async with running(MockDriver(config, now_ns=virtual_ns)) as driver:
            yield driver

    def sleep_forever(self) -> Mapping[str, Any]:
        return {"run_for": "10000h"}

    def exit_with(self, code: int) -> Mapping[str, Any]:
        return {"run_for": "1s", "exit_code": code}

    def end_by_signal(self) -> Mapping[str, Any]:
        return {"run_for": "1s", "exit_signal": int(signals.SIGTERM)}

    def ignore_signals(self) -> Mapping[str, Any]:
        return {"run_for": "10000h", "kill_after": "9999h", "stdout_string": "deaf\n"}

    def exit_on_signal(self, signal: str, code: int) -> Mapping[str, Any]:
        return {"run_for": "10000h", "exit_on_signal": {signal: code}, "stdout_string": "ready\n"}

    def print(self, text: str) -> Mapping[str, Any]:
        return {"run_for": "10000h", "stdout_string": f"{text}\n", "stderr_string": f"{text}\n"}

    def exec_print(self, text: str) -> Inside:
        return Inside(("say",), {"exec_command": {"stdout_string": f"{text}\n"}})

    def exec_exit(self, code: int) -> Inside:
        return Inside(("end",), {"exec_command": {"exit_code": code}})

    def exec_sleep(self) -> Inside:
        return Inside(("sleep",), {"exec_command": {"run_for": "10h"}})

    def exec_echo(self) -> Inside:
        return Inside(("cat",), {"exec_command": {"echo_input": True}})


class TestMock(Words):
    """All that every driver must do."""


WORDS = Words()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    WORDS.run(scenario)


def ends_as(tmp_path: Path, config: Mapping[str, Any], times: int = 1) -> list[tuple[float, ExitResult]]:
    """When and how a task ends, for each of several starts."""
    seen: list[tuple[float, ExitResult]] = []

    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, config)
            for number in range(times):
                again = type(task)(**{**{name: getattr(task, name) for name in task.__slots__}, "id": f"x/{number}"})
                before = trio.current_time()
                await driver.start_task(again)
                result = await driver.wait_task(again.id)
                seen.append((round(trio.current_time() - before, 3), result))

    run(scenario)
    return seen


def test_a_task_runs_as_long_as_it_says(tmp_path: Path) -> None:
    [(took_s, result)] = ends_as(tmp_path, {"run_for": "90m"})

    assert took_s == 5400
    assert result.is_success


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"exit_err_msg": "broken"}, (0, 0, False, "broken")),
        ({"exit_signal": 11}, (139, 11, False, "")),
        ({"oom": True}, (137, 9, True, "")),
        ({"exit_code": 2, "oom": "true"}, (2, 9, True, "")),
    ],
)
def test_ends_of_every_kind(tmp_path: Path, config: Mapping[str, Any], expected: tuple[int, int, bool, str]) -> None:
    [(_, result)] = ends_as(tmp_path, config)

    assert (result.exit_code, result.signal, result.oom_killed, result.error) == expected


def test_exit_codes_by_attempt(tmp_path: Path) -> None:
    ends = ends_as(tmp_path, {"exit_on_attempt": {"1": 4, "3": "5"}, "exit_code": 1}, times=4)

    assert [result.exit_code for _, result in ends] == [4, 1, 5, 1]


def test_dice_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = {"run_for": "1s", "run_for_spread": "10s", "fail_chance": 0.5, "seed": 3}

    first = [(took, end.exit_code) for took, end in ends_as(tmp_path / "a", config, times=12)]
    again = [(took, end.exit_code) for took, end in ends_as(tmp_path / "b", config, times=12)]
    other = [(took, end.exit_code) for took, end in ends_as(tmp_path / "c", {**config, "seed": 4}, times=12)]

    assert first == again != other
    assert {code for _, code in first} == {0, 1}
    assert all(1 <= took <= 11 for took, _ in first)


@pytest.mark.parametrize("recoverable", [True, False])
def test_a_start_error_says_whether_it_helps_to_try_again(tmp_path: Path, recoverable: bool) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            config = {"start_error": "no luck", "start_error_recoverable": recoverable, "start_block_for": "7s"}
            with pytest.raises(DriverError, match="no luck") as caught:
                await driver.start_task(WORDS.task(tmp_path, config))
            assert caught.value.is_recoverable is recoverable
            assert trio.current_time() >= 7

    run(scenario)


def test_a_task_goes_on_for_a_while_after_a_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, {"run_for": "1h", "kill_after": "3s"})
            await driver.start_task(task)
            before = trio.current_time()
            await driver.stop_task(task.id, 10.0, "SIGINT")
            assert trio.current_time() - before == pytest.approx(3)
            assert (await driver.wait_task(task.id)).signal == signals.SIGINT

    run(scenario)


def test_a_second_stop_does_not_shorten_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver, trio.open_nursery() as nursery:
            task = WORDS.task(tmp_path, {"run_for": "1h", "kill_after": "8s"})
            await driver.start_task(task)
            before = trio.current_time()
            nursery.start_soon(driver.stop_task, task.id, 10.0, "SIGINT")
            await trio.sleep(1)
            await driver.stop_task(task.id, 0.0, "SIGINT")
            assert trio.current_time() - before == pytest.approx(8)

    run(scenario)


def test_stops_fail_as_often_as_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, {"run_for": "1h", "stop_error": "stuck", "stop_error_count": 2})
            await driver.start_task(task)
            for _ in range(2):
                with pytest.raises(DriverError, match="stuck"):
                    await driver.stop_task(task.id, 1.0, "SIGINT")
            await driver.stop_task(task.id, 1.0, "SIGINT")

    run(scenario)


def test_recovery_continues_run_for_from_the_first_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        task = WORDS.task(tmp_path, {"run_for": "100s", "exit_code": 3})
        async with WORDS.open_driver(tmp_path) as first:
            handle = (await first.start_task(task)).handle
            await trio.sleep(30)
        await trio.sleep(30)
        async with WORDS.open_driver(tmp_path) as second:
            await second.recover_task(handle)
            before = trio.current_time()
            assert (await second.wait_task(task.id)).exit_code == 3
            assert trio.current_time() - before == pytest.approx(40)

    run(scenario)


def test_without_a_state_dir_the_handle_is_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        task = WORDS.task(tmp_path, {"run_for": "100s", "exit_code": 3})
        async with running(MockDriver(now_ns=virtual_ns)) as first:
            handle = (await first.start_task(task)).handle
        async with running(MockDriver(now_ns=virtual_ns)) as second:
            with pytest.raises(DriverError, match="cannot be read"):
                await second.recover_task(TaskHandle(driver="mock_driver", task_id="a", state=b"\xff"))
            with pytest.raises(DriverError, match="speaks of"):
                await second.recover_task(TaskHandle(driver="mock_driver", task_id="a", state=handle.state))
            await second.recover_task(handle)
            assert (await second.wait_task(task.id)).exit_code == 3

    run(scenario)


def test_a_task_may_refuse_to_be_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        task = WORDS.task(tmp_path, {"run_for": "1h", "recover_error": "lost it"})
        async with WORDS.open_driver(tmp_path) as first:
            handle = (await first.start_task(task)).handle
        async with WORDS.open_driver(tmp_path) as second:
            with pytest.raises(DriverError, match="lost it"):
                await second.recover_task(handle)

    run(scenario)


def test_a_driver_that_goes_away_forgets_and_finds_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, {"run_for": "100s", "plugin_exit_after": "10s", "exit_code": 2})
            handle = (await driver.start_task(task)).handle
            with pytest.raises(DriverError, match="went away") as caught:
                await driver.wait_task(task.id)
            assert not isinstance(caught.value, TaskUnknown)
            with pytest.raises(TaskUnknown):
                await driver.wait_task(task.id)
            await driver.recover_task(handle)
            assert (await driver.wait_task(task.id)).exit_code == 2
            assert trio.current_time() == pytest.approx(100)

    run(scenario)


def test_whoever_waits_for_a_destroyed_task_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, WORDS.sleep_forever())
            await driver.start_task(task)

            async def wait() -> None:
                with pytest.raises(TaskUnknown):
                    await driver.wait_task(task.id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(1)
                await driver.destroy_task(task.id, force=True)

    run(scenario)


def test_the_network_it_pretends_to_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            config = {"driver_ip": "10.1.2.3", "driver_advertise": True, "driver_port_map": "http:8080"}
            network = (await driver.start_task(WORDS.task(tmp_path, config))).network
            assert network is not None
            assert (network.ip, dict(network.port_map), network.auto_advertise) == ("10.1.2.3", {"http": 8080}, True)

    run(scenario)


def test_signals_are_refused_when_told_so_or_when_it_has_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            deaf = WORDS.task(tmp_path, {"run_for": "1h", "signal_error": "not me"})
            ended = WORDS.task(tmp_path, {"exec_command": {"exit_code": 1}})
            await driver.start_task(deaf)
            await driver.start_task(ended)
            with pytest.raises(DriverError, match="not me"):
                await driver.signal_task(deaf.id, "SIGHUP")
            with pytest.raises(DriverError, match="has ended"):
                await driver.signal_task(ended.id, "SIGHUP")
            with pytest.raises(DriverError, match="has ended"):
                await driver.exec_task(ended.id, ExecCommand(("x",)), 1.0)
            with pytest.raises(DriverError, match="no exec_command"):
                await driver.exec_task(deaf.id, ExecCommand(("x",)), 1.0)

    run(scenario)


def test_sigkill_always_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, WORDS.ignore_signals())
            await driver.start_task(task)
            await driver.signal_task(task.id, "SIGHUP")
            assert (await driver.inspect_task(task.id)).state is RunState.RUNNING
            await driver.signal_task(task.id, "SIGKILL")
            assert (await driver.wait_task(task.id)).exit_code == 137

    run(scenario)


def test_repeated_output_goes_on_where_the_last_agent_left_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = {
            "run_for": "1h",
            "stdout_string": "tick\n",
            "stdout_repeat": 9,
            "stdout_repeat_duration": "10s",
            "stderr_string": "tock\n",
            "stderr_repeat": 1,
            "stderr_repeat_duration": "1s",
        }
        task = WORDS.task(tmp_path, config)
        log = task.dirs.logs / "web.stdout.0"
        async with WORDS.open_driver(tmp_path) as first:
            handle = (await first.start_task(task)).handle
            await trio.sleep(25)
            assert log.read_text() == "tick\n" * 3
        async with WORDS.open_driver(tmp_path) as second:
            await second.recover_task(handle)
            await trio.sleep(200)
        assert log.read_text() == "tick\n" * 10
        assert (task.dirs.logs / "web.stderr.0").read_text() == "tock\n" * 2

    run(scenario)


def test_output_stops_with_the_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = {"run_for": "25s", "stdout_string": "tick\n", "stdout_repeat": 9, "stdout_repeat_duration": "10s"}
        task = WORDS.task(tmp_path, config)
        async with WORDS.open_driver(tmp_path) as driver:
            await driver.start_task(task)
            await trio.sleep(500)
        assert (task.dirs.logs / "web.stdout.0").read_text() == "tick\n" * 3

    run(scenario)


def test_a_terminal_has_one_stream_and_a_pipe_has_two(tmp_path: Path) -> None:
    async def scenario() -> None:
        inside = {"stdout_string": "out\n", "stdout_repeat": 1, "stderr_string": "err\n", "exit_signal": 9}
        async with WORDS.open_driver(tmp_path) as driver:
            task = WORDS.task(tmp_path, {"run_for": "1h", "exec_command": [inside]})
            await driver.start_task(task)
            for is_tty in (False, True):
                async with driver.exec_session(task.id, ExecCommand(("x",), is_tty=is_tty)) as session:
                    seen = [await session.receive() for _ in range(3)]
                    assert [(one.data, one.is_stderr) for one in seen] == [
                        (b"out\n", False),
                        (b"out\n", False),
                        (b"err\n", not is_tty),
                    ]
                    result = await session.wait()
                    assert (result.exit_code, result.signal) == (137, 9)
                    await session.close_input()
                    with pytest.raises(DriverError, match="no more input"):
                        await session.send_input(b"late")

    run(scenario)


def healths(config: Mapping[str, Any], within_s: float) -> list[tuple[float, Health]]:
    seen: list[tuple[float, Health]] = []

    async def scenario() -> None:
        driver = MockDriver(config)
        with trio.move_on_after(within_s):
            async with aclosing(driver.fingerprint()) as stream:  # type: ignore[type-var]
                async for found in stream:
                    seen.append((trio.current_time(), found.health))  # noqa: PERF401 - the time of each is the point

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
    return seen


def test_its_health_follows_its_settings() -> None:
    up, down, gone = Health.HEALTHY, Health.UNHEALTHY, Health.UNDETECTED

    assert healths({}, 100) == [(0, up)]
    assert healths({"flap_health_every": "10s"}, 35) == [(0, up), (10, down), (20, up), (30, down)]
    assert healths({"shutdown_periodic_after": 5}, 100) == [(0, up), (5, gone)]
    assert healths({"shutdown_periodic_after": 5, "shutdown_periodic_duration": "7s"}, 100) == [
        (0, up),
        (5, gone),
        (12, up),
    ]


def test_an_agents_settings_are_checked() -> None:
    with pytest.raises(DriverError, match="flap_healt is unknown"):
        MockDriver({"flap_healt": "1s"})
    assert MockDriver({"fs_isolation": "image"}).capabilities.fs_isolation is FsIsolation.IMAGE


@pytest.mark.parametrize(
    "config",
    [
        {"run_fro": "1s"},
        {"run_for": "a while"},
        {"driver_port_map": "http"},
        {"exit_on_attempt": {"1": "one"}},
        {"exec_command": {"run_fro": "1s"}},
    ],
)
def test_bad_settings_are_refused_in_words(config: Mapping[str, Any]) -> None:
    with pytest.raises(DriverError):
        knobs_from(config)


def test_all_settings_of_the_page_are_known() -> None:
    config = {
        "start_error": "x",
        "start_error_recoverable": True,
        "start_block_for": "1s",
        "kill_after": "1s",
        "plugin_exit_after": "1s",
        "driver_ip": "1.2.3.4",
        "driver_advertise": True,
        "driver_port_map": "a:1",
        "run_for": "1s",
        "exit_code": 1,
        "exit_signal": 9,
        "exit_err_msg": "x",
        "signal_error": "x",
        "stdout_string": "x",
        "stdout_repeat": 1,
        "stdout_repeat_duration": "1s",
        "stderr_string": "x",
        "stderr_repeat": 1,
        "stderr_repeat_duration": "1s",
        "exec_command": {"run_for": "1s", "exit_code": 1, "stdout_string": "x"},
    }

    assert MOCK_SCHEMA.problems(config) == []


def test_real_time_moves_with_trios_clock(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(MockDriver()) as driver:
            task = WORDS.task(tmp_path, {"run_for": "1000h"})
            await driver.start_task(task)
            await driver.wait_task(task.id)
            assert trio.current_time() == pytest.approx(3_600_000)

    run(scenario)


def test_places_hold_what_they_are_given(tmp_path: Path) -> None:
    for place in (FilePlace(tmp_path / "p"), MemoryPlace()):
        assert place.load("a/b/c") is None
        assert [place.count_start("a/b"), place.count_start("a/b"), place.count_start("a/c")] == [1, 2, 1]
    (tmp_path / "p" / "a.b.c.task").write_bytes(b"\xff broken")
    assert FilePlace(tmp_path / "p").load("a/b/c") is None
