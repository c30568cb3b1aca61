"""Health for deployments and migrations, on a clock told by hand."""

from __future__ import annotations

import math

import pytest

from fedsched.client.health_core import (
    CHECKS_NOT_HEALTHY,
    MIGRATION,
    TASK_ENDED,
    TASK_FAILED,
    TASK_NOT_RUNNING,
    HealthCore,
    HealthRules,
    HealthVerdict,
    health_rules,
    minds_checks,
    watched_for,
)
from fedsched.client.lifecycle import Stage
from fedsched.model.alloc import DesiredStatus
from fedsched.model.policies import MigrateStrategy, UpdateStrategy
from fedsched.model.service import Service, ServiceCheck
from fedsched.model.task_state import TaskState, TaskStatus
from tests.builders import a_group, a_job, a_task
from tests.client.alloc_world import an_allocation, changed

PENDING = TaskState()
RUNNING = TaskState(state=TaskStatus.RUNNING, started_at_ns=1)
AGAIN = TaskState(state=TaskStatus.RUNNING, started_at_ns=2, restarts=1)
DONE = TaskState(state=TaskStatus.DEAD)
FAILED = TaskState(state=TaskStatus.DEAD, failed=True)
HEALTHY = HealthVerdict(True, {})


def a_watch(stages: dict[str, Stage] | None = None, **rules: float | bool) -> HealthCore:
    known = stages or {"web": Stage.MAIN}
    return HealthCore(HealthRules(known, **{"min_healthy_s": 10.0, "deadline_s": 60.0, **rules}), now=0.0)  # type: ignore[arg-type]


def look(watch: HealthCore, now: float, state: TaskState = RUNNING, *, checks: bool = True) -> HealthVerdict | None:
    return watch.look({"web": state}, checks_pass=checks, now=now)


def test_healthy_after_running_long_enough_and_not_before() -> None:
    watch = a_watch()
    assert look(watch, 1.0) is None
    assert watch.next_look == 11.0
    assert look(watch, 10.99) is None

    assert look(watch, 11.0) == HEALTHY


def test_a_restart_starts_the_time_again() -> None:
    watch = a_watch()
    look(watch, 0.0)
    look(watch, 5.0, PENDING)
    look(watch, 8.0, AGAIN)
    assert look(watch, 17.9, AGAIN) is None

    assert look(watch, 18.0, AGAIN) == HEALTHY


def test_a_restart_that_nobody_saw_starts_the_time_again_too() -> None:
    watch = a_watch()
    look(watch, 0.0)
    assert look(watch, 10.0, AGAIN) is None

    assert look(watch, 20.0, AGAIN) == HEALTHY


def test_flapping_checks_start_the_time_again() -> None:
    watch = a_watch()
    look(watch, 0.0)
    look(watch, 9.0, checks=False)
    look(watch, 9.5)
    assert look(watch, 19.4) is None

    assert look(watch, 19.5) == HEALTHY


def test_checks_do_not_matter_where_only_task_states_do() -> None:
    watch = a_watch(needs_checks=False)
    look(watch, 0.0, checks=False)

    assert look(watch, 10.0, checks=False) == HEALTHY


@pytest.mark.parametrize(("state", "reason"), [(FAILED, TASK_FAILED), (DONE, TASK_ENDED)])
def test_a_task_that_ends_is_unhealthy_at_once(state: TaskState, reason: str) -> None:
    watch = a_watch()
    look(watch, 0.0)

    assert look(watch, 1.0, state) == HealthVerdict(False, {"web": reason})


def test_a_task_that_never_runs_is_unhealthy_exactly_at_the_deadline() -> None:
    watch = a_watch()
    assert watch.next_look == 60.0
    assert look(watch, 59.999, PENDING) is None

    assert look(watch, 60.0, PENDING) == HealthVerdict(False, {"web": TASK_NOT_RUNNING})


def test_a_task_that_did_not_run_long_enough_by_the_deadline() -> None:
    watch = a_watch()
    look(watch, 51.0)

    verdict = look(watch, 60.0)
    assert verdict is not None
    assert verdict.reasons == {"web": "Task not running for min_healthy_time of 10s by deadline"}


def test_healthy_exactly_at_the_deadline_counts() -> None:
    watch = a_watch()
    look(watch, 50.0)

    assert look(watch, 60.0) == HEALTHY


