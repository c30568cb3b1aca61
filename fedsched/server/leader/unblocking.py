"""Which changes of the state are news to blocked evaluations.

Room appears when a node comes up, becomes eligible again or is registered anew, and when a client says that an
allocation has ended. A stop that a server asked for is no news yet: until the client confirms it, the place is taken.
Changed settings of scheduling or of node pools may make anything possible.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from fedsched.model.alloc import ClientStatus
from fedsched.state.changes import Changes
from fedsched.state.columns import Slots
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import CLIENT_CODES

ENDED: Final = (CLIENT_CODES[ClientStatus.COMPLETE], CLIENT_CODES[ClientStatus.FAILED])


class News(NamedTuple):
    """What may have room now."""

    classes: tuple[str, ...] = ()
    """Computed classes of nodes."""
    nodes: tuple[str, ...] = ()
    """Single nodes, for system jobs."""
    is_all: bool = False
    """The rules have changed: everything may."""


def news_of(store: Store, changes: Changes, *, wants_nodes: bool) -> list[News]:
    """What a command's changes mean; nodes are named only if somebody waits for single ones."""
    if any(row.table in ("node_pools", "namespaces") for row in changes.rows):
        return [News(is_all=True)]
    found: dict[str, str] = {}
    for key in changes.keys("nodes"):
        row = store.nodes.get(key[0])
        if row is not None and row.is_ready:
            found[row.id] = row.computed_class
    for slot in _nodes_with_room(store, changes).tolist():
        row = store.nodes.of_slot(slot)
        if row is not None:
            found[row.id] = row.computed_class
    if not found:
        return []
    return [News(tuple(sorted(set(found.values()))), tuple(found) if wants_nodes else ())]


def _nodes_with_room(store: Store, changes: Changes) -> Slots:
    """Slots of the nodes whose clients said that something has ended, each once."""
    parts = []
    for change in changes.allocs:
        if change.removed:
            continue
        statuses = store.allocations.live.read(change.slots)["client_status"]
        ended = (statuses == ENDED[0]) | (statuses == ENDED[1])
        if ended.any():
            parts.append(change.node_slots[ended])
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
