"""One group of a service or batch job: what is placed, stopped, updated and moved."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.alloc import ClientStatus, RescheduleTracker
from fedsched.model.policies import DisconnectStrategy, ReschedulePolicy, UpdateStrategy
from fedsched.scheduler.reconcile import group
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
    edited,
    id_of,
    places,
    run,
    run_group,
    stopped,
)
from tests.scheduler.reconcile.test_reschedule import a_story

DOWN = {0: Taint.DOWN, 1: Taint.DOWN}
OFF = ReschedulePolicy(attempts=0, unlimited=False)
SLOW = ReschedulePolicy(delay_s=60.0, delay_function="constant")


def numbers(wanted: GroupWanted) -> dict[str, int]:
    """The counts that are not zero."""
    desired = wanted.desired
    return {name: getattr(desired, name) for name in desired.__struct_fields__ if getattr(desired, name)}


class TestPlacing:
    def test_a_new_job_gets_all_its_places(self) -> None:
        wanted = run_group(a_service(4))

        assert wanted.fresh.tolist() == [0, 1, 2, 3]
        assert wanted.special == []
        assert numbers(wanted) == {"place": 4}

    def test_a_settled_job_needs_nothing(self) -> None:
        job = a_service(10)

        wanted = run(job, allocs(job, 10))

        assert wanted.is_calm
        assert numbers(wanted.groups["group"]) == {"ignore": 10}

    def test_missing_places_are_filled_lowest_first(self) -> None:
        job = a_service(5)
        records = [alloc(number, job) for number in (1, 3, 4)]

        assert run_group(job, records).fresh.tolist() == [0, 2]

    def test_a_higher_count_updates_the_others_in_place(self) -> None:
        job = a_service(2)

        wanted = run_group(edited(job, count=3), allocs(job, 2))

        assert numbers(wanted) == {"in_place_update": 2, "place": 1}

    def test_count_zero_stops_all(self) -> None:
        job = a_service(3)

        wanted = run_group(edited(job, count=0), allocs(job, 3))

        assert stopped(wanted) == [0, 1, 2]
        assert places(wanted) == []

    def test_completed_service_allocations_are_placed_again(self) -> None:
        job = a_service(2)
        records = [alloc(0, job, client="complete"), alloc(1, job)]

        wanted = run_group(job, records)

        assert wanted.fresh.tolist() == [0]
        assert wanted.stops == []

    def test_allocations_that_servers_stopped_are_forgotten(self) -> None:
        job = a_service(2)
        records = [alloc(0, job, desired="stop", client="complete"), alloc(1, job)]

        assert run_group(job, records).fresh.tolist() == [0]


class TestLost:
    def test_lost_allocations_are_stopped_as_lost_and_replaced_under_their_names(self) -> None:
        job = a_service(10)

        wanted = run_group(job, allocs(job, 10), tainted=DOWN)

        assert [(stop.held.name_index, stop.client_status) for stop in wanted.stops] == [
            (0, ClientStatus.LOST),
            (1, ClientStatus.LOST),
        ]
        assert {stop.description for stop in wanted.stops} == {"alloc is lost since its node is down"}
        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "lost"), (1, "lost")]
        assert [one.previous.id for one in wanted.special if one.previous] == [id_of(0), id_of(1)]
        assert all(one.tracker is None and one.stop is None for one in wanted.special)
        assert numbers(wanted) == {"ignore": 8, "stop": 2, "place": 2}

    def test_a_lost_allocation_is_replaced_at_once_even_with_rescheduling_off(self) -> None:
        job = a_service(2, reschedule_policy=OFF)

        assert places(run_group(job, allocs(job, 2), tainted=DOWN)) == [0, 1]

    def test_where_it_was_lost_is_no_node_to_avoid(self) -> None:
        job = a_service(1)

        (single,) = run_group(job, [alloc(0, job)], tainted={0: Taint.DOWN}).special

        assert single.penalty_nodes() == set()

    def test_lost_allocations_beyond_the_count_are_not_replaced(self) -> None:
        job = a_service(8)

        wanted = run_group(job, allocs(job, 10), tainted=DOWN)

        assert stopped(wanted) == [0, 1]
        assert places(wanted) == []

    def test_nodes_that_are_not_known_any_more_are_gone(self) -> None:
        job = a_service(1)

        assert places(run_group(job, [alloc(0, job, node=5000)])) == [0]


class TestHeldUp:
    """`stop_on_client_after`: a client on its own may still run what servers gave up."""

    def job(self, **group: Any) -> Any:
        return a_service(3, disconnect=DisconnectStrategy(stop_on_client_after_s=60.0), **group)

    def test_nothing_of_the_group_is_placed_until_the_client_must_have_stopped(self) -> None:
        job = self.job()

        wanted = run_group(job, allocs(job, 2), tainted={0: Taint.DOWN})

        assert stopped(wanted) == [0]
        assert places(wanted) == []
        (later,) = wanted.follow_ups
        assert later.wait_until_ns == NOW + 65 * SECOND
        assert later.triggered_by == "alloc-reschedule"
        assert later.status_description == "created for delayed rescheduling"
        assert wanted.stops[0].followup_id == later.id

    def test_a_task_that_takes_longer_to_end_is_waited_for(self) -> None:
        job = self.job(tasks=[a_task(kill_timeout_s=20.0), a_task("side", kill_timeout_s=1.0)])

        (later,) = run_group(job, allocs(job, 2), tainted={0: Taint.DOWN}).follow_ups

        assert later.wait_until_ns == NOW + 80 * SECOND

    def test_other_evaluations_do_not_place_earlier_either(self) -> None:
        job = self.job()
        lost = {"desired": "stop", "client": "lost"}

        early = [alloc(0, job, modify_time_ns=NOW - 64 * SECOND, **lost), *allocs(job, 2, start=1)]
        due = [alloc(0, job, modify_time_ns=NOW - 65 * SECOND, **lost), *allocs(job, 2, start=1)]

        assert places(run_group(job, early)) == []
        assert places(run_group(job, due)) == [0]

    def test_somebody_comes_back_for_what_was_stopped_before_its_node_was_lost(self) -> None:
        job = self.job()
        lost = alloc(0, job, desired="stop", client="lost", modify_time_ns=NOW - 5 * SECOND)

        wanted = run_group(job, [lost])

        assert places(wanted) == []
        (later,) = wanted.follow_ups
        assert (later.id, later.wait_until_ns) == (wanted.held_up_until, NOW + 60 * SECOND)

    def test_the_evaluation_that_it_waits_for_ends_the_wait_to_the_last_moment(self) -> None:
        job = self.job()
        lost = alloc(
            0, job, desired="stop", client="lost", modify_time_ns=NOW - 64 * SECOND, followup_eval_id=EVALUATION
        )

        assert places(run_group(job, [lost])) == [0, 1, 2]


class TestSmallerCounts:
    """What replaces something beyond the count finds its place below it."""

    def test_lost_ones_get_a_free_place(self) -> None:
        job = a_service(3)
        records = [alloc(0, job), alloc(5, job, node=5)]

        wanted = run_group(job, records, tainted={5: Taint.DOWN})

        assert [(one.name_index, one.reason) for one in wanted.special] == [(1, "lost")]
        assert wanted.fresh.tolist() == [2]

    def test_moving_ones_get_a_free_place(self) -> None:
        job = a_service(2)
        records = [alloc(1, job), alloc(5, job, node=5, flags=["migrate"])]

        assert [one.name_index for one in run_group(job, records).special] == [0]

    def test_updated_ones_get_a_free_place(self) -> None:
        old = a_service(2, update=UpdateStrategy(max_parallel=2))
        records = [alloc(1, old), alloc(5, old, node=5)]

        assert places(run_group(changed(old), records)) == [0, 1]

    def test_a_count_of_zero_waits_for_nobody_who_is_cut_off(self) -> None:
        job = a_service(0, disconnect=DisconnectStrategy(lost_after_s=600.0))
        cut_off = alloc(0, job, client="unknown", unknown_at=NOW - SECOND)

        wanted = run_group(job, [cut_off], tainted={0: Taint.DISCONNECTED})

        assert stopped(wanted) == [0]
        assert places(wanted) == []


class TestComing:
    """A node that is back but has not told about its allocations yet."""

    def test_nobody_is_chosen_between_before_it_has(self) -> None:
        job = a_service(1, disconnect=DisconnectStrategy(lost_after_s=600.0))
        back = alloc(0, job, unknown_at=NOW - SECOND)

        assert run_group(job, [back], tainted={0: Taint.COMING}).is_calm
        assert run_group(job, [back]).reconnecting

    def test_nothing_goes_on_in_place_there(self) -> None:
        old = a_service(1)
        new = edited(old)

        assert run_group(new, [alloc(0, old)], tainted={0: Taint.COMING}).in_place == []
        assert len(run_group(new, [alloc(0, old)]).in_place) == 1


class TestFailed:
    def test_one_that_was_due_before_and_found_no_place_is_due_at_once(self) -> None:
        job = a_service(1, reschedule_policy=SLOW)
        story = RescheduleTracker(last_reschedule="no placement")
        failed = alloc(
            0, job, client="failed", modify_time_ns=NOW, reschedule_tracker=story, followup_eval_id=an_id(0x77)
        )

        assert places(run_group(job, [failed])) == [0]

    def test_what_failed_after_it_was_healthy_is_looked_at_when_its_deployment_ends(self) -> None:
        job = a_service(1, reschedule_policy=SLOW, update=UpdateStrategy(max_parallel=1))
        deployment = deploying(job, desired_total=1, healthy_allocs=1)
        failed = alloc(0, job, client="failed", health=True, deployment=deployment.id, finished_at=NOW)

        wanted = run(job, [failed], deployment=deployment)

        assert [update.status for update in wanted.deployment_updates] == ["successful"]
        assert len(wanted.groups["group"].follow_ups) == 1

    def test_a_failed_allocation_is_replaced_under_its_name_with_its_story(self) -> None:
        job = a_service(2)
        story = RescheduleTracker(events=a_story(30, last_s_ago=7200))
        records = [alloc(0, job, client="failed", reschedule_tracker=story, node=3), alloc(1, job)]

        wanted = run_group(job, records)

        (single,) = wanted.special
        assert (single.name_index, single.reason) == (0, "reschedule")
        assert single.stop is not None
        assert single.stop.description == "alloc was rescheduled because it failed"
        assert single.tracker is not None
        assert [event.delay_s for event in single.tracker.events] == [30, 60]
        assert single.penalty_nodes() == {an_id(0x203), an_id(0x300)}
        assert numbers(wanted) == {"ignore": 1, "place": 1, "stop": 1, "reschedule_now": 1}

    def test_not_due_yet_it_keeps_its_place_and_an_evaluation_comes_back_to_it(self) -> None:
        job = a_service(2, reschedule_policy=SLOW)
        records = [alloc(0, job, client="failed", finished_at=NOW), alloc(1, job)]

        wanted = run_group(job, records)

        assert places(wanted) == stopped(wanted) == []
        (later,) = wanted.follow_ups
        assert later.wait_until_ns == NOW + 60 * SECOND
        assert later.triggered_by == "alloc-reschedule"
        (entry,) = wanted.followed
        assert (entry.held.id, entry.followup_id) == (id_of(0), later.id)
        assert numbers(wanted) == {"ignore": 2, "reschedule_later": 1}

    def test_its_own_follow_up_replaces_it(self) -> None:
        job = a_service(1, reschedule_policy=SLOW)
        records = [alloc(0, job, client="failed", finished_at=NOW, followup_eval_id=EVALUATION)]

        assert places(run_group(job, records)) == [0]

    def test_with_rescheduling_off_it_keeps_its_place(self) -> None:
        job = a_service(1, reschedule_policy=OFF)

        assert run_group(job, allocs(job, 1, client="failed")).is_calm

    def test_replacements_that_the_count_does_not_want_are_not_made(self) -> None:
        job = a_service(2)
        records = [alloc(0, job, client="failed"), *allocs(job, 2, start=1)]

        wanted = run_group(job, records)

        assert places(wanted) == []
        assert stopped(wanted) == [0]


class TestBatch:
    def test_completed_allocations_count_as_present(self) -> None:
        job = a_batch(3)

        assert run(job, allocs(job, 3, client="complete")).is_calm

    def test_an_edit_runs_everything_again(self) -> None:
        job = a_batch(3)

        wanted = run_group(edited(job), allocs(job, 3, client="complete"))

        assert wanted.fresh.tolist() == [0, 1, 2]
        assert numbers(wanted) == {"ignore": 3, "place": 3}

    def test_an_edit_leaves_what_still_runs_in_place(self) -> None:
        job = a_batch(2)
        records = [alloc(0, job), alloc(1, job, client="complete")]

        wanted = run_group(edited(job), records)

        assert [held.name_index for held in wanted.in_place] == [0]
        assert wanted.fresh.tolist() == [1]

    def test_drained_by_force_it_is_not_replaced(self) -> None:
        job = a_batch(2)
        flags = ["migrate", "migrate_disable_placement"]

        before = run_group(job, allocs(job, 2, flags=flags))
        after = run_group(job, allocs(job, 2, flags=flags, desired="stop", client="complete"))

        assert stopped(before) == [0, 1]
        assert places(before) == []
        assert after.is_calm

    def test_drained_in_time_it_is_moved(self) -> None:
        job = a_batch(2)

        wanted = run_group(job, allocs(job, 2, flags=["migrate"]))

        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "migrate"), (1, "migrate")]

    def test_stopped_by_a_user_it_is_replaced_as_the_policy_says(self) -> None:
        job = a_batch(1, reschedule_policy=SLOW)
        flags = ["migrate", "reschedule"]

        at_once = run_group(job, [alloc(0, job, flags=flags)])
        wanted = run_group(job, [alloc(0, job, flags=flags, modify_time_ns=NOW)])
        later = run_group(job, [alloc(0, job, flags=flags, desired="stop", client="complete")])

        assert [(one.reason, one.stop is not None) for one in at_once.special] == [("reschedule", True)]
        assert stopped(wanted) == [0]
        assert places(wanted) == []
        assert [one.wait_until_ns for one in wanted.follow_ups] == [NOW + 60 * SECOND]
        assert places(later) == [0]

    def test_stopped_allocations_of_this_version_are_ignored(self) -> None:
        job = a_batch(1)
        records = [alloc(0, job, desired="stop", client="failed"), alloc(1, job, index=0)]

        wanted = run_group(job, records)

        assert numbers(wanted) == {"ignore": 2}

    def test_still_running_though_stopped_is_ignored_too(self) -> None:
        job = a_batch(1)
        records = [alloc(0, job, desired="stop"), alloc(1, job, index=0)]

        assert numbers(run_group(job, records)) == {"ignore": 2}

    def test_replaced_failures_are_dropped(self) -> None:
        job = a_batch(1)
        records = [alloc(0, job, client="failed", next_allocation=id_of(1)), alloc(1, job, index=0)]

        assert run_group(job, records).is_calm


class TestSurplus:
    def test_whoever_is_stopped_as_surplus_is_not_waited_for(self) -> None:
        job = a_service(1, reschedule_policy=SLOW)

        wanted = run_group(job, [alloc(0, job), alloc(1, job, node=1, client="failed", finished_at=NOW)])

        assert stopped(wanted) == [1]
        assert wanted.followed == []

    def test_whoever_is_back_and_surplus_does_not_go_on(self) -> None:
        job = a_service(1)
        records = [alloc(0, job), alloc(1, job, node=1, unknown_at=NOW - SECOND)]

        wanted = run_group(job, records)

        assert stopped(wanted) == [1]
        assert wanted.reconnecting == []


class TestRolling:
    def test_as_many_as_max_parallel_are_replaced_lowest_places_first(self) -> None:
        job = a_service(10, update=UpdateStrategy(max_parallel=4))

        wanted = run_group(changed(job), allocs(job, 10))

        assert [one.name_index for one in wanted.destructive] == [0, 1, 2, 3]
        assert {one.stop.description for one in wanted.destructive if one.stop} == {
            "alloc is being updated due to job update"
        }
        assert numbers(wanted) == {"destructive_update": 4, "ignore": 6}

    @pytest.mark.parametrize("healthy", range(5))
    def test_as_many_go_on_as_have_become_healthy(self, healthy: int) -> None:
        old = a_service(10, update=UpdateStrategy(max_parallel=4))
        new = changed(old)
        deployment = deploying(new, desired_total=10)
        fresh = [alloc(n, new, health=True if n < healthy else None, deployment=deployment.id) for n in range(4)]

        wanted = run_group(new, [*fresh, *allocs(old, 6, start=4)], deployment=deployment)

        assert [one.name_index for one in wanted.destructive] == list(range(4, 4 + healthy))

    def test_one_unhealthy_allocation_stops_it(self) -> None:
        old = a_service(10, update=UpdateStrategy(max_parallel=4))
        new = changed(old)
        deployment = deploying(new, desired_total=10)
        fresh = [alloc(n, new, health=n != 2, deployment=deployment.id) for n in range(4)]

        assert run_group(new, [*fresh, *allocs(old, 6, start=4)], deployment=deployment).destructive == []

    def test_more_undecided_than_allowed_is_not_less_than_none(self) -> None:
        old = a_service(10, update=UpdateStrategy(max_parallel=1))
        new = changed(old)
        deployment = deploying(new, desired_total=10)
        fresh = allocs(new, 4, deployment=deployment.id)

        assert run_group(new, [*fresh, *allocs(old, 6, start=4)], deployment=deployment).destructive == []

    def test_max_parallel_zero_replaces_all_at_once_without_a_deployment(self) -> None:
        job = a_service(10, update=UpdateStrategy(max_parallel=0))

        wanted = run(changed(job), allocs(job, 10))

        assert len(wanted.groups["group"].destructive) == 10
        assert wanted.deployment is None

    def test_new_places_use_up_what_may_be_touched(self) -> None:
        job = a_service(4, update=UpdateStrategy(max_parallel=2))

        wanted = run_group(changed(job, count=6), allocs(job, 4))

        assert numbers(wanted) == {"place": 2, "ignore": 4}

    def test_what_is_left_after_new_places_is_used(self) -> None:
        job = a_service(4, update=UpdateStrategy(max_parallel=3))

        wanted = run_group(changed(job, count=5), allocs(job, 4))

        assert numbers(wanted) == {"place": 1, "destructive_update": 2, "ignore": 2}

    @pytest.mark.parametrize("status", ["paused", "pending", "initializing", "failed"])
    def test_a_deployment_that_is_held_lets_only_replacements_through(self, status: str) -> None:
        old = a_service(10, update=UpdateStrategy(max_parallel=4))
        new = changed(old, count=11)
        deployment = deploying(new, status=status, desired_total=10)
        records = [*allocs(old, 9), alloc(9, old, client="failed")]

        wanted = run_group(new, records, deployment=deployment, tainted={0: Taint.DOWN})

        assert [(one.name_index, one.reason) for one in wanted.special] == [(9, "reschedule"), (0, "lost")]
        assert wanted.fresh.tolist() == []
        assert wanted.destructive == []

    def test_failures_of_the_failed_deployment_itself_are_not_replaced(self) -> None:
        job = a_service(2)
        deployment = deploying(job, status="failed", desired_total=2)
        records = [alloc(0, job, client="failed", deployment=deployment.id), alloc(1, job, deployment=deployment.id)]

        assert run_group(job, records, deployment=deployment).special == []


class TestMigrating:
    def test_each_is_stopped_and_placed_under_its_name(self) -> None:
        job = a_service(10)
        records = [*allocs(job, 2, flags=["migrate"]), *allocs(job, 8, start=2)]

        wanted = run_group(job, records, tainted={0: Taint.DRAINING, 1: Taint.DRAINING})

        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "migrate"), (1, "migrate")]
        assert {(one.held.name_index, one.description) for one in wanted.stops} == {
            (0, "alloc is being migrated"),
            (1, "alloc is being migrated"),
        }
        assert numbers(wanted) == {"ignore": 8, "migrate": 2}

    def test_each_goes_whether_or_not_a_place_is_found(self) -> None:
        job = a_service(1)

        wanted = run_group(job, [alloc(0, job, flags=["migrate"])])

        assert [stop.held.name_index for stop in wanted.stops] == [0]
        assert [one.stop for one in wanted.special] == [None]

    @pytest.mark.parametrize("flag", ["reschedule", "migrate_disable_placement"])
    def test_what_holds_replacements_of_batch_jobs_back_does_not_hold_a_service_back(self, flag: str) -> None:
        job = a_service(1)

        wanted = run_group(job, [alloc(0, job, flags=["migrate", flag])])

        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "migrate")]

    def test_a_batch_allocation_that_somebody_stopped_stays_stopped_while_it_waits_for_its_time(self) -> None:
        job = a_batch(1, reschedule_policy=SLOW)
        asked = alloc(0, job, flags=["migrate", "reschedule"], modify_time_ns=NOW)

        wanted = run_group(job, [asked])

        (stop,) = wanted.stops
        assert stop.followup_id == wanted.follow_ups[0].id
        assert wanted.followed == []

    def test_one_whose_place_a_promoted_canary_took_gets_another(self) -> None:
        job = a_service(2)
        records = [alloc(0, job), alloc(7, job, index=0, node=7, flags=["migrate"])]

        assert [one.name_index for one in run_group(job, records).special] == [1]

    def test_a_draining_node_alone_moves_nothing(self) -> None:
        job = a_service(2)

        assert run_group(job, allocs(job, 2), tainted={0: Taint.DRAINING}).is_calm

    def test_it_moves_whatever_may_be_touched(self) -> None:
        old = a_service(4, update=UpdateStrategy(max_parallel=1))
        new = changed(old)
        records = [*allocs(old, 3, flags=["migrate"]), *allocs(old, 1, start=3)]

        wanted = run_group(new, records, deployment=deploying(new, status="paused", desired_total=4))

        assert [one.reason for one in wanted.special] == ["migrate"] * 3


def test_calm_groups_come_to_the_same_with_and_without_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_service(20)
    deployment = deploying(job, desired_total=20, healthy_allocs=20)
    records = allocs(job, 20, deployment=deployment.id, health=True)

    short = run(job, records, deployment=deployment)
    monkeypatch.setattr(group, "has_canaries", lambda *_: True)
    long = run(job, records, deployment=deployment)

    assert short.groups["group"].desired == long.groups["group"].desired
    assert short.deployment_updates == long.deployment_updates
    assert [update.status for update in short.deployment_updates] == ["successful"]
