"""Clients that are cut off and come back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import Allocation
from fedsched.model.alloc_metric import AllocMetric, NodeScoreMeta
from fedsched.model.job import Job
from fedsched.model.policies import DisconnectStrategy, ReschedulePolicy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.task_state import TaskState, TaskStatus
from fedsched.scheduler.reconcile.disconnect import keeps_replacement
from fedsched.scheduler.reconcile.held import Taint
from fedsched.scheduler.reconcile.wanted import GroupWanted
from tests.builders import a_task, an_id
from tests.scheduler.reconcile.kit import (
    EVALUATION,
    NOW,
    SECOND,
    a_batch,
    a_service,
    alloc,
    allocs,
    changed,
    deploying,
    held_of,
    id_of,
    places,
    run,
    run_group,
    stopped,
)
from tests.scheduler.reconcile.test_group import numbers

SLOW = ReschedulePolicy(delay_s=60.0, delay_function="constant")
AT_ONCE = ReschedulePolicy(delay_s=0.5, delay_function="constant")
OFF = ReschedulePolicy(attempts=0, unlimited=False)
CUT = {0: Taint.DISCONNECTED}
RECENTLY = NOW - 10 * SECOND
OLD_NEWS = NOW - 3600 * SECOND


def a_patient(count: int = 2, *, policy: ReschedulePolicy = AT_ONCE, **disconnect: Any) -> Job:
    disconnect.setdefault("lost_after_s", 300.0)
    return a_service(count, disconnect=DisconnectStrategy(**disconnect), reschedule_policy=policy)


class TestCutOff:
    def test_it_becomes_unknown_and_a_timeout_is_set(self) -> None:
        job = a_patient(policy=OFF)

        wanted = run_group(job, allocs(job, 2), tainted=CUT)

        (entry,) = wanted.disconnecting
        (timeout,) = wanted.follow_ups
        assert (entry.held.id, entry.followup_id) == (id_of(0), timeout.id)
        assert (timeout.triggered_by, timeout.wait_until_ns) == ("max-disconnect-timeout", NOW + 300 * SECOND)
        assert timeout.status_description == "created for delayed disconnect timeout"
        assert places(wanted) == stopped(wanted) == []
        assert numbers(wanted) == {"ignore": 2, "disconnect": 1}

    def test_timeouts_of_many_are_one(self) -> None:
        job = a_patient(5, policy=OFF)

        wanted = run_group(job, allocs(job, 5), tainted=dict.fromkeys(range(5), Taint.DISCONNECTED))

        assert len(wanted.follow_ups) == 1
        assert {entry.followup_id for entry in wanted.disconnecting} == {wanted.follow_ups[0].id}

    def test_a_copy_is_placed_now_if_the_policy_says_so_and_the_original_is_left_alone(self) -> None:
        job = a_patient()

        wanted = run_group(job, allocs(job, 2), tainted=CUT)

        (single,) = wanted.special
        assert (single.name_index, single.reason, single.stop) == (0, "disconnect", None)
        assert single.tracker is not None
        assert [event.prev_alloc_id for event in single.tracker.events] == [id_of(0)]
        assert stopped(wanted) == []
        assert numbers(wanted) == {"ignore": 1, "disconnect": 1, "place": 1, "reschedule_now": 1}

    def test_a_later_copy_has_a_follow_up_that_goes_before_the_timeout(self) -> None:
        job = a_patient(policy=SLOW)

        wanted = run_group(job, allocs(job, 2), tainted=CUT)

        by_trigger = {one.triggered_by: one for one in wanted.follow_ups}
        assert set(by_trigger) == {"max-disconnect-timeout", "alloc-reschedule"}
        assert by_trigger["alloc-reschedule"].wait_until_ns == NOW + 60 * SECOND
        (entry,) = wanted.disconnecting
        assert entry.followup_id == by_trigger["alloc-reschedule"].id
        assert wanted.followed == []

    def test_the_follow_up_places_the_copy(self) -> None:
        job = a_patient(policy=SLOW)
        unknown = alloc(0, job, client="unknown", unknown_at=NOW - 60 * SECOND, followup_eval_id=EVALUATION)

        wanted = run_group(job, [unknown, alloc(1, job, node=1)], tainted=CUT)

        assert [(one.name_index, one.reason, one.stop) for one in wanted.special] == [(0, "disconnect", None)]

    def test_with_replace_off_there_is_no_copy(self) -> None:
        job = a_patient(replace=False)

        wanted = run_group(job, allocs(job, 2), tainted=CUT)

        assert len(wanted.disconnecting) == 1
        assert places(wanted) == []

    def test_with_replace_off_a_node_that_is_down_changes_nothing_more(self) -> None:
        job = a_patient(replace=False, lost_after_s=0.0)

        wanted = run_group(job, allocs(job, 2), tainted={0: Taint.DOWN})

        assert len(wanted.disconnecting) == 1
        assert wanted.follow_ups == []
        assert places(wanted) == []

    def test_part_of_a_deployment_is_left_to_its_watcher(self) -> None:
        job = a_patient()
        deployment = deploying(job, desired_total=2)

        wanted = run_group(job, allocs(job, 2, deployment=deployment.id), tainted=CUT, deployment=deployment)

        assert len(wanted.disconnecting) == 1
        assert places(wanted) == []

    def test_who_is_cut_off_is_no_reason_to_stop_another(self) -> None:
        job = a_patient(1, policy=OFF)

        wanted = run_group(job, [alloc(0, job), alloc(1, job, node=1)], tainted=CUT)

        assert len(wanted.disconnecting) == 1
        assert stopped(wanted) == []

    def test_beyond_the_count_it_gets_no_copy_and_is_settled_when_its_client_is_back(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [alloc(0, job), alloc(1, job, node=1)], tainted=CUT)
        later = run_group(
            job,
            [
                alloc(0, job, client="unknown", unknown_at=RECENTLY, followup_eval_id=EVALUATION),
                alloc(1, job, node=1),
            ],
            tainted=CUT,
        )

        assert len(wanted.disconnecting) == 1
        assert places(wanted) == stopped(wanted) == []
        assert places(later) == stopped(later) == []

    def test_pending_ones_are_lost_and_replaced_at_once(self) -> None:
        job = a_patient(policy=OFF)

        wanted = run_group(job, [alloc(0, job, client="pending"), alloc(1, job, node=1)], tainted=CUT)

        assert stopped(wanted) == places(wanted) == [0]

    def test_batch_jobs_wait_for_their_clients_too(self) -> None:
        job = a_batch(1, disconnect=DisconnectStrategy(lost_after_s=60.0), reschedule_policy=AT_ONCE)

        wanted = run_group(job, allocs(job, 1), tainted=CUT)

        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "disconnect")]

    def test_copies_do_not_make_the_group_too_large(self) -> None:
        job = a_patient()
        unknown = alloc(0, job, client="unknown", unknown_at=RECENTLY, next_allocation=id_of(5))
        copy = alloc(5, job, index=0, node=5, previous_allocation=id_of(0))

        assert run_group(job, [unknown, alloc(1, job, node=1), copy], tainted=CUT).is_calm

    def test_a_copy_that_is_lost_is_placed_again(self) -> None:
        job = a_patient()
        unknown = alloc(0, job, client="unknown", unknown_at=RECENTLY, next_allocation=id_of(5))
        copy = alloc(5, job, index=0, node=5, previous_allocation=id_of(0))

        wanted = run_group(job, [unknown, alloc(1, job, node=1), copy], tainted={**CUT, 5: Taint.DOWN})

        assert places(wanted) == [0]

    def test_a_changed_job_does_not_touch_an_original_that_has_a_copy(self) -> None:
        job = a_patient()
        unknown = alloc(0, job, client="unknown", unknown_at=RECENTLY, next_allocation=id_of(5))
        copy = alloc(5, job, index=0, node=5, previous_allocation=id_of(0))

        wanted = run_group(changed(job), [unknown, copy, alloc(1, job, node=1)], tainted=CUT)

        assert [one.previous.id for one in wanted.destructive if one.previous] == [id_of(5)]

    def test_cut_off_twice_there_is_still_one_copy(self) -> None:
        job = a_patient()
        again = alloc(0, job, unknown_at=RECENTLY, next_allocation=id_of(5))
        copy = alloc(5, job, index=0, node=5, previous_allocation=id_of(0))

        wanted = run_group(job, [again, alloc(1, job, node=1), copy], tainted=CUT)

        assert len(wanted.disconnecting) == 1
        assert places(wanted) == []


class TestTimeout:
    def test_unknown_for_too_long_is_lost_and_replaced(self) -> None:
        job = a_patient()
        unknown = alloc(0, job, client="unknown", unknown_at=OLD_NEWS)

        wanted = run_group(job, [unknown, alloc(1, job, node=1)], tainted=CUT)

        assert [(stop.held.id, stop.client_status) for stop in wanted.stops] == [(id_of(0), "lost")]
        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "lost")]

    def test_with_a_copy_it_is_only_lost(self) -> None:
        job = a_patient()
        unknown = alloc(0, job, client="unknown", unknown_at=OLD_NEWS, next_allocation=id_of(5))
        copy = alloc(5, job, index=0, node=5, previous_allocation=id_of(0))

        wanted = run_group(job, [unknown, alloc(1, job, node=1), copy], tainted=CUT)

        assert stopped(wanted) == [0]
        assert places(wanted) == []


def back(job: Job, **fields: Any) -> Allocation:
    """The original, on a client that is back, with a copy at number 5."""
    fields.setdefault("next_allocation", id_of(5))
    fields.setdefault("followup_eval_id", an_id(0xF0))
    return alloc(0, job, unknown_at=RECENTLY, **fields)


def copy(job: Job, **fields: Any) -> Allocation:
    return alloc(5, job, index=0, node=5, previous_allocation=id_of(0), **fields)


def scored(record: Allocation, score: float) -> Allocation:
    metas = (
        NodeScoreMeta(node_id=an_id(0x999), norm_score=9.0),
        NodeScoreMeta(node_id=record.node_id, norm_score=score),
    )
    return replace(record, metrics=AllocMetric(score_meta_data=metas))


def started(record: Allocation, **tasks: int) -> Allocation:
    states = {name: TaskState(state=TaskStatus.RUNNING, started_at_ns=at) for name, at in tasks.items()}
    return replace(record, task_states=states)


class TestBack:
    def gone(self, wanted: GroupWanted) -> list[tuple[str, str]]:
        return [(stop.held.id, stop.description) for stop in wanted.stops]

    def test_without_a_copy_it_goes_on_and_its_follow_up_is_dropped(self) -> None:
        job = a_patient(1)

        wanted = run(job, [back(job, next_allocation="")])
        group = wanted.groups["group"]

        assert [held.id for held in group.reconnecting] == [id_of(0)]
        assert wanted.dropped_evaluations == [an_id(0xF0)]
        assert places(group) == stopped(group) == []
        assert numbers(group) == {"ignore": 1, "reconnect": 1}

    def test_its_client_has_to_speak_of_it_first(self) -> None:
        job = a_patient(1)
        silent = alloc(0, job, client="unknown", unknown_at=RECENTLY, next_allocation=id_of(5))

        assert run(job, [silent, copy(job)]).is_calm

    def test_a_follow_up_that_others_wait_for_is_not_dropped(self) -> None:
        job = a_patient(2)
        other = alloc(1, job, node=1, client="unknown", unknown_at=RECENTLY, followup_eval_id=an_id(0xF0))

        wanted = run(job, [back(job, next_allocation=""), other], tainted={1: Taint.DISCONNECTED})

        assert len(wanted.groups["group"].reconnecting) == 1
        assert wanted.dropped_evaluations == []

    def test_who_was_stopped_waits_for_no_follow_up(self) -> None:
        job = a_batch(1, disconnect=DisconnectStrategy(lost_after_s=60.0))
        over = alloc(1, job, node=1, desired="stop", client="complete", followup_eval_id=an_id(0xF0))

        assert run(job, [back(job, next_allocation=""), over]).dropped_evaluations == [an_id(0xF0)]

    def test_an_evaluation_does_not_drop_itself(self) -> None:
        job = a_patient(1)

        assert run(job, [back(job, next_allocation="", followup_eval_id=EVALUATION)]).dropped_evaluations == []

    def test_failed_meanwhile_it_is_stopped(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [back(job, client="failed"), copy(job)])

        assert self.gone(wanted) == [(id_of(0), "alloc was rescheduled because it failed")]
        assert places(wanted) == []

    def test_failed_without_a_copy_it_is_placed_again(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [back(job, client="failed", next_allocation="")])

        assert stopped(wanted) == places(wanted) == [0]

    @pytest.mark.parametrize("flag", ["migrate", "reschedule", "force_reschedule"])
    def test_somebody_asked_for_its_end(self, flag: str) -> None:
        job = a_patient(1)

        wanted = run_group(job, [back(job, flags=[flag]), copy(job)])

        assert self.gone(wanted) == [(id_of(0), "alloc not needed due to job update")]
        assert wanted.reconnecting == wanted.special == []

    def test_of_an_older_version_it_is_stopped(self) -> None:
        old = a_patient(1)
        new = changed(old)

        wanted = run_group(new, [back(old), copy(new)])

        assert self.gone(wanted) == [(id_of(0), "alloc not needed due to job update")]
        assert wanted.destructive == []

    def test_of_an_older_version_it_is_stopped_also_without_a_copy(self) -> None:
        old = a_patient(1)

        wanted = run_group(changed(old), [back(old, next_allocation="")])

        assert self.gone(wanted) == [(id_of(0), "alloc not needed due to job update")]
        assert wanted.fresh.tolist() == [0]

    def test_told_to_stop_meanwhile_it_does_not_go_on(self) -> None:
        job = a_batch(1, disconnect=DisconnectStrategy(lost_after_s=60.0))

        wanted = run_group(job, [back(job, desired="stop", next_allocation="")])

        assert not wanted.reconnecting
        assert not wanted.stops

    def test_of_an_earlier_job_of_that_name_it_is_stopped(self) -> None:
        old = a_patient(1)
        new = replace(old, create_index=old.create_index + 1)

        wanted = run_group(new, [back(old, next_allocation="")])

        assert self.gone(wanted) == [(id_of(0), "alloc not needed due to job update")]
        assert wanted.fresh.tolist() == [0]

    def test_best_score_keeps_a_better_copy(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [scored(back(job), 0.5), scored(copy(job), 0.6)])

        assert self.gone(wanted) == [(id_of(0), "alloc not needed due to job update")]
        assert wanted.reconnecting == []

    def test_best_score_keeps_the_original_otherwise(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [scored(back(job), 0.6), scored(copy(job), 0.6)])

        assert self.gone(wanted) == [(id_of(5), "alloc not needed due to disconnected client reconnect")]
        assert [held.id for held in wanted.reconnecting] == [id_of(0)]

    def test_best_score_does_not_trade_what_runs_for_what_does_not_yet(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [scored(back(job), 0.5), scored(copy(job, client="pending"), 0.6)])
        neither = run_group(job, [scored(back(job, client="pending"), 0.5), scored(copy(job, client="pending"), 0.6)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(5)]
        assert [stop.held.id for stop in neither.stops] == [id_of(0)]

    def test_without_scores_the_original_stays(self) -> None:
        job = a_patient(1)

        assert [stop.held.id for stop in run_group(job, [back(job), copy(job)]).stops] == [id_of(5)]

    def test_keep_original(self) -> None:
        job = a_patient(1, reconcile="keep_original")

        wanted = run_group(job, [scored(back(job), 0.1), scored(copy(job), 0.9)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(5)]

    def test_keep_replacement(self) -> None:
        job = a_patient(1, reconcile="keep_replacement")

        wanted = run_group(job, [scored(back(job), 0.9), scored(copy(job), 0.1)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(0)]

    @pytest.mark.parametrize(
        ("original", "other", "goes"),
        [
            ({"web": 10}, {"web": 20}, 5),
            ({"web": 20}, {"web": 10}, 0),
            ({"web": 0}, {"web": 10}, 0),
            ({"web": 10}, {"web": 0}, 5),
            ({"web": 10}, {}, 5),
            ({"web": 10}, {"web": 10}, 5),
        ],
    )
    def test_longest_running_keeps_the_earlier_start(
        self, original: dict[str, int], other: dict[str, int], goes: int
    ) -> None:
        job = a_patient(1, reconcile="longest_running")

        wanted = run_group(job, [started(back(job), **original), started(copy(job), **other)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(goes)]

    def test_longest_running_asks_the_oldest_main_task_that_started(self) -> None:
        policy = DisconnectStrategy(lost_after_s=300.0, reconcile="longest_running")
        job = a_service(1, disconnect=policy, tasks=[a_task("a"), a_task("b"), a_task("c")])

        wanted = run_group(job, [started(back(job), a=0, b=20, c=30), started(copy(job), a=10, b=90, c=0)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(0)]

    def test_starts_do_not_matter_unless_asked_for(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [started(scored(back(job), 0.5), web=10), started(scored(copy(job), 0.6), web=20)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(0)]

    def test_longest_running_without_any_start_falls_back_to_the_score(self) -> None:
        job = a_patient(1, reconcile="longest_running")

        wanted = run_group(job, [scored(back(job), 0.1), scored(copy(job), 0.9)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(0)]

    def test_longest_running_asks_the_leader_or_else_main_tasks(self) -> None:
        tasks = [a_task("web"), a_task("boss", leader=True), a_task("init", lifecycle=TaskLifecycle(hook="prestart"))]
        policy = DisconnectStrategy(lost_after_s=300.0, reconcile="longest_running")
        led = a_service(1, disconnect=policy, tasks=tasks)
        plain = a_service(1, disconnect=policy, tasks=[tasks[0], tasks[2]])

        by_leader = run_group(led, [started(back(led), web=1, boss=30), started(copy(led), web=2, boss=20)])
        by_main = run_group(plain, [started(back(plain), web=30, init=1), started(copy(plain), web=20, init=2)])

        assert [stop.held.id for stop in by_leader.stops] == [id_of(0)]
        assert [stop.held.id for stop in by_main.stops] == [id_of(0)]

    def test_a_copy_of_a_newer_version_always_wins(self) -> None:
        old = a_patient(1, reconcile="keep_original")
        new = changed(old)

        assert keeps_replacement(held_of(back(old)), held_of(copy(new)), new.task_groups[0], "keep_original")

    def test_a_copy_that_failed_replaces_nobody(self) -> None:
        job = a_patient(1, policy=SLOW, reconcile="keep_replacement")

        wanted = run_group(job, [back(job), copy(job, client="failed", finished_at=NOW)])

        assert [held.id for held in wanted.reconnecting] == [id_of(0)]
        assert [stop.held.id for stop in wanted.stops] == [id_of(5)]
        assert (wanted.follow_ups, wanted.followed) == ([], [])  # nobody comes back for the copy

    def test_a_batch_copy_that_completed_replaces_the_original(self) -> None:
        strategy = DisconnectStrategy(lost_after_s=60.0, reconcile="keep_replacement")
        job = a_batch(1, disconnect=strategy)

        wanted = run_group(job, [back(job), copy(job, client="complete")])

        assert [stop.held.id for stop in wanted.stops] == [id_of(0)]
        assert wanted.reconnecting == []

    def test_when_original_and_copy_are_both_back_one_of_the_chain_is_kept(self) -> None:
        job = a_patient(1, reconcile="keep_original")
        first = copy(job, unknown_at=RECENTLY, next_allocation=id_of(6))
        second = alloc(6, job, index=0, node=6, previous_allocation=id_of(5))

        wanted = run_group(job, [back(job), first, second])

        assert [held.id for held in wanted.reconnecting] == [id_of(0)]
        assert sorted(stop.held.id for stop in wanted.stops) == [id_of(5), id_of(6)]

    def test_links_in_a_ring_are_followed_once(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [back(job), copy(job, next_allocation=id_of(5))])

        assert [stop.held.id for stop in wanted.stops] == [id_of(5)]

    def test_copies_of_copies_are_found(self) -> None:
        job = a_patient(1)
        first = copy(job, client="failed", next_allocation=id_of(6))
        second = alloc(6, job, index=0, node=6, previous_allocation=id_of(5))

        wanted = run_group(job, [back(job), first, second])

        assert sorted(stop.held.id for stop in wanted.stops) == [id_of(5), id_of(6)]
        assert places(wanted) == []

    def test_copies_that_servers_stopped_are_of_no_interest(self) -> None:
        job = a_patient(1)

        wanted = run_group(job, [back(job), copy(job, desired="stop")])

        assert wanted.stops == []
        assert len(wanted.reconnecting) == 1
        assert "stop" not in numbers(wanted)

    def test_a_batch_allocation_that_completed_alone_counts(self) -> None:
        job = a_batch(1, disconnect=DisconnectStrategy(lost_after_s=60.0))

        wanted = run_group(job, [back(job, client="complete"), copy(job)])

        assert [stop.held.id for stop in wanted.stops] == [id_of(5)]
        assert places(wanted) == []
