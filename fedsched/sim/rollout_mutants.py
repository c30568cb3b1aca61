"""Rollouts under faults, from seeds; and bugs that are planted on purpose, which the same seeds must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from msgspec.structs import replace

from fedsched.federation import adoption_core, rollout_core, rollout_rules, rollout_share
from fedsched.federation.adoption_watch import AdoptionWatch
from fedsched.federation.rollout_core import RolloutCore
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import (
    Rollout,
    RolloutCommand,
    RolloutRegion,
    RolloutReport,
    RolloutShare,
    RolloutStanding,
    RolloutStatus,
    RolloutStep,
)
from fedsched.model.states import ImpossibleMove
from fedsched.sim.rollout_world import World
from fedsched.sim.verdict import Broken

HUNT: Final = 200
"""Seeds that a planted bug may take to be noticed; most need a dozen."""


Plant = Callable[[Any, str, Any], None]
"""Puts something in the place of something else, until the hunt is over."""
Patch = Callable[[Plant], None]


def everything_starts_at_once(patch: Plant) -> None:
    patch(rollout_rules, "is_in_turn", lambda region: False)


def the_next_starts_while_one_is_silent(patch: Plant) -> None:
    real = rollout_rules.is_in_turn
    patch(
        rollout_rules,
        "is_in_turn",
        lambda region: real(region) and region.status is not DeploymentStatus.PENDING,
    )


def steps_are_said_before_they_are_written(patch: Plant) -> None:
    real = RolloutCore._go_on

    def go_on(self: RolloutCore, draft: Rollout, now_ns: int) -> list[rollout_core.Effect]:
        effects = real(self, draft, now_ns)
        if self._storing is not None:
            written, self.rollout = self.rollout, self._storing
            effects += self._sends(now_ns)
            self.rollout = written
        return effects

    patch(RolloutCore, "_go_on", go_on)


def a_region_does_everything_it_is_told(patch: Plant) -> None:
    real = rollout_share.received

    def received(share: RolloutShare | None, command: RolloutCommand, *, refusal: str = "") -> rollout_share.Received:
        if share is not None and command.step is share.step and share.status not in rollout_rules.FINAL:
            return rollout_share._carried_out(share, command)
        return real(share, command, refusal=refusal)

    patch(rollout_share, "received", received)


def a_withdrawal_leaves_no_trace(patch: Plant) -> None:
    real = rollout_share.received

    def received(share: RolloutShare | None, command: RolloutCommand, *, refusal: str = "") -> rollout_share.Received:
        outcome = real(share, command, refusal=refusal)
        if command.step is RolloutStep.WITHDRAW:
            return rollout_share.Received(None, outcome.deed, outcome.report)
        return outcome

    patch(rollout_share, "received", received)


def former_owners_are_obeyed(patch: Plant) -> None:
    patch(RolloutShare, "ballot", property(lambda share: (0, "")))


def what_went_wrong_is_forgotten(patch: Plant) -> None:
    patch(rollout_rules, "_take_along", lambda rollout, now_ns: rollout)


def fail_all_spares_the_healthy(patch: Plant) -> None:
    real = rollout_rules._take_along

    def take_along(rollout: Rollout, now_ns: int) -> Rollout:
        after = real(rollout, now_ns)
        regions = tuple(
            old if old.status is DeploymentStatus.BLOCKED else new
            for old, new in zip(rollout.regions, after.regions, strict=True)
        )
        return replace(after, regions=regions)

    patch(rollout_rules, "_take_along", take_along)


def silence_is_endured_for_ever(patch: Plant) -> None:
    patch(RolloutCore, "_patience_s", lambda self, region: None)


def one_lost_message_is_one_too_many(patch: Plant) -> None:
    real = RolloutCore._note_silence

    def note_silence(self: RolloutCore, name: str, now_ns: int) -> None:
        real(self, name, now_ns)
        self._lines[name].rest_until_ns = 10**30

    patch(RolloutCore, "_note_silence", note_silence)


def late_reports_are_believed(patch: Plant) -> None:
    patch(rollout_rules, "furtherance", lambda status: 5 if status in rollout_rules.FINAL else 0)
    real = rollout_rules.observed

    def observed(rollout: Rollout, report: RolloutReport) -> Rollout:
        region = rollout.region(report.region)
        after = real(rollout, report)
        if region is None or report.step is None:
            return after
        return rollout_rules._with_region(after, replace(region, status=report.status))

    patch(rollout_rules, "observed", observed)


def one_healthy_region_unblocks_all(patch: Plant) -> None:
    real = rollout_rules._run

    def run(rollout: Rollout, now_ns: int, silent: frozenset[str]) -> Rollout:
        if any(one.status is DeploymentStatus.BLOCKED for one in rollout.regions):
            ready = [one for one in rollout.regions if one.step is RolloutStep.RUN]
            for one in ready:
                rollout = rollout_rules._with_region(rollout, replace(one, step=RolloutStep.UNBLOCK))
            return replace(rollout, status=RolloutStatus.UNBLOCKING)
        return real(rollout, now_ns, silent)

    patch(rollout_rules, "_run", run)


def an_adopter_waits_for_the_lost_region_too(patch: Plant) -> None:
    patch(adoption_core, "agreement_needed", lambda regions, by_hand: regions)


def nobody_waits_for_the_preparation(patch: Plant) -> None:
    patch(
        rollout_rules,
        "_prepare",
        lambda rollout, now_ns, silent: rollout_rules._moved(rollout, RolloutStatus.RUNNING, ""),
    )


def nobody_bakes(patch: Plant) -> None:
    patch(rollout_rules, "is_baking", lambda rollout, region, now_ns: False)


def the_canary_is_followed_at_once(patch: Plant) -> None:
    real = rollout_rules._start_next
    patch(
        rollout_rules,
        "_start_next",
        lambda rollout, now_ns: replace(
            real(replace(rollout, strategy=replace(rollout.strategy, canary_region=False)), now_ns),
            strategy=rollout.strategy,
        ),
    )


def a_healthy_canary_is_enough(patch: Plant) -> None:
    real = rollout_rules.canary_of

    def canary_of(rollout: Rollout) -> RolloutRegion | None:
        canary = real(rollout)
        return None if canary is not None and canary.status is DeploymentStatus.BLOCKED else canary

    patch(rollout_rules, "canary_of", canary_of)


def a_failed_canary_spares_the_others(patch: Plant) -> None:
    real = rollout_rules.canary_of

    def canary_of(rollout: Rollout) -> RolloutRegion | None:
        canary = real(rollout)
        return None if canary is not None and canary.status is DeploymentStatus.FAILED else canary

    patch(rollout_rules, "canary_of", canary_of)


def it_adopts_although_the_owner_answers(patch: Plant) -> None:
    def note_answer(self: AdoptionWatch, standing: RolloutStanding, now_ns: int) -> None:
        watched = self._watched.get(standing.rollout_id)
        if watched is not None and watched.round is not None:
            watched.round.answers[standing.region] = standing

    patch(AdoptionWatch, "_note_answer", note_answer)


def nobody_is_patient_with_an_owner(patch: Plant) -> None:
    patch(AdoptionWatch, "_chance_ns", lambda self, watched: watched.since_ns)


def whoever_is_cut_off_promises_itself_to_drive(patch: Plant) -> None:
    patch(AdoptionWatch, "_is_agreed", lambda self, watched, asked: True)


def what_others_have_heard_of_an_owner_counts_for_nothing(patch: Plant) -> None:
    patch(AdoptionWatch, "heard_ago_s", lambda self, rollout_id, now_ns: None)


def a_lost_owner_is_never_replaced(patch: Plant) -> None:
    patch(AdoptionWatch, "_judge", lambda self, watched, asked, now_ns: self._be_patient(watched, now_ns) or [])


PLANTED: Final[tuple[Patch, ...]] = (
    everything_starts_at_once,
    the_next_starts_while_one_is_silent,
    steps_are_said_before_they_are_written,
    a_region_does_everything_it_is_told,
    a_withdrawal_leaves_no_trace,
    former_owners_are_obeyed,
    what_went_wrong_is_forgotten,
    fail_all_spares_the_healthy,
    silence_is_endured_for_ever,
    one_lost_message_is_one_too_many,
    late_reports_are_believed,
    one_healthy_region_unblocks_all,
    an_adopter_waits_for_the_lost_region_too,
    nobody_waits_for_the_preparation,
    nobody_bakes,
    the_canary_is_followed_at_once,
    a_healthy_canary_is_enough,
    a_failed_canary_spares_the_others,
    it_adopts_although_the_owner_answers,
    nobody_is_patient_with_an_owner,
    whoever_is_cut_off_promises_itself_to_drive,
    what_others_have_heard_of_an_owner_counts_for_nothing,
    a_lost_owner_is_never_replaced,
)


@contextmanager
def planted(patch: Patch) -> Iterator[None]:
    """The bug is there inside, and gone afterwards."""
    with ExitStack() as stack:

        def plant(where: Any, name: str, instead: Any) -> None:
            stack.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, instead)

        patch(plant)
        yield


def noticed_at(patch: Patch, seeds: int = HUNT) -> int | None:
    """The first seed whose rollout the planted bug breaks; None if all of them put up with it."""
    with planted(patch):
        for seed in range(seeds):
            try:
                World(seed).run()
            except (Broken, ImpossibleMove, AssertionError):
                return seed
    return None
