"""What a rollout decides next: rules from one owner's record to the next one, and nothing else.

The theory. Every region is prepared before any is started. Then regions have their turn in the order of the list, at
most `max_parallel` at a time; one whose own part is healthy waits (`blocked`) and frees its place. When all are
healthy, all are unblocked. When one fails, `on_failure` says whom it takes along:

    ""          itself and all later ones; earlier ones stay blocked for a person to decide
    fail_all    all that have not been unblocked
    fail_local  itself; the others go on, and stay blocked for a person to decide

With a bake time a healthy region keeps its place for so long. With a canary the first region goes alone: once it is
healthy the rollout rests until a person unblocks it, and if it fails before that nobody follows, whatever `on_failure`
says.

Invariants, which the simulation checks: a step never changes into one that `STEP_MOVES` does not allow; no more than
`max_parallel` regions are between their start and the end of their bake time; whatever was decided follows from record
and time alone, so that two servers with the same record decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final

from msgspec.structs import replace

from fedsched.federation.multiregion import strategy_of
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job
from fedsched.model.rollout import (
    ROLLOUT_MOVES,
    STEP_MOVES,
    Rollout,
    RolloutRegion,
    RolloutReport,
    RolloutStatus,
    RolloutStep,
)

_S = DeploymentStatus
HEALTHY: Final = frozenset({_S.BLOCKED, _S.UNBLOCKING, _S.SUCCESSFUL})
"""A region's own part is done."""
GONE_WRONG: Final = frozenset({_S.FAILED, _S.CANCELLED})
FINAL: Final = GONE_WRONG | {_S.SUCCESSFUL}
_ORDER: Final = {_S.INITIALIZING: 0, _S.PENDING: 1, _S.RUNNING: 2, _S.PAUSED: 2, _S.BLOCKED: 3, _S.UNBLOCKING: 4}
"""How far a status is; final ones are furthest."""

NS: Final = 1_000_000_000
NOT_REACHED: Final = "it could not be reached"


def begin(rollout_id: str, job: Job, *, version: int, owner: str, now_ns: int) -> Rollout:
    """The record of a new rollout, ready to be written by the owner region. `version` is above that of every region."""
    names = tuple(region.name for region in job.multiregion.regions) if job.multiregion is not None else ()
    return Rollout(
        id=rollout_id,
        namespace=job.namespace,
        job_id=job.id,
        job_version=version,
        job=job,
        owner=owner,
        strategy=strategy_of(job),
        regions=tuple(RolloutRegion(name=name, decided_time_ns=now_ns) for name in names),
        status_description=f"preparing {len(names)} regions",
        create_time_ns=now_ns,
        modify_time_ns=now_ns,
    )


def observed(rollout: Rollout, report: RolloutReport) -> Rollout:
    """The record with what a region said; what comes late or twice says nothing new."""
    region = rollout.region(report.region)
    if region is None or report.rollout_id != rollout.id:
        return rollout
    if report.step is None:  # it knows nothing, so it has not come further than was known
        return _with_region(rollout, replace(region, is_unsure=False)) if region.is_unsure else rollout
    if report.superseded_by:
        words = f"replaced by rollout {report.superseded_by}"
        return _moved(rollout, RolloutStatus.CANCELLED, words) if not rollout.status.is_over else rollout
    step = region.step
    if region.is_unsure and report.step.rank > step.rank and report.step is not RolloutStep.WITHDRAW:
        step = report.step  # told by the former owner
    is_news = furtherance(report.status) > furtherance(region.status)
    status = report.status if is_news or _is_pause(region.status, report.status) else region.status
    return _with_region(
        rollout,
        replace(
            region,
            step=step,
            status=status,
            deployment_id=report.deployment_id or region.deployment_id,
            error=report.error if is_news else region.error,
            is_unsure=False,
        ),
    )


def decided(rollout: Rollout, now_ns: int, silent: Collection[str] = ()) -> Rollout:
    """The record with everything that follows from it; the same record if nothing does.

    `silent` names the regions that have not answered for longer than their present step allows.
    """
    while True:
        further = _decide_once(rollout, now_ns, silent)
        if further == rollout:
            return rollout
        rollout = further


