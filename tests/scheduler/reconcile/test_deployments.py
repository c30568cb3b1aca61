"""Deployments: which one counts, when one begins, canaries, and the end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.deployment import Deployment, DeploymentState
from fedsched.model.job import Job, Multiregion
from fedsched.model.policies import UpdateStrategy
from fedsched.scheduler.reconcile.held import Taint
from tests.builders import a_group, a_job, an_evaluation
from tests.scheduler.reconcile.kit import (
    EVALUATION,
    NOW,
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

CANARY_2 = UpdateStrategy(max_parallel=2, canary=2)


class TestStanding:
    def test_stopping_the_job_cancels_an_active_deployment(self) -> None:
        job = a_service(stop=True)

        (update,) = run(job, deployment=deploying(job)).deployment_updates

        assert (update.status, update.status_description) == ("cancelled", "Cancelled because job is stopped")
        assert update.update_time_ns == NOW

    def test_purging_it_does_too(self) -> None:
        job = a_service()

        evaluation = an_evaluation(job=job)
        (update,) = run(None, deployment=deploying(job), evaluation=evaluation).deployment_updates

        assert update.status == "cancelled"

    @pytest.mark.parametrize("newer", [a_service(version=2), replace(a_service(), create_index=9)])
    def test_a_newer_job_cancels_it(self, newer: Job) -> None:
        wanted = run(newer, deployment=deploying(a_service()))

        (update,) = wanted.deployment_updates
        assert (update.status, update.status_description) == ("cancelled", "Cancelled due to newer version of job")

    @pytest.mark.parametrize("status", ["failed", "successful", "cancelled"])
    def test_one_that_ended_needs_no_cancelling(self, status: str) -> None:
        old = a_service()

        assert run(a_service(version=2), deployment=deploying(old, status=status)).deployment_updates == []
        assert run(a_service(stop=True), deployment=deploying(old, status=status)).deployment_updates == []

    def test_a_successful_one_counts_as_none(self) -> None:
        job = a_service(2)

        wanted = run(edited(job), allocs(job, 2), deployment=deploying(job, status="successful"))

        assert wanted.deployment is not None

    def test_a_successful_one_holds_nothing_back(self) -> None:
        job = a_service(2)
        ended = deploying(job, status="successful", desired_total=2, healthy_allocs=1)
        moving = [alloc(0, job, flags=["migrate"]), alloc(1, job, health=False, deployment=ended.id)]

        again = run(job, [*moving, *allocs(job, 2, start=2, client="failed", deployment=ended.id)], deployment=ended)

        assert places(again.groups["group"]) == [0]
        assert again.deployment_updates == []


class TestBeginning:
    def test_the_first_version_is_watched_over(self) -> None:
        job = a_service(3, update=UpdateStrategy(auto_revert=True, progress_deadline_s=60.0))

        deployment = run(job, evaluation=an_evaluation(id=EVALUATION, job=job, priority=77)).deployment

        assert deployment is not None
        assert (deployment.job_version, deployment.job_create_index) == (1, 5)
        assert (deployment.job_modify_index, deployment.job_spec_modify_index) == (job.modify_index, 10)
        assert deployment.eval_priority == 77
        assert (deployment.status, deployment.status_description) == ("running", "Deployment is running")
        assert deployment.create_time_ns == NOW
        assert deployment.task_groups == {
            "group": DeploymentState(auto_revert=True, progress_deadline_s=60.0, desired_total=3)
        }

    def test_the_total_is_what_the_first_pass_changes_and_places(self) -> None:
        job = a_service(4)

        assert self.total(changed(job, count=6), allocs(job, 4)) == 6
        assert self.total(edited(job, count=6), allocs(job, 4)) == 6
        assert self.total(edited(job, count=3), allocs(job, 4)) == 3

    def total(self, job: Job, records: Any) -> int:
        deployment = run(job, records).deployment
        assert deployment is not None
        return deployment.task_groups["group"].desired_total

    def test_more_of_a_version_that_ran_before_is_not_a_deployment(self) -> None:
        job = a_service(4)

        assert run(job, allocs(job, 3)).deployment is None
        assert run(job, allocs(job, 4, desired="stop", client="lost")).deployment is None

    def test_nothing_to_do_is_not_a_deployment(self) -> None:
        assert run(a_service(0)).deployment is None

    def test_batch_jobs_have_none(self) -> None:
        assert run(a_batch(3)).deployment is None

    def test_groups_share_one(self) -> None:
        job = a_job(groups=[a_group("a", count=2), a_group("b", count=3), a_group("c", count=1, update=None)])

        deployment = run(job).deployment

        assert deployment is not None
        assert {name: state.desired_total for name, state in deployment.task_groups.items()} == {"a": 2, "b": 3}

    def test_a_group_may_join_later(self) -> None:
        job = a_job(groups=[a_group("a", count=2), a_group("b", count=3)], create_index=5)
        known = replace(deploying(job), task_groups={"a": DeploymentState(desired_total=2, placed_allocs=2)})

        deployment = run(job, [alloc(n, job, group="a") for n in range(2)], deployment=known).deployment

        assert deployment is not None
        assert deployment.id == known.id
        assert deployment.task_groups["a"].placed_allocs == 2
        assert deployment.task_groups["b"].desired_total == 3

    def test_no_group_joins_a_failed_one(self) -> None:
        job = a_job(groups=[a_group("a", count=2), a_group("b", count=3)], create_index=5)
        known = replace(deploying(job, status="failed"), task_groups={"a": DeploymentState(desired_total=2)})

        assert run(job, [alloc(n, job, group="a") for n in range(2)], deployment=known).deployment is None

    @pytest.mark.parametrize(
        ("is_automatic", "words"),
        [
            (False, "Deployment is running but requires manual promotion"),
            (True, "Deployment is running pending automatic promotion"),
        ],
    )
    def test_the_description_says_who_promotes(self, is_automatic: bool, words: str) -> None:
        job = a_service(2, update=UpdateStrategy(canary=1, auto_promote=is_automatic))

        deployment = run(changed(job), allocs(job, 2)).deployment

        assert deployment is not None
        assert deployment.status_description == words

    def test_one_that_a_region_begins_by_itself_waits_for_no_other_region(self) -> None:
        deployment = run(replace(a_service(1), multiregion=Multiregion())).deployment

        assert deployment is not None
        assert (deployment.status, deployment.is_multiregion) == ("running", False)


class TestTurns:
    """A region's part in a rollout: what comes before its turn and after it."""

    def part(self, job: Job, status: str, **state: Any) -> Deployment:
        groups = {"group": DeploymentState(**state)} if state else {}
        return replace(deploying(job, status=status), is_multiregion=True, task_groups=groups)

    def test_the_first_look_settles_what_it_will_do_and_places_nothing(self) -> None:
        job = a_service(3)

        wanted = run(job, deployment=self.part(job, "initializing"))

        assert wanted.deployment is not None
        assert wanted.deployment.status == "pending"
        assert wanted.deployment.task_groups["group"].desired_total == 3
        assert places(wanted.groups["group"]) == []

    def test_it_is_pending_also_if_there_will_be_nothing_to_do(self) -> None:
        job = a_service(0)

        (update,) = run(job, deployment=self.part(job, "initializing")).deployment_updates

        assert update.status == "pending"

    @pytest.mark.parametrize("status", ["initializing", "pending"])
    def test_before_its_turn_the_old_version_is_left_alone(self, status: str) -> None:
        old = a_service(4)
        new = edited(old, count=2)

        wanted = run(new, allocs(old, 4), deployment=self.part(new, status))

        group = wanted.groups["group"]
        assert group.stops == []
        assert group.in_place == []
        assert group.destructive == []
        assert places(group) == []

    def test_before_its_turn_a_group_that_goes_stays(self) -> None:
        old = a_service(2)
        new = replace(changed(old), task_groups=(a_group("other", count=1),))

        wanted = run(new, allocs(old, 2), deployment=self.part(new, "pending", desired_total=1))

        assert "group" not in wanted.groups

    def test_before_its_turn_a_lost_allocation_is_replaced_as_it_was(self) -> None:
        old = a_service(2)
        new = changed(old)
        records = [alloc(0, old), alloc(1, old, node=1)]

        wanted = run(new, records, tainted={1: Taint.DOWN}, deployment=self.part(new, "pending", desired_total=2))

        (single,) = wanted.groups["group"].special
        assert (single.name_index, single.job_version) == (1, old.version)

    def test_in_its_turn_it_is_like_any_other(self) -> None:
        job = a_service(2)

        wanted = run(job, deployment=self.part(job, "running", desired_total=2))

        assert places(wanted.groups["group"]) == [0, 1]

    def test_with_nothing_to_watch_over_planning_is_all_there_is(self) -> None:
        job = a_service(2, update=UpdateStrategy(max_parallel=0))

        wanted = run(job, deployment=self.part(job, "running"))

        assert places(wanted.groups["group"]) == [0, 1]
        assert [update.status for update in wanted.deployment_updates] == ["blocked"]


