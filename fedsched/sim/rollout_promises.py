"""What has to hold in the simulation of rollouts, whatever happens: asked of a world, answered by `Broken` or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsched.federation.rollout_rules import FINAL, HEALTHY
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import STEP_MOVES, Rollout, RolloutStatus, RolloutStep
from fedsched.sim.rollout_truth import END_S, PROMISE, ROUND_S, Region
from fedsched.sim.verdict import Broken

if TYPE_CHECKING:
    from fedsched.sim.rollout_world import World

_S = DeploymentStatus


def check_may_adopt(world: World, region: Region, epoch: int) -> None:
    """Whoever begins an adoption by itself has heard nothing of the owner, and something of a majority."""
    assert region.share is not None
    owner, patience_s = region.share.ballot[1], world.strategy.adopt_after_s
    silent_s = world.now - max(region.heard_at.get(owner, 0.0), region.elected_at)
    if region.share.ballot[0] + 1 == epoch and owner != region.name and silent_s < patience_s:
        raise Broken(PROMISE, f"{region.name} adopts, although {owner} was heard {silent_s:.0f} s ago")
    present = [name for name, at in region.heard_at.items() if name != region.name and world.now - at <= ROUND_S]
    if 1 + len(present) <= len(world.regions) // 2:
        raise Broken(PROMISE, f"{region.name} promises itself to drive, and hears {present} only")
    for name in present:
        if _hears(world, world.regions[name], region.share.ballot):
            raise Broken(PROMISE, f"{region.name} adopts, although {name} hears {owner}")


def _hears(world: World, region: Region, ballot: tuple[int, str]) -> bool:
    """Whether the region still waits for this owner, and had heard of it when it was asked."""
    if region.share is None or region.share.ballot != ballot or region.status in FINAL or ballot[1] == region.name:
        return False
    heard_at = region.heard_at.get(ballot[1], -END_S)
    return world.now - world.strategy.adopt_after_s < heard_at < world.now - ROUND_S


def check_written(before: Rollout, after: Rollout) -> None:
    for old, new in zip(before.regions, after.regions, strict=True):
        was_learned = old.is_unsure  # what a former owner decided is not decided now
        if not STEP_MOVES.allows(old.step, new.step) and not was_learned:
            raise Broken(PROMISE, f"{new.name}: {old.step} was decided, and then {new.step}")
        if old.status in FINAL and new.status is not old.status:
            raise Broken(PROMISE, f"{new.name}: {old.status} was final, and then {new.status}")
    if before.status.is_over and after.status not in (before.status, RolloutStatus.ADOPTED):
        raise Broken(PROMISE, f"it was over as {before.status}, and then {after.status}")


def check_deed(world: World, region: Region, step: RolloutStep) -> None:
    if region.deeds[step] > 1:
        raise Broken(PROMISE, f"{region.name}: {step} was carried out twice")
    if sum(count for one, count in region.deeds.items() if one.is_last) > 1:
        raise Broken(PROMISE, f"{region.name}: two ends, {dict(region.deeds)}")
    if step is RolloutStep.RUN:
        _check_start(world, region)
    if step is RolloutStep.UNBLOCK and region.status is not _S.UNBLOCKING and region.status is not _S.BLOCKED:
        raise Broken(PROMISE, f"{region.name}: unblocked while {region.status}")


def _check_start(world: World, region: Region) -> None:
    record = world.record
    mine = record.region(region.name)
    if mine is None or mine.step is RolloutStep.PREPARE:
        decided = region.share is not None and region.share.rollout.region(region.name)
        if not decided or decided.step is RolloutStep.PREPARE:
            raise Broken(PROMISE, f"{region.name}: started without a decision")
    known = {one.name: one for one in record.regions}
    given_up = {name for name, one in known.items() if one.step.is_last or one.is_skipped}
    unprepared = [
        one.name for one in world.regions.values() if one.name not in given_up and not one.deeds[RolloutStep.PREPARE]
    ]
    if unprepared:
        raise Broken(PROMISE, f"{region.name} was started while {unprepared} were not prepared")
    busy = [
        one.name
        for one in world.regions.values()
        if one.deeds[RolloutStep.RUN] and _keeps_its_place(world, one) and one.name not in given_up
    ]
    if world.strategy.max_parallel and len(busy) > world.strategy.max_parallel:
        raise Broken(PROMISE, f"{busy} have their turn at once, {world.strategy.max_parallel} may")
    waiting = [one.name for one in _before(world, region) if not one.deeds[RolloutStep.RUN] and one.status not in FINAL]
    if world.strategy.max_parallel == 1 and set(waiting) - given_up:
        raise Broken(PROMISE, f"{region.name} was started before {waiting}")

    canary = world.canary()
    if world.strategy.canary_region and region.name != canary and not world.canary_was_let_go:
        raise Broken(PROMISE, f"{region.name} was started, and nobody has unblocked the canary {canary}")


def _keeps_its_place(world: World, region: Region) -> bool:
    """Whether it runs, or is healthy and bakes."""
    if region.status is _S.BLOCKED:
        return world.now < region.healthy_at + world.strategy.bake_time_s
    return region.status not in HEALTHY | FINAL


def _before(world: World, region: Region) -> list[Region]:
    listed = list(world.regions.values())
    return listed[: listed.index(region)]


def check_end(world: World) -> None:
    record = world.record
    alive = {name: one for name, one in world.regions.items() if world.is_up(one)}
    if record.owner not in alive:
        if world.strategy.adopt_after_s and all(one.share is None or one.status in FINAL for one in alive.values()):
            return  # nobody waits for anything
        if any(one.share is not None for one in alive.values()) and _may_be_adopted(world, alive):
            raise Broken(PROMISE, f"nobody adopted it; {record.status}")
        return
    if not record.status.is_over:
        raise Broken(PROMISE, f"it never ended: {record.status}, {record.status_description}")
    taking_part = {one.name: alive[one.name] for one in record.regions if not one.is_skipped and one.name in alive}
    loose = {name: one.status.value for name, one in taking_part.items() if one.share and one.status not in FINAL}
    if loose:
        raise Broken(PROMISE, f"it is over as {record.status}, yet there are {loose}")
    _check_outcome(world, record, taking_part)


def _may_be_adopted(world: World, alive: dict[str, Region]) -> bool:
    return sum(one.share is not None for one in alive.values()) > len(world.regions) // 2


def _check_outcome(world: World, record: Rollout, taking_part: dict[str, Region]) -> None:
    # A former owner that was cut off may have ended its own part before it heard of its successor.
    former = {one.name for one in world.regions.values() if one.record is not None and one.record is not record}
    statuses = {name: one.status for name, one in taking_part.items() if name not in former}
    if record.status is RolloutStatus.SUCCESSFUL and set(statuses.values()) - {_S.SUCCESSFUL}:
        raise Broken(PROMISE, f"it is successful, yet there are {statuses}")
    wrong = [name for name, status in statuses.items() if status is _S.FAILED and world.regions[name].fails]
    if wrong and record.status is RolloutStatus.SUCCESSFUL:
        raise Broken(PROMISE, f"it is successful, yet {wrong} failed")
    if world.by_hand:
        return
    let_go = {world.canary()} if world.strategy.canary_region and world.canary_was_let_go else set()
    healthy = {name for name, status in statuses.items() if status is _S.SUCCESSFUL} - let_go
    if world.strategy.on_failure == "fail_all" and wrong and healthy:
        raise Broken(PROMISE, f"{wrong} failed and {healthy} did not, although all should")
    if world.strategy.on_failure == "" and wrong:
        names = list(world.regions)
        later = set(names[names.index(wrong[0]) :]) & healthy
        if later:
            raise Broken(PROMISE, f"{wrong[0]} failed, and {later} after it did not")
    blameless = not any(one.fails or one.refuses or one.cuts for one in world.regions.values())
    nobody_lost = all(one.lost_at > END_S for one in world.regions.values())
    if blameless and nobody_lost and world.loss == 0 and record.status is not RolloutStatus.SUCCESSFUL:
        raise Broken(PROMISE, f"nothing was wrong anywhere, yet it is {record.status}: {record.status_description}")
