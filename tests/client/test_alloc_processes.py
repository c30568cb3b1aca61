"""Allocations of real processes: the runner with its true journal, hooks and driver, on real time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.client.alloc_runner import AllocRunner
from fedsched.client.context import ClientParts
from fedsched.client.journal import Journal
from fedsched.client.mounts import unmount_below
from fedsched.drivers.raw_exec import RawExecDriver
from fedsched.drivers.registry import DriverHost
from fedsched.env.real import RealEnv
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.policies import RestartPolicy
from fedsched.model.task_state import TaskStatus
from fedsched.telemetry.log import get_logger
from tests.builders import a_group, a_job, a_task
from tests.client.alloc_world import World, an_allocation, events_of
from tests.drivers.supervised import retire

ALONE = 'exec 9>"$NOMAD_ALLOC_DIR/data/lock"; flock -n 9 || { echo twice >>"$NOMAD_ALLOC_DIR/data/story"; exit 99; }'
"""A task that finds itself running already says so and ends with 99."""


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        with trio.fail_after(60):
            await scenario()

    trio.run(within)


def script(text: str, **fields: Any) -> Allocation:
    config = {"command": "/bin/sh", "args": ["-c", f'{ALONE}; echo began >>"$NOMAD_ALLOC_DIR/data/story"; {text}']}
    task = a_task(driver="raw_exec", config=config, restart_policy=RestartPolicy(attempts=0), **fields)
    return an_allocation(job=a_job(type="batch", groups=[a_group(tasks=[task])]))


@asynccontextmanager
async def an_agent(place: Path, alloc: Allocation) -> AsyncIterator[tuple[AllocRunner, trio.Event]]:
    """A runner of an allocation, new or as the journal knows it; gone without a word at the end of the block."""
    driver = RawExecDriver(DriverHost(state_dir=place / "raw_exec", denied_users=()))
    parts: ClientParts = World(place).parts(driver, has_contact=True)
    parts = ClientParts(**{name: getattr(parts, name) for name in parts.__slots__} | {"env": RealEnv()})
    (place / "state").mkdir(exist_ok=True)
    journal = Journal(place / "state", get_logger("client")).open()
    stored = next(iter(journal.load()), None)
    over = trio.Event()

    async def run_it() -> None:
        await runner.run()
        over.set()

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            runner = AllocRunner(parts, alloc, journal, stored=stored, on_change=lambda _: None)
            nursery.start_soon(run_it)
            yield runner, over
            nursery.cancel_scope.cancel()
    finally:
        journal.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> object:
    yield
    unmount_below(tmp_path / "allocs")
    retire(tmp_path / "raw_exec")


async def until(runner: AllocRunner, status: TaskStatus) -> None:
    while (state := runner.task_states["web"]).state is not status:
        assert state.state is not TaskStatus.DEAD, state.events
        await trio.sleep(0.01)


def test_a_process_runs_on_under_the_next_agent_and_its_exit_code_is_true(tmp_path: Path) -> None:
    async def scenario() -> None:
        alloc = script("sleep 1; exit 7")
        async with an_agent(tmp_path, alloc) as (runner, _):
            await until(runner, TaskStatus.RUNNING)
            task_id = runner.tasks["web"].task_id
        async with an_agent(tmp_path, alloc) as (runner, over):
            while not runner.tasks["web"].is_running:
                await trio.sleep(0.01)
            assert runner.tasks["web"].task_id == task_id
            await over.wait()
            ended = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert ended.exit_code == 7
            story = tmp_path / "allocs" / alloc.id / "alloc" / "data" / "story"
            assert story.read_text() == "began\n"
            await runner.destroy()
            assert not (tmp_path / "allocs" / alloc.id).exists()

    run(scenario)


def test_a_process_that_ended_without_an_agent_is_told_truly(tmp_path: Path) -> None:
    async def scenario() -> None:
        alloc = script("sleep 0.3; exit 5")
        async with an_agent(tmp_path, alloc) as (runner, _):
            await until(runner, TaskStatus.RUNNING)
        await trio.sleep(0.6)
        async with an_agent(tmp_path, alloc) as (runner, over):
            await over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            ended = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert ended.exit_code == 5
            await runner.destroy()

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_an_agent_gone_while_a_process_starts_neither_loses_nor_doubles_it(tmp_path: Path, after_s: float) -> None:
    async def scenario() -> None:
        alloc = script("sleep 0.2; exit 3")
        async with an_agent(tmp_path, alloc):
            await trio.sleep(after_s)
        async with an_agent(tmp_path, alloc) as (runner, over):
            await over.wait()
            codes = [event.exit_code for event in runner.task_states["web"].events if event.type == "Terminated"]
            assert codes == [3]
            story = tmp_path / "allocs" / alloc.id / "alloc" / "data" / "story"
            assert story.read_text() == "began\n"
            await runner.destroy()

    run(scenario)


def test_a_process_that_ignores_its_signal_is_killed_after_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        alloc = script("trap '' INT; while :; do sleep 0.05; done", kill_timeout_s=0.3)
        async with an_agent(tmp_path, alloc) as (runner, over):
            await until(runner, TaskStatus.RUNNING)
            await trio.sleep(0.2)
            runner.stop()
            await over.wait()
            assert runner.report().client_status is ClientStatus.COMPLETE
            assert events_of(runner)[-3:] == ["Killing", "Terminated", "Killed"]
            assert runner.task_states["web"].events[-2].signal == 9
            await runner.destroy()

    run(scenario)