class TestCanaries:
    def test_canaries_come_first_and_alone(self) -> None:
        job = a_service(10, update=CANARY_2)

        wanted = run(changed(job), allocs(job, 10))
        group = wanted.groups["group"]

        assert [(one.name_index, one.reason, one.is_canary) for one in group.special] == [
            (0, "canary", True),
            (1, "canary", True),
        ]
        assert group.stops == group.destructive == []
        assert (group.desired.canary, group.desired.ignore) == (2, 10)
        assert wanted.deployment is not None
        assert wanted.deployment.task_groups["group"].desired_canaries == 2
        assert wanted.deployment.task_groups["group"].desired_total == 10

    def test_what_a_purged_job_of_the_same_id_left_behind_calls_for_no_canaries(self) -> None:
        purged = a_service(3, version=0, update=CANARY_2)
        job = replace(purged, create_index=purged.create_index + 5)
        group = run_group(job, [alloc(0, purged, client="failed")])

        assert (places(group), group.desired.canary) == ([0, 1, 2], 0)

    def test_no_canaries_without_something_to_replace(self) -> None:
        job = a_service(3, update=CANARY_2)

        assert run_group(job).desired.canary == 0
        assert run_group(edited(job), allocs(job, 3)).desired.canary == 0

    def stage(self, **state: Any) -> tuple[Job, Job, Any, list[Any]]:
        """Ten old ones, and two canaries at 0 and 1."""
        old = a_service(10, update=CANARY_2)
        new = changed(old)
        state = {"desired_total": 10, "desired_canaries": 2, "placed_canaries": (id_of(20), id_of(21)), **state}
        deployment = deploying(new, **state)
        canaries = [
            alloc(20 + n, new, index=n, node=20 + n, canary=True, health=True, deployment=deployment.id)
            for n in range(2)
        ]
        return old, new, deployment, [*allocs(old, 10), *canaries]

    def test_while_they_wait_for_promotion_nothing_else_happens(self) -> None:
        _, new, deployment, records = self.stage()

        wanted = run(new, records, deployment=deployment)

        assert wanted.is_calm
        assert wanted.groups["group"].desired.ignore == 12

    def test_a_missing_canary_is_placed_beside_the_others(self) -> None:
        _, new, deployment, records = self.stage()

        assert [
            (one.name_index, one.is_canary) for one in run_group(new, records[:-1], deployment=deployment).special
        ] == [(1, True)]

    @pytest.mark.parametrize("status", ["paused", "failed"])
    def test_held_deployments_place_no_canaries(self, status: str) -> None:
        _, new, deployment, records = self.stage(status=status)

        assert run_group(new, records[:-1], deployment=deployment).special == []

    def test_a_lost_canary_is_stopped_and_another_takes_its_place(self) -> None:
        _, new, deployment, records = self.stage()

        wanted = run_group(new, records, deployment=deployment, tainted={20: Taint.DOWN})

        assert [(stop.held.id, stop.client_status) for stop in wanted.stops] == [(id_of(20), "lost")]
        assert [(one.name_index, one.reason) for one in wanted.special] == [(0, "canary")]

    @pytest.mark.parametrize("client", ["complete", "lost"])
    def test_a_canary_that_ended_is_no_live_one(self, client: str) -> None:
        _, new, deployment, records = self.stage()
        over = alloc(21, new, index=1, node=21, canary=True, client=client, deployment=deployment.id)

        wanted = run_group(new, [*records[:-1], over], deployment=deployment)

        assert [one.reason for one in wanted.special] == ["canary"]

    def test_a_canary_that_should_move_is_stopped_and_another_takes_its_place(self) -> None:
        _, new, deployment, records = self.stage()
        moving = replace(records[-1], desired_transition=replace(records[-1].desired_transition, migrate=True))

        wanted = run_group(new, [*records[:-1], moving], deployment=deployment)

        assert [stop.description for stop in wanted.stops] == ["alloc is being migrated"]
        assert [(one.name_index, one.reason) for one in wanted.special] == [(1, "canary")]

    def test_a_failed_canary_that_the_watcher_flags_is_replaced_as_a_canary(self) -> None:
        _, new, deployment, records = self.stage()
        failed = alloc(
            21, new, index=1, node=21, canary=True, client="failed", flags=["reschedule"], deployment=deployment.id
        )

        wanted = run_group(new, [*records[:-1], failed], deployment=deployment)

        assert [(one.name_index, one.reason, one.is_canary) for one in wanted.special] == [(1, "reschedule", True)]

    @pytest.mark.parametrize("how", ["lost", "moved"])
    def test_what_is_replaced_from_the_canaries_version_for_want_of_another_takes_none_of_their_places(
        self, how: str
    ) -> None:
        """No deployment of an older version is known: two of one version under one name would be left by the promotion.

        With an older version, the replacement keeps its place beside the canary that will take it later.
        """
        old, new, deployment, records = self.stage()
        few = [*records[:2], *records[10:]]  # places 0 and 1, and the two canaries there; 2 to 9 are free
        if how == "moved":
            gone = replace(few[0], desired_transition=replace(few[0].desired_transition, migrate=True))
            few, tainted = [gone, *few[1:]], {}
        else:
            tainted = {0: Taint.DOWN}
        before = deploying(old, number=0xC, status="successful", desired_total=10)

        alone = run_group(new, few, deployment=deployment, tainted=tainted)
        known = run_group(new, few, deployment=deployment, deployments=[before, deployment], tainted=tainted)

        assert [(one.name_index, one.job_version) for one in alone.special] == [(2, None)]
        assert [(one.name_index, one.job_version) for one in known.special] == [(0, old.version)]

    def test_after_promotion_old_ones_of_the_same_place_go_and_the_rest_rolls(self) -> None:
        _, new, deployment, records = self.stage(promoted=True, healthy_allocs=2)

        wanted = run_group(new, records, deployment=deployment)

        assert [stop.held.id for stop in wanted.stops] == [id_of(0), id_of(1)]
        assert [one.name_index for one in wanted.destructive] == [2, 3]

    def test_canaries_of_a_failed_deployment_are_stopped(self) -> None:
        _, new, deployment, records = self.stage(status="failed")

        wanted = run_group(new, records, deployment=deployment)

        assert [stop.held.id for stop in wanted.stops] == [id_of(20), id_of(21)]
        assert wanted.special == wanted.destructive == []

    def test_canaries_of_a_superseded_deployment_are_stopped(self) -> None:
        _, new, deployment, records = self.stage()
        newer = changed(new, version=3)

        wanted = run_group(newer, records, deployment=deployment)

        assert [stop.held.id for stop in wanted.stops] == [id_of(20), id_of(21)]
        assert (wanted.desired.canary, wanted.desired.stop) == (2, 2)

    def test_unpromoted_canaries_go_also_where_their_place_is_wanted(self) -> None:
        _, new, deployment, records = self.stage()

        wanted = run_group(replace(new, version=3), records[2:], deployment=deployment)

        assert [stop.held.id for stop in wanted.stops] == [id_of(20), id_of(21)]

    def test_promoted_canaries_of_a_superseded_deployment_are_like_all_others(self) -> None:
        _, new, deployment, records = self.stage(promoted=True)

        wanted = run_group(edited(new), records[2:], deployment=deployment)

        assert wanted.stops == []


