"""Which containers nobody knows any more: ours by their labels, of this node, and older than the grace. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedsched.drivers.docker.labels import ALLOC_ID, NODE_ID
from fedsched.drivers.docker.records import ContainerListed


def dangling(
    found: Iterable[ContainerListed],
    *,
    known: Collection[str],
    node_ids: Collection[str],
    now_s: float,
    grace_s: float,
    keeps_ended: bool,
) -> list[str]:
    """Ids to remove. Ended ones stay where the operator wants to look at them."""
    doomed = []
    for one in found:
        labels = one.labels or {}
        is_ours = ALLOC_ID in labels and labels.get(NODE_ID) in node_ids
        is_old = one.created > 0 and now_s - one.created > grace_s
        is_kept = keeps_ended and one.state not in ("running", "paused", "restarting")
        if is_ours and is_old and not is_kept and one.id not in known:
            doomed.append(one.id)
    return doomed
