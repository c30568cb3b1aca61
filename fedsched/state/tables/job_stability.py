"""Whether a version of a job has proven itself: said by people, and by deployments that succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction


def mark_stable(
    tx: Transaction, namespace: str, job_id: str, job_create_index: int, version: int, *, is_stable: bool = True
) -> bool:
    """Set or take away the mark; False if the version is not kept (any more). A create index of 0 is today's job."""
    jobs = tx.store.jobs
    row = jobs.row(namespace, job_id)
    if row is None or job_create_index not in (0, row.create_index):
        return False
    known = jobs.version_rows.get(namespace, job_id, row.create_index, version)
    if known is None:
        return False
    if known.is_stable != is_stable:
        tx.put(jobs.version_table, structs.replace(known, is_stable=is_stable, modify_index=tx.index))
    return True