class TestOlderVersion:
    """While canaries are unpromoted, what is no canary is replaced from the version before."""

    def lost(self, old: Job, *, deployments: Any = ()) -> Any:
        new = changed(old)
        deployment = deploying(new, desired_total=2, desired_canaries=1, placed_canaries=(id_of(20),))
        canary = alloc(20, new, index=0, node=20, canary=True, deployment=deployment.id)
        wanted = run_group(
            new,
            [*allocs(old, 2), canary],
            deployment=deployment,
            deployments=[deployment, *deployments],
            tainted={1: Taint.DOWN},
        )
        (single,) = wanted.special
        return single

    def test_the_newest_deployment_that_got_through_decides(self) -> None:
        old = a_service(2, version=5, update=UpdateStrategy(canary=1))
        plain = deploying(a_service(version=3), number=0xD3, desired_total=2, status="successful")
        promoted = deploying(
            a_service(version=4), number=0xD4, desired_total=2, desired_canaries=1, promoted=True, status="successful"
        )
        failed = deploying(a_service(version=5), number=0xD5, desired_canaries=1, status="failed")

        single = self.lost(old, deployments=[plain, failed, promoted])

        assert (single.job_version, single.deployment_id) == (4, promoted.id)

    def test_deployments_of_an_earlier_job_of_that_name_do_not_count(self) -> None:
        old = a_service(2, version=5, update=UpdateStrategy(canary=1))
        other = replace(deploying(a_service(version=4), number=0xD4, desired_total=2), job_create_index=1)

        assert self.lost(old, deployments=[other]).job_version is None

    def test_without_any_the_version_replaced_decides_if_it_knew_no_updates(self) -> None:
        old = a_service(2, version=5, update=None)
        new = changed(old, update=UpdateStrategy(canary=1))
        deployment = deploying(new, desired_total=2, desired_canaries=1, placed_canaries=(id_of(20),))
        canary = alloc(20, new, index=0, node=20, canary=True, deployment=deployment.id)

        wanted = run_group(new, [*allocs(old, 2), canary], deployment=deployment, tainted={1: Taint.DOWN})

        assert [(one.job_version, one.deployment_id) for one in wanted.special] == [(5, "")]

    def test_otherwise_the_current_version_is_placed(self) -> None:
        assert self.lost(a_service(2, version=5, update=UpdateStrategy(canary=1))).job_version is None

    def test_migrations_keep_the_older_version_too(self) -> None:
        old = a_service(2, version=5, update=None)
        new = changed(old, update=UpdateStrategy(canary=1))
        deployment = deploying(new, desired_total=2, desired_canaries=1, placed_canaries=(id_of(20),))
        canary = alloc(20, new, index=0, node=20, canary=True, deployment=deployment.id)
        records = [alloc(0, old, flags=["migrate"]), alloc(1, old), canary]

        wanted = run_group(new, records, deployment=deployment)

        assert [(one.reason, one.job_version) for one in wanted.special] == [("migrate", 5)]


