"""Placement with spread blocks or distinct_property, which tie the scores of nodes to one another.

A block adds the same to all nodes of a group (see `kernel_boosts`), so the order inside a group stays as it is, as
long as one does not mix nodes with different numbers of entries: a mean of two and a mean of three are moved
differently by one more entry. Each group therefore has one heap per number of entries, and a heap over all groups holds
the best node of each. A placement moves one node in its group's heaps and re-reads the groups whose boost changed: with
targets that is one group, spreading evenly it is now and then all of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from fedsched.scheduler.fits import NO_FIT, Units, fit_scores
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_boosts import make_boosts, make_groups
from fedsched.scheduler.kernel_candidates import Candidates, Places
from fedsched.scheduler.kernel_placed import BEST, Placed
from fedsched.scheduler.kernel_request import PlaceRequest, Verdict
from fedsched.scheduler.score import ENTRIES_MULTIPLE, PENALTY, UNIT, Ties

PENALTY_UNITS: Final = int(PENALTY * UNIT)
MANY: Final = 4
"""The second allocation of every node is scored in one go unless there are so many times more nodes than placements."""
_KEY_MAX: Final = 1 << 42
_BOOST_MAX: Final = 1 << 35
FACTOR: Final = (0, *(ENTRIES_MULTIPLE // n for n in range(1, 7)))
"""By the number of entries, what makes their sum a mean."""

Node = tuple[int, ...]
"""Negative units, tie rank, position among the candidates (and maybe a number, see `kernel_avoiding`): the smallest is
the best of a heap."""
Lane = tuple[int, int, int, list[Node]]
"""Nodes of a group with as many entries: factor of their mean, the same with a boost, number of entries, the heap."""
Head = tuple[int, int, int, list[Node]]
"""Negative key, tie rank, group, the heap that it tops: the best node of a group."""


def place_grouped(request: PlaceRequest) -> Placed:
    """Place as many of the request's allocations as there is room for."""
    return GroupedPlacement(request).run()


