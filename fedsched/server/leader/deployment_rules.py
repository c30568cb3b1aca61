"""What may happen to a deployment, and when: the rules that the watcher and the people's requests share.

The functions that begin with `plan_` are for requests: they check one against the state and give the effect that
carries it out, or refuse with words for an operator. The store checks again when it applies, since a client or another
person may be faster; asking here first gives the better message and the evaluation to go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.ids import uuid_bytes, uuid_text
from fedsched.model.job import Job
from fedsched.model.rollout import RolloutStep
from fedsched.state.columns import Rows, Slots, picked
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import HEALTHY, Flag, is_live
from fedsched.state.tables.alloc_updates import AllocTransition
from fedsched.state.tables.deployment_groups import GroupProgress
from fedsched.state.tables.deployment_updates import (
    DeploymentAllocHealth,
    DeploymentPromote,
    DeploymentStatusUpdate,
    DeploymentStatusWrite,
)
from fedsched.state.tables.deployments import DeploymentRow
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobRegister, job_register, spec_bytes

UNHEALTHY_ALLOCS: Final = "failed: an allocation is unhealthy and may not be replaced"
DEADLINE: Final = "failed: no progress before its deadline"
BY_REQUEST: Final = "failed: an operator ended it"
HEALTH_SET: Final = "failed: an operator called an allocation unhealthy"
ON_HOLD: Final = "paused by an operator"
GOES_ON: Final = "Deployment is running"
UNBLOCKED: Final = "Deployment is unblocked"
SUCCESSFUL: Final = "Deployment completed successfully"


@dataclass(frozen=True, slots=True)
class Continue:
    """Evaluate these jobs again; unhealthy allocations (16 bytes of id each) may be replaced."""

    ids: bytes
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class PromoteDeployment:
    """Make the canaries of these groups ordinary, of all groups if none is named."""

    deployment_id: str
    groups: tuple[str, ...]
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class FailDeployment:
    """End it, and go back to an earlier version of the job if there is one to go back to."""

    deployment_id: str
    description: str
    evaluation: Evaluation
    revert_to: Job | None = None
    """Registered anew if the job is still at the index below."""
    job_modify_index: int = 0


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Hold it, or let it go on; its deadlines begin anew either way."""

    deployment_id: str
    is_paused: bool
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class SetHealth:
    """Somebody knows how allocations (16 bytes of id each) are."""

    deployment_id: str
    healthy: bytes
    unhealthy: bytes
    evaluation: Evaluation
    failure: FailDeployment | None = None


@dataclass(frozen=True, slots=True)
class MoveOn:
    """One of several regions has what it waited for: it is let go on, and then it is done."""

    deployment_id: str
    is_done: bool
    evaluation: Evaluation | None = None


DeploymentEffect = Continue | PromoteDeployment | FailDeployment | SetPaused | SetHealth | MoveOn


def command_of(effect: DeploymentEffect) -> Command:
    """The command that carries an effect out."""
    match effect:
        case Continue(ids, evaluations):
            writes = tuple(evaluation_write(one) for one in evaluations)
            if not ids:
                return EvaluationsUpsert(evaluations=writes)
            return AllocTransition(ids=ids, flags=int(Flag.RESCHEDULE), evaluations=writes)
        case PromoteDeployment(deployment_id, groups, evaluation):
            return DeploymentPromote(id=deployment_id, groups=groups, evaluations=(evaluation_write(evaluation),))
        case FailDeployment():
            return DeploymentStatusUpdate(
                updates=(_failed(effect),),
                revert=_registration(effect),
                evaluations=(evaluation_write(effect.evaluation),),
            )
        case MoveOn(deployment_id, is_done, follow_up):
            moved = DeploymentStatusWrite(
                id=deployment_id,
                status="successful" if is_done else "unblocking",
                description=SUCCESSFUL if is_done else UNBLOCKED,
            )
            follow_ups = (evaluation_write(follow_up),) if follow_up is not None else ()
            return DeploymentStatusUpdate(updates=(moved,), evaluations=follow_ups)
        case SetPaused(deployment_id, is_paused, pause_evaluation):
            status = DeploymentStatusWrite(
                id=deployment_id,
                status="paused" if is_paused else "running",
                description=ON_HOLD if is_paused else GOES_ON,
            )
            made = (evaluation_write(pause_evaluation),) if pause_evaluation is not None else ()
            return DeploymentStatusUpdate(updates=(status,), evaluations=made)
        case SetHealth():
            failure = effect.failure
            return DeploymentAllocHealth(
                id=effect.deployment_id,
                healthy=effect.healthy,
                unhealthy=effect.unhealthy,
                status=_failed(failure) if failure is not None else None,
                revert=_registration(failure) if failure is not None else None,
                evaluations=(evaluation_write(effect.evaluation),),
            )


