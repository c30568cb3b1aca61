"""Agents that are killed anywhere: before and after every write and every deed of a driver.

No task may run beside itself, none may be lost or run again after it was done, and the exit codes that are told are
the true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.policies import RestartPolicy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.task_state import TaskState, TaskStatus
from tests.builders import a_group, a_job, a_task
from tests.client.alloc_world import Agent, World, an_allocation

ONCE = RestartPolicy(attempts=0)


@dataclass(frozen=True)
class Story:
    """An allocation, what is asked of it, and how it must end wherever agents are killed."""

    name: str
    alloc: Callable[[], Allocation]
    ends: Mapping[str, list[int]]
    """The exit codes of each task's starts, in order."""
    status: ClientStatus
    stop_after_s: float | None = None


def batch(*tasks: Any, **fields: Any) -> Allocation:
    return an_allocation(job=a_job(type="batch", groups=[a_group(tasks=tasks, **fields)]))


def one_shot(name: str, hook: str, **config: Any) -> Any:
    return a_task(name, config=config, lifecycle=TaskLifecycle(hook=hook), restart_policy=ONCE)


STORIES = [
    Story(
        "a batch task that succeeds",
        lambda: batch(a_task(config={"run_for": "5s"})),
        {"web": [0]},
        ClientStatus.COMPLETE,
    ),
    Story(
        "a task that ends with 3 and is not restarted",
        lambda: batch(a_task(config={"run_for": "5s", "exit_code": 3}, restart_policy=ONCE)),
        {"web": [3]},
        ClientStatus.FAILED,
    ),
    Story(
        "a task that fails once and is restarted",
        lambda: batch(
            a_task(
                config={"run_for": "5s", "exit_on_attempt": {"1": 4}},
                restart_policy=RestartPolicy(attempts=2, delay_s=3.0),
            )
        ),
        {"web": [4, 0]},
        ClientStatus.COMPLETE,
    ),
    Story(
        "a service that is stopped",
        lambda: an_allocation(a_group(tasks=[a_task(config={"run_for": "10h"}, shutdown_delay_s=2.0)])),
        {"web": [130]},
        ClientStatus.COMPLETE,
        stop_after_s=7.0,
    ),
    Story(
        "tasks of every stage",
        lambda: batch(
            one_shot("init", "prestart", run_for="1s"),
            a_task(config={"run_for": "5s"}),
            one_shot("after", "poststop", run_for="1s"),
        ),
        {"init": [0], "web": [0], "after": [0]},
        ClientStatus.COMPLETE,
    ),
    Story(
        "a sibling that fails",
        lambda: batch(
            a_task("bad", config={"run_for": "5s", "exit_code": 1}, restart_policy=ONCE),
            a_task(config={"run_for": "10h"}),
        ),
        {"bad": [1], "web": [130]},
        ClientStatus.FAILED,
    ),
]


@dataclass
class Outcome:
    status: ClientStatus
    states: dict[str, TaskState]
    codes: dict[str, list[int]]
    points: list[str]
    seen_dead: set[str]


def live_through(story: Story, root: Path, kills: list[int]) -> Outcome:
    """Run a story, killing an agent at each of these points (counted from its own start)."""
    outcome: list[Outcome] = []

    async def main() -> None:
        world = World(root)
        alloc = story.alloc()
        points: list[str] = []
        seen_dead: set[str] = set()
        for kill_at in [*kills, 0]:
            world.faults.passed.clear()
            world.faults.kill_at = kill_at
            world.faults.killed = trio.Event()
            async with world.agent() as agent:
                if await ended(story, agent, alloc, seen_dead):
                    points = points or list(world.faults.passed)
                    outcome.append(final(world, agent, points, seen_dead))
                    return
            points = points or list(world.faults.passed)
        raise AssertionError("the last agent never finished")

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return outcome[0]


