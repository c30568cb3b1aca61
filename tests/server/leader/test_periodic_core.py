"""When periodic jobs are launched, once each, whatever leaders and clocks do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fedsched.model.alloc import ClientStatus
from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.job import Job, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.periodic import next_launch
from fedsched.server.leader.periodic_core import (
    LaunchPeriodic,
    PeriodicCore,
    PeriodicEffect,
    SkipLaunch,
    child_of,
    command_of,
    forced_launch,
)
from tests.builders import a_job
from tests.server.leader.worlds import NS, START_NS, Region

MINUTE = 60 * NS
FIRST = (START_NS // MINUTE + 1) * MINUTE


def a_periodic(job_id: str = "report", *lines: str, **fields: Any) -> Job:
    config = PeriodicConfig(specs=lines or ("* * * * *",), **fields)
    return a_job(job_id, type="batch", periodic=config, submit_time_ns=START_NS)


class Launcher:
    """A leader's core over a region, with everything it asks for carried out."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.core = PeriodicCore()
        self.launched: list[int] = []
        self.skipped: list[int] = []

    def begin(self) -> list[PeriodicEffect]:
        self.core = PeriodicCore()
        effects = self.core.begin(self.region.store, self.region.now_ns, self.region.new_id)
        self.region.everything()
        return self.perform(effects)

    def step(self) -> list[PeriodicEffect]:
        self.core.note(self.region.store, self.region.changes(), self.region.now_ns)
        return self.perform(self.core.wake(self.region.store, self.region.now_ns, self.region.new_id))

    def perform(self, effects: list[PeriodicEffect]) -> list[PeriodicEffect]:
        for effect in effects:
            command = command_of(effect)
            if command is not None and self.region.do(command).result.value["launched"]:
                self.launched.append(effect.launch_ns)
            if isinstance(effect, SkipLaunch):
                self.skipped.append(effect.launch_ns)
        return effects

    def until(self, time_ns: int) -> None:
        """Let time pass, waking when the core wants to."""
        while True:
            self.step()
            wake_at = self.core.wake_at_ns()
            if wake_at is None or wake_at > time_ns:
                break
            self.region.now_ns = max(self.region.now_ns, wake_at)
        self.region.now_ns = max(self.region.now_ns, time_ns)
        self.step()


def started(*jobs: Job) -> Launcher:
    region = Region()
    launcher = Launcher(region)
    launcher.begin()
    for job in jobs:
        region.register(job)
    launcher.step()
    return launcher


def test_a_launch_registers_a_child_named_after_its_time_without_the_schedule() -> None:
    launcher = started(a_periodic())

    launcher.until(FIRST)

    child = launcher.region.store.jobs.get("default", f"report/periodic-{FIRST // NS}")
    assert child is not None
    assert child.parent_id == "report"
    assert child.periodic is None
    assert child.type == "batch"
    made = list(launcher.region.store.evaluations.of_job("default", child.id))
    assert [row.triggered_by for row in made] == [Trigger.PERIODIC_JOB.value]


def test_the_launch_time_is_stored_with_the_registration_of_the_child() -> None:
    launcher = started(a_periodic())

    launcher.until(FIRST)

    assert launcher.region.store.jobs.last_launch_ns("default", "report") == FIRST


def test_the_next_time_is_known_before_the_launch_is_asked_for() -> None:
    launcher = started(a_periodic())
    launcher.region.now_ns = FIRST

    effects = launcher.core.wake(launcher.region.store, FIRST, launcher.region.new_id)

    assert len(effects) == 1
    assert launcher.core.tracked() == {("default", "report"): FIRST + MINUTE}


def test_every_minute_is_launched_once() -> None:
    launcher = started(a_periodic())

    launcher.until(FIRST + 9 * MINUTE)

    assert launcher.launched == [FIRST + at * MINUTE for at in range(10)]


