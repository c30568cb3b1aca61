"""Writing job rows, and with them how many children of each periodic or parameterized job are in which state.

A parent may have launched a hundred thousand children, so their states are counted as they change and never by looking
at all of them. The counts go by the parent's name: they outlive a parent that is purged, as its children do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from fedsched.state.tables.job_rows import JobChildrenRow, JobRow

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction


def put_job(tx: Transaction, row: JobRow) -> None:
    """Write a job; every write of one goes through here."""
    old = tx.store.jobs.row(row.namespace, row.id)
    tx.put(tx.store.jobs.table, row)
    if old is not None and (old.parent_id, old.status) == (row.parent_id, row.status):
        return
    if old is not None and old.parent_id:
        _count(tx, old, -1)
    if row.parent_id:
        _count(tx, row, 1)


def delete_job(tx: Transaction, row: JobRow) -> None:
    """Delete a job's row; what belongs to it is the caller's to see to."""
    tx.delete(tx.store.jobs.table, *row.key)
    if row.parent_id:
        _count(tx, row, -1)


def _count(tx: Transaction, child: JobRow, by: int) -> None:
    table = tx.store.jobs.children_table
    key = (child.namespace, child.parent_id)
    known = table.get(*key) or JobChildrenRow(namespace=child.namespace, parent_id=child.parent_id)
    counts = {child.status: getattr(known, child.status) + by}
    changed = structs.replace(known, **counts, modify_index=tx.index)
    if changed.pending or changed.running or changed.dead:
        tx.put(table, changed)
    else:
        tx.delete(table, *key)
