"""Placement of replacements: each has nodes of its own that it would rather not go to, where its forerunners failed.

Nodes to avoid are few per placement, and a node is worth less only to the one that avoids it. So the heaps of
`kernel_spread` hold every node at its plain worth; for each placement the nodes that it avoids are passed over there
and scored by themselves, and the better of the two bests is taken. Whatever was passed over goes back.

A node that is taken by way of the few is still in its heap as it was before. What a heap has of a node is therefore
numbered, and an older number than the node's own is not looked at.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from fedsched.scheduler.fits import Units
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_placed import BEST, Placed
from fedsched.scheduler.kernel_request import PlaceRequest, Verdict
from fedsched.scheduler.kernel_spread import FACTOR, PENALTY_UNITS, Again, GroupedPlacement, Head, Node

Option = tuple[int, int, int]
"""Negative key, tie rank, position among the candidates: the smallest is the best."""


def place_avoiding(request: PlaceRequest) -> Placed:
    """Place as many of the request's allocations as there is room for, each shunning its own nodes."""
    assert len(request.penalties) == request.count, "one entry per placement is expected"
    assert request.penalty is None, "either one penalty for all or one for each"
    return _Avoiding(request).run()


class _Avoiding(GroupedPlacement):
    """One such request being carried out."""

    def __init__(self, request: PlaceRequest) -> None:
        super().__init__(request)
        self._avoided = self._positions()
        self._again = Again(self.candidates, max(request.count, 2))
        self._now: dict[int, tuple[int, int] | None] = {}
        """Units and entries of nodes that have got something; None if there is no more room."""
        self._number: dict[int, int] = {}
        self._out: set[int] = set()
        """Refused for good."""
        self._full: set[int] = set()
        """Groups that may get nothing more."""
        self._aside: list[tuple[int, list[Node], Node]] = []
        self._current: list[Head | None] = [None] * len(self.lanes)
        self._tops: list[Head] = []

    def _positions(self) -> list[list[int]]:
        """Per placement the candidates that it avoids."""
        slots = self.candidates.slots
        known: dict[bytes, list[int]] = {}
        found: list[list[int]] = []
        for penalty in self.request.penalties:
            key = penalty.tobytes()
            places = known.get(key)
            if places is None:
                wanted = np.unique(penalty)
                at = np.searchsorted(slots, wanted)
                inside = at < len(slots)
                at, wanted = at[inside], wanted[inside]
                places = known[key] = at[slots[at] == wanted].tolist()
            found.append(places)
        return found

    def _depth(self) -> int:
        return self.request.count + max(map(len, self._avoided), default=0)

    def _best(self) -> tuple[Slots, Units]:
        """The best few nodes as the first placement sees them."""
        avoided = np.zeros(len(self.units), dtype=np.int64)
        avoided[self._avoided[0]] = 1
        at, boosts = self._first(BEST, avoided)
        return self.candidates.slots[at], boosts

    def _place(self) -> tuple[list[int], list[int]]:
        self._tops = self._heads(self._current)
        chosen: list[int] = []
        given: list[int] = []
        for avoided in self._avoided:
            at = self._next(avoided)
            if at is None:
                break
            group = int(self.groups.of[at])
            chosen.append(at)
            given.append(self.boosts.units[group])
            self._take(at, group)
        self.refused = sorted(self._out)
        return chosen, given

    def _next(self, avoided: list[int]) -> int | None:
        """The best node for one placement that a closer look lets through."""
        check, not_now = self.request.check, set[int]()
        barred = set(avoided)
        while True:
            head = self._top(barred)
            few = self._best_of(avoided, not_now)
            if head is None and few is None:
                return None
            if few is None or (head is not None and (head[0], head[1]) < few[:2]):
                assert head is not None
                at = head[3][0][2]
            else:
                at = few[2]
            if head is not None:
                heappush(self._tops, head)  # it was only looked at
            verdict = Verdict.YES if check is None else check(int(self.candidates.slots[at]))
            if verdict is Verdict.YES:
                return at
            if verdict is Verdict.NEVER:
                self._out.add(at)
            not_now.add(at)
            barred.add(at)

    def _top(self, barred: set[int]) -> Head | None:
        """The best of all groups that is not barred, taken from the heap over the groups; left in its own."""
        while self._tops:
            head = heappop(self._tops)
            group, nodes = head[2], head[3]
            if head is not self._current[group]:
                continue  # an earlier answer
            node = nodes[0]
            at = node[2]
            if at in self._out or (node[3] if len(node) > 3 else 0) != self._number.get(at, 0):
                heappop(nodes)
            elif at in barred:
                self._aside.append((group, nodes, heappop(nodes)))
            else:
                return head
            self._renew([group], self._current, self._tops)
        return None

    def _best_of(self, avoided: list[int], not_now: set[int]) -> Option | None:
        """The best of the nodes that this placement avoids."""
        best: Option | None = None
        for at in avoided:
            group = int(self.groups.of[at])
            if at in not_now or at in self._out or group in self._full:
                continue
            worth = self._now[at] if at in self._now else (int(self.units[at]), int(self.entries[at]))
            if worth is None:
                continue
            boost = self.boosts.units[group]
            units, entries = worth[0] + PENALTY_UNITS + boost, worth[1] + 1 + (boost != 0)
            option = (-units * FACTOR[entries], int(self.ranks[at]), at)
            if best is None or option < best:
                best = option
        return best

    def _take(self, at: int, group: int) -> None:
        """Count a placement; everything that it changed, and whatever was passed over, is put in order again."""
        self._number[at] = number = self._number.get(at, 0) + 1
        more = self._now[at] = self._again.next(at)
        if more is not None:
            self._push(group, more[1], (-more[0], int(self.ranks[at]), at, number))
        concerned, full = self.boosts.placed(group)
        for closed in full:
            self._full.add(closed)
            self.lanes[closed] = []
        if self._aside:
            concerned = self._return(self._aside, concerned)
        if concerned is None:
            self._tops = self._heads(self._current)
        else:
            self._renew([*concerned, *full, group], self._current, self._tops)
