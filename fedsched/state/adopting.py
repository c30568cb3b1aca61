"""Makes a saved state the continuation of the present one.

The saved state may come from another region, or from a time when this one had seen more than it has now; its rows then
carry indexes that the log has not reached. Indexes that readers saw must never go back, so from here on the state
counts ahead of the log by a fixed distance, which is part of the state itself.
"""

from __future__ import annotations

from typing import Final

from fedsched.state.changes import ALLOCATIONS
from fedsched.state.store import Store
from fedsched.state.tables.meta import CLUSTER_ID
from fedsched.state.transaction import Transaction

INDEX_AHEAD: Final = "index_ahead"


def index_ahead(store: Store) -> int:
    """How far the state's indexes are ahead of the log's."""
    return store.meta.number(INDEX_AHEAD)


def adopt_saved(saved: Store, present: Store, log_index: int) -> None:
    """Let `saved` take the place of `present` by the entry at `log_index`; the same on every server."""
    ahead = max(index_ahead(present), present.index + 1 - log_index, saved.index + 1 - log_index)
    index = log_index + ahead
    time_ns = max(saved.time_ns, present.time_ns)
    tx = Transaction(saved, index, time_ns)
    saved.keeper.begin()
    try:
        saved.meta.put(tx, INDEX_AHEAD, number=ahead)
        saved.meta.put(tx, CLUSTER_ID, text=present.meta.cluster_id)
    finally:
        saved.keeper.end()
    saved.index, saved.time_ns = index, time_ns
    saved.table_indexes = dict.fromkeys([*saved.tables(), ALLOCATIONS], index)
