"""Who waits for what: proposals by index, reads by context, anybody by applied index.

Plain bookkeeping without a clock or a nursery. A waiter is a `Promise`: settled once, awaited by one or more children.
All of it is bounded by what bounds its callers (uncommitted bytes for proposals, calls in flight for reads).
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

import trio

from fedsched.raft.errors import OutcomeUnknown, ProposalLost

T = TypeVar("T")


class Promise(Generic[T]):
    """A value or an error that will be there later; settling it twice is a bug."""

    __slots__ = ("_error", "_event", "_value")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        return self._event.is_set()

    def keep(self, value: T) -> None:
        assert not self._event.is_set(), "promise settled twice"
        self._value = value
        self._event.set()

    def fail(self, error: BaseException) -> None:
        assert not self._event.is_set(), "promise settled twice"
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Proposals:
    """Open proposals of this leader, each ending exactly once: committed, lost or unknown."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, Promise[tuple[int, object]]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, index: int, term: int) -> Promise[tuple[int, object]]:
        promise: Promise[tuple[int, object]] = Promise()
        self._open[index] = (term, promise)
        return promise

    def applied(self, index: int, term: int, result: object) -> None:
        """The entry at `index` was applied; whoever proposed there learns whether it was theirs."""
        waiting = self._open.pop(index, None)
        if waiting is None:
            return
        wanted_term, promise = waiting
        if wanted_term == term:
            promise.keep((index, result))
        else:
            promise.fail(ProposalLost(f"another entry was committed at index {index}", hint="try again"))

    def lost(self, first: int, last: int, term: int) -> None:
        for index in range(first, last + 1):
            waiting = self._open.get(index)
            if waiting is not None and waiting[0] == term:
                del self._open[index]
                waiting[1].fail(ProposalLost(f"the entry at index {index} was overwritten", hint="try again"))

    def leadership_lost(self) -> int:
        """Everything still open may or may not have happened; returns how many."""
        open_, self._open = self._open, {}
        for index, (_, promise) in open_.items():
            promise.fail(
                OutcomeUnknown(
                    f"leadership was lost before index {index} was known to be committed",
                    hint="retry with the same request id",
                )
            )
        return len(open_)

    def forget(self, index: int, promise: Promise[tuple[int, object]]) -> None:
        """The caller stopped waiting (deadline, cancel)."""
        waiting = self._open.get(index)
        if waiting is not None and waiting[1] is promise:
            del self._open[index]


class AppliedWaits:
    """Children that wait until the state has reached an index."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, trio.Event]] = []
        self._order = count()

    def add(self, index: int) -> trio.Event:
        event = trio.Event()
        heapq.heappush(self._heap, (index, next(self._order), event))
        return event

    def reached(self, index: int) -> None:
        while self._heap and self._heap[0][0] <= index:
            heapq.heappop(self._heap)[2].set()