async def ended(story: Story, agent: Agent, alloc: Allocation, seen_dead: set[str]) -> bool:
    """Let an agent live until the story is over or it is killed; whether it is over."""
    runner = agent.take_up(alloc)

    async def wait_for(event: trio.Event, scope: trio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async def stop_later() -> None:
        assert story.stop_after_s is not None
        await trio.sleep_until(story.stop_after_s)
        runner.stop()

    with trio.fail_after(10_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, agent.is_over, nursery.cancel_scope)
            nursery.start_soon(wait_for, agent.world.faults.killed, nursery.cancel_scope)
            if story.stop_after_s is not None:
                nursery.start_soon(stop_later)
    note_deaths(agent, seen_dead)
    return agent.is_over.is_set()


def note_deaths(agent: Agent, seen_dead: set[str]) -> None:
    """What was once shown as dead must stay dead."""
    for _, report in agent.changes:
        for name, state in report.task_states.items():
            if state.state is TaskStatus.DEAD:
                seen_dead.add(name)
            else:
                assert name not in seen_dead, f"{name} was shown dead and lives again"


def final(world: World, agent: Agent, points: list[str], seen_dead: set[str]) -> Outcome:
    world.place.check_no_overlap()
    assert world.place.tasks == {}, "something is left with the driver"
    report = agent.runner.report()
    codes = {
        name: [event.exit_code for event in state.events if event.type == "Terminated"]
        for name, state in report.task_states.items()
    }
    return Outcome(report.client_status, dict(report.task_states), codes, points, seen_dead)


def check(story: Story, outcome: Outcome) -> None:
    assert outcome.codes == {name: list(codes) for name, codes in story.ends.items()}
    assert outcome.status is story.status
    assert all(state.state is TaskStatus.DEAD for state in outcome.states.values())


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_an_agent_may_be_killed_at_every_step(story: Story, tmp_path: Path) -> None:
    undisturbed = live_through(story, tmp_path, [])
    check(story, undisturbed)

    for number, name in enumerate(undisturbed.points, 1):
        try:
            check(story, live_through(story, tmp_path, [number]))
        except BaseException as error:
            error.add_note(f"killed at point {number}: {name}")
            raise


@pytest.mark.parametrize("story", STORIES[:4], ids=lambda story: story.name)
def test_the_next_agent_may_be_killed_early_too(story: Story, tmp_path: Path) -> None:
    points = live_through(story, tmp_path, []).points

    for number in range(1, len(points) + 1):
        for again in (1, 2, 3, 4, 5):
            try:
                check(story, live_through(story, tmp_path, [number, again]))
            except BaseException as error:
                error.add_note(f"killed at point {number}, then at {again}")
                raise


@settings(max_examples=60)
@given(story=st.sampled_from(STORIES), kills=st.lists(st.integers(1, 30), max_size=8))
def test_any_number_of_agents_may_be_killed_anywhere(story: Story, kills: list[int]) -> None:
    with TemporaryDirectory() as root:
        check(story, live_through(story, Path(root), kills))


@pytest.mark.parametrize(("count", "step"), [(10, 5), (100, 409)])
def test_an_agent_with_many_tasks_may_be_killed_at_any_step(count: int, step: int, tmp_path: Path) -> None:
    names = [f"t{number:03}" for number in range(count)]

    def alloc() -> Allocation:
        return batch(
            *(
                a_task(name, config={"run_for": f"{3 + number % 5}s", "exit_on_attempt": {"1": number % 2}})
                for number, name in enumerate(names)
            )
        )

    ends = {name: [1, 0] if number % 2 else [0] for number, name in enumerate(names)}
    story = Story(f"{count} tasks", alloc, ends, ClientStatus.COMPLETE)
    points = live_through(story, tmp_path, []).points

    for number in range(1, len(points) + 1, step):
        try:
            check(story, live_through(story, tmp_path, [number]))
        except BaseException as error:
            error.add_note(f"killed at point {number} of {len(points)}: {points[number - 1]}")
            raise