class TestEnd:
    def update(self, job: Job, records: Any, **state: Any) -> list[Any]:
        return run(job, records, deployment=deploying(job, **state)).deployment_updates

    def test_all_healthy_is_successful(self) -> None:
        job = a_service(2)

        (update,) = self.update(job, allocs(job, 2), desired_total=2, healthy_allocs=2)

        assert (update.status, update.status_description) == ("successful", "Deployment completed successfully")

    def test_not_all_healthy_is_not(self) -> None:
        job = a_service(2)

        assert self.update(job, allocs(job, 2), desired_total=2, healthy_allocs=1) == []

    def test_unpromoted_canaries_keep_it_open(self) -> None:
        job = a_service(2, update=CANARY_2)
        done = {"desired_total": 2, "desired_canaries": 2, "healthy_allocs": 2}

        assert self.update(job, allocs(job, 2), **done) == []
        assert len(self.update(job, allocs(job, 2), promoted=True, **done)) == 1

    def test_something_left_to_do_keeps_it_open(self) -> None:
        job = a_service(2)
        done = {"desired_total": 2, "healthy_allocs": 2}

        assert self.update(job, allocs(job, 1), **done) == []
        assert self.update(job, [alloc(0, job), alloc(1, job, flags=["migrate"])], **done) == []
        assert self.update(job, [alloc(0, job), alloc(1, job, client="failed")], **done) == []

    def test_a_group_of_the_deployment_that_is_not_healthy_keeps_it_open(self) -> None:
        job = a_service(1)
        deployment = deploying(job, desired_total=1, healthy_allocs=1)
        gone = {**deployment.task_groups, "gone": DeploymentState(desired_total=1)}

        assert run(job, allocs(job, 1), deployment=replace(deployment, task_groups=gone)).deployment_updates == []

    def test_another_group_with_something_left_keeps_it_open(self) -> None:
        job = a_job(groups=[a_group("group"), a_group("b")], create_index=5)
        ready = deploying(job, desired_total=1, healthy_allocs=1)

        assert run(job, [alloc(0, job)], deployment=ready).deployment_updates == []

    @pytest.mark.parametrize("status", ["paused", "failed", "blocked", "unblocking"])
    def test_only_a_running_one_ends_by_itself(self, status: str) -> None:
        job = a_service(1)

        assert self.update(job, allocs(job, 1), desired_total=1, healthy_allocs=1, status=status) == []

    def test_one_of_several_regions_waits_for_its_peers(self) -> None:
        job = a_service(1)
        deployment = replace(deploying(job, desired_total=1, healthy_allocs=1), is_multiregion=True)

        (update,) = run(job, allocs(job, 1), deployment=deployment).deployment_updates

        assert (update.status, update.status_description) == (
            "blocked",
            "Deployment is complete but waiting for peer region",
        )


def test_lost_and_failed_are_replaced_while_canaries_wait() -> None:
    old = a_service(4, update=UpdateStrategy(canary=1))
    new = changed(old, count=6)
    deployment = deploying(new, desired_total=4, desired_canaries=1, placed_canaries=(id_of(20),))
    canary = alloc(20, new, index=0, node=20, canary=True, deployment=deployment.id)
    records = [*allocs(old, 3), alloc(3, old, node=3, client="failed"), canary]

    wanted = run_group(new, records, deployment=deployment, tainted={1: Taint.DOWN})

    assert places(wanted) == [1, 3]
    assert stopped(wanted) == [1, 3]
