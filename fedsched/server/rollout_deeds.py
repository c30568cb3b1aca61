"""What a region does when the owner of a rollout has decided something for it: deeds as one entry of the log.

Whether anything is to be done is `federation.rollout_share`'s to say; here it is made into a command, from the state as
it is. The command names the share that it was made from: if anything has happened since, it is refused and made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from fedsched.federation.rollout_share import Deed, Received
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.job import Job
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutShare, RolloutStep
from fedsched.server.leader.deployment_rules import GOES_ON, UNBLOCKED, evaluation_for, failure_of
from fedsched.state.store import State
from fedsched.state.tables.deployment_updates import DeploymentStatusWrite
from fedsched.state.tables.deployments import DeploymentRow, deployment_write
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.jobs import JobDeregister, JobRegister, job_register
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import ShareRow, share_write

INITIALIZING: Final = "Deployment initializing but not started by a multiregion deployment yet"
WITHDRAWN: Final = "Cancelled because the rollout was withdrawn before it started"
BY_ROLLOUT: Final = "failed: the rollout over all regions ended here"


class Deeds:
    """Makes commands from what is to be done."""

    def __init__(self, state: State, known: ShareRow | None, now_ns: int, new_id: Callable[[], str]) -> None:
        self._state = state
        self._known = known
        self._now_ns = now_ns
        self._new_id = new_id

    def command(self, received: Received, command: RolloutCommand, job: Job | None) -> RolloutStepCarry:
        """The share that comes of it, with the deed if there is one. `job` is the one to prepare, as this region
        admits it."""
        share = received.share
        assert share is not None, "only called for something to store"
        carry = RolloutStepCarry(
            namespace=share.rollout.namespace,
            job_id=share.rollout.job_id,
            share=share_write(share, with_job=self._has_new_job(share)),
            seen_index=self._known.modify_index if self._known is not None else 0,
        )
        deed = received.deed
        if deed is None:
            leaves = command.step is RolloutStep.WITHDRAW and share.rollout.region(share.region) is None
            return self._stopped(carry, share.rollout) if leaves else carry
        match deed.step:
            case RolloutStep.PREPARE:
                assert job is not None, "what is refused has no deed"
                return self._prepared(carry, share, job)
            case RolloutStep.RUN:
                return self._moved(carry, share, "running", GOES_ON)
            case RolloutStep.UNBLOCK:
                return self._moved(carry, share, "unblocking", UNBLOCKED, evaluates=False)
            case RolloutStep.FAIL:
                return self._failed(carry, share, deed)
            case RolloutStep.WITHDRAW:
                return self._withdrawn(carry, share)

    def _has_new_job(self, share: RolloutShare) -> bool:
        known = self._known
        return known is None or known.rollout_id != share.rollout.id or not known.job

    def _prepared(self, carry: RolloutStepCarry, share: RolloutShare, job: Job) -> RolloutStepCarry:
        waiting = Deployment(
            id=self._new_id(),
            namespace=job.namespace,
            job_id=job.id,
            job_version=share.rollout.job_version,
            is_multiregion=True,
            status=DeploymentStatus.INITIALIZING,
            status_description=INITIALIZING,
            eval_priority=job.priority,
            create_time_ns=self._now_ns,
            modify_time_ns=self._now_ns,
        )
        evaluation = Evaluation(
            id=self._new_id(),
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=Trigger.JOB_REGISTER,
            job_id=job.id,
            deployment_id=waiting.id,
            create_time_ns=self._now_ns,
            modify_time_ns=self._now_ns,
        )
        return structs.replace(
            carry,
            share=structs.replace(carry.share, deployment_id=waiting.id),
            registration=job_register(job, evaluation=None),
            version=share.rollout.job_version,
            deployment=deployment_write(waiting),
            evaluations=(evaluation_write(evaluation),),
        )

    def _moved(
        self, carry: RolloutStepCarry, share: RolloutShare, status: str, words: str, *, evaluates: bool = True
    ) -> RolloutStepCarry:
        found = self._part(share)
        if found is None:
            return carry
        row, job = found
        made = (evaluation_write(evaluation_for(self._state, row, job, self._now_ns, self._new_id)),)
        write = DeploymentStatusWrite(id=row.id, status=status, description=words)  # type: ignore[arg-type]
        return structs.replace(carry, status=write, evaluations=made if evaluates else ())

    def _failed(self, carry: RolloutStepCarry, share: RolloutShare, deed: Deed) -> RolloutStepCarry:
        found = self._part(share)
        if found is None:
            return carry
        row, job = found
        why = f"{BY_ROLLOUT}: {deed.reason}" if deed.reason else BY_ROLLOUT
        failure = failure_of(
            self._state, row, job, row.progress(), why, self._now_ns, self._new_id, must_revert=deed.reverts
        )
        revert = None
        if failure.revert_to is not None:
            revert = self._registration(failure.revert_to, failure.job_modify_index)
        return structs.replace(
            carry,
            status=DeploymentStatusWrite(id=row.id, status="failed", description=failure.description),
            revert=revert,
            evaluations=(evaluation_write(failure.evaluation),),
        )

    def _withdrawn(self, carry: RolloutStepCarry, share: RolloutShare) -> RolloutStepCarry:
        """Nothing was started: the job becomes again what it was before, under a version of its own."""
        found = self._part(share)
        if found is None:
            return carry
        row, job = found
        evaluation = evaluation_write(evaluation_for(self._state, row, job, self._now_ns, self._new_id))
        carry = structs.replace(
            carry,
            status=DeploymentStatusWrite(id=row.id, status="cancelled", description=WITHDRAWN),
            evaluations=(evaluation,),
        )
        current = self._state.jobs.row(row.namespace, row.job_id)
        if current is None or current.version != row.job_version or current.stop:
            return carry  # somebody has changed it here since
        versions = self._state.jobs.versions(row.namespace, row.job_id)
        before = next((one for one in versions if one.version < row.job_version), None)
        if before is None or before.stop:
            return structs.replace(carry, stop=self._deregistration(row.namespace, row.job_id))
        was = structs.replace(before, stable=False, version_tag=None, submit_time_ns=self._now_ns)
        return structs.replace(carry, revert=self._registration(was, current.job_modify_index))

    def _stopped(self, carry: RolloutStepCarry, rollout: Rollout) -> RolloutStepCarry:
        """The job is not wanted in this region any more. One that somebody has registered here since is let be."""
        job = self._state.jobs.get(rollout.namespace, rollout.job_id)
        if job is None or job.stop or job.multiregion is None or job.version >= rollout.job_version:
            return carry
        evaluation = Evaluation(
            id=self._new_id(),
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=Trigger.JOB_DEREGISTER,
            job_id=job.id,
            create_time_ns=self._now_ns,
            modify_time_ns=self._now_ns,
        )
        return structs.replace(
            carry, stop=self._deregistration(job.namespace, job.id), evaluations=(evaluation_write(evaluation),)
        )

    def _deregistration(self, namespace: str, job_id: str) -> JobDeregister:
        return JobDeregister(namespace=namespace, id=job_id, submit_time_ns=self._now_ns)

    def _registration(self, job: Job, job_modify_index: int) -> JobRegister:
        return job_register(job, evaluation=None, enforce_index=True, check_index=job_modify_index)

    def _part(self, share: RolloutShare) -> tuple[DeploymentRow, Job] | None:
        """This region's deployment and its version of the job, while the deployment is under way."""
        row = self._state.deployments.rows.get(share.deployment_id)
        if row is None or not row.is_active:
            return None
        job = self._state.jobs.version_by_key((row.namespace, row.job_id, row.job_create_index, row.job_version))
        return (row, job) if job is not None else None