def test_of_several_lines_the_earliest_is_launched_first() -> None:
    launcher = started(a_periodic("report", "*/7 * * * *", "*/5 * * * *"))

    launcher.until(FIRST + 20 * MINUTE)

    assert launcher.launched == sorted(launcher.launched)
    assert all((time // MINUTE) % 5 == 0 or (time // MINUTE % 60) % 7 == 0 for time in launcher.launched)
    assert len(set(launcher.launched)) == len(launcher.launched) > 4


def test_a_deprecated_single_line_counts_too() -> None:
    job = a_job("old", type="batch", periodic=PeriodicConfig(spec="0 0 * * *"))

    assert next_launch(job, START_NS) == (START_NS // (86400 * NS) + 1) * 86400 * NS


@pytest.mark.parametrize(
    "job",
    [
        a_periodic(enabled=False),
        structs.replace(a_periodic(), stop=True),
        structs.replace(a_periodic(), parameterized_job=ParameterizedJobConfig()),
        a_job("plain"),
    ],
    ids=["switched off", "stopped", "also parameterized", "not periodic"],
)
def test_what_is_not_launched_by_time_has_no_next_launch_and_is_not_tracked(job: Job) -> None:
    launcher = started(job)

    assert next_launch(job, START_NS) is None
    assert launcher.core.tracked() == {}


def test_a_job_that_is_stopped_is_untracked_and_one_registered_again_is_tracked_again() -> None:
    launcher = started(a_periodic())
    launcher.region.stop("report")
    launcher.until(FIRST + 3 * MINUTE)
    assert launcher.launched == []

    launcher.region.register(structs.replace(a_periodic(), priority=70, submit_time_ns=launcher.region.now_ns))
    launcher.until(FIRST + 5 * MINUTE)

    assert launcher.launched == [FIRST + 4 * MINUTE, FIRST + 5 * MINUTE]


def test_a_job_that_is_purged_is_untracked() -> None:
    launcher = started(a_periodic())
    launcher.region.stop("report", purge=True)

    launcher.until(FIRST + 2 * MINUTE)

    assert launcher.launched == []
    assert launcher.core.tracked() == {}


def test_a_new_schedule_replaces_the_old_one() -> None:
    launcher = started(a_periodic("report", "* * * * *"))

    launcher.region.register(a_periodic("report", "0 0 1 1 *"))
    launcher.until(FIRST + 5 * MINUTE)

    assert launcher.launched == []


def test_a_change_of_status_alone_does_not_move_a_launch_that_is_due() -> None:
    launcher = started(a_periodic())
    launcher.region.now_ns = FIRST + 1
    row = launcher.region.store.jobs.row("default", "report")
    assert row is not None

    launcher.core.note(launcher.region.store, launcher.region.everything(), launcher.region.now_ns)

    assert launcher.core.wake_at_ns() == FIRST


def test_a_schedule_that_cannot_be_read_keeps_nobody_else_from_being_launched() -> None:
    launcher = started(a_periodic("broken", "not a cron line"), a_periodic("fine"))

    launcher.until(FIRST)

    assert launcher.launched == [FIRST]
    assert list(launcher.core.refused) == [("default", "broken")]


def test_with_overlap_prohibited_a_child_with_an_open_evaluation_makes_the_launch_skipped_and_noted() -> None:
    launcher = started(a_periodic(prohibit_overlap=True))

    launcher.until(FIRST + MINUTE)

    assert launcher.launched == [FIRST]
    assert launcher.skipped == [FIRST + MINUTE]
    assert launcher.region.store.jobs.last_launch_ns("default", "report") == FIRST + MINUTE


def finish(region: Region, child_id: str) -> None:
    for row in list(region.store.evaluations.of_job("default", child_id)):
        job = region.store.jobs.get("default", child_id)
        region.evaluation(int(row.id[-12:], 16), job, id=row.id, status=EvaluationStatus.COMPLETE)


def test_with_overlap_prohibited_a_child_with_a_live_allocation_makes_the_launch_skipped() -> None:
    launcher = started(a_periodic(prohibit_overlap=True))
    slot = launcher.region.node()
    launcher.until(FIRST)
    child = f"report/periodic-{FIRST // NS}"
    launcher.region.place([1], slot, job=child)
    finish(launcher.region, child)

    launcher.until(FIRST + MINUTE)
    assert launcher.launched == [FIRST]

    launcher.region.client([1], ClientStatus.COMPLETE)
    launcher.until(FIRST + 2 * MINUTE)
    assert launcher.launched == [FIRST, FIRST + 2 * MINUTE]


def test_children_that_have_all_ended_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = started(a_periodic(prohibit_overlap=True))
    launcher.until(FIRST)
    finish(launcher.region, f"report/periodic-{FIRST // NS}")

    def refuse(*names: str) -> None:
        raise AssertionError("the children were looked at")

    monkeypatch.setattr(launcher.region.store.jobs, "children", refuse)

    launcher.until(FIRST + MINUTE)
    assert launcher.launched == [FIRST, FIRST + MINUTE]


def test_overlap_is_allowed_unless_prohibited() -> None:
    launcher = started(a_periodic())

    launcher.until(FIRST + 2 * MINUTE)

    assert len(launcher.launched) == 3


def test_a_new_leader_launches_once_what_was_missed_and_says_what_was_skipped() -> None:
    launcher = started(a_periodic())
    launcher.until(FIRST)
    launcher.region.sleep(600)

    effects = launcher.begin()

    assert [effect.launch_ns for effect in effects] == [FIRST + 10 * MINUTE]
    assert launcher.launched == [FIRST, FIRST + 10 * MINUTE]
    launcher.until(FIRST + 11 * MINUTE)
    assert launcher.launched[-1] == FIRST + 11 * MINUTE


def test_a_second_new_leader_right_after_launches_nothing_again() -> None:
    launcher = started(a_periodic())
    launcher.region.sleep(600)
    launcher.begin()

    assert launcher.begin() == []


def test_a_new_leader_does_not_catch_up_on_times_before_the_job_was_registered() -> None:
    launcher = started(a_periodic())

    assert launcher.begin() == []


def test_a_new_leader_does_not_catch_up_while_an_overlap_forbids_it() -> None:
    launcher = started(a_periodic(prohibit_overlap=True))
    launcher.until(FIRST)
    launcher.region.sleep(600)

    effects = launcher.begin()

    assert [type(effect) for effect in effects] == [SkipLaunch]
    assert launcher.launched == [FIRST]


def test_a_new_leader_launches_nothing_if_nothing_was_missed() -> None:
    launcher = started(a_periodic("report", "0 0 1 1 *"))
    launcher.region.sleep(600)

    assert launcher.begin() == []


def test_two_leaders_that_both_think_they_lead_launch_once() -> None:
    launcher = started(a_periodic())
    other = PeriodicCore()
    other.begin(launcher.region.store, launcher.region.now_ns, launcher.region.new_id)
    launcher.region.now_ns = FIRST

    effects = other.wake(launcher.region.store, FIRST, launcher.region.new_id)
    launcher.step()
    launcher.perform(effects)

    assert launcher.launched == [FIRST]
    assert len(list(launcher.region.store.jobs.children("default", "report"))) == 1


def test_a_clock_that_is_set_back_launches_nothing_twice() -> None:
    launcher = started(a_periodic())
    launcher.until(FIRST + 5 * MINUTE)
    launcher.region.now_ns = FIRST  # an hour's worth of regret
    launcher.step()
    launcher.begin()
    launcher.until(FIRST + 5 * MINUTE)
    assert len(launcher.launched) == 6

    launcher.until(FIRST + 6 * MINUTE)
    assert launcher.launched == [FIRST + at * MINUTE for at in range(7)]


def test_a_clock_that_is_set_forward_launches_the_latest_time_and_tells_of_the_skipped() -> None:
    launcher = started(a_periodic())
    launcher.region.now_ns = FIRST + 60 * MINUTE

    effects = launcher.step()

    assert [type(effect) for effect in effects] == [SkipLaunch, LaunchPeriodic]
    assert launcher.launched == [FIRST + 60 * MINUTE]
    assert launcher.core.tracked() == {("default", "report"): FIRST + 61 * MINUTE}


def test_a_launch_over_the_change_of_clocks_happens_once_or_not_at_all() -> None:
    config = PeriodicConfig(specs=("30 1 * * *", "30 2 * * *"), time_zone="America/New_York")
    job = a_job("night", type="batch", periodic=config)
    day = 86400 * NS
    before_spring = 1_804_896_000 * NS  # 13 March 2027, 00:00 UTC
    before_autumn = 1_825_459_200 * NS  # 6 November 2027, 00:00 UTC

    def launches(start_ns: int, days: int) -> list[int]:
        found, moment = [], next_launch(job, start_ns)
        while moment is not None and moment < start_ns + days * day:
            found.append(moment)
            moment = next_launch(job, moment)
        return found

    assert len(launches(before_spring, 4)) == 7  # 02:30 on the 14th does not exist
    assert len(launches(before_autumn, 4)) == 8  # 01:30 on the 7th comes twice and is launched once


def test_a_forced_launch_ignores_the_schedule_but_not_the_overlap() -> None:
    region = Region()
    region.register(a_periodic("report", "0 0 1 1 *", prohibit_overlap=True))

    effect = forced_launch(region.store, "default", "report", region.now_ns, region.new_id)
    command = command_of(effect)
    assert command is not None
    assert region.do(command).result.value["launched"]

    with pytest.raises(Conflict):
        forced_launch(region.store, "default", "report", region.now_ns, region.new_id)


def test_only_a_known_active_periodic_job_can_be_forced() -> None:
    region = Region()
    region.register(a_job("plain"))

    with pytest.raises(NotFound):
        forced_launch(region.store, "default", "nobody", region.now_ns, region.new_id)
    with pytest.raises(BadRequest):
        forced_launch(region.store, "default", "plain", region.now_ns, region.new_id)


def test_a_child_is_a_fresh_job() -> None:
    parent = structs.replace(a_periodic(), version=7, stable=True, stop=True, create_index=5)

    child = child_of(parent, FIRST, submit_time_ns=FIRST + 1)

    assert (child.version, child.stable, child.stop, child.create_index) == (0, False, False, 0)
    assert child.name == child.id
    assert child.submit_time_ns == FIRST + 1


def test_a_parent_launched_thousands_of_times_keeps_launching_in_order() -> None:
    launcher = started(a_periodic("report", "*/10 * * * * * *"))

    launcher.until(START_NS + 600 * NS)

    assert launcher.launched == sorted(set(launcher.launched))
    assert len(launcher.launched) == 60


def test_a_forced_launch_may_overlap_unless_that_is_prohibited() -> None:
    region = Region()
    job = region.register(a_periodic())
    for _ in range(2):
        command = command_of(forced_launch(region.store, "default", job.id, region.now_ns, region.new_id))
        assert command is not None
        region.do(command)
        region.sleep(1)

    assert len(list(region.store.jobs.children("default", job.id))) == 2


def test_a_forced_launch_is_named_after_the_whole_second_it_comes_in() -> None:
    region = Region()
    job = region.register(a_periodic())

    launch = forced_launch(region.store, "default", job.id, region.now_ns + 999_999_999, region.new_id)

    assert launch.launch_ns == region.now_ns
    assert launch.child.id == f"{job.id}/periodic-{region.now_ns // NS}"
