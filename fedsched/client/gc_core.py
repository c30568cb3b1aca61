"""Decides which finished allocations of a host are removed, and when.

Finished allocations stay on disk so that people can look into them, until room is short: more of the disk in use than
the operator likes, more of its inodes, or more allocations. Then the one that finished first goes, and all is measured
again. What still runs is never touched, however short the room.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fedsched.client.settings import ClientSettings

BATCH_MAX: Final = 128
"""Allocations chosen by one look where only their number is too high: that needs no measuring in between. How many of
them are destroyed at once is another matter."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """How much of the file system below the allocations is in use, in percent."""

    disk: float = 0.0
    inodes: float = 0.0


@dataclass(frozen=True, slots=True)
class GcVerdict:
    """What to do now."""

    remove: tuple[str, ...] = ()
    """Allocations to destroy, oldest end first."""
    why: str = ""
    """Why room is short; empty if it is not."""
    is_stuck: bool = False
    """Room is short, and nothing is left that could go."""
    is_warning: bool = False
    """Somebody should know of it."""


class GcCore:
    """The rules, with one host's limits."""

    def __init__(self, settings: ClientSettings) -> None:
        self._disk_max = settings.gc_disk_usage_threshold
        self._inodes_max = settings.gc_inode_usage_threshold
        self._count_max = settings.gc_max_allocs
        self._parallel = settings.gc_parallel_destroys

    def decide(
        self,
        use: HostUse,
        count: int,
        finished: Mapping[str, int],
        destroying: Collection[str] = (),
        *,
        may_wait: bool = False,
    ) -> GcVerdict:
        """What to do about `count` allocations here, those being destroyed included.

        `finished` are those that are over, with the times at which they ended. `may_wait`: the host is busy starting
        tasks, and there is time for them later if only their number is too high.
        """
        why, excess = self._shortage(use, count - len(destroying))
        if not why or (may_wait and not self._is_full(use)):
            return GcVerdict()
        if not destroying and not finished:
            is_warning = self._is_full(use) or count > 2 * self._count_max
            return GcVerdict(why=why, is_stuck=True, is_warning=is_warning)
        room = max(0, (self._parallel if excess == 1 else BATCH_MAX) - len(destroying))
        waiting = ((ended, alloc_id) for alloc_id, ended in finished.items() if alloc_id not in destroying)
        return GcVerdict(tuple(alloc_id for _, alloc_id in heapq.nsmallest(min(room, excess), waiting)), why)

    def _is_full(self, use: HostUse) -> bool:
        return use.disk > self._disk_max or use.inodes > self._inodes_max

    def _shortage(self, use: HostUse, count: int) -> tuple[str, int]:
        """Why room is short, and how many should go before it is looked at again."""
        if use.disk > self._disk_max:
            return f"{use.disk:.0f} % of the disk is in use, {self._disk_max:g} % may be", 1
        if use.inodes > self._inodes_max:
            return f"{use.inodes:.0f} % of the inodes are in use, {self._inodes_max:g} % may be", 1
        if count > self._count_max:
            return f"{count} allocations are here, {self._count_max} may be", count - self._count_max
        return "", 0
