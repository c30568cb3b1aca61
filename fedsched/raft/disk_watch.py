"""Decides, from one look at the disk to the next, whether a leader should hand over. A core: the runner looks.

Two reasons: the disk is nearly full, or its syncs have been too slow for too long. A look without a sync since the last
one proves nothing: it neither starts a slow spell nor ends one, so one hiccup before a quiet night costs no leadership.
"""

from __future__ import annotations

from fedsched.raft.datadir import Space
from fedsched.raft.store_thread import StoreThreadStatistics


class DiskWatch:
    """Watches one disk. `slow_s` is what a sync may take, `patience_s` how long it may take longer than that."""

    def __init__(self, *, slow_s: float, patience_s: float) -> None:
        self._slow_s = slow_s
        self._patience_s = patience_s
        self._slow_since: float | None = None
        self._groups = 0
        self._sync_total_s = 0.0

    def handover(self, now: float, space: Space, store: StoreThreadStatistics) -> str:
        """Why a leader with this disk should hand over now; empty if it need not."""
        is_slow = self._is_slow(store)
        if is_slow is False:
            self._slow_since = None
        elif is_slow and self._slow_since is None:
            self._slow_since = now
        if space is Space.HARD:
            return "disk nearly full"
        if is_slow and self._slow_since is not None and now - self._slow_since >= self._patience_s:
            self._slow_since = None  # whoever leads next may be slow too: give it a spell of its own
            return "slow disk"
        return ""

    def _is_slow(self, store: StoreThreadStatistics) -> bool | None:
        """Of the syncs since the last look, the one under way among them; None when there was none."""
        groups, total_s = store.groups - self._groups, store.sync_total_s - self._sync_total_s
        self._groups, self._sync_total_s = store.groups, store.sync_total_s
        if store.busy_s > self._slow_s:
            return True
        return total_s / groups > self._slow_s if groups else None
