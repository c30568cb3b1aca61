"""What a region does in a rollout: its new share and the deed, carried out together or not at all.

The deed was decided from a share, and a share changes whenever its deployment does; so if the share is still as it was,
everything that the deed rests on is too, but for the job itself, which is checked here again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import structs

from fedsched.state.fields import Command, Count, Id
from fedsched.state.result import Result, refused
from fedsched.state.tables.deployment_updates import DeploymentStatusWrite, store_statuses
from fedsched.state.tables.deployments import DeploymentWrite, check_deployments, store_deployments
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluations
from fedsched.state.tables.job_status import refresh_status
from fedsched.state.tables.jobs import JobDeregister, JobRegister, apply_deregister, apply_register, register_at
from fedsched.state.tables.rollouts import ShareWrite, changed_since, put_share

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction


class RolloutStepCarry(Command):
    """Write a region's share, with what it says was done. Whatever is not given is not part of the deed."""

    namespace: Id
    job_id: Id
    share: ShareWrite
    seen_index: Count = 0
    """Where the share that this was decided from was written; 0: there was none."""
    registration: JobRegister | None = None
    version: Count = 0
    """The version that `registration` gets, the same in every region."""
    deployment: DeploymentWrite | None = None
    """The deployment that waits for its turn."""
    status: DeploymentStatusWrite | None = None
    revert: JobRegister | None = None
    """What the job goes back to, if it is still at the index that this names."""
    stop: JobDeregister | None = None
    evaluations: Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=16)] = ()


def apply_step(tx: Transaction, command: RolloutStepCarry) -> Result:
    key = (command.namespace, command.job_id)
    problem = changed_since(tx, *key, command.seen_index)
    known = tx.store.jobs.row(*key)
    if command.registration is not None and known is not None and known.version >= command.version:
        problem = problem or f"job {command.job_id!r} is at version {known.version}, not before {command.version}"
    if problem:
        return refused(tx.index, "conflict", problem, hint="read the share again and decide anew")
    if command.deployment is not None:
        check_deployments((command.deployment,))
    put_share(tx, *key, command.share)
    job = register_at(tx, command.registration, command.version) if command.registration is not None else known
    if command.deployment is not None and job is not None:
        deployment = structs.replace(command.deployment, job_create_index=job.create_index, job_version=job.version)
        store_deployments(tx, (deployment,))
    if command.status is not None:
        store_statuses(tx, (command.status,))
    reverted = command.revert is not None and apply_register(tx, command.revert).is_done
    if command.stop is not None:
        apply_deregister(tx, command.stop)
    job = tx.store.jobs.row(*key)
    index = job.job_modify_index if job is not None else tx.index
    store_evaluations(tx, tuple(structs.replace(one, job_modify_index=index) for one in command.evaluations))
    refresh_status(tx, *key)
    return tx.done(reverted=reverted, version=job.version if job is not None else 0, job_modify_index=index)
