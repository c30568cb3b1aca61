"""Deployments as the reconcilers handle them: which one counts, when one begins, when it is done.

The part of a region in a rollout over several is a deployment like any other with a wait at either end. It comes with
the registration (`initializing`); the first look at it settles what it will do (`pending`), and until its region has
its turn the job lives on as it was: nothing is placed, changed or taken away for the new version. When its own part is
healthy it is `blocked` until all regions are. A deployment that the scheduler begins by itself for such a job, because
somebody went back to an earlier version or scaled it here, is this region's own affair and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus, DeploymentStatusUpdate
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.model.policies import UpdateStrategy
from fedsched.scheduler.reconcile.held import Held
from fedsched.scheduler.reconcile.updates import JobAt

STOPPED_JOB: Final = "Cancelled because job is stopped"
NEWER_JOB: Final = "Cancelled due to newer version of job"
SUCCESSFUL: Final = "Deployment completed successfully"
RUNNING: Final = "Deployment is running"
NEEDS_PROMOTION: Final = "Deployment is running but requires manual promotion"
PROMOTES_ITSELF: Final = "Deployment is running pending automatic promotion"
PENDING: Final = "Deployment is pending, waiting for its turn among the regions"
WAITS_FOR_PEERS: Final = "Deployment is complete but waiting for peer region"

_WAITING: Final = frozenset({DeploymentStatus.PENDING, DeploymentStatus.INITIALIZING})
_PAUSED: Final = _WAITING | {DeploymentStatus.PAUSED}

Deployments = Callable[[], Iterable[Deployment]]
"""All deployments known of the job; asked only while canaries wait for their promotion."""


class Standing(NamedTuple):
    """Which deployment counts now, which one was superseded, and what that changes."""

    current: Deployment | None = None
    old: Deployment | None = None
    updates: tuple[DeploymentStatusUpdate, ...] = ()

    @property
    def is_paused(self) -> bool:
        return self.current is not None and self.current.status in _PAUSED

    @property
    def is_waiting(self) -> bool:
        """Whether the region has not had its turn yet: the job lives on as it was before."""
        return self.current is not None and self.current.status in _WAITING

    @property
    def is_failed(self) -> bool:
        return self.current is not None and self.current.status is DeploymentStatus.FAILED

    def state(self, group: str) -> DeploymentState | None:
        return self.current.task_groups.get(group) if self.current is not None else None


def standing(job: Job | None, latest: Deployment | None, now_ns: int) -> Standing:
    """Judge the job's latest deployment against the job as it is now."""
    if latest is None:
        return Standing()
    is_stopped = job is None or job.stop
    if is_stopped or (latest.job_create_index, latest.job_version) != (_index(job), _version(job)):
        words = STOPPED_JOB if is_stopped else NEWER_JOB
        update = _update(latest, DeploymentStatus.CANCELLED, words, now_ns)
        return Standing(None, latest, (update,) if latest.is_active else ())
    if latest.status is DeploymentStatus.SUCCESSFUL:
        return Standing(None, latest)
    return Standing(latest)


def superseded(deployment: Deployment, now_ns: int) -> DeploymentStatusUpdate:
    """The end of a deployment that a newer job took the place of."""
    return _update(deployment, DeploymentStatus.CANCELLED, NEWER_JOB, now_ns)


def _index(job: Job | None) -> int:
    return job.create_index if job is not None else 0


def _version(job: Job | None) -> int:
    return job.version if job is not None else 0


def _update(deployment: Deployment, status: DeploymentStatus, words: str, now_ns: int) -> DeploymentStatusUpdate:
    return DeploymentStatusUpdate(
        deployment_id=deployment.id, status=status, status_description=words, update_time_ns=now_ns
    )


def is_rolling(update: UpdateStrategy | None) -> bool:
    """Whether changes are made some at a time; without that there is no deployment."""
    return update is not None and update.max_parallel > 0


def first_state(update: UpdateStrategy | None) -> DeploymentState:
    """Where a group starts from that no deployment knows yet."""
    if update is None or update.max_parallel == 0:
        return DeploymentState()
    return DeploymentState(
        auto_revert=update.auto_revert,
        auto_promote=update.auto_promote,
        progress_deadline_s=update.progress_deadline_s,
    )