def unblocked(rollout: Rollout, names: Collection[str], now_ns: int) -> Rollout:
    """A person lets healthy regions keep what they have; all that are blocked if none is named."""
    if rollout.status not in (RolloutStatus.RUNNING, RolloutStatus.BLOCKED):
        return rollout
    chosen = _chosen(rollout, names)
    return _stepped(rollout, RolloutStep.UNBLOCK, now_ns, lambda one: one.name in chosen and one.status is _S.BLOCKED)


def failed(rollout: Rollout, names: Collection[str], now_ns: int, *, reverts: bool, reason: str) -> Rollout:
    """A person ends the rollout in some regions, or in all if none is named; `reverts` brings the old version back."""
    if rollout.status.is_over:
        return rollout
    chosen = _chosen(rollout, names)
    return _stepped(rollout, RolloutStep.FAIL, now_ns, lambda one: one.name in chosen, error=reason, reverts=reverts)


def cancelled(rollout: Rollout, reason: str) -> Rollout:
    """A newer version takes over: nothing more is said, since regions drop this one when they hear of that."""
    return rollout if rollout.status.is_over else _moved(rollout, RolloutStatus.CANCELLED, reason)


def adopted_by(rollout: Rollout, owner: str, epoch: int) -> Rollout:
    """Somebody with a higher ballot drives: the record of a former owner ends here."""
    if rollout.status is RolloutStatus.ADOPTED:
        return rollout
    words = f"adopted by {owner or 'another region'} in epoch {epoch}"
    return replace(rollout, status=RolloutStatus.ADOPTED, status_description=words)


def is_further(report: RolloutReport, than: RolloutReport) -> bool:
    """Whether the first of two reports of a region is the later one."""
    return furtherance(report.status) >= furtherance(than.status)


def is_settled(region: RolloutRegion) -> bool:
    """Whether nothing can change for the region any more, as far as the record knows."""
    return region.step.is_last or region.status in FINAL


def is_in_turn(region: RolloutRegion) -> bool:
    """Whether the region takes one of the `max_parallel` places. One of whom nothing is known might."""
    if region.is_skipped or is_settled(region) or region.status in HEALTHY:
        return False
    return region.step is RolloutStep.RUN or region.is_unsure


def is_baking(rollout: Rollout, region: RolloutRegion, now_ns: int) -> bool:
    """Whether the region is healthy, but not for long enough to make room. A person who unblocks it ends that."""
    if region.step is not RolloutStep.RUN or region.status not in HEALTHY or region.is_skipped:
        return False
    return now_ns < _baked_ns(rollout, region)


def canary_of(rollout: Rollout) -> RolloutRegion | None:
    """The region that goes alone; None if the job wants none, or the others may follow it.

    They may once it was unblocked. That another has begun shows it as well: somebody let the canary go before that, and
    an adopter has not heard of it.
    """
    taking_part = [one for one in rollout.regions if not one.is_skipped]
    if not rollout.strategy.canary_region or not taking_part:
        return None
    first, *others = taking_part
    is_let_go = first.step is RolloutStep.UNBLOCK or first.status in (_S.UNBLOCKING, _S.SUCCESSFUL)
    is_followed = any(one.step in (RolloutStep.RUN, RolloutStep.UNBLOCK) for one in others)
    return None if is_let_go or is_followed else first


def next_start_ns(rollout: Rollout, after_ns: int) -> float:
    """When a place is next free because of the time alone; infinity if no region waits for that."""
    if rollout.status is not RolloutStatus.RUNNING or not any(map(_waits_for_turn, rollout.regions)):
        return math.inf
    baking = [_baked_ns(rollout, one) for one in rollout.regions if is_baking(rollout, one, after_ns)]
    return min(baking, default=math.inf)


def _decide_once(rollout: Rollout, now_ns: int, silent: Collection[str]) -> Rollout:
    match rollout.status:
        case RolloutStatus.PREPARING:
            return _prepare(rollout, now_ns, silent)
        case RolloutStatus.RUNNING | RolloutStatus.BLOCKED:
            return _run(rollout, now_ns, silent)
        case RolloutStatus.UNBLOCKING:
            return _finish(rollout, silent)
        case _:
            return rollout


