"""When failed allocations are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import RescheduleEvent, RescheduleTracker
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Trigger
from fedsched.model.job import Job
from fedsched.model.policies import ReschedulePolicy
from fedsched.model.task_state import TaskState
from fedsched.scheduler.reconcile.reschedule import (
    Decision,
    Verdict,
    decide,
    decide_cut_off,
    follow_ups,
    next_delay,
    next_due,
    tracker_after,
)
from tests.builders import an_evaluation, an_id
from tests.scheduler.reconcile.kit import (
    EVALUATION,
    NOW,
    SECOND,
    a_batch,
    a_service,
    alloc,
    deploying,
    held_of,
    new_ids,
)

HOUR = 3600.0
OFF = ReschedulePolicy(attempts=0, unlimited=False)
THIRTY = ReschedulePolicy(delay_s=30.0, delay_function="constant")


def a_policy(delay_s: float, function: str, max_delay_s: float) -> ReschedulePolicy:
    return ReschedulePolicy(delay_s=delay_s, delay_function=function, max_delay_s=max_delay_s)


def a_story(*delays: float, last_s_ago: float = 0.0, gap_s: float = 1.0) -> tuple[RescheduleEvent, ...]:
    """Replacements after these waits, the last one so many seconds before `NOW`."""
    times = [NOW - round((last_s_ago + gap_s * back) * SECOND) for back in reversed(range(len(delays)))]
    return tuple(
        RescheduleEvent(reschedule_time_ns=time, delay_s=delay, prev_node_id=an_id(0x300 + at))
        for at, (time, delay) in enumerate(zip(times, delays, strict=True))
    )


def delays_of(policy: ReschedulePolicy, count: int) -> list[float]:
    """The waits of an allocation that fails again and again at once."""
    events: list[RescheduleEvent] = []
    for _ in range(count):
        delay = next_delay(policy, events, NOW)
        events.append(RescheduleEvent(reschedule_time_ns=NOW, delay_s=delay))
    return [event.delay_s for event in events]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (a_policy(30, "exponential", HOUR), [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]),
        (a_policy(5, "fibonacci", 90), [5, 5, 10, 15, 25, 40, 65, 90, 90]),
        (a_policy(7, "constant", 0), [7, 7, 7]),
    ],
    ids=["exponential", "fibonacci", "constant"],
)
def test_waits_follow_their_function(policy: ReschedulePolicy, expected: Sequence[float]) -> None:
    assert delays_of(policy, len(expected)) == expected


def test_a_short_last_run_keeps_the_wait_at_its_cap() -> None:
    policy = a_policy(5, "exponential", 90)

    assert next_delay(policy, a_story(5, 10, 20, 40, 80, last_s_ago=25), NOW) == 90


def test_a_run_longer_than_the_cap_starts_the_waits_anew() -> None:
    policy = a_policy(5, "exponential", 90)
    failed_15_min_ago = NOW - 15 * 60 * SECOND

    assert next_delay(policy, a_story(5, 10, 20, 40, 80, last_s_ago=3600), failed_15_min_ago) == 5


def test_a_long_run_below_the_cap_changes_nothing() -> None:
    assert next_delay(a_policy(5, "exponential", 90), a_story(5, 10, last_s_ago=3600), NOW) == 20


def test_fibonacci_waits_begin_again_after_a_restart_of_the_sequence() -> None:
    policy = a_policy(5, "fibonacci", 90)

    assert next_delay(policy, a_story(65, 90, 5), NOW) == 5
    assert next_delay(policy, a_story(90, 5, 5), NOW) == 10


def test_only_the_longest_wait_followed_by_the_shortest_restarts_the_fibonacci_sequence() -> None:
    assert next_delay(a_policy(5, "fibonacci", 90), a_story(90, 20), NOW) == 90


def test_a_wait_of_just_the_cap_is_not_capped() -> None:
    assert next_delay(a_policy(5, "exponential", 80), a_story(40, last_s_ago=3600), NOW) == 80


def test_without_a_cap_waits_grow_on() -> None:
    assert next_delay(a_policy(5, "exponential", 0), a_story(HOUR), NOW) == 2 * HOUR


def test_a_constant_wait_knows_no_cap() -> None:
    assert next_delay(a_policy(7, "constant", 5), a_story(7), NOW) == 7


def test_attempts_within_the_interval_are_counted_back_from_the_failure() -> None:
    policy = ReschedulePolicy(attempts=2, interval_s=600, delay_s=5, delay_function="constant", unlimited=False)

    assert next_due(policy, (), NOW).is_eligible
    assert next_due(policy, a_story(5, last_s_ago=10), NOW).is_eligible
    assert not next_due(policy, a_story(5, 5, last_s_ago=10), NOW).is_eligible
    assert next_due(policy, a_story(5, 5, last_s_ago=599.5, gap_s=1), NOW).is_eligible
    assert next_due(policy, a_story(5, 5, last_s_ago=599, gap_s=1), NOW).is_eligible
    assert not next_due(policy, a_story(5, 5, last_s_ago=598, gap_s=1), NOW).is_eligible


def test_a_wait_as_long_as_the_interval_is_no_attempt() -> None:
    policy = ReschedulePolicy(
        attempts=5, interval_s=20, delay_s=5, delay_function="exponential", max_delay_s=HOUR, unlimited=False
    )

    assert next_due(policy, a_story(5), NOW).is_eligible
    assert not next_due(policy, a_story(5, 10), NOW).is_eligible


@pytest.mark.parametrize("policy", [None, OFF])
def test_without_a_policy_nothing_is_replaced(policy: ReschedulePolicy | None) -> None:
    assert not next_due(policy, (), NOW).is_eligible


def decision(
    *,
    policy: ReschedulePolicy | None = THIRTY,
    job: Job | None = None,
    deployment: Deployment | None = None,
    **fields: Any,
) -> Decision:
    job = a_service() if job is None else job
    held = held_of(alloc(0, job, **fields))
    return decide(
        held, policy, is_batch=job.type == "batch", evaluation_id=EVALUATION, deployment=deployment, now_ns=NOW
    )


def test_an_allocation_that_ended_and_was_replaced_is_dropped() -> None:
    assert decision(client="failed", next_allocation=an_id(9)).verdict is Verdict.DROP
    assert decision(job=a_batch(), client="complete", next_allocation=an_id(9)).verdict is Verdict.DROP
    assert decision(client="running", next_allocation=an_id(9)).verdict is Verdict.KEEP


class TestService:
    def test_stopped_or_evicted_is_dropped_unless_its_last_replacement_found_no_place(self) -> None:
        again = RescheduleTracker(last_reschedule="no placement")

        assert decision(client="failed", desired="stop").verdict is Verdict.DROP
        assert decision(client="failed", desired="evict").verdict is Verdict.DROP
        assert decision(client="failed", desired="stop", reschedule_tracker=again).verdict is Verdict.NOW

    @pytest.mark.parametrize("client", ["complete", "lost"])
    def test_complete_or_lost_makes_room_for_something_fresh(self, client: str) -> None:
        assert decision(client=client).verdict is Verdict.DROP

    def test_what_runs_stays(self) -> None:
        assert decision(client="running").verdict is Verdict.KEEP
        assert decision(client="pending").verdict is Verdict.KEEP

    def test_the_wish_to_replace_what_runs_is_for_batch_jobs(self) -> None:
        assert decision(client="running", flags=["reschedule"]).verdict is Verdict.KEEP


class TestBatch:
    def test_marked_as_not_to_be_replaced_stays(self) -> None:
        flags = ["migrate_disable_placement"]

        assert decision(job=a_batch(), client="failed", flags=flags).verdict is Verdict.KEEP

    def test_complete_is_never_run_again(self) -> None:
        assert decision(job=a_batch(), client="complete").verdict is Verdict.KEEP
        assert decision(job=a_batch(), client="complete", desired="stop", finished_at=NOW).verdict is Verdict.KEEP
        assert decision(job=a_batch(), client="complete", flags=["force_reschedule"]).verdict is Verdict.KEEP

    def test_stopped_before_it_was_done_is_dropped(self) -> None:
        assert decision(job=a_batch(), client="complete", desired="stop").verdict is Verdict.DROP
        assert decision(job=a_batch(), client="failed", desired="stop", finished_at=NOW).verdict is Verdict.DROP
        assert decision(job=a_batch(), client="running", desired="evict").verdict is Verdict.DROP

    def test_stopped_and_not_placed_again_is_tried_again(self) -> None:
        again = RescheduleTracker(last_reschedule="no placement")

        found = decision(job=a_batch(), client="failed", desired="stop", reschedule_tracker=again)

        assert found.verdict is Verdict.NOW

    def test_failed_is_replaced(self) -> None:
        assert decision(job=a_batch(), client="failed").verdict is Verdict.NOW

    def test_lost_or_running_stays(self) -> None:
        assert decision(job=a_batch(), client="running").verdict is Verdict.KEEP
        assert decision(job=a_batch(), client="lost").verdict is Verdict.KEEP

    def test_a_user_may_ask_for_a_replacement_of_what_runs(self) -> None:
        soon = NOW - 2 * SECOND

        assert decision(job=a_batch(), flags=["reschedule", "migrate"]).verdict is Verdict.NOW
        found = decision(job=a_batch(), flags=["reschedule", "migrate"], modify_time_ns=soon)
        assert found == Decision(Verdict.LATER, soon + 30 * SECOND)


class TestTiming:
    def test_due_within_a_second_is_now_and_afterwards_is_later(self) -> None:
        just = NOW - 29 * SECOND

        assert decision(client="failed", finished_at=just).verdict is Verdict.NOW
        assert decision(client="failed", finished_at=just + 1) == Decision(Verdict.LATER, just + 1 + 30 * SECOND)

    def test_the_wait_counts_from_the_last_task_to_end_or_else_from_the_last_change(self) -> None:
        recent = NOW - 5 * SECOND

        assert decision(client="failed", finished_at=recent, modify_time_ns=NOW).due_ns == recent + 30 * SECOND
        assert decision(client="failed", modify_time_ns=recent).due_ns == recent + 30 * SECOND
        ends = {name: TaskState(finished_at_ns=recent + at) for name, at in (("a", 7), ("b", 9), ("c", 8))}
        assert decision(client="failed", task_states=ends).due_ns == recent + 9 + 30 * SECOND

    def test_its_own_follow_up_replaces_it_whatever_the_time(self) -> None:
        assert decision(client="failed", finished_at=NOW, followup_eval_id=EVALUATION).verdict is Verdict.NOW

    def test_with_a_follow_up_of_its_own_it_waits_for_that(self) -> None:
        assert decision(client="failed", finished_at=NOW, followup_eval_id=an_id(7)).verdict is Verdict.KEEP

    def test_an_overdue_follow_up_is_not_waited_for(self) -> None:
        assert decision(client="failed", followup_eval_id=an_id(7)).verdict is Verdict.NOW

    @pytest.mark.parametrize("policy", [None, OFF])
    def test_with_rescheduling_off_it_keeps_its_place(self, policy: ReschedulePolicy | None) -> None:
        assert decision(client="failed", policy=policy).verdict is Verdict.KEEP
        assert decision(client="failed", policy=policy, flags=["force_reschedule"]).verdict is Verdict.KEEP

    def test_a_user_can_force_it_past_delay_and_attempts(self) -> None:
        used_up = ReschedulePolicy(attempts=1, interval_s=HOUR, delay_function="constant", unlimited=False)
        story = RescheduleTracker(events=a_story(30, last_s_ago=60))
        fields: dict[str, Any] = {"client": "failed", "finished_at": NOW, "reschedule_tracker": story}

        assert decision(policy=used_up, **fields).verdict is Verdict.KEEP
        assert decision(policy=used_up, flags=["force_reschedule"], **fields).verdict is Verdict.NOW
        assert decision(policy=used_up, flags=["force_reschedule"]).verdict is Verdict.KEEP


class TestDeployment:
    def test_part_of_an_active_deployment_waits_for_the_watcher(self) -> None:
        job = a_service()
        deployment = deploying(job)

        assert decision(job=job, client="failed", deployment=deployment).verdict is Verdict.NOW
        held = alloc(0, job, client="failed", deployment=deployment.id)
        ask: dict[str, Any] = {"is_batch": False, "evaluation_id": EVALUATION, "now_ns": NOW}
        assert decide(held_of(held), THIRTY, deployment=deployment, **ask).verdict is Verdict.KEEP
        flagged = alloc(0, job, client="failed", deployment=deployment.id, flags=["reschedule"])
        assert decide(held_of(flagged), THIRTY, deployment=deployment, **ask).verdict is Verdict.NOW
        ended = deploying(job, status="failed")
        assert decide(held_of(held), THIRTY, deployment=ended, **ask).verdict is Verdict.NOW


class TestCutOff:
    def test_the_wait_counts_from_now(self) -> None:
        held = held_of(alloc(0, a_service()))

        assert decide_cut_off(held, THIRTY, deployment=None, now_ns=NOW) == Decision(Verdict.LATER, NOW + 30 * SECOND)
        at_once = ReschedulePolicy(delay_s=0.5, delay_function="constant")
        assert decide_cut_off(held, at_once, deployment=None, now_ns=NOW).verdict is Verdict.NOW
        assert decide_cut_off(held, OFF, deployment=None, now_ns=NOW).verdict is Verdict.KEEP

    def test_a_deployment_decides_about_its_own(self) -> None:
        job = a_service()
        held = held_of(alloc(0, job, deployment=deploying(job).id))

        assert decide_cut_off(held, THIRTY, deployment=deploying(job), now_ns=NOW).verdict is Verdict.KEEP

    @pytest.mark.parametrize("job", [a_service(), a_batch()], ids=["service", "batch"])
    def test_an_unknown_one_is_replaced_by_its_follow_up_and_by_nothing_else(self, job: Job) -> None:
        fields: dict[str, Any] = {"client": "unknown", "unknown_at": NOW - 30 * SECOND}

        assert decision(job=job, followup_eval_id=EVALUATION, **fields).verdict is Verdict.NOW
        assert decision(job=job, followup_eval_id=an_id(3), **fields).verdict is Verdict.KEEP
        twice = decision(job=job, followup_eval_id=EVALUATION, next_allocation=an_id(4), **fields)
        assert twice.verdict is Verdict.KEEP


class TestStory:
    def test_a_replacement_carries_what_led_to_it(self) -> None:
        held = held_of(alloc(0, a_service(), client="failed", node=3))

        tracker = tracker_after(held, THIRTY, NOW, NOW)

        assert tracker.last_reschedule == "ok"
        (event,) = tracker.events
        assert (event.prev_alloc_id, event.prev_node_id, event.delay_s) == (held.id, an_id(0x203), 30)
        assert event.reschedule_time_ns == NOW

    def test_unlimited_policies_remember_the_last_five(self) -> None:
        held = held_of(alloc(0, a_service(), reschedule_tracker=RescheduleTracker(events=a_story(*range(1, 9)))))

        assert [event.delay_s for event in tracker_after(held, THIRTY, NOW, NOW).events] == [4, 5, 6, 7, 8, 30]

    def test_limited_policies_remember_their_interval(self) -> None:
        policy = ReschedulePolicy(attempts=9, interval_s=25, delay_s=5, delay_function="constant", unlimited=False)
        story = RescheduleTracker(events=a_story(1, 2, 3, 4, gap_s=10))
        held = held_of(alloc(0, a_service(), reschedule_tracker=story))

        assert [event.delay_s for event in tracker_after(held, policy, NOW, NOW).events] == [2, 3, 4, 5]
        exactly = replace(policy, interval_s=20)
        assert [event.delay_s for event in tracker_after(held, exactly, NOW, NOW).events] == [2, 3, 4, 5]

    def test_without_a_policy_there_is_no_wait(self) -> None:
        held = held_of(alloc(0, a_service()))

        assert [event.delay_s for event in tracker_after(held, None, NOW, NOW).events] == [0]


def test_follow_ups_within_five_seconds_are_one() -> None:
    job = a_service()
    helds = [held_of(alloc(number, job)) for number in range(4)]
    times = [0, 4.9, 5, 11]

    found = follow_ups(
        [(NOW + round(s * SECOND), held) for s, held in zip(times, helds, strict=True)],
        job=job,
        evaluation=an_evaluation(id=EVALUATION, job=job, priority=70),
        now_ns=NOW,
        new_id=new_ids(),
        first=Trigger.ALLOC_RESCHEDULE,
        later=Trigger.ALLOC_FAILURE,
        description="later",
    )

    first, second, third = found.evaluations
    assert [found.ids[held] for held in helds] == [first.id, first.id, second.id, third.id]
    assert [one.triggered_by for one in found.evaluations] == ["alloc-reschedule", "alloc-failure", "alloc-failure"]
    assert [one.wait_until_ns for one in found.evaluations] == [NOW, NOW + 5 * SECOND, NOW + 11 * SECOND]
    assert {one.create_time_ns for one in found.evaluations} == {NOW}
    assert (first.priority, first.previous_eval, first.job_id, first.type) == (70, EVALUATION, job.id, "service")
