"""What the groups of one job share while they are reconciled, and what can be told from columns alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.scheduler.reconcile.deployments import Deployments, Draft, is_healthy_enough
from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.reconcile.held import (
    COMPLETE,
    LOST,
    NO_PLACEMENT,
    PENDING,
    RESCHEDULE,
    RUN,
    RUNNING,
    Held,
    Mask,
    Roster,
    Taints,
    Where,
)
from fedsched.scheduler.reconcile.updates import CanStay, Comparer, JobAt
from fedsched.scheduler.reconcile.wanted import GroupWanted


@dataclass(slots=True)
class Scene:
    """What all groups of one job share."""

    job: Job
    evaluation: Evaluation
    roster: Roster
    taint: Taints
    """Per allocation of the roster."""
    now_ns: int
    new_id: Callable[[], str]
    can_stay: CanStay
    job_at: JobAt
    deployments: Deployments
    draft: Draft
    comparer: Comparer
    is_batch: bool
    current: Mask
    older: Mask
    earlier: Mask
    """Allocations of a job of the same id that was purged before this one was registered."""
    ended: Mask
    calm: Mask
    """Allocations about which no rule has anything to say while their number is right."""
    dropped_evaluations: list[str] = field(default_factory=list)

    @property
    def version(self) -> tuple[int, int]:
        return (self.job.create_index, self.job.version)


def calm_mask(roster: Roster, taint: Taints, current: Mask, *, is_batch: bool) -> Mask:
    """Wanted, alive, on a good node, up to date, nothing asked of them, nothing recorded about them."""
    rows = roster.rows
    client = rows["client_status"]
    fine: Mask = (client == RUNNING) | (client == PENDING)
    if is_batch:
        fine |= (client == COMPLETE) & (rows["kin_crc"] == 0)
    fine &= (rows["desired"] == RUN) & (rows["flags"] == 0) & (rows["desired_crc"] == 0)
    fine &= (taint == 0) & current
    return fine


def still_of_interest(scene: Scene, where: Where, wanted: GroupWanted) -> Where:
    """Leave out what servers stopped (batch jobs keep some of it) and what has ended: in batch jobs that of earlier
    versions, in others that of a purged job of the same id, or a new job would begin as an update of the old one."""
    rows = scene.roster.rows
    stopped = rows["desired"][where] != RUN
    if not scene.is_batch:
        stopped |= scene.earlier[where] & scene.ended[where]
        return where[~stopped] if stopped.any() else where
    flags, ended = rows["flags"][where], scene.ended[where]
    past = scene.older[where] & (stopped | ended)
    asked = stopped & ((flags & RESCHEDULE) != 0)
    over = stopped & ended & ((flags & NO_PLACEMENT) == 0)
    wanted.tally.ignore += int((past | (over & ~asked)).sum())
    kept: Where = where[~(past | asked | over)]
    return kept


def has_canaries(scene: Scene, group: str) -> bool:
    """Whether canaries need a closer look: unpromoted ones of the current or of the superseded deployment."""
    states = [scene.draft.standing.state(group)]
    old = scene.draft.standing.old
    states.append(old.task_groups.get(group) if old is not None else None)
    return any(state is not None and not state.promoted and state.placed_canaries for state in states)


def is_state_done(scene: Scene, group: str) -> bool:
    state = scene.draft.standing.state(group)
    return state is None or is_healthy_enough(state)


def holding_up(scene: Scene, cut_off: CutOff, where: Where) -> list[Held]:
    """Lost allocations that a client which was cut off may still be running, because it stops them only later.

    The evaluation that one of them waits for says that its time is over, to the last moment between two clocks.
    """
    if cut_off.stop_after_ns is None:
        return []
    rows = scene.roster.rows
    lost = where[rows["client_status"][where] == LOST]
    late = lost[rows["modify_time"][lost] + cut_off.stop_after_ns > scene.now_ns]
    return [held for held in scene.roster.held(late) if held.followup_id != scene.evaluation.id]
