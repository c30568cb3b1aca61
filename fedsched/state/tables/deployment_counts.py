"""The counters of deployments, moved once per batch of allocations and not once per allocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from fedsched.state.columns import Rows
from fedsched.state.tables.alloc_columns import HEALTHY, UNHEALTHY
from fedsched.state.tables.deployment_groups import GroupProgress, pack_groups

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

Change = Callable[[GroupProgress], GroupProgress]


def count_placed(tx: Transaction, deployment_id: str, group: str, count: int, canaries: bytes = b"") -> None:
    """Allocations of a group began to count for a deployment; `canaries` are the ids of those that are."""

    def placed(one: GroupProgress) -> GroupProgress:
        due = one.require_progress_by_ns
        if not due and one.progress_deadline_ns:
            due = tx.time_ns + one.progress_deadline_ns
        listed = dict.fromkeys(one.canary_ids)
        listed |= dict.fromkeys(canaries[at : at + 16] for at in range(0, len(canaries), 16))
        return structs.replace(one, placed=one.placed + count, require_progress_by_ns=due, canaries=b"".join(listed))

    change_groups(tx, deployment_id, {group: placed})


def count_health(tx: Transaction, before: Rows, after: Rows) -> None:
    """Allocations may have got another health: count that for their deployments, and let healthy ones move deadlines.

    The origin is taken from `before`: a report never changes where an allocation came from.
    """
    moved = np.flatnonzero(before["health"] != after["health"])
    if not len(moved):
        return
    was, now, origins = before["health"][moved], after["health"][moved], before["origin"][moved]
    deltas: dict[str, dict[str, tuple[int, int]]] = {}
    for ref in np.unique(origins).tolist():
        origin = tx.store.allocations.live_origins.rows.get(ref)
        assert origin is not None
        if not origin.deployment_id:
            continue
        mine = origins == ref
        healthy = int((now[mine] == HEALTHY).sum()) - int((was[mine] == HEALTHY).sum())
        unhealthy = int((now[mine] == UNHEALTHY).sum()) - int((was[mine] == UNHEALTHY).sum())
        groups = deltas.setdefault(origin.deployment_id, {})
        known = groups.get(origin.group, (0, 0))
        groups[origin.group] = (known[0] + healthy, known[1] + unhealthy)
    for deployment_id in sorted(deltas):
        change_groups(
            tx, deployment_id, {name: _counted(tx, *by) for name, by in sorted(deltas[deployment_id].items())}
        )


def _counted(tx: Transaction, healthy: int, unhealthy: int) -> Change:
    def counted(one: GroupProgress) -> GroupProgress:
        due = one.require_progress_by_ns
        if healthy > 0 and one.progress_deadline_ns:
            due = max(due, tx.time_ns + one.progress_deadline_ns)
        return structs.replace(
            one,
            healthy=one.healthy + healthy,
            unhealthy=one.unhealthy + unhealthy,
            require_progress_by_ns=due,
        )

    return counted


def change_groups(tx: Transaction, deployment_id: str, changes: dict[str, Change]) -> None:
    """Change groups of a deployment; groups and deployments that are not there are passed over."""
    row = tx.store.deployments.table.get(deployment_id)
    if row is None:
        return
    progress = row.progress()
    changed = {name: change(progress[name]) for name, change in changes.items() if name in progress}
    if not changed or all(progress[name] == one for name, one in changed.items()):
        return
    groups = pack_groups((progress | changed).values())
    tx.put(
        tx.store.deployments.table,
        structs.replace(row, groups=groups, modify_index=tx.index, modify_time_ns=tx.time_ns),
    )
