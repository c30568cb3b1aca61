"""Doubly linked lists inside columns: many chains over one set of slots, changed a batch at a time.

A chain's head (and tail) stand in the columns of its owner, the links in the columns of its members. All are slot plus
one, so that zero, which is what fresh records hold, means none. Because chains are nothing but numbers in columns,
snapshots see them as they were without any further ado.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsched.state.columns import Columns, Rows, Slots, picked

HEAD: Final = "head"
TAIL: Final = "tail"


class Chains:
    """Chains through `members` (fields `next_X`, `prev_X`), one per record of `owners` (fields `head`, `tail`)."""

    def __init__(self, members: Columns, owners: Columns, name: str) -> None:
        self._members = members
        self._owners = owners
        self._next = f"next_{name}"
        self._prev = f"prev_{name}"

    def append(self, slots: Slots, owners: Slots, records: Rows) -> None:
        """Put each slot at the end of its owner's chain, in the order given.

        The links are set in `records`, which the caller then writes to these slots; for all others they are written
        here.
        """
        order = _stable_order(owners)
        ordered = owners.take(order)
        links = slots.take(order).astype(np.int32)
        links += 1
        first = np.zeros(len(links), dtype=np.bool_)
        first[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        starts = first.nonzero()[0]
        stops = np.empty_like(starts)
        stops[:-1] = starts[1:] - 1
        stops[-1] = len(links) - 1
        heirs = ordered.take(starts)
        ends = self._owners.read(heirs)
        tails = ends[TAIL].copy()
        prev = np.empty(len(links), dtype=np.int32)
        prev[1:] = links[:-1]
        prev[starts] = tails
        nxt = np.empty(len(links), dtype=np.int32)
        nxt[:-1] = links[1:]
        nxt[stops] = 0
        records[self._prev][order] = prev
        records[self._next][order] = nxt
        self._join(heirs, ends, tails, links.take(starts), links.take(stops))

    def append_to_one(self, slots: Slots, owner: int, records: Rows) -> None:
        """The same for slots that all have one owner."""
        links = (slots + 1).astype(np.int32)
        heirs = np.array([owner], dtype=np.int64)
        ends = self._owners.read(heirs)
        tails = ends[TAIL].copy()
        prev, nxt = records[self._prev], records[self._next]
        prev[0] = tails[0]
        prev[1:] = links[:-1]
        nxt[:-1] = links[1:]
        nxt[-1] = 0
        self._join(heirs, ends, tails, links[:1], links[-1:])

    def _join(
        self,
        owners: Slots,
        ends: Rows,
        tails: NDArray[np.int32],
        first: NDArray[np.int32],
        last: NDArray[np.int32],
    ) -> None:
        """Hang new pieces onto chains that end in `tails`."""
        begun = tails.nonzero()[0]
        if len(begun) == len(tails):
            self._members.put(tails.astype(np.int64) - 1, self._next, first)
        else:
            self._members.put(tails[begun].astype(np.int64) - 1, self._next, first[begun])
            ends[HEAD] = np.where(tails == 0, first, ends[HEAD])
        ends[TAIL] = last
        self._owners.write(owners, ends)

    def remove(self, slots: Slots, records: Rows, owners: Slots) -> None:
        """Take slots out of their owners' chains; `records` are what the members' columns hold in these slots."""
        order = np.argsort(slots)
        slots, records, owners = slots[order], picked(records, order), owners[order]
        after = _survivors(slots, records[self._next])
        before = _survivors(slots, records[self._prev])
        begins = before == records[self._prev]
        ends = after == records[self._next]
        self._set(begins, before, self._next, after, HEAD, owners)
        self._set(ends, after, self._prev, before, TAIL, owners)

    def _set(
        self,
        where: NDArray[np.bool_],
        neighbours: NDArray[np.int32],
        field: str,
        values: NDArray[np.int32],
        end: str,
        owners: Slots,
    ) -> None:
        """Join what is left: a survivor's link where there is one, else the owner's head or tail."""
        joined = where & (neighbours != 0)
        if joined.any():
            self._members.put(neighbours[joined].astype(np.int64) - 1, field, values[joined])
        at_end = where & (neighbours == 0)
        if at_end.any():
            self._owners.put(owners[at_end], end, values[at_end])


def _stable_order(numbers: Slots) -> Slots:
    """Small numbers are sorted three times faster as such."""
    if len(numbers) and int(numbers.max()) < 1 << 16:
        return np.argsort(numbers.astype(np.uint16), kind="stable")
    return np.argsort(numbers, kind="stable")


def _survivors(slots: Slots, links: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each removed slot (ascending) the link that leads past all removed ones. Runs are halved at each turn."""
    found: NDArray[np.int32] = links.copy()
    place = np.minimum(np.searchsorted(slots, links.astype(np.int64) - 1), len(slots) - 1)
    hop = np.where((links > 0) & (slots[place] == links - 1), place, -1)
    while len(open_ := np.flatnonzero(hop >= 0)):
        via = hop[open_]
        further, next_hop = found[via], hop[via]
        found[open_] = further
        hop[open_] = next_hop
    return found
