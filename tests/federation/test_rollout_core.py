"""One rollout, as its owner drives it."""

from __future__ import annotations

import math

import pytest

from fedsched.federation.rollout_core import (
    NS,
    CancelAsked,
    FailAsked,
    Heard,
    RolloutCore,
    Send,
    Store,
    Stored,
    StoreFailed,
    UnblockAsked,
    Unheard,
)
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import RolloutStatus, RolloutStep
from tests.federation.builders import THREE, Owner, a_report, a_rollout

PREPARE, RUN, UNBLOCK, FAIL, WITHDRAW = RolloutStep
PENDING, RUNNING, BLOCKED = DeploymentStatus.PENDING, DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED
SUCCESSFUL, FAILED, CANCELLED = DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED


def started(**strategy: object) -> Owner:
    """All regions are prepared, and the first ones have been told to run."""
    owner = Owner(a_rollout(**strategy))
    owner.prepare_all()
    owner.said()
    return owner


class TestTheUsualWay:
    def test_every_region_is_prepared_before_any_is_started(self) -> None:
        owner = Owner(a_rollout(max_parallel=1))

        assert owner.said() == [("eu", "prepare"), ("us", "prepare"), ("asia", "prepare")]
        owner.hear("eu", PREPARE, PENDING)
        owner.hear("asia", PREPARE, PENDING)
        assert owner.said() == []
        owner.hear("us", PREPARE, PENDING)
        assert owner.said() == [("eu", "run")]

    def test_the_next_region_starts_when_the_one_before_is_healthy(self) -> None:
        owner = started(max_parallel=1)

        owner.hear("eu", RUN, RUNNING)
        assert owner.said() == []
        owner.hear("eu", RUN, BLOCKED)
        assert owner.said() == [("us", "run")]
        owner.hear("us", RUN, BLOCKED)
        assert owner.said() == [("asia", "run")]

    @pytest.mark.parametrize(("max_parallel", "first"), [(0, ["eu", "us", "asia"]), (1, ["eu"]), (2, ["eu", "us"])])
    def test_as_many_regions_run_as_the_strategy_allows(self, max_parallel: int, first: list[str]) -> None:
        owner = Owner(a_rollout(max_parallel=max_parallel))
        owner.prepare_all()

        assert [region for region, step in owner.said() if step == "run"] == first

    def test_when_all_are_healthy_all_are_unblocked_and_it_ends(self) -> None:
        owner = started()
        for region in THREE:
            owner.hear(region, RUN, BLOCKED)

        assert owner.rollout.status is RolloutStatus.UNBLOCKING
        assert [step for step in owner.said() if step[1] != "run"] == [(region, "unblock") for region in THREE]
        for region in THREE:
            owner.hear(region, UNBLOCK, SUCCESSFUL)
        assert owner.rollout.status is RolloutStatus.SUCCESSFUL
        assert owner.core.is_done()
        assert owner.core.wake_at_ns() == math.inf

    def test_a_region_without_a_deployment_is_done_when_it_says_so(self) -> None:
        owner = started()
        for region in THREE:
            owner.hear(region, RUN, SUCCESSFUL)

        assert owner.rollout.status is RolloutStatus.SUCCESSFUL

    def test_only_what_prepares_a_region_carries_the_job(self) -> None:
        owner = Owner(a_rollout())
        assert all(one.command.rollout.job is not None for one in owner.sent)
        owner.sent.clear()
        owner.prepare_all()

        assert all(one.command.rollout.job is None for one in owner.sent if one.command.step is RUN)


