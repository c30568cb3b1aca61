"""Another region takes over when the owner is lost."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fedsched.federation.adoption_core import AdoptionCore, Outbid, agreement_needed
from fedsched.federation.rollout_core import NS, Heard, Send, Store, Unheard
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutReport, RolloutStatus, RolloutStep
from tests.federation.builders import Owner, a_report, a_rollout

PREPARE, RUN, UNBLOCK = RolloutStep.PREPARE, RolloutStep.RUN, RolloutStep.UNBLOCK
PENDING, RUNNING, BLOCKED = DeploymentStatus.PENDING, DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED


def known(**strategy: object) -> Rollout:
    """What us saw last: eu, the owner, runs, and the others wait."""
    owner = Owner(a_rollout(max_parallel=1, **strategy))
    owner.prepare_all()
    owner.hear("eu", RUN, RUNNING)
    return owner.rollout


def agrees(region: str, step: RolloutStep, status: DeploymentStatus, seen: Rollout, **fields: object) -> RolloutReport:
    return replace(a_report(region, step, status, **fields), epoch=2, owner="us", seen=seen)


def an_adoption(rollout: Rollout, *, by_hand: bool = True) -> AdoptionCore:
    return AdoptionCore(rollout, "us", epoch=2, by_hand=by_hand)


@pytest.mark.parametrize(
    ("regions", "by_hand", "needed"), [(2, True, 1), (2, False, 2), (3, True, 2), (3, False, 2), (5, True, 3)]
)
def test_a_majority_must_agree_and_with_two_regions_a_person(regions: int, by_hand: bool, needed: int) -> None:
    assert agreement_needed(regions, by_hand=by_hand) == needed


def test_our_own_region_is_asked_then_everybody_and_a_majority_is_enough() -> None:
    rollout = known()
    core = an_adoption(rollout)
    first = [one.region for one in core.begin(0) if isinstance(one, Send)]
    rest = core.handle(Heard(agrees("us", PREPARE, PENDING, rollout)), 0)
    assert core.handle(Heard(agrees("asia", PREPARE, PENDING, rollout)), NS) == []
    [store] = core.wake(6 * NS)

    assert first == ["us"]  # our own first: what others know must be found again after a crash
    assert [one.region for one in rest if isinstance(one, Send)] == ["eu", "asia"]
    assert isinstance(store, Store)
    assert store.rollout.ballot == (2, "us")
    assert store.rollout.job == rollout.job
    assert core.wake_at_ns() == math.inf


def test_who_does_not_answer_is_asked_again() -> None:
    rollout = known()
    core = an_adoption(rollout)
    core.begin(0)
    core.handle(Heard(agrees("us", PREPARE, PENDING, rollout)), 0)
    core.handle(Unheard("asia"), 0)

    assert [one.region for one in core.wake(NS) if isinstance(one, Send)] == ["asia"]


def test_a_higher_ballot_ends_the_attempt() -> None:
    core = an_adoption(known())
    core.begin(0)

    assert core.handle(Heard(replace(a_report("asia", PREPARE, PENDING), epoch=3, owner="asia")), 0) == [
        Outbid("asia", 3)
    ]
    assert core.wake(10**12) == []


def test_the_newest_copy_counts_whoever_has_it() -> None:
    old = known()
    owner = Owner(old)
    owner.hear("eu", RUN, BLOCKED)
    core = an_adoption(old)
    core.begin(0)
    core.handle(Heard(agrees("us", PREPARE, PENDING, old)), 0)
    core.handle(Heard(agrees("asia", PREPARE, PENDING, owner.rollout)), 0)
    [store] = core.wake(6 * NS)

    assert isinstance(store, Store)
    eu, us, _ = store.rollout.regions
    assert (eu.status, eu.is_unsure) == (BLOCKED, False)
    assert us.step is RUN  # decided by the former owner, though us has not heard of it


def test_a_region_that_was_not_heard_keeps_its_place_until_it_is() -> None:
    rollout = known(on_failure="fail_local", region_deadline_s=100.0)
    core = an_adoption(rollout)
    core.begin(0)
    core.handle(Heard(agrees("us", PREPARE, PENDING, rollout)), 0)
    core.handle(Heard(agrees("asia", PREPARE, PENDING, rollout)), 0)
    [store] = core.wake(6 * NS)
    assert isinstance(store, Store)
    successor = Owner(store.rollout, at_s=6)

    assert store.rollout.region("eu").is_unsure  # type: ignore[union-attr]
    assert ("us", "run") not in successor.said()
    successor.wake(110)
    assert successor.steps() == {"eu": "fail", "us": "run", "asia": "prepare"}


def test_what_an_unheard_region_was_told_is_learned_from_itself() -> None:
    rollout = replace(known(), epoch=2, owner="us")
    regions = tuple(replace(one, is_unsure=one.name == "asia") for one in rollout.regions)
    successor = Owner(replace(rollout, regions=regions))
    successor.hear("asia", RUN, RUNNING, epoch=2, owner="us")

    asia = successor.rollout.region("asia")
    assert asia is not None
    assert (asia.step, asia.status, asia.is_unsure) == (RUN, RUNNING, False)


def test_a_region_that_knows_nothing_does_not_count_as_agreeing() -> None:
    core = an_adoption(known())
    core.begin(0)
    for region in ("eu", "us", "asia"):
        core.handle(Heard(replace(a_report(region, None), epoch=2, owner="us")), 0)

    assert not any(isinstance(one, Store) for one in core.wake(60 * NS))


def test_an_adopted_rollout_that_had_started_is_not_prepared_again() -> None:
    owner = Owner(a_rollout())
    early = owner.rollout
    core = an_adoption(early)
    core.begin(0)
    core.handle(Heard(agrees("us", RUN, RUNNING, early)), 0)
    core.handle(Heard(agrees("asia", PREPARE, PENDING, early)), 0)
    [store] = core.wake(6 * NS)

    assert isinstance(store, Store)
    assert store.rollout.status is RolloutStatus.RUNNING
