"""The gates of an allocation's stages, row by row, and as properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.lifecycle import GATES, LifecycleCore, Period, Stage, stage_of
from fedsched.model.resources import TaskLifecycle
from fedsched.model.task_state import TaskState, TaskStatus

PENDING = TaskState()
RUNNING = TaskState(state=TaskStatus.RUNNING)
DONE = TaskState(state=TaskStatus.DEAD)
FAILED = TaskState(state=TaskStatus.DEAD, failed=True)

STAGES = {
    "init": Stage.PRESTART,
    "side": Stage.PRESTART_SIDECAR,
    "main": Stage.MAIN,
    "post": Stage.POSTSTART,
    "tail": Stage.POSTSTART_SIDECAR,
    "stop": Stage.POSTSTOP,
}


def states(**known: TaskState) -> dict[str, TaskState]:
    return {name: known.get(name, PENDING) for name in STAGES}


def period(known: dict[str, TaskState], *, is_restored: bool = False) -> Period:
    core = LifecycleCore(STAGES, is_restored=is_restored)
    core.update(states())
    core.update(known)
    return core.period


@pytest.mark.parametrize(
    ("hook", "sidecar", "stage"),
    [
        ("", False, Stage.MAIN),
        ("prestart", False, Stage.PRESTART),
        ("prestart", True, Stage.PRESTART_SIDECAR),
        ("poststart", False, Stage.POSTSTART),
        ("poststart", True, Stage.POSTSTART_SIDECAR),
        ("poststop", False, Stage.POSTSTOP),
    ],
)
def test_a_block_says_the_stage(hook: str, sidecar: bool, stage: Stage) -> None:
    assert stage_of(TaskLifecycle(hook=hook, sidecar=sidecar)) is stage
    assert stage_of(None) is Stage.MAIN


def test_nothing_is_open_until_all_tasks_are_pending() -> None:
    core = LifecycleCore(STAGES)
    assert core.open_stages == frozenset()
    assert not core.update(states(main=RUNNING))
    assert core.period is Period.INIT

    assert core.update(states())
    assert core.period is Period.PRESTART


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, Period.PRESTART),
        ({"init": RUNNING, "side": RUNNING}, Period.PRESTART),
        ({"init": DONE}, Period.PRESTART),
        ({"side": RUNNING}, Period.PRESTART),
        ({"init": FAILED, "side": RUNNING}, Period.PRESTART),
        ({"init": DONE, "side": DONE}, Period.PRESTART),
        ({"init": DONE, "side": RUNNING}, Period.MAIN),
        ({"init": DONE, "side": RUNNING, "main": RUNNING}, Period.POSTSTART),
        ({"init": DONE, "side": RUNNING, "main": DONE}, Period.POSTSTART),
        ({"init": DONE, "side": RUNNING, "main": RUNNING, "post": RUNNING}, Period.POSTSTART),
        ({"init": DONE, "side": RUNNING, "main": RUNNING, "post": DONE}, Period.WAIT),
        ({"init": DONE, "side": RUNNING, "main": RUNNING, "post": FAILED}, Period.WAIT),
        ({"init": FAILED, "side": DONE, "main": DONE, "post": DONE, "tail": DONE}, Period.POSTSTOP),
        ({"init": DONE, "side": DONE, "main": FAILED, "post": DONE, "tail": DONE}, Period.POSTSTOP),
        ({"init": DONE, "side": DONE, "main": DONE, "post": DONE, "tail": RUNNING}, Period.PRESTART),
    ],
)
def test_rows_of_the_table(known: dict[str, TaskState], expected: Period) -> None:
    assert period(states(**known)) is expected


def test_it_never_goes_back_when_a_task_waits_for_a_restart() -> None:
    core = LifecycleCore(STAGES)
    core.update(states())
    core.update(states(init=DONE, side=RUNNING, main=RUNNING))
    assert core.period is Period.POSTSTART

    core.update(states(init=DONE, side=PENDING, main=PENDING))

    assert core.period is Period.POSTSTART
    assert core.is_open("main")
    assert core.is_open("side")
    assert not core.is_open("init")


@pytest.mark.parametrize(
    ("at", "opened"),
    [
        (Period.INIT, set()),
        (Period.PRESTART, {"init", "side"}),
        (Period.MAIN, {"side", "main"}),
        (Period.POSTSTART, {"side", "main", "post", "tail"}),
        (Period.WAIT, {"side", "main", "tail"}),
        (Period.POSTSTOP, {"stop"}),
    ],
)
def test_open_gates(at: Period, opened: set[str]) -> None:
    core = LifecycleCore(STAGES)
    core.period = at

    assert {name for name in STAGES if core.is_open(name)} == opened


def test_a_restored_allocation_finds_its_place() -> None:
    core = LifecycleCore(STAGES, is_restored=True)
    core.update(states(init=DONE, side=RUNNING, main=RUNNING, post=DONE))

    assert core.period is Period.WAIT


def test_begun_anew_it_waits_for_all_to_be_pending() -> None:
    core = LifecycleCore(STAGES, is_restored=True)
    core.update(states(init=DONE, side=RUNNING, main=RUNNING, post=DONE))
    core.restart()
    core.update(states(side=RUNNING))
    assert core.period is Period.INIT

    core.update(states())
    assert core.period is Period.PRESTART


def test_a_group_of_main_tasks_only_starts_at_once() -> None:
    core = LifecycleCore({"a": Stage.MAIN, "b": Stage.MAIN})
    core.update({"a": PENDING, "b": PENDING})

    assert core.is_open("a")
    assert core.is_open("b")


kinds = st.sampled_from(list(Stage))
conditions = st.sampled_from([PENDING, RUNNING, DONE, FAILED])


@settings(max_examples=200)
@given(st.data())
def test_gates_over_any_story(data: Any) -> None:
    stages = {f"t{number}": stage for number, stage in enumerate(data.draw(st.lists(kinds, min_size=1, max_size=5)))}
    core = LifecycleCore(stages)
    known = dict.fromkeys(stages, PENDING)
    core.update(known)
    order = list(Period)
    for _ in range(data.draw(st.integers(0, 12))):
        name = data.draw(st.sampled_from(sorted(stages)))
        known = {**known, name: data.draw(conditions)}
        before = core.period
        core.update(known)
        others_dead = all(known[one].state is TaskStatus.DEAD for one in stages if stages[one] is not Stage.POSTSTOP)
        assert order.index(core.period) >= order.index(before), "it went back"
        if core.period is not before and core.period is not Period.POSTSTOP:
            assert not others_dead
        if others_dead:
            assert core.period is Period.POSTSTOP
        if Stage.MAIN in GATES[core.period] and Stage.MAIN not in GATES[before]:
            assert all(known[one].is_successful for one in stages if stages[one] is Stage.PRESTART)
        if Stage.POSTSTOP in core.open_stages and Stage.POSTSTOP not in GATES[before]:
            assert others_dead