def _prepare(rollout: Rollout, now_ns: int, silent: Collection[str]) -> Rollout:
    refused = next((one for one in rollout.regions if one.status in GONE_WRONG and not one.is_skipped), None)
    if refused is not None:
        return _called_off(rollout, now_ns, f"region {refused.name} refused: {refused.error or refused.status}")
    ended = next((one for one in rollout.regions if one.step.is_last and not one.is_skipped), None)
    if ended is not None:
        return _called_off(rollout, now_ns, f"region {ended.name}: {ended.error or ended.step}")
    unprepared = [one for one in rollout.regions if one.status is _S.INITIALIZING and not one.is_skipped]
    missing = [one for one in unprepared if one.name in silent]
    if missing and rollout.strategy.on_unreachable == "skip":
        for one in missing:
            region = replace(_to_step(one, RolloutStep.WITHDRAW, now_ns, NOT_REACHED), is_skipped=True)
            rollout = _with_region(rollout, region)
        return rollout
    if missing and rollout.strategy.on_unreachable != "wait":
        return _called_off(rollout, now_ns, f"region {missing[0].name}: {NOT_REACHED}")
    if unprepared:
        return rollout
    if all(one.is_skipped for one in rollout.regions):
        return _moved(rollout, RolloutStatus.FAILED, "no region could be reached")
    return _moved(rollout, RolloutStatus.RUNNING, "regions have their turn")


def _called_off(rollout: Rollout, now_ns: int, why: str) -> Rollout:
    """Nothing has started, so nothing needs to fail: what was prepared is taken back everywhere."""
    rollout = _stepped(rollout, RolloutStep.WITHDRAW, now_ns, lambda one: one.step is RolloutStep.PREPARE, error=why)
    rollout = _stepped(rollout, RolloutStep.FAIL, now_ns, lambda one: True, error=why)  # adopted, and started after all
    return _moved(rollout, RolloutStatus.FAILED, f"nothing was started: {why}")


def _run(rollout: Rollout, now_ns: int, silent: Collection[str]) -> Rollout:
    for one in rollout.regions:
        if rollout.strategy.bake_time_s and one.status in HEALTHY and not one.healthy_time_ns:
            rollout = _with_region(rollout, replace(one, healthy_time_ns=now_ns))
    for one in rollout.regions:
        if is_in_turn(one) and one.name in silent:
            words = f"not heard of for {rollout.strategy.region_deadline_s:g} s in its turn"
            rollout = _with_region(rollout, _to_step(one, RolloutStep.FAIL, now_ns, words))
    rollout = _take_along(rollout, now_ns)
    rollout = _start_next(rollout, now_ns)
    canary = canary_of(rollout)
    if canary is not None and canary.status is _S.BLOCKED and any(map(_waits_for_turn, rollout.regions)):
        words = f"canary region {canary.name} is healthy; the others begin once it is unblocked by hand"
        return _moved(rollout, RolloutStatus.BLOCKED, words)
    regions = [one for one in rollout.regions if not one.is_skipped]
    if any(not is_settled(one) and one.status not in HEALTHY for one in regions):
        return _moved(rollout, RolloutStatus.RUNNING, _course(rollout, now_ns))
    wrong = [one.name for one in regions if _went_wrong(one)]
    waiting = [one.name for one in regions if one.status is _S.BLOCKED and not one.step.is_last]
    if not wrong and waiting:
        rollout = _stepped(rollout, RolloutStep.UNBLOCK, now_ns, lambda one: one.status is _S.BLOCKED)
        return _moved(rollout, RolloutStatus.UNBLOCKING, "every region is healthy")
    if waiting:
        words = f"failed in {', '.join(wrong)}; {', '.join(waiting)} can be unblocked or failed by hand"
        return _moved(rollout, RolloutStatus.BLOCKED, words)
    if wrong:
        return _moved(rollout, RolloutStatus.FAILED, f"failed in {', '.join(wrong)}")
    return _moved(rollout, RolloutStatus.UNBLOCKING, "every region is healthy")


def _course(rollout: Rollout, now_ns: int) -> str:
    """What is going on in a rollout that runs."""
    baking = [one.name for one in rollout.regions if is_baking(rollout, one, now_ns)]
    if not baking or not any(map(_waits_for_turn, rollout.regions)):
        return "regions have their turn"
    return f"regions have their turn; healthy, and in its bake time: {', '.join(baking)}"