class TestFailure:
    def test_by_default_later_regions_fail_and_earlier_ones_wait_for_a_person(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", RUN, BLOCKED)
        owner.hear("us", RUN, FAILED, error="progress deadline")

        assert owner.steps() == {"eu": "run", "us": "run", "asia": "fail"}
        assert owner.rollout.status is RolloutStatus.BLOCKED
        assert ("asia", "fail") in owner.said()

    def test_an_earlier_region_that_still_runs_may_finish(self) -> None:
        owner = started(max_parallel=2)
        owner.hear("us", RUN, FAILED)

        assert owner.rollout.status is RolloutStatus.RUNNING
        owner.hear("eu", RUN, BLOCKED)
        assert owner.rollout.status is RolloutStatus.BLOCKED

    def test_the_first_region_takes_everything_along(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", RUN, FAILED)

        assert owner.rollout.status is RolloutStatus.FAILED
        assert sorted(owner.said()) == [("asia", "fail"), ("us", "fail")]

    def test_fail_all_also_fails_those_that_were_healthy(self) -> None:
        owner = started(max_parallel=1, on_failure="fail_all")
        owner.hear("eu", RUN, BLOCKED)
        owner.said()
        owner.hear("us", RUN, FAILED)

        assert sorted(owner.said()) == [("asia", "fail"), ("eu", "fail")]
        assert owner.rollout.status is RolloutStatus.FAILED

    def test_fail_local_goes_on_and_waits_for_a_person_at_the_end(self) -> None:
        owner = started(max_parallel=1, on_failure="fail_local")
        owner.hear("eu", RUN, FAILED)
        assert owner.said() == [("us", "run")]
        owner.hear("us", RUN, BLOCKED)
        assert owner.said() == [("asia", "run")]
        owner.hear("asia", RUN, BLOCKED)

        assert owner.rollout.status is RolloutStatus.BLOCKED
        assert "failed in eu" in owner.rollout.status_description
        owner.take(owner.core.handle(UnblockAsked(), NS), 1)
        owner.hear("us", UNBLOCK, SUCCESSFUL)
        owner.hear("asia", UNBLOCK, SUCCESSFUL)
        assert owner.rollout.status is RolloutStatus.FAILED
        assert owner.statuses() == {"eu": "failed", "us": "successful", "asia": "successful"}

    def test_a_region_that_was_unblocked_by_hand_is_not_taken_along(self) -> None:
        owner = started(max_parallel=1, on_failure="fail_all")
        owner.hear("eu", RUN, BLOCKED)
        owner.take(owner.core.handle(UnblockAsked(("eu",)), NS), 1)
        owner.hear("us", RUN, FAILED)

        assert owner.steps() == {"eu": "unblock", "us": "run", "asia": "fail"}

    def test_a_refusal_calls_off_everything_before_it_started(self) -> None:
        owner = Owner(a_rollout())
        owner.hear("eu", PREPARE, PENDING)
        owner.said()
        owner.hear("us", PREPARE, FAILED, error="no node pool gpu")

        assert owner.rollout.status is RolloutStatus.FAILED
        assert owner.rollout.status_description == "nothing was started: region us refused: no node pool gpu"
        assert ("eu", "withdraw") in owner.said()
        assert owner.steps() == {"eu": "withdraw", "us": "prepare", "asia": "withdraw"}

    def test_a_person_may_fail_it_and_have_the_old_version_back(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", RUN, BLOCKED)
        owner.take(owner.core.handle(FailAsked(reverts=True, reason="wrong image"), NS), 1)

        assert owner.rollout.status is RolloutStatus.FAILED
        assert all(one.step is FAIL and one.reverts and one.error == "wrong image" for one in owner.rollout.regions)

    def test_a_newer_version_ends_it_without_a_word(self) -> None:
        owner = started()
        owner.take(owner.core.handle(CancelAsked("version 2 was submitted"), NS), 1)

        assert owner.rollout.status is RolloutStatus.CANCELLED
        assert owner.said() == []
        assert owner.core.wake_at_ns() == math.inf

    def test_a_region_that_follows_a_newer_rollout_says_so(self) -> None:
        owner = started()
        owner.hear("us", PREPARE, FAILED, superseded_by="r2")

        assert owner.rollout.status is RolloutStatus.CANCELLED


class TestSilence:
    @pytest.mark.parametrize(
        ("on_unreachable", "status", "steps"),
        [
            ("fail", RolloutStatus.FAILED, {"eu": "withdraw", "us": "withdraw", "asia": "withdraw"}),
            ("skip", RolloutStatus.RUNNING, {"eu": "run", "us": "run", "asia": "withdraw"}),
            ("wait", RolloutStatus.PREPARING, {"eu": "prepare", "us": "prepare", "asia": "prepare"}),
        ],
    )
    def test_a_region_that_is_not_there_at_the_start(
        self, on_unreachable: str, status: RolloutStatus, steps: dict[str, str]
    ) -> None:
        owner = Owner(a_rollout(on_unreachable=on_unreachable))
        owner.hear("eu", PREPARE, PENDING)
        owner.hear("us", PREPARE, PENDING)
        owner.wake(29.9)
        assert owner.rollout.status is RolloutStatus.PREPARING
        owner.wake(30)

        assert owner.rollout.status is status
        assert owner.steps() == steps

    def test_a_skipped_region_does_not_stand_in_the_way_of_success(self) -> None:
        owner = Owner(a_rollout(on_unreachable="skip"))
        owner.hear("eu", PREPARE, PENDING)
        owner.hear("us", PREPARE, PENDING)
        owner.wake(30)
        for step, status in ((RUN, BLOCKED), (UNBLOCK, SUCCESSFUL)):
            owner.hear("eu", step, status, 31)
            owner.hear("us", step, status, 31)

        assert owner.rollout.status is RolloutStatus.SUCCESSFUL
        assert owner.rollout.status_description == "every region is healthy; without asia"

    def test_a_region_that_is_silent_in_its_turn_has_failed_after_its_deadline(self) -> None:
        owner = started(max_parallel=1, region_deadline_s=100.0)
        owner.hear("eu", RUN, RUNNING, 10)
        owner.wake(109)
        assert owner.rollout.status is RolloutStatus.RUNNING
        owner.wake(110)

        assert owner.rollout.status is RolloutStatus.FAILED
        assert owner.steps()["eu"] == "fail"  # and it is told so when it is back

    def test_a_region_that_answers_has_all_the_time_it_needs(self) -> None:
        owner = started(max_parallel=1, region_deadline_s=100.0)
        for at_s in range(0, 1000, 50):
            owner.hear("eu", RUN, RUNNING, at_s)
            owner.wake(at_s + 40)

        assert owner.rollout.status is RolloutStatus.RUNNING

    def test_a_healthy_region_may_be_silent(self) -> None:
        owner = started(max_parallel=1, region_deadline_s=100.0)
        owner.hear("eu", RUN, BLOCKED, 1)
        for at_s in range(0, 500, 50):
            owner.hear("us", RUN, RUNNING, at_s)
            owner.wake(at_s)

        assert owner.steps() == {"eu": "run", "us": "run", "asia": "prepare"}

    def test_who_does_not_confirm_being_unblocked_does_not_hold_up_the_end(self) -> None:
        owner = started(region_deadline_s=100.0)
        for region in THREE:
            owner.hear(region, RUN, BLOCKED, 1)
        owner.hear("eu", UNBLOCK, SUCCESSFUL, 2)
        owner.hear("us", UNBLOCK, SUCCESSFUL, 2)
        owner.wake(101)

        assert owner.rollout.status is RolloutStatus.SUCCESSFUL
        assert not owner.core.is_done()  # it is still told, ever more rarely
        owner.hear("asia", UNBLOCK, SUCCESSFUL, 5000)
        assert owner.core.is_done()

    def test_pauses_between_tries_grow(self) -> None:
        owner = Owner(a_rollout(on_unreachable="wait"))
        owner.hear("us", PREPARE, PENDING)
        owner.hear("asia", PREPARE, PENDING)
        owner.said()
        tries = []
        at_s = 0.0
        while len(tries) < 8:
            owner.take(owner.core.handle(Unheard("eu"), round(at_s * NS)), at_s)
            due = min(owner.core._lines["eu"].rest_until_ns / NS, 1e9)
            tries.append(due - at_s)
            at_s = due
            owner.wake(at_s)
            assert owner.said() == [("eu", "prepare")]

        assert tries == [1, 2, 4, 8, 16, 30, 30, 30]


class TestCrashes:
    def test_whoever_leads_next_goes_on_from_the_record_alone(self) -> None:
        first = started(max_parallel=1)
        first.hear("eu", RUN, BLOCKED)
        second = Owner(first.rollout, at_s=50)

        assert second.said() == [("eu", "run"), ("us", "run"), ("asia", "prepare")]
        assert second.rollout == first.rollout

    def test_a_step_is_said_under_the_same_key_for_ever(self) -> None:
        first = Owner(a_rollout())
        again = Owner(first.rollout, at_s=50)

        assert {one.command.key for one in first.sent} == {one.command.key for one in again.sent}
        assert {one.command.key for one in first.sent} == {"r1/eu/prepare", "r1/us/prepare", "r1/asia/prepare"}

    def test_nothing_is_said_before_it_is_written(self) -> None:
        core = RolloutCore(a_rollout(max_parallel=1), 0)
        core.begin(0)
        writes = [core.handle(Heard(a_report(region, PREPARE, PENDING)), 0) for region in THREE]
        stored = [one for effects in writes for one in effects if isinstance(one, Store)]

        assert len(stored) == 1  # the reports of the others wait for the first write
        effects = core.handle(Stored(stored[0].rollout), 0)
        second = next(one for one in effects if isinstance(one, Store))
        assert second.rollout.region("eu").step is RUN  # type: ignore[union-attr]
        assert not any(isinstance(one, Send) and one.command.step is RUN for one in effects)
        effects = core.handle(Stored(second.rollout), 0)
        assert [one.region for one in effects if isinstance(one, Send) and one.command.step is RUN] == ["eu"]

    def test_a_write_that_lost_against_another_leader_goes_on_from_theirs(self) -> None:
        owner = started(max_parallel=1)
        theirs = Owner(owner.rollout)
        theirs.hear("eu", RUN, BLOCKED)
        core = owner.core
        [store, *_] = core.handle(Heard(a_report("eu", RUN, RUNNING)), 0)
        assert isinstance(store, Store)
        core.handle(StoreFailed(theirs.rollout), 0)

        assert core.rollout == theirs.rollout

    def test_late_and_repeated_reports_change_nothing(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", RUN, BLOCKED)
        before = owner.rollout
        owner.hear("eu", RUN, RUNNING)
        owner.hear("eu", PREPARE, PENDING)
        owner.hear("eu", RUN, BLOCKED)

        assert owner.rollout == before

    def test_a_region_that_forgot_is_prepared_again_before_it_runs(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", None, DeploymentStatus.INITIALIZING, 1)
        owner.wake(2)
        assert owner.said() == [("eu", "prepare")]
        owner.hear("eu", PREPARE, PENDING, 3)

        assert owner.said() == [("eu", "run")]

    def test_a_former_owner_that_hears_of_a_successor_stops(self) -> None:
        owner = started(max_parallel=1)
        owner.hear("eu", RUN, RUNNING, epoch=2, owner="us")

        assert owner.rollout.status is RolloutStatus.ADOPTED
        assert owner.core.wake_at_ns() == math.inf
