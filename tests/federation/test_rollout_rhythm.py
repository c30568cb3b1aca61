"""Regions bake before the next begins, and a canary waits for a person."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fedsched.federation.adoption_core import adopted
from fedsched.federation.rollout_core import NS, UnblockAsked
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutStatus, RolloutStep
from tests.federation.builders import THREE, Owner, a_report, a_rollout

RUN, UNBLOCK, WITHDRAW = RolloutStep.RUN, RolloutStep.UNBLOCK, RolloutStep.WITHDRAW
RUNNING, BLOCKED = DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED
SUCCESSFUL, FAILED = DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED


def started(**strategy: object) -> Owner:
    """All regions are prepared, and the first ones have been told to run, at second 10."""
    owner = Owner(a_rollout(**strategy), at_s=10)
    for name in THREE:
        owner.hear(name, RolloutStep.PREPARE, DeploymentStatus.PENDING, 10)
    return owner


def begun(owner: Owner) -> list[str]:
    return [name for name, step in owner.said() if step == "run"]


def let_go(owner: Owner, at_s: float, *names: str) -> None:
    owner.take(owner.core.handle(UnblockAsked(names), round(at_s * NS)), at_s)


class TestBakeTime:
    def test_a_healthy_region_keeps_its_place_until_its_bake_time_is_over(self) -> None:
        owner = started(max_parallel=1, bake_time_s=60.0)
        assert begun(owner) == ["eu"]
        owner.hear("eu", RUN, BLOCKED, 20)

        assert owner.rollout.status_description.endswith("in its bake time: eu")
        assert owner.core.wake_at_ns() == 80 * NS
        owner.wake(79.9)
        assert begun(owner) == []
        owner.wake(80)
        assert begun(owner) == ["us"]

    def test_only_the_place_of_the_one_that_bakes_is_kept(self) -> None:
        owner = started(max_parallel=2, bake_time_s=60.0)
        assert begun(owner) == ["eu", "us"]
        owner.hear("us", RUN, BLOCKED, 20)
        owner.hear("eu", RUN, BLOCKED, 50)

        owner.wake(80)
        assert begun(owner) == ["asia"]

    def test_after_the_last_region_nobody_waits_for_it(self) -> None:
        owner = started(max_parallel=2, bake_time_s=60.0)
        for second, name in ((20, "eu"), (20, "us"), (90, "asia")):
            owner.wake(second)
            owner.hear(name, RUN, BLOCKED, second)

        assert owner.rollout.status is RolloutStatus.UNBLOCKING

    def test_who_leads_next_knows_when_it_is_over(self) -> None:
        owner = started(max_parallel=1, bake_time_s=60.0)
        owner.hear("eu", RUN, BLOCKED, 20)
        successor = Owner(owner.rollout, at_s=50)

        successor.wake(79)
        assert successor.steps()["us"] == "prepare"
        successor.wake(80)
        assert successor.steps()["us"] == "run"

    def test_a_person_ends_it(self) -> None:
        owner = started(max_parallel=1, bake_time_s=60.0)
        owner.said()
        owner.hear("eu", RUN, BLOCKED, 20)
        let_go(owner, 25, "eu")

        assert begun(owner) == ["us"]

    def test_it_begins_anew_for_an_adopter_whose_clock_is_another(self) -> None:
        owner = started(max_parallel=1, bake_time_s=60.0)
        owner.hear("eu", RUN, BLOCKED, 20)
        agreed = {"eu": replace(a_report("eu", RUN, BLOCKED), seen=owner.rollout)}
        asking = replace(owner.rollout, owner="us", epoch=2)
        successor = Owner(adopted(owner.rollout, agreed, asking, 70 * NS), at_s=70)
        for name in ("us", "asia"):
            successor.hear(name, RolloutStep.PREPARE, DeploymentStatus.PENDING, 70)

        successor.wake(120)
        assert successor.steps()["us"] == "prepare"
        successor.wake(130)
        assert successor.steps()["us"] == "run"


class TestCanary:
    @pytest.mark.parametrize("max_parallel", [0, 1, 2])
    def test_it_goes_alone_and_the_rollout_rests_until_a_person_unblocks_it(self, max_parallel: int) -> None:
        owner = started(max_parallel=max_parallel, canary_region=True)
        assert begun(owner) == ["eu"]
        owner.hear("eu", RUN, BLOCKED, 20)

        assert owner.rollout.status is RolloutStatus.BLOCKED
        assert owner.rollout.status_description == (
            "canary region eu is healthy; the others begin once it is unblocked by hand"
        )
        owner.wake(100_000)
        assert begun(owner) == []
        let_go(owner, 100_001, "eu")
        assert owner.rollout.status is RolloutStatus.RUNNING
        assert begun(owner) == {0: ["us", "asia"], 1: ["us"], 2: ["us", "asia"]}[max_parallel]

    def test_let_go_it_is_successful_and_the_others_end_as_usual(self) -> None:
        owner = started(canary_region=True)
        owner.hear("eu", RUN, BLOCKED, 20)
        let_go(owner, 30)
        owner.hear("eu", UNBLOCK, SUCCESSFUL, 31)
        for name in ("us", "asia"):
            owner.hear(name, RUN, BLOCKED, 40)
        for name in ("us", "asia"):
            owner.hear(name, UNBLOCK, SUCCESSFUL, 41)

        assert owner.rollout.status is RolloutStatus.SUCCESSFUL

    @pytest.mark.parametrize("on_failure", ["", "fail_all", "fail_local"])
    def test_if_it_fails_nobody_follows(self, on_failure: str) -> None:
        owner = started(canary_region=True, on_failure=on_failure)
        owner.hear("eu", RUN, FAILED, 20)

        assert owner.rollout.status is RolloutStatus.FAILED
        assert owner.steps() == {"eu": "run", "us": "fail", "asia": "fail"}

    def test_once_it_was_let_go_fail_local_spares_the_others(self) -> None:
        owner = started(canary_region=True, on_failure="fail_local")
        owner.hear("eu", RUN, BLOCKED, 20)
        let_go(owner, 30)
        owner.hear("eu", UNBLOCK, FAILED, 31)

        assert owner.steps() == {"eu": "unblock", "us": "run", "asia": "run"}

    def test_with_the_first_region_skipped_the_next_one_is_it(self) -> None:
        owner = Owner(a_rollout(canary_region=True, on_unreachable="skip"), at_s=10)
        for name in ("us", "asia"):
            owner.hear(name, RolloutStep.PREPARE, DeploymentStatus.PENDING, 10)
        owner.wake(41)

        assert begun(owner) == ["us"]

    def test_an_adopter_that_finds_others_running_knows_that_it_was_let_go(self) -> None:
        owner = started(canary_region=True)
        owner.hear("eu", RUN, BLOCKED, 20)
        known = owner.rollout
        agreed = {"us": a_report("us", RUN, RUNNING), "eu": a_report("eu", RUN, BLOCKED)}
        successor = Owner(adopted(known, agreed, replace(known, owner="us", epoch=2), 70 * NS), at_s=70)

        assert successor.rollout.status is RolloutStatus.RUNNING
        assert successor.rollout.region("asia") == replace(
            _region(known, "asia"), is_unsure=True, decided_time_ns=70 * NS
        )
        successor.hear("asia", RolloutStep.PREPARE, DeploymentStatus.PENDING, 71, epoch=2, owner="us")
        assert successor.steps() == {"eu": "run", "us": "run", "asia": "run"}


def _region(rollout: Rollout, name: str) -> object:
    found = rollout.region(name)
    assert found is not None
    return found