class GroupedPlacement:
    """One request being carried out."""

    def __init__(self, request: PlaceRequest) -> None:
        self.request = request
        fit = fit_scores(request.fleet, request.ask, request.algorithm)
        slots = np.flatnonzero(request.candidates() & (fit > NO_FIT))
        self.candidates = Candidates(request, slots)
        self.ties = Ties(request.seed, request.fleet.size)
        self.groups = make_groups(request, slots)
        self.boosts = make_boosts(request, self.groups)
        self.first_boosts = self.boosts.units
        units, entries = self.candidates.units(slice(None), 0, fit[slots])
        self.units, self.entries = units, np.broadcast_to(np.asarray(entries, dtype=np.int64), units.shape)
        self.ranks = self.ties.ranks(slots)
        self.lanes: list[list[Lane]] = [[] for _ in self.groups.values]
        self.refused: list[int] = []

    def run(self) -> Placed:
        request, slots = self.request, self.candidates.slots
        self.first_boosts = list(self.boosts.units)
        chosen: list[int] = []
        boosts: list[int] = []
        if request.count == 1 and request.check is None and not request.penalties and self._is_usual():
            chosen, boosts = (column[:1].tolist() for column in self._first(1))
        elif len(slots):
            self._fill_lanes()
            chosen, boosts = self._place()
        mask = None
        if request.check is not None:
            mask = request.candidates().copy()
            mask[slots[self.refused]] = False
        placed, given = slots[np.array(chosen, dtype=np.int64)], np.array(boosts, dtype=np.int64)
        return Placed(request, placed, self._best, boosts=given, mask=mask)

    def _best(self) -> tuple[Slots, Units]:
        """The best few nodes for the first placement, and their boosts."""
        at, boosts = self._first(BEST)
        return self.candidates.slots[at], boosts

    def _is_usual(self) -> bool:
        """Whether no boost is so large that scores would have to be cut off to be put in one order."""
        return max(map(abs, self.first_boosts), default=0) < _BOOST_MAX

    def _first(self, count: int, less: Units | None = None) -> tuple[Places, Units]:
        """The positions of the best nodes for the first placement, and their boosts; `less` marks those to avoid."""
        boost = np.array(self.first_boosts, dtype=np.int64)[self.groups.of]
        units, entries = self.units, self.entries
        if less is not None:
            units, entries = units + less * PENALTY_UNITS, entries + less
        keys = (units + boost) * np.array(FACTOR, dtype=np.int64)[entries + (boost != 0)]
        order = (-np.clip(keys, -_KEY_MAX, _KEY_MAX) << self.ties.bits) + self.ranks
        at = np.argpartition(order, count - 1)[:count] if len(order) > count else np.arange(len(order))
        at = at[np.argsort(order[at])]
        return at, boost[at]

    def _fill_lanes(self) -> None:
        """One sorted list (which is a heap) per group and number of entries, no longer than it can be used."""
        count = self._depth() if self.request.check is None else len(self.units)
        order = np.argsort((-self.units << self.ties.bits) + self.ranks)
        lanes = self.groups.of * len(FACTOR) + self.entries
        small = lanes.astype(np.uint16) if int(lanes.max()) < 1 << 16 else lanes
        order = order[np.argsort(small[order], kind="stable")]
        ordered = lanes[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        lengths = np.diff(np.append(starts, len(order)))
        if count < int(lengths.max()):
            near = np.arange(len(order)) - np.repeat(starts, lengths) < count
            order, lengths = order[near], np.minimum(lengths, count)
        nodes = list(zip((-self.units[order]).tolist(), self.ranks[order].tolist(), order.tolist(), strict=True))
        at = 0
        for lane, length in zip(ordered[starts].tolist(), lengths.tolist(), strict=True):
            group, entries = divmod(lane, len(FACTOR))
            self.lanes[group].append((FACTOR[entries], FACTOR[entries + 1], entries, nodes[at : at + length]))
            at += length

    def _depth(self) -> int:
        """How many nodes of a list may be looked at."""
        return self.request.count

    def _heads(self, current: list[Head | None]) -> list[Head]:
        """The best node of every group, as a heap."""
        heads = []
        for group in range(len(self.lanes)):
            current[group] = head = self._head(group)
            if head is not None:
                heads.append(head)
        heapify(heads)
        return heads

    def _head(self, group: int) -> Head | None:
        """The best node of a group under its boost, if there is any."""
        boost = self.boosts.units[group]
        best: list[Node] | None = None
        best_key = best_rank = 0
        for plain, boosted, _, nodes in self.lanes[group]:
            if nodes:
                node = nodes[0]
                units, rank = node[0], node[1]
                key = (units - boost) * boosted if boost else units * plain
                if best is None or key < best_key or (key == best_key and rank < best_rank):
                    best, best_key, best_rank = nodes, key, rank
        return None if best is None else (best_key, best_rank, group, best)

    def _place(self) -> tuple[list[int], list[int]]:
        check, count, boosts = self.request.check, self.request.count, self.boosts
        again = Again(self.candidates, count)
        current: list[Head | None] = [None] * len(self.lanes)
        heads = self._heads(current)
        chosen: list[int] = []
        given: list[int] = []
        not_now: list[tuple[int, list[Node], Node]] = []
        while len(chosen) < count and heads:
            head = heappop(heads)
            group, nodes = head[2], head[3]
            if head is not current[group]:
                continue  # an earlier answer
            node = heappop(nodes)
            at = node[2]
            if check is not None and (verdict := check(int(self.candidates.slots[at]))) is not Verdict.YES:
                if verdict is Verdict.NEVER:
                    self.refused.append(at)
                else:
                    not_now.append((group, nodes, node))
                self._renew([group], current, heads)
                continue
            chosen.append(at)
            given.append(boosts.units[group])
            more = again.next(at)
            if more is not None:
                self._push(group, more[1], (-more[0], node[1], at))
            concerned, full = boosts.placed(group)
            for closed in full:
                self.lanes[closed] = []
            if not_now:
                concerned = self._return(not_now, concerned)
            if concerned is None:
                heads = self._heads(current)
            else:
                self._renew([*concerned, *full] if full else concerned, current, heads)
        return chosen, given

    def _renew(self, groups: list[int], current: list[Head | None], heads: list[Head]) -> None:
        for group in groups:
            current[group] = head = self._head(group)
            if head is not None:
                heappush(heads, head)

    def _push(self, group: int, entries: int, node: Node) -> None:
        for lane in self.lanes[group]:
            if lane[2] == entries:
                heappush(lane[3], node)
                return
        self.lanes[group].append((FACTOR[entries], FACTOR[entries + 1], entries, [node]))

    def _return(self, waiting: list[tuple[int, list[Node], Node]], concerned: list[int] | None) -> list[int] | None:
        """Nodes that were only refused for now are candidates again; those groups are concerned too."""
        for _, nodes, node in waiting:
            heappush(nodes, node)
        groups = [group for group, _, _ in waiting]
        waiting.clear()
        return None if concerned is None else [*concerned, *groups]


class Again:
    """The score of a node that has just got an allocation and has room for another."""

    def __init__(self, candidates: Candidates, count: int) -> None:
        self._candidates = candidates
        self._room: list[int] = []
        self._next: list[tuple[int, int]] = []
        self._done: dict[int, int] = {}
        if count == 1:
            return
        everyone = np.arange(len(candidates.slots))
        self._room = candidates.room(everyone).tolist()
        if len(everyone) <= MANY * count:
            units, entries = candidates.units(everyone, np.ones(len(everyone), dtype=np.int64))
            self._next = list(zip(units.tolist(), entries.tolist(), strict=True))

    def next(self, at: int) -> tuple[int, int] | None:
        """Units and entries of one more allocation on this candidate; None if there is no room."""
        if not self._room:
            return None
        room = self._room[at] = self._room[at] - 1
        if room <= 0:
            return None
        done = self._done[at] = self._done.get(at, 0) + 1
        if done == 1 and self._next:
            return self._next[at]
        return self._candidates.units_of_one(at, done)
