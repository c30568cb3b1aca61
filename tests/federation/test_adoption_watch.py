"""Who notices that the owner of a rollout is lost, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.federation.adoption_watch import (
    AdoptionWatch,
    Answered,
    Ask,
    Begin,
    Contact,
    Forgotten,
    Input,
    Told,
    Unanswered,
    WatchSettings,
)
from fedsched.federation.rollout_core import NS
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import RolloutShare, RolloutStanding, RolloutStatus, RolloutStep
from tests.federation.builders import a_rollout

BLOCKED, SUCCESSFUL = DeploymentStatus.BLOCKED, DeploymentStatus.SUCCESSFUL
FOUR = ("eu", "us", "asia", "mars")
SETTINGS = WatchSettings(ask_s=100.0, call_s=4.0, stagger_s=20.0)


def a_share(region: str = "us", *, regions: tuple[str, ...] = ("eu", "us", "asia"), **fields: Any) -> RolloutShare:
    strategy = {"adopt_after_s": fields.pop("adopt_after_s", 600.0)}
    status = fields.pop("rollout_status", RolloutStatus.RUNNING)
    rollout = replace(a_rollout(regions, **strategy), status=status)
    fields.setdefault("status", BLOCKED)
    return RolloutShare(region=region, rollout=rollout, step=RolloutStep.RUN, **fields)


def says(region: str, **fields: Any) -> Answered:
    fields = {"is_known": True, "epoch": 1, "owner": "eu", **fields}
    return Answered(RolloutStanding(region=region, rollout_id="r1", **fields))


class Region:
    """A watch of `us`, unless said, that takes seconds and shows what it asked and began."""

    def __init__(self, share: RolloutShare | None = None, *, at_s: float = 0.0) -> None:
        share = share or a_share()
        self.core = AdoptionWatch(share.region, SETTINGS)
        self.asked: list[str] = []
        self.begun: list[int] = []
        self.hear(Told(share), at_s)

    def hear(self, given: Input | None, at_s: float) -> None:
        now_ns = round(at_s * NS)
        for effect in self.core.wake(now_ns) if given is None else self.core.handle(given, now_ns):
            match effect:
                case Ask(_, region):
                    self.asked.append(region)
                case Begin(_, epoch):
                    self.begun.append(epoch)

    def pass_until(self, at_s: float, *, answers: dict[str, Answered | Unanswered] | None = None) -> None:
        """Let time pass; whoever is asked and has no answer here says nothing."""
        while (due_ns := self.core.wake_at_ns()) <= at_s * NS:
            before = len(self.asked)
            self.hear(None, due_ns / NS)
            for name in self.asked[before:]:
                given = (answers or {}).get(name, Unanswered("r1", name))
                self.hear(given, due_ns / NS + 1)


def test_an_owner_that_says_nothing_for_the_time_that_the_job_gives_it_is_replaced() -> None:
    region = Region()
    region.pass_until(599, answers={"asia": says("asia")})
    assert (set(region.asked), region.begun) == ({"eu"}, [])

    region.pass_until(601, answers={"asia": says("asia")})
    assert region.asked[-2:] == ["eu", "asia"]
    assert region.begun == [2]


def test_every_command_and_every_answer_gives_it_the_whole_time_again() -> None:
    region = Region()
    region.pass_until(500)
    region.hear(Contact("r1", (1, "eu")), 500)
    region.pass_until(1050, answers={"asia": says("asia")})
    region.hear(says("eu", drives=True), 1060)
    region.pass_until(1650, answers={"asia": says("asia")})
    assert region.begun == []

    region.pass_until(1661, answers={"asia": says("asia")})
    assert region.begun == [2]


def test_one_that_answers_is_never_replaced_however_little_it_says() -> None:
    region = Region()
    region.pass_until(100_000, answers={"eu": says("eu", drives=True), "asia": says("asia")})

    assert region.begun == []
    assert set(region.asked) == {"eu"}


def test_one_that_answers_and_has_lost_its_record_does_not_count_as_being_there() -> None:
    region = Region()
    lost = says("eu", is_known=False, epoch=0, owner="")
    region.pass_until(601, answers={"eu": lost, "asia": says("asia")})

    assert region.begun == [2]


def test_regions_take_their_chance_one_after_the_other() -> None:
    began = {}
    for name in ("us", "asia", "mars"):
        region = Region(a_share(name, regions=FOUR))
        others: dict[str, Answered | Unanswered] = {one: says(one) for one in FOUR if one not in ("eu", name)}
        for second in range(0, 1000, 10):
            region.pass_until(second, answers=others)
            if region.begun:
                began[name] = second
                break

    assert began == {"us": 600, "asia": 620, "mars": 640}


def test_a_region_that_is_cut_off_from_the_others_too_promises_nothing() -> None:
    region = Region()
    region.pass_until(5000)
    assert region.begun == []

    region.pass_until(5200, answers={"asia": says("asia")})
    assert region.begun == [2]


def test_what_another_region_has_heard_of_the_owner_counts() -> None:
    region = Region()
    region.pass_until(2000, answers={"asia": says("asia", heard_ago_s=30.0)})
    assert region.begun == []

    region.pass_until(2200, answers={"asia": says("asia", heard_ago_s=600.0)})
    assert region.begun == [2]


def test_whoever_adopts_has_the_same_time() -> None:
    region = Region(a_share("asia"))
    region.pass_until(619)
    region.hear(says("us", epoch=2, owner="us", drives=True), 620)
    region.pass_until(1200, answers={"eu": says("eu")})
    assert region.begun == []

    region.pass_until(1330, answers={"eu": says("eu")})
    assert region.begun == [3]


def test_an_adoption_of_our_own_is_not_watched_unless_it_was_outbid() -> None:
    region = Region()
    promised = a_share(epoch=2, owner="us")
    region.hear(Told(promised), 10)
    assert region.core.wake_at_ns() == math.inf

    region.hear(Told(promised, (3, "asia")), 20)
    region.hear(Told(promised), 30)
    region.pass_until(700, answers={"eu": says("eu")})
    assert region.begun == [4]


def test_a_new_leader_gives_the_owner_its_whole_time_again() -> None:
    region = Region(at_s=590)
    region.pass_until(1189, answers={"asia": says("asia")})
    assert region.begun == []
    assert region.core.heard_ago_s("r1", 1189 * NS) is None

    region.hear(Contact("r1", (1, "eu")), 1200)
    assert region.core.heard_ago_s("r1", 1210 * NS) == 10.0


@pytest.mark.parametrize(
    "share",
    [
        a_share(adopt_after_s=0.0),
        a_share(status=SUCCESSFUL),
        a_share(rollout_status=RolloutStatus.FAILED),
        a_share(regions=("eu", "us")),
        a_share("eu"),
        a_share("mars"),
    ],
    ids=["nobody asked for it", "its part has ended", "it is over", "two regions", "it drives", "not listed"],
)
def test_who_does_not_wait_for_an_owner_does_not_watch(share: RolloutShare) -> None:
    region = Region(share)

    assert region.core.wake_at_ns() == math.inf


def test_what_ends_or_is_replaced_by_a_newer_version_is_not_watched_any_more() -> None:
    region = Region()
    region.hear(Told(a_share(status=SUCCESSFUL)), 1)
    assert region.core.wake_at_ns() == math.inf

    region.hear(Told(a_share()), 2)
    region.hear(Forgotten(("default", a_share().rollout.job_id)), 3)
    assert region.core.wake_at_ns() == math.inf

    region.hear(Told(a_share()), 4)
    newer = a_share(adopt_after_s=0.0)
    region.hear(Told(replace(newer, rollout=replace(newer.rollout, id="r2"))), 5)
    assert region.core.wake_at_ns() == math.inf