def _take_along(rollout: Rollout, now_ns: int) -> Rollout:
    """Failed regions take others along, as the strategy says; a canary that nobody let go, all of them."""
    names = [one.name for one in rollout.regions]
    wrong = [names.index(one.name) for one in rollout.regions if not one.is_skipped and _went_wrong(one)]
    on_failure = rollout.strategy.on_failure
    canary = canary_of(rollout)
    spares_others = on_failure == "fail_local" and (canary is None or not _went_wrong(canary))
    if not wrong or spares_others:
        return rollout
    doomed = set(names if on_failure == "fail_all" else names[wrong[0] + 1 :])
    why = f"region {names[wrong[0]]} failed"
    return _stepped(rollout, RolloutStep.FAIL, now_ns, lambda one: one.name in doomed, error=why)


def _start_next(rollout: Rollout, now_ns: int) -> Rollout:
    """Give free places to the next regions in order."""
    places = rollout.strategy.max_parallel or len(rollout.regions)
    canary = canary_of(rollout)
    free = places - sum(is_in_turn(one) or is_baking(rollout, one, now_ns) for one in rollout.regions)
    for one in rollout.regions:
        if free <= 0 or (one.is_unsure and not is_settled(one) and one.status not in HEALTHY):
            break
        if canary is not None and one.name != canary.name:
            continue
        if one.step is RolloutStep.PREPARE and not is_settled(one):
            rollout = _with_region(rollout, _to_step(one, RolloutStep.RUN, now_ns))
            free -= 1
    return rollout


def _finish(rollout: Rollout, silent: Collection[str]) -> Rollout:
    regions = [one for one in rollout.regions if not one.is_skipped]
    if any(one.status not in FINAL and one.step is RolloutStep.UNBLOCK and one.name not in silent for one in regions):
        return rollout
    wrong = [one.name for one in regions if _went_wrong(one)]
    if wrong:
        return _moved(rollout, RolloutStatus.FAILED, f"failed in {', '.join(wrong)} after every region was healthy")
    unheard = [one.name for one in regions if one.status is not _S.SUCCESSFUL]
    skipped = [one.name for one in rollout.regions if one.is_skipped]
    words = "every region is healthy"
    words += f"; {', '.join(unheard)} did not confirm" if unheard else ""
    words += f"; without {', '.join(skipped)}" if skipped else ""
    return _moved(rollout, RolloutStatus.SUCCESSFUL, words)


def _went_wrong(region: RolloutRegion) -> bool:
    return region.status in GONE_WRONG or region.step in (RolloutStep.FAIL, RolloutStep.WITHDRAW)


def _waits_for_turn(region: RolloutRegion) -> bool:
    return region.step is RolloutStep.PREPARE and not is_settled(region) and not region.is_skipped


def _baked_ns(rollout: Rollout, region: RolloutRegion) -> int:
    return region.healthy_time_ns + round(rollout.strategy.bake_time_s * NS)


def furtherance(status: DeploymentStatus) -> int:
    return _ORDER.get(status, 5)


def _is_pause(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    return {before, after} == {_S.RUNNING, _S.PAUSED}


def _chosen(rollout: Rollout, names: Collection[str]) -> set[str]:
    return set(names) or {one.name for one in rollout.regions}


def _stepped(
    rollout: Rollout,
    step: RolloutStep,
    now_ns: int,
    choose: Callable[[RolloutRegion], bool],
    *,
    error: str = "",
    reverts: bool = False,
) -> Rollout:
    """Decide a step for each chosen region for which nothing final is decided or known yet."""
    for one in rollout.regions:
        if not is_settled(one) and choose(one):
            rollout = _with_region(rollout, replace(_to_step(one, step, now_ns, error), reverts=reverts))
    return rollout


def _to_step(region: RolloutRegion, step: RolloutStep, now_ns: int, error: str = "") -> RolloutRegion:
    STEP_MOVES.check(region.step, step, about=f"region {region.name}")
    return replace(region, step=step, error=error, decided_time_ns=now_ns, is_unsure=False)


def _with_region(rollout: Rollout, region: RolloutRegion) -> Rollout:
    regions: Iterable[RolloutRegion] = (region if one.name == region.name else one for one in rollout.regions)
    return replace(rollout, regions=tuple(regions))


def _moved(rollout: Rollout, status: RolloutStatus, words: str) -> Rollout:
    ROLLOUT_MOVES.check(rollout.status, status, about=f"rollout {rollout.id}")
    return replace(rollout, status=status, status_description=words)
