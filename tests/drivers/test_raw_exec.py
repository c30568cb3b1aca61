"""raw_exec: the shared promises of all drivers, and what is its own."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from fedsched.drivers.driver import Driver, DriverError, ExecCommand, LogLimits, RunState, TaskConfig
from fedsched.drivers.process_driver import key_of
from fedsched.drivers.raw_exec import RawExecDriver
from fedsched.drivers.registry import DriverHost
from tests.drivers.conformance import DriverConformance
from tests.drivers.supervised import processes_of, retire, run

TASK = DriverConformance().task


@asynccontextmanager
async def open_raw_exec(place: Path, **settings: object) -> AsyncIterator[RawExecDriver]:
    driver = RawExecDriver(DriverHost(state_dir=place / "raw_exec", settings=settings, denied_users=()))
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    retire(tmp_path / "raw_exec")


class TestRawExec(DriverConformance):
    name = "raw_exec"

    def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]:
        return open_raw_exec(place)


async def ended(driver: RawExecDriver, config: TaskConfig) -> str:
    """Run a task to its end; what it wrote."""
    await driver.start_task(config)
    result = await driver.wait_task(config.id)
    await driver.destroy_task(config.id)
    assert result.is_success, result
    return (config.dirs.logs / "web.stdout.0").read_text()


def test_a_task_starts_in_its_directory_or_where_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, {"command": "pwd"})
            assert await ended(driver, config) == f"{config.dirs.task}\n"
            assert await ended(driver, TASK(tmp_path, {"command": "pwd", "work_dir": "/usr"})) == "/usr\n"

    run(scenario)


def test_commands_are_looked_for_in_local_then_in_the_task_then_in_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            for folders in (["local", "task"], ["task"], []):
                config = TASK(tmp_path, {"command": "true", "args": ["x"]})
                for folder in folders:
                    script = getattr(config.dirs, folder) / "true"
                    script.write_text(f"#!/bin/sh\necho {folder} $1\n")
                    script.chmod(0o755)
                assert await ended(driver, config) == (f"{folders[0]} x\n" if folders else "")

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"command": ""}, "no command"),
        ({"command": "/no/such"}, "/no/such"),
        ({"command": "no-such-command"}, "neither"),
        ({"command": "../../../etc/passwd\0"}, "no path"),
        ({"command": "true", "work_dir": "relative"}, "absolute"),
        ({"command": "true", "oom_score_adj": -1}, "oom_score_adj"),
        ({"command": "true", "cgroup_v1_override": {"pids": "a"}, "cgroup_v2_override": "b"}, "exclude"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, settings)
            with pytest.raises(DriverError, match=reason):
                await driver.start_task(config)
            assert (await driver.inspect_task(config.id)).state is RunState.UNKNOWN

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "user"),
    [({"denied_host_uids": "60000-70000"}, "65534"), ({"denied_host_gids": "65533"}, "65534:65533")],
)
def test_denied_users_and_groups_are_refused(tmp_path: Path, settings: dict[str, str], user: str) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path, **settings) as driver:
            with pytest.raises(DriverError, match="may not run as"):
                await driver.start_task(TASK(tmp_path, {"command": "id"}, user=user))

    run(scenario)


def test_a_task_may_run_as_somebody_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may run tasks as somebody else")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)

    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, {"command": "id", "args": ["-u"]}, user="nobody")
            for folder in (config.dirs.alloc.parent, config.dirs.alloc, config.dirs.task):
                folder.chmod(0o755)
            assert await ended(driver, config) == f"{pwd.getpwnam('nobody').pw_uid}\n"

    run(scenario)


def test_denied_variables_of_the_agent_are_taken_out_and_those_of_the_job_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_ONE", "agent")
    monkeypatch.setenv("SECRET_TWO", "agent")
    monkeypatch.setenv("HIDDEN", "agent")
    monkeypatch.setenv("SHOWN", "agent")

    async def scenario() -> None:
        async with open_raw_exec(tmp_path, denied_envvars=["SECRET_*"]) as driver:
            env = {"SECRET_ONE": "agent", "SECRET_TWO": "job", "HIDDEN": "agent", "SHOWN": "agent"}
            config = TASK(tmp_path, {"command": "env", "denied_envvars": ["HIDDEN"]}, env=env)
            seen = dict(line.split("=", 1) for line in (await ended(driver, config)).splitlines())
            assert "SECRET_ONE" not in seen
            assert "HIDDEN" not in seen
            assert (seen["SECRET_TWO"], seen["SHOWN"]) == ("job", "agent")

    run(scenario)


def test_logs_may_be_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, {"command": "echo", "args": ["x"]}, logs=LogLimits(is_disabled=True))
            await driver.start_task(config)
            assert (await driver.wait_task(config.id)).is_success
            await driver.destroy_task(config.id)
            assert list(config.dirs.logs.iterdir()) == []

    run(scenario)


def test_a_start_that_is_cancelled_leaves_no_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, {"command": "sleep", "args": ["3600"]})
            for checkpoints in range(12):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(driver.start_task, config)
                        for _ in range(checkpoints):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()
                await driver.destroy_task(config.id, force=True)
                config = TASK(tmp_path, {"command": "sleep", "args": ["3600"]})

    run(scenario)


def test_a_long_or_odd_id_is_a_name_all_the_same() -> None:
    assert key_of("a/web/1") == "a.web.1"
    assert len(key_of("a/" + "x" * 300 + "/1")) == 64
    assert key_of("./x") != "..x"
    assert key_of("a/web/1") != key_of("a/web/2")


def test_a_session_that_writes_much_waits_for_its_reader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_raw_exec(tmp_path) as driver:
            config = TASK(tmp_path, {"command": "sleep", "args": ["3600"]})
            await driver.start_task(config)
            command = ExecCommand(("/bin/sh", "-c", "head -c 3000000 /dev/zero"))
            result = await driver.exec_task(config.id, command, 20.0)
            assert (result.exit_code, len(result.output)) == (0, 64 << 10)
            await driver.destroy_task(config.id, force=True)

    run(scenario)


def test_a_dev_agents_driver_leaves_no_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = RawExecDriver(DriverHost(state_dir=tmp_path / "raw_exec", denied_users=(), is_dev=True))
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            await ended(driver, TASK(tmp_path, {"command": "true"}))
            nursery.cancel_scope.cancel()
        while processes_of(tmp_path / "raw_exec"):
            await trio.sleep(0.01)

    run(scenario)
