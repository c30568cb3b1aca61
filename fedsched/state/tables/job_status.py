"""Whether a job is pending, running or dead: follows from its allocations, deployments and evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from fedsched.model.job import JobStatus, JobType
from fedsched.state.tables.job_children import put_job

if TYPE_CHECKING:
    from fedsched.state.tables.job_rows import JobRow
    from fedsched.state.transaction import Transaction

ALWAYS_RUNNING_TYPES: Final = (JobType.SYSTEM.value,)
"""These wait for nodes to come, so they run even while they have no allocation."""


def refresh_status(tx: Transaction, namespace: str, job_id: str) -> None:
    """Work out whether a job is pending, running or dead, and store it if that changed."""
    row = tx.store.jobs.row(namespace, job_id)
    if row is None:
        return
    status = _status(tx, row)
    if status != row.status:
        put_job(tx, structs.replace(row, status=status, modify_index=tx.index))


def _status(tx: Transaction, row: JobRow) -> str:
    store = tx.store
    if row.is_template or row.type in ALWAYS_RUNNING_TYPES:
        return (JobStatus.DEAD if row.stop else JobStatus.RUNNING).value
    if store.allocations.has_live(row.namespace, row.id, row.create_index):
        return JobStatus.RUNNING.value
    if next(store.deployments.rows.by("active", row.namespace, row.id), None) is not None:
        return JobStatus.RUNNING.value
    if next(store.evaluations.rows.by("open", row.namespace, row.id), None) is not None:
        return JobStatus.PENDING.value
    return (JobStatus.DEAD if row.had_evaluation or row.stop else JobStatus.PENDING).value
