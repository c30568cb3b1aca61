"""Plans that wait for the applier: the most urgent first, and among equals the one that came first."""

from __future__ import annotations

import heapq
from typing import Final, Generic, NamedTuple, TypeVar

from fedsched.model.errors import Busy, Unavailable

DEPTH_MAX: Final = 4096
"""An evaluation has one plan at a time, so this many workers would have to wait at once; beyond that we say no."""

T = TypeVar("T")


class PlanQueueDisabled(Unavailable):
    """This server does not lead (any more): plans go to another one."""

    code = "plan_queue_disabled"


class PlanQueueStatistics(NamedTuple):
    depth: int
    oldest_s: float
    """How long the one that waits longest has waited."""


class PlanQueueCore(Generic[T]):
    """A queue with priorities. `now` is only used to say how long plans wait."""

    def __init__(self, depth_max: int = DEPTH_MAX) -> None:
        self.is_enabled = False
        self._depth_max = depth_max
        self._heap: list[tuple[int, int, T]] = []
        self._since: dict[int, float] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def enable(self) -> None:
        self.is_enabled = True

    def disable(self) -> list[T]:
        """Close the queue; returns those who waited, for somebody to tell them."""
        self.is_enabled = False
        waiting = [plan for *_, plan in sorted(self._heap, key=lambda entry: entry[:2])]
        self._heap.clear()
        self._since.clear()
        return waiting

    def enqueue(self, plan: T, priority: int, now: float) -> None:
        if not self.is_enabled:
            raise PlanQueueDisabled("the plan queue is closed", hint="this server does not lead; ask the leader")
        if len(self._heap) >= self._depth_max:
            raise Busy(f"{len(self._heap)} plans wait already", hint="try again in a moment")
        self._arrivals += 1
        self._since[self._arrivals] = now
        heapq.heappush(self._heap, (-priority, self._arrivals, plan))

    def dequeue(self) -> T | None:
        """The next plan; None if there is none."""
        if not self._heap:
            return None
        _, arrival, plan = heapq.heappop(self._heap)
        del self._since[arrival]
        return plan

    def statistics(self, now: float) -> PlanQueueStatistics:
        oldest = now - next(iter(self._since.values())) if self._since else 0.0
        return PlanQueueStatistics(len(self._heap), oldest)