def _failed(effect: FailDeployment) -> DeploymentStatusWrite:
    return DeploymentStatusWrite(id=effect.deployment_id, status="failed", description=effect.description)


def _registration(effect: FailDeployment) -> JobRegister | None:
    if effect.revert_to is None:
        return None
    return job_register(effect.revert_to, evaluation=None, enforce_index=True, check_index=effect.job_modify_index)


def evaluation_for(state: State, row: DeploymentRow, job: Job, now_ns: int, new_id: Callable[[], str]) -> Evaluation:
    """The evaluation that a deployment makes for its job."""
    current = state.jobs.row(row.namespace, row.job_id)
    return Evaluation(
        id=new_id(),
        namespace=row.namespace,
        priority=row.deployment().eval_priority or job.priority,
        type=job.type,
        triggered_by=Trigger.DEPLOYMENT_WATCHER.value,
        job_id=row.job_id,
        job_modify_index=current.job_modify_index if current is not None else 0,
        deployment_id=row.id,
        status=EvaluationStatus.PENDING,
        create_time_ns=now_ns,
        modify_time_ns=now_ns,
    )


def latest_evaluation_index(state: State, namespace: str, job_id: str) -> int:
    """Up to where the job's evaluations have seen, or will have seen, the state. Cancelled ones see nothing."""
    cancelled = EvaluationStatus.CANCELLED.value
    rows = (row for row in state.evaluations.of_job(namespace, job_id) if row.status != cancelled)
    return max((row.snapshot_index or row.create_index for row in rows), default=0)


class Own(NamedTuple):
    """A deployment's allocations."""

    slots: Slots
    rows: Rows
    groups: dict[int, str]
    """The group, by origin."""

    def group_at(self, at: int) -> str:
        return self.groups[int(self.rows["origin"][at])]

    def healthy(self) -> dict[str, int]:
        """How many live and are healthy, by group."""
        well = is_live(self.rows) & (self.rows["health"] == HEALTHY)
        found: dict[str, int] = {}
        for ref, count in zip(*np.unique(self.rows["origin"][well], return_counts=True), strict=True):
            name = self.groups[int(ref)]
            found[name] = found.get(name, 0) + int(count)
        return found


def own_allocs(state: State, row: DeploymentRow) -> Own:
    """The allocations that a deployment has placed or taken over."""
    slots = state.allocations.slots_of_job(row.namespace, row.job_id)
    rows = state.allocations.columns.read(slots)
    groups: dict[int, str] = {}
    for ref in np.unique(rows["origin"]).tolist():
        origin = state.allocations.origins.get(ref)
        if origin is not None and origin.deployment_id == row.id:
            groups[ref] = origin.group
    mine = np.isin(rows["origin"], list(groups))
    return Own(slots[mine], picked(rows, mine), groups)


def is_let_go(state: State, row: DeploymentRow) -> bool:
    """Whether a deployment that is blocked was told that all regions are healthy."""
    share = state.rollouts.share_row(row.namespace, row.job_id)
    return share is not None and share.deployment_id == row.id and share.step == RolloutStep.UNBLOCK.value


