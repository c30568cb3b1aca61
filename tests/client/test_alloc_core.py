"""An allocation as a whole: who takes whom along, in which order, and when time itself ends it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedsched.client.alloc_core import (
    RESTART_ALL,
    RESTART_ONE,
    RESTART_RUNNING,
    AllocCore,
    AllocEffect,
    Finish,
    GroupRules,
    RunAllocPrekill,
    TaskFacts,
    Tell,
    describe,
    group_rules,
)
from fedsched.client.lifecycle import Stage
from fedsched.client.task_signals import (
    FinishAsked,
    GateChanged,
    KillAsked,
    RestartAsked,
    ReviveAsked,
    SetupFailed,
)
from fedsched.model.alloc import ClientStatus
from fedsched.model.policies import DisconnectStrategy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.task_state import TaskState, TaskStatus
from tests.builders import a_group, a_task

NS = 1_000_000_000
PENDING = TaskState()
RUNNING = TaskState(state=TaskStatus.RUNNING)
DONE = TaskState(state=TaskStatus.DEAD)
FAILED = TaskState(state=TaskStatus.DEAD, failed=True)

MAIN = TaskFacts(Stage.MAIN)
LEADER = TaskFacts(Stage.MAIN, is_leader=True)
INIT = TaskFacts(Stage.PRESTART)
SIDE = TaskFacts(Stage.PRESTART_SIDECAR)
LAST = TaskFacts(Stage.POSTSTOP)


class Alloc:
    """A core whose tasks do at once what they are told, unless a test says otherwise."""

    def __init__(self, rules: dict[str, TaskFacts], *, states: dict[str, TaskState] | None = None, **more: Any) -> None:
        known = states or dict.fromkeys(rules, PENDING)
        self.core = AllocCore(GroupRules(rules, **more), known, is_restored=states is not None)
        self.now = 0.0
        self.effects: list[AllocEffect] = []

    def do(self, effects: list[AllocEffect]) -> list[AllocEffect]:
        self.effects = effects
        return effects

    def begin(self, first_start_ns: int = 0) -> list[AllocEffect]:
        return self.do(self.core.begin(now=self.now, wall_ns=round(self.now * NS), first_start_ns=first_start_ns))

    def run(self, *names: str) -> Alloc:
        """Begin, with these tasks running."""
        self.begin()
        for name in names:
            self.core.task_changed(name, RUNNING)
        return self

    def is_now(self, name: str, state: TaskState) -> list[AllocEffect]:
        return self.do(self.core.task_changed(name, state))

    def kills(self) -> list[str]:
        """Who is told to die, of the last effects."""
        return [
            effect.task for effect in self.effects if isinstance(effect, Tell) and isinstance(effect.given, KillAsked)
        ]

    def cause(self) -> str:
        causes = [
            effect.given.cause.type
            for effect in self.effects
            if isinstance(effect, Tell) and isinstance(effect.given, KillAsked) and effect.given.cause
        ]
        assert len(set(causes)) == 1
        return causes[0]

    def prekill_done(self) -> list[str]:
        self.do(self.core.prekill_done(self.now))
        return self.kills()

    def opened(self) -> list[str]:
        return [
            effect.task for effect in self.effects if isinstance(effect, Tell) and effect.given == GateChanged(True)
        ]

    def is_finished(self) -> bool:
        return Finish() in self.effects


def test_gates_open_when_the_allocation_begins_and_move_with_its_tasks() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN})
    assert alloc.is_now("web", PENDING) == []
    alloc.begin()
    assert alloc.opened() == ["init"]
    alloc.is_now("init", RUNNING)
    alloc.is_now("init", DONE)

    assert Tell("web", GateChanged(True)) in alloc.effects
    assert Tell("init", GateChanged(False)) in alloc.effects


def test_the_end_of_all_tasks_is_the_end() -> None:
    alloc = Alloc({"web": MAIN}).run("web")
    alloc.is_now("web", DONE)

    assert alloc.is_finished()
    assert Tell("web", FinishAsked()) in alloc.effects
    assert alloc.core.client_status is ClientStatus.COMPLETE
    assert not alloc.core.may_restart
    assert alloc.is_now("web", DONE) == []


def test_a_failed_task_takes_its_siblings_along() -> None:
    alloc = Alloc({"a": MAIN, "b": MAIN, "c": MAIN}).run("a", "b", "c")
    assert RunAllocPrekill() in alloc.is_now("a", FAILED)

    assert alloc.prekill_done() == ["b", "c"]
    assert alloc.cause() == "Sibling Task Failed"
    alloc.is_now("b", DONE)
    alloc.is_now("c", DONE)
    assert alloc.is_finished()
    assert alloc.core.client_status is ClientStatus.FAILED


def test_a_successful_task_takes_nobody_along() -> None:
    alloc = Alloc({"a": MAIN, "b": MAIN}).run("a", "b")

    assert alloc.is_now("a", DONE) == []


@pytest.mark.parametrize("state", [DONE, FAILED])
def test_a_leaders_death_is_the_reason_whether_it_failed_or_not(state: TaskState) -> None:
    alloc = Alloc({"a": LEADER, "b": MAIN}).run("a", "b")
    alloc.is_now("a", state)

    assert alloc.prekill_done() == ["b"]
    assert alloc.cause() == "Leader Task Dead"


def test_sidecars_do_not_outlive_the_main_tasks() -> None:
    alloc = Alloc({"side": SIDE, "web": MAIN}).run("side", "web")
    alloc.is_now("web", DONE)

    assert alloc.prekill_done() == ["side"]
    assert alloc.cause() == "Main Tasks Dead"


def test_sidecars_live_as_long_as_another_task_does() -> None:
    alloc = Alloc({"side": SIDE, "a": MAIN, "b": MAIN}).run("side", "a", "b")

    assert alloc.is_now("a", DONE) == []


def test_a_failed_prestart_task_ends_it_before_main_and_poststop_still_runs() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN, "last": LAST}).run("init")
    alloc.is_now("init", FAILED)
    assert alloc.prekill_done() == ["web"]
    alloc.is_now("web", DONE)

    assert alloc.opened() == ["last"]
    alloc.is_now("last", RUNNING)
    alloc.is_now("last", DONE)
    assert alloc.is_finished()


def test_a_failed_poststop_task_takes_nobody_along() -> None:
    alloc = Alloc({"web": MAIN, "last": LAST}).run("web")
    alloc.is_now("web", DONE)

    assert alloc.is_now("last", FAILED) == [Finish(), Tell("web", FinishAsked()), Tell("last", FinishAsked())]


# -- the order of a kill


def test_a_stop_kills_leader_then_others_then_sidecars_and_poststop_runs() -> None:
    alloc = Alloc({"side": SIDE, "lead": LEADER, "a": MAIN, "b": MAIN, "last": LAST}, shutdown_delay_s=4.0)
    alloc.run("side", "lead", "a", "b")
    assert RunAllocPrekill() in alloc.do(alloc.core.stop())
    assert alloc.prekill_done() == []
    assert alloc.core.wake_at(math.inf) == 4.0
    alloc.do(alloc.core.wake(4.0, 0.0))
    assert alloc.kills() == ["lead"]
    alloc.is_now("lead", DONE)
    assert alloc.kills() == ["a", "b"]
    alloc.is_now("a", DONE)
    assert alloc.kills() == []
    alloc.is_now("b", DONE)
    assert alloc.kills() == ["side"]
    alloc.is_now("side", DONE)
    assert alloc.opened() == ["last"]
    alloc.is_now("last", DONE)
    assert alloc.is_finished()


def test_a_stop_without_delay_goes_on_at_once() -> None:
    alloc = Alloc({"a": MAIN}).run("a")
    alloc.do(alloc.core.stop("done with it"))

    assert alloc.prekill_done() == ["a"]
    kill = next(effect.given for effect in alloc.effects if isinstance(effect, Tell))
    assert isinstance(kill, KillAsked)
    assert (kill.reason, kill.cause) == ("done with it", None)
    assert alloc.core.prekill_done(0.0) == []


def test_asking_again_changes_nothing_unless_it_skips_the_delay() -> None:
    alloc = Alloc({"a": MAIN}, shutdown_delay_s=100.0).run("a")
    alloc.core.stop()
    alloc.prekill_done()
    assert alloc.do(alloc.core.stop()) == []

    alloc.do(alloc.core.stop(skips_delay=True))
    assert alloc.kills() == ["a"]
    assert alloc.core.wake_at(math.inf) == math.inf


def test_a_skip_while_tasks_wait_for_their_own_delays_reaches_them() -> None:
    alloc = Alloc({"a": MAIN, "b": LEADER}).run("a", "b")
    alloc.core.stop()
    assert alloc.prekill_done() == ["b"]
    alloc.is_now("b", DONE)
    alloc.do(alloc.core.stop(skips_delay=True))

    kills = [effect.given for effect in alloc.effects if isinstance(effect, Tell) and effect.task == "a"]
    assert kills
    assert all(isinstance(kill, KillAsked) and kill.skips_delay for kill in kills)


def test_a_skip_before_the_delay_has_begun_is_remembered() -> None:
    alloc = Alloc({"a": MAIN}, shutdown_delay_s=100.0).run("a")
    alloc.core.stop()
    alloc.core.stop(skips_delay=True)

    assert alloc.prekill_done() == ["a"]


def test_a_stop_before_anything_was_prepared_starts_nothing() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN, "last": LAST})
    alloc.do(alloc.core.stop("not wanted"))
    assert alloc.kills() == ["init", "web", "last"]
    for name in ("init", "web", "last"):
        alloc.is_now(name, DONE)

    assert alloc.is_finished()
    assert alloc.core.client_status is ClientStatus.COMPLETE


def test_tasks_that_wait_for_their_stage_are_killed_too() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN}).run("init")
    alloc.core.stop()

    assert alloc.prekill_done() == ["init", "web"]


def test_hooks_that_fail_the_allocation_fail_every_task_and_nothing_else() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN, "last": LAST})
    alloc.do(alloc.core.prerun_failed("no disk"))
    assert next(effect.given for effect in alloc.effects if isinstance(effect, Tell) and effect.task == "last") == (
        SetupFailed("no disk")
    )
    for name in ("init", "web", "last"):
        alloc.is_now(name, FAILED)
        assert alloc.kills() == []

    assert alloc.is_finished()
    assert alloc.core.client_status is ClientStatus.FAILED


# -- time


def test_max_run_duration_ends_it_and_skips_poststop() -> None:
    alloc = Alloc({"web": MAIN, "last": LAST}, max_run_s=60.0).run("web")
    assert alloc.core.wake_at(math.inf) == 60.0
    assert alloc.core.wake(59.9, 59.9) == []

    assert RunAllocPrekill() in alloc.do(alloc.core.wake(60.0, 60.0))
    alloc.now = 60.0
    assert alloc.prekill_done() == ["web", "last"]
    alloc.is_now("last", DONE)
    alloc.is_now("web", DONE)
    assert alloc.is_finished()
    assert alloc.core.stop_reason == "Ran for its max_run_duration of 1m0s"


def test_max_run_duration_counts_from_the_first_start_over_agents() -> None:
    alloc = Alloc({"web": MAIN}, states={"web": RUNNING}, max_run_s=60.0)
    alloc.now = 50.0
    alloc.begin(first_start_ns=10 * NS)

    assert alloc.core.wake_at(math.inf) == 70.0


def test_a_client_alone_for_too_long_stops_it() -> None:
    alloc = Alloc({"web": MAIN}, stop_alone_s=30.0).run("web")
    assert alloc.core.wake_at(100.0) == 130.0
    assert alloc.core.wake(129.0, 100.0) == []
    assert alloc.core.wake(200.0, 180.0) == []

    assert RunAllocPrekill() in alloc.core.wake(210.0, 180.0)
    assert alloc.core.is_stopping
    assert alloc.core.wake_at(180.0) == math.inf


def test_rules_that_change_in_place_apply() -> None:
    alloc = Alloc({"web": MAIN}, max_run_s=60.0).run("web")
    alloc.core.update(GroupRules({"web": MAIN}, max_run_s=90.0), now=5.0, wall_ns=5 * NS, first_start_ns=0)

    assert alloc.core.wake_at(math.inf) == 90.0
    alloc.core.update(GroupRules({"web": MAIN}), now=5.0, wall_ns=5 * NS, first_start_ns=0)
    assert alloc.core.wake_at(math.inf) == math.inf


def test_an_update_before_the_beginning_waits_for_it() -> None:
    alloc = Alloc({"web": MAIN})

    assert alloc.core.update(GroupRules({"web": MAIN}, max_run_s=9.0), now=0.0, wall_ns=0, first_start_ns=0) == []
    assert alloc.core.wake_at(math.inf) == math.inf


# -- restarts


def test_one_task_or_all_that_run_are_restarted() -> None:
    alloc = Alloc({"a": MAIN, "b": MAIN, "c": MAIN}).run("a", "b")

    assert alloc.core.restart("c") == [Tell("c", RestartAsked(RESTART_ONE))]
    assert alloc.core.restart() == [Tell("a", RestartAsked(RESTART_RUNNING)), Tell("b", RestartAsked(RESTART_RUNNING))]


def test_all_tasks_begin_anew_from_the_first_stage() -> None:
    alloc = Alloc({"init": INIT, "web": MAIN}).run("init")
    alloc.is_now("init", DONE)
    alloc.is_now("web", RUNNING)
    alloc.do(alloc.core.restart_all())
    assert [
        effect for effect in alloc.effects if isinstance(effect, Tell) and isinstance(effect.given, ReviveAsked)
    ] == [
        Tell("init", ReviveAsked(RESTART_ALL)),
        Tell("web", ReviveAsked(RESTART_ALL)),
    ]
    alloc.is_now("init", PENDING)
    assert alloc.opened() == []
    alloc.is_now("web", PENDING)

    assert alloc.opened() == ["init"]


# -- after an agent's start


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ({"side": RUNNING, "web": FAILED, "other": RUNNING}, "Sibling Task Failed"),
        ({"side": RUNNING, "web": DONE, "other": DONE}, "Main Tasks Dead"),
    ],
)
def test_deaths_that_an_earlier_agent_did_not_act_on_are_acted_on(states: dict[str, TaskState], cause: str) -> None:
    alloc = Alloc({"side": SIDE, "web": MAIN, "other": MAIN}, states=states)
    assert RunAllocPrekill() in alloc.begin()
    alloc.prekill_done()

    assert alloc.cause() == cause


def test_a_restored_leaders_death_comes_first() -> None:
    alloc = Alloc({"a": MAIN, "lead": LEADER, "b": MAIN}, states={"a": FAILED, "lead": DONE, "b": RUNNING})
    alloc.begin()
    alloc.prekill_done()

    assert alloc.cause() == "Leader Task Dead"


def test_a_restored_allocation_whose_tasks_are_dead_is_finished_at_once() -> None:
    alloc = Alloc({"web": MAIN}, states={"web": DONE})
    alloc.begin()

    assert alloc.is_finished()


# -- what the job says


def test_a_groups_rules() -> None:
    group = a_group(
        tasks=[a_task("a", leader=True), a_task("b", lifecycle=TaskLifecycle(hook="prestart", sidecar=True))],
        shutdown_delay_s=3.0,
        max_run_duration_s=60.0,
        disconnect=DisconnectStrategy(stop_on_client_after_s=90.0),
    )
    rules = group_rules(group, "service")

    assert rules.tasks == {"a": LEADER, "b": SIDE}
    assert (rules.shutdown_delay_s, rules.max_run_s, rules.stop_alone_s) == (3.0, 60.0, 90.0)
    assert group_rules(group, "batch").stop_alone_s == 90.0
    assert group_rules(group, "system").stop_alone_s is None
    assert group_rules(a_group(stop_after_client_disconnect_s=7.0), "service").stop_alone_s == 7.0
    assert group_rules(a_group(), "service").stop_alone_s is None


def test_each_status_has_words() -> None:
    assert describe(ClientStatus.FAILED) == "Failed tasks"
    assert describe(ClientStatus.UNKNOWN) == ""