def test_a_late_look_still_knows_who_was_first() -> None:
    early, late = a_watch(), a_watch()
    look(early, 40.0)
    look(late, 51.0)

    assert look(early, 70.0) == HEALTHY
    verdict = look(late, 70.0)
    assert verdict is not None
    assert not verdict.is_healthy


def test_checks_that_do_not_pass_by_the_deadline() -> None:
    watch = a_watch()
    look(watch, 0.0, checks=False)

    assert look(watch, 60.0, checks=False) == HealthVerdict(False, {"web": CHECKS_NOT_HEALTHY})


def test_a_verdict_is_final() -> None:
    watch = a_watch()
    look(watch, 0.0)
    assert look(watch, 10.0) == HEALTHY

    assert look(watch, 11.0, FAILED) == HEALTHY


def test_one_shots_may_end_well_and_poststop_need_not_run() -> None:
    stages = {"init": Stage.PRESTART, "web": Stage.MAIN, "post": Stage.POSTSTART, "last": Stage.POSTSTOP}
    watch = a_watch(stages)
    states = {"init": DONE, "web": RUNNING, "post": DONE, "last": PENDING}
    watch.look(states, checks_pass=True, now=0.0)

    assert watch.look(states, checks_pass=True, now=10.0) == HEALTHY


def test_a_one_shot_that_still_runs_is_up_and_one_that_failed_is_not() -> None:
    stages = {"web": Stage.MAIN, "post": Stage.POSTSTART}
    watch = a_watch(stages)
    watch.look({"web": RUNNING, "post": PENDING}, checks_pass=True, now=0.0)
    watch.look({"web": RUNNING, "post": RUNNING}, checks_pass=True, now=3.0)
    assert watch.next_look == 13.0

    verdict = watch.look({"web": RUNNING, "post": FAILED}, checks_pass=True, now=4.0)
    assert verdict == HealthVerdict(False, {"post": TASK_FAILED})


def test_a_sidecar_that_ends_is_unhealthy() -> None:
    watch = a_watch({"side": Stage.PRESTART_SIDECAR})

    assert watch.look({"side": DONE}, checks_pass=True, now=0.0) == HealthVerdict(False, {"side": TASK_ENDED})


def test_what_health_is_wanted_for() -> None:
    group = a_group(update=UpdateStrategy(health_check="manual"))

    assert watched_for(an_allocation(deployment_id="d")) == "d"
    assert watched_for(an_allocation(group, deployment_id="d")) == ""
    assert watched_for(an_allocation()) == MIGRATION
    assert watched_for(an_allocation(a_group(migrate=None))) == ""
    assert watched_for(an_allocation(job=a_job(type="batch"))) == ""
    assert watched_for(changed(an_allocation(deployment_id="d"), desired_status=DesiredStatus.STOP)) == ""
    assert watched_for(changed(an_allocation(), job=None)) == ""


def test_rules_come_from_update_or_migrate() -> None:
    group = a_group(
        update=UpdateStrategy(min_healthy_time_s=1.0, healthy_deadline_s=2.0, health_check="task_states"),
        migrate=MigrateStrategy(min_healthy_time_s=3.0, healthy_deadline_s=0.0),
    )
    for_update = health_rules(an_allocation(group, deployment_id="d"))
    for_migration = health_rules(an_allocation(group))

    assert (for_update.min_healthy_s, for_update.deadline_s, for_update.needs_checks) == (1.0, 2.0, False)
    assert (for_migration.min_healthy_s, for_migration.deadline_s, for_migration.needs_checks) == (3.0, math.inf, True)
    assert health_rules(an_allocation(a_group(migrate=None))).min_healthy_s == 10.0


def test_checks_matter_unless_they_are_ignored() -> None:
    def with_check(on_update: str) -> bool:
        service = Service(name="web", checks=(ServiceCheck(name="up", on_update=on_update),))
        return minds_checks(an_allocation(a_group(tasks=[a_task(services=(service,))])))

    assert with_check("require_healthy")
    assert with_check("ignore_warnings")
    assert not with_check("ignore")
    assert not minds_checks(an_allocation())
    assert not minds_checks(changed(an_allocation(), job=None))