def may_promote_itself(state: State, progress: Mapping[str, GroupProgress]) -> bool:
    """Whether every group with canaries wants it, and exactly as many as wanted are placed and healthy."""
    waiting = [one for one in progress.values() if one.desired_canaries > 0]
    if not any(not one.promoted for one in waiting):
        return False
    return all(
        one.auto_promote
        and len(one.canary_ids) == one.desired_canaries
        and len(healthy_canaries(state, one)) == one.desired_canaries
        for one in waiting
    )


def healthy_canaries(state: State, one: GroupProgress) -> list[bytes]:
    """The canaries of a group that live and are healthy."""
    found = []
    for identity in one.canary_ids:
        slot = state.allocations.slot_of(uuid_text(identity))
        if slot < 0:
            continue
        rows = state.allocations.columns.read(np.array([slot], dtype=np.int64))
        if bool(is_live(rows)[0]) and int(rows["health"][0]) == HEALTHY:
            found.append(identity)
    return found


def awaits_promotion(one: GroupProgress) -> bool:
    return one.desired_canaries > 0 and not one.promoted


def progress_due_ns(progress: Mapping[str, GroupProgress], healthy: Mapping[str, int]) -> dict[str, int]:
    """By when each group that is not done has to show progress. One that has placed nothing has no deadline yet."""
    return {
        name: one.require_progress_by_ns
        for name, one in progress.items()
        if one.require_progress_by_ns and (awaits_promotion(one) or healthy.get(name, 0) < one.desired_total)
    }


def is_group_fine(one: GroupProgress) -> bool:
    """Whether a group whose deadline has passed has enough to show for it: it may be people who are awaited."""
    if awaits_promotion(one):
        return one.healthy >= one.desired_canaries
    return one.healthy >= one.desired_total


def failure_of(
    state: State,
    row: DeploymentRow,
    job: Job,
    groups: Iterable[str],
    why: str,
    now_ns: int,
    new_id: Callable[[], str],
    *,
    must_revert: bool = False,
) -> FailDeployment:
    """The end of a deployment because of these groups; if one of them wants it, the job goes back to what worked.

    To a version with the very same specification it does not go back: that one would fail again, and again.
    """
    evaluation = evaluation_for(state, row, job, now_ns, new_id)
    progress = row.progress()
    if not must_revert and not any(progress[name].auto_revert for name in groups if name in progress):
        return FailDeployment(row.id, why, evaluation)
    stable = next((one for one in state.jobs.versions(row.namespace, row.job_id) if one.stable), None)
    if stable is None:
        return FailDeployment(row.id, f"{why}; there is no stable version to go back to", evaluation)
    if spec_bytes(stable) == spec_bytes(job):
        same = f"{why}; version {stable.version} is the newest stable one and no different, so it stays"
        return FailDeployment(row.id, same, evaluation)
    current = state.jobs.row(row.namespace, row.job_id)
    assert current is not None, f"deployment {row.id} of a job that is gone"
    reverted = structs.replace(stable, stable=False, version_tag=None, stop=False, submit_time_ns=now_ns)
    words = f"{why}; going back to version {stable.version}"
    return FailDeployment(row.id, words, evaluation, reverted, current.job_modify_index)


def plan_promotion(
    state: State, deployment_id: str, groups: Iterable[str], now_ns: int, new_id: Callable[[], str]
) -> PromoteDeployment:
    """Check a wish to promote: of the groups named, or of all. Each needs its canaries healthy and live."""
    row, job = _active(state, deployment_id)
    progress = row.progress()
    named = tuple(dict.fromkeys(groups))
    for name in named:
        if name not in progress:
            raise BadRequest(
                f"deployment {deployment_id!r} has no group {name!r}", hint=f"it has {', '.join(sorted(progress))}"
            )
    waiting = {name: progress[name] for name in (named or sorted(progress)) if awaits_promotion(progress[name])}
    if not waiting:
        raise BadRequest(
            f"deployment {deployment_id!r} has no canaries to promote",
            hint="`fedsched deployment status` shows which groups have some",
        )
    counts = {name: len(healthy_canaries(state, one)) for name, one in waiting.items()}
    short = [f"{name}: {counts[name]} of {one.desired_canaries}" for name, one in waiting.items()]
    if any(counts[name] < one.desired_canaries for name, one in waiting.items()):
        raise BadRequest(
            f"canaries of deployment {deployment_id!r} are not all healthy: {'; '.join(short)}",
            hint="wait until they are, or fail the deployment",
        )
    return PromoteDeployment(row.id, named, evaluation_for(state, row, job, now_ns, new_id))


