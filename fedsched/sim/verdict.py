"""How a run ends badly: the broken invariant, where, and who was involved."""

from __future__ import annotations


class Broken(Exception):
    """An invariant does not hold. Ends the run; `number` and `time_us` are filled in by whoever drives it."""

    def __init__(self, invariant: str, what: str, *servers: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what
        self.servers = frozenset(servers)