class Draft:
    """The job's deployment while its groups are gone through: made by the first group that needs one."""

    def __init__(self, standing: Standing, job: Job, evaluation: Evaluation, new_id: Callable[[], str]) -> None:
        self.standing = standing
        self._job = job
        self._evaluation = evaluation
        self._new_id = new_id
        self._added: dict[str, DeploymentState] = {}

    def add(self, group: str, state: DeploymentState) -> None:
        self._added[group] = state

    def changed(self, now_ns: int) -> Deployment | None:
        """The deployment to store; None if no group joined."""
        if not self._added:
            return None
        current = self.standing.current
        if current is not None:
            joined = replace(current, task_groups={**current.task_groups, **self._added})
            if current.status is DeploymentStatus.INITIALIZING:
                return replace(joined, status=DeploymentStatus.PENDING, status_description=PENDING)
            return joined
        return self._described(self._fresh(now_ns))

    def _fresh(self, now_ns: int) -> Deployment:
        job = self._job
        return Deployment(
            id=self._new_id(),
            namespace=job.namespace,
            job_id=job.id,
            job_version=job.version,
            job_modify_index=job.modify_index,
            job_spec_modify_index=job.job_modify_index,
            job_create_index=job.create_index,
            task_groups=dict(self._added),
            eval_priority=self._evaluation.priority,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )

    def _described(self, deployment: Deployment) -> Deployment:
        """Say what the deployment waits for."""
        words = RUNNING
        if deployment.requires_promotion:
            with_canaries = [state for state in deployment.task_groups.values() if state.desired_canaries]
            words = PROMOTES_ITSELF if all(state.auto_promote for state in with_canaries) else NEEDS_PROMOTION
        return replace(deployment, status_description=words)

    def completion(self, are_done: bool, now_ns: int) -> DeploymentStatusUpdate | None:
        """What comes next for the current deployment: its turn, or its end if nothing is left to do for any group."""
        current = self.standing.current
        if self._added or current is None:
            return None
        if current.status is DeploymentStatus.INITIALIZING:
            return _update(current, DeploymentStatus.PENDING, PENDING, now_ns)
        # Without a group to watch over, nobody would come back and see that it is done: planning is all there is.
        is_unwatched = current.is_multiregion and not current.task_groups
        if not (are_done or is_unwatched) or current.status is not DeploymentStatus.RUNNING:
            return None
        if not all(is_healthy_enough(state) for state in current.task_groups.values()):
            return None
        if current.is_multiregion:
            return _update(current, DeploymentStatus.BLOCKED, WAITS_FOR_PEERS, now_ns)
        return _update(current, DeploymentStatus.SUCCESSFUL, SUCCESSFUL, now_ns)


def is_healthy_enough(state: DeploymentState) -> bool:
    """Whether a group has all it asked for, canaries promoted."""
    if state.desired_canaries and not state.promoted:
        return False
    return state.healthy_allocs >= max(state.desired_total, state.desired_canaries)


class OlderVersion(NamedTuple):
    """What to place while canaries of the current version are not promoted."""

    job_version: int | None
    """None: the current version after all."""
    deployment_id: str | None = None


def version_before_canaries(job: Job, previous: Held, deployments: Deployments, job_at: JobAt) -> OlderVersion:
    """The version from which something that is no canary is replaced while canaries wait for their promotion.

    The newest deployment that got through with the group decides. Without any, the version of the allocation itself
    does if it knew no updates.
    """
    known = [one for one in deployments() if one.job_create_index == job.create_index]
    for deployment in sorted(known, key=lambda one: (one.job_version, one.create_index), reverse=True):
        state = deployment.task_groups.get(previous.group)
        if state is not None and (state.promoted or not state.desired_canaries):
            return OlderVersion(deployment.job_version, deployment.id)
    old = job_at(*previous.version)
    group = old.group(previous.group) if old is not None else None
    if group is not None and not is_rolling(group.update):
        return OlderVersion(previous.origin.job_version, "")
    return OlderVersion(None)