def plan_pause(state: State, deployment_id: str, pause: bool, now_ns: int, new_id: Callable[[], str]) -> SetPaused:
    """Check a wish to hold a deployment or to let it go on; going on needs an evaluation, holding none."""
    row, job = _active(state, deployment_id)
    allowed = (DeploymentStatus.RUNNING.value, DeploymentStatus.PAUSED.value)
    if row.status not in allowed:
        raise BadRequest(
            f"deployment {deployment_id!r} is {row.status} and cannot be {'paused' if pause else 'resumed'}",
            hint="only one that runs can be paused, and one that is paused be resumed",
        )
    evaluation = None if pause else evaluation_for(state, row, job, now_ns, new_id)
    return SetPaused(row.id, pause, evaluation)


def plan_failure(state: State, deployment_id: str, now_ns: int, new_id: Callable[[], str]) -> FailDeployment:
    """Check a wish to end a deployment: it goes back to an earlier version if any of its groups wants that."""
    row, job = _active(state, deployment_id)
    return failure_of(state, row, job, row.progress(), BY_REQUEST, now_ns, new_id)


def plan_health(
    state: State,
    deployment_id: str,
    healthy: Iterable[str],
    unhealthy: Iterable[str],
    now_ns: int,
    new_id: Callable[[], str],
) -> SetHealth:
    """Check word about the health of allocations; a single unhealthy one ends the deployment."""
    row, job = _active(state, deployment_id)
    well, ill = tuple(dict.fromkeys(healthy)), tuple(dict.fromkeys(unhealthy))
    if not well and not ill:
        raise BadRequest("no allocation is named", hint="name at least one that is healthy or unhealthy")
    groups = {alloc_id: _group_of(state, row, alloc_id) for alloc_id in (*well, *ill)}
    both = sorted(set(well) & set(ill))
    if both:
        raise BadRequest(f"allocation {both[0]!r} cannot be healthy and unhealthy at once", hint="name it once")
    failure = None
    if ill:
        bad = sorted({groups[alloc_id] for alloc_id in ill})
        failure = failure_of(state, row, job, bad, HEALTH_SET, now_ns, new_id)
    evaluation = failure.evaluation if failure else evaluation_for(state, row, job, now_ns, new_id)
    return SetHealth(row.id, _column(well), _column(ill), evaluation, failure)


def _group_of(state: State, row: DeploymentRow, alloc_id: str) -> str:
    slot = state.allocations.slot_of(alloc_id)
    origin = state.allocations.origin_of(slot) if slot >= 0 else None
    if origin is None or origin.deployment_id != row.id:
        raise BadRequest(
            f"allocation {alloc_id!r} is not part of deployment {row.id!r}",
            hint="`fedsched deployment status` lists its allocations",
        )
    return origin.group


def _column(ids: Iterable[str]) -> bytes:
    return b"".join(uuid_bytes(one) for one in ids)


def _active(state: State, deployment_id: str) -> tuple[DeploymentRow, Job]:
    row = state.deployments.rows.get(deployment_id)
    if row is None:
        raise NotFound(f"no deployment {deployment_id!r}", hint="`fedsched deployment list` shows them")
    if not row.is_active:
        raise BadRequest(
            f"deployment {deployment_id!r} has ended: it is {row.status}",
            hint="only a deployment under way can be changed",
        )
    key = (row.namespace, row.job_id, row.job_create_index, row.job_version)
    job = state.jobs.version_by_key(key)
    if job is None or state.jobs.row(row.namespace, row.job_id) is None:
        raise BadRequest(
            f"deployment {deployment_id!r} is of a version of job {row.job_id!r} that is gone",
            hint="it ends with the next evaluation of that job",
        )
    return row, job
