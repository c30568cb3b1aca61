"""From a 16-byte id to its slot: open addressing in one array, a batch at a time.

A dict would cost about 140 bytes and a Python object or two per id; this costs 16 to 48 bytes and none. A cell holds 32
bits of the id's hash (its mark) and the slot; the ids themselves stay in the columns and are compared only when marks
agree. Probing jumps in growing steps, so that a batch is through after a handful of turns. The array is never rehashed
in one go: when three cells in eight are taken a larger one takes over and the old one is moved piece by piece, a few
cells for each id added.

The hash is fixed, not secret: ids are made by servers, nobody outside chooses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.state.columns import Slots

Words = NDArray[np.uint64]

CELLS_AT_FIRST: Final = 256
MOVE_PER_ADD: Final = 16
"""Old cells moved per id added: the old array is empty long before the new one is as full as it may get."""
MOVE_AT_LEAST: Final = 1024
CLEAR_PER_ADD: Final = 32
"""Cells of the next array cleared per id added: all of them are by the time it is needed."""

_LOW: Final = np.uint64(0xFFFFFFFF)
_GONE: Final = np.uint64(0xFFFFFFFF)
"""A cell whose id was removed: probing goes on past it. Its mark is 0, which no id has."""
_SHIFT: Final = np.uint64(32)
_ONE: Final = np.uint64(1)
_A: Final = 0x9E3779B97F4A7C15
_B: Final = 0xC2B2AE3D27D4EB4F
_ALL: Final = (1 << 64) - 1


def words_of(ids: bytes) -> Words:
    """Back-to-back 16-byte ids as two 64-bit numbers each, most significant first."""
    return np.frombuffer(ids, dtype=">u8").reshape(-1, 2).astype(np.uint64)


class Lookup(NamedTuple):
    """What was found for a batch of ids; good until the next change of the map."""

    slots: Slots
    """-1 where there is none."""
    marks: Words
    places: Slots
    """Where the search for each id ended: for those not found, the empty cell that they would get."""
    steps: Slots
    """How many steps it took to get there."""

    def only(self, where: NDArray[np.bool_]) -> Lookup:
        return Lookup(self.slots[where], self.marks[where], self.places[where], self.steps[where])


class IdMap:
    """Which slot each id has. `ids_in` reads ids back from their slots, `id_at` a single one as two numbers."""

    def __init__(self, ids_in: Callable[[Slots], Words], id_at: Callable[[int], tuple[int, int]]) -> None:
        self._ids_in = ids_in
        self._id_at = id_at
        self._cells: Words = np.zeros(CELLS_AT_FIRST, dtype=np.uint64)
        self._taken = 0
        self._count = 0
        self._old: Words | None = None
        self._moved = 0
        self._next: Words | None = None
        self._cleared = 0

    def __len__(self) -> int:
        return self._count

    def find(self, words: Words) -> Slots:
        """The slot of each id, -1 where there is none."""
        return self._search(words).slots

    def look_up(self, words: Words) -> Lookup:
        """The same, with room made so that those not found can be added without another search."""
        self._make_room(len(words))
        return self._search(words)

    def find_one(self, identity: bytes) -> int:
        """The slot of one id, -1 if there is none. Cheaper than a batch of one."""
        high, low = int.from_bytes(identity[:8], "big"), int.from_bytes(identity[8:], "big")
        mark = _mark(high, low)
        for cells in (self._cells, self._old):
            if cells is None:
                continue
            mask = len(cells) - 1
            at, step = (mark >> 1) & mask, 1
            while cell := int(cells[at]):
                if cell >> 32 == mark:
                    slot = (cell & 0xFFFFFFFF) - 1
                    if self._id_at(slot) == (high, low):
                        return slot
                at, step = (at + step) & mask, step + 1
        return -1

    def add(self, known: Lookup, slots: Slots) -> None:
        """File ids that were just looked up and not found. No two may be equal."""
        values = (known.marks << _SHIFT) | (slots.astype(np.uint64) + _ONE)
        _insert(self._cells, known.places, known.steps, values)
        self._taken += len(slots)
        self._count += len(slots)

    def remove(self, words: Words, slots: Slots) -> None:
        """Forget ids that are there, with the slots they have."""
        marks = _marks(words)
        wanted = (marks << _SHIFT) | (slots.astype(np.uint64) + np.uint64(1))
        left = _strike(self._cells, marks, wanted)
        if self._old is not None and len(left):
            left = left[_strike(self._old, marks[left], wanted[left])]
        assert not len(left), "an id to forget was not there"
        self._count -= len(slots)

    def nbytes(self) -> int:
        return sum(cells.nbytes for cells in (self._cells, self._old, self._next) if cells is not None)

    def _search(self, words: Words) -> Lookup:
        marks = _marks(words)
        found = self._probe(self._cells, words, marks)
        if self._old is not None:
            missing = np.flatnonzero(found.slots < 0)
            if len(missing):
                found.slots[missing] = self._probe(self._old, words[missing], marks[missing]).slots
        return found

    def _probe(self, cells: Words, words: Words, marks: Words) -> Lookup:
        """Look for all at once: each turn looks at one cell of every id that is still open."""
        mask = len(cells) - 1
        slots = np.full(len(words), -1, dtype=np.int64)
        steps = np.ones(len(words), dtype=np.int64)
        places = _places(marks, mask)
        cell = cells.take(places)
        open_ = cell.nonzero()[0]
        at, wanted, cell = places.take(open_), marks.take(open_), cell.take(open_)
        step = 1
        while len(open_):
            alike = (cell >> _SHIFT == wanted).nonzero()[0]
            if len(alike):
                left = self._settle(words, slots, open_, cell, alike)
                open_, at, wanted = open_[left], at[left], wanted[left]
            at += step
            at &= mask
            step += 1
            places[open_] = at
            steps[open_] = step
            cell = cells.take(at)
            busy = cell.nonzero()[0]
            open_, at, wanted, cell = open_.take(busy), at.take(busy), wanted.take(busy), cell.take(busy)
        return Lookup(slots, marks, places, steps)

    def _settle(self, words: Words, slots: Slots, open_: Slots, cell: Words, alike: Slots) -> NDArray[np.bool_]:
        """Compare whole ids where the marks agree, note the slots of those that are the same; which ones go on."""
        found = (cell[alike] & _LOW).astype(np.int64) - 1
        same = (self._ids_in(found) == words[open_[alike]]).all(axis=1)
        slots[open_[alike[same]]] = found[same]
        going_on = np.ones(len(open_), dtype=np.bool_)
        going_on[alike[same]] = False
        return going_on

    def _make_room(self, count: int) -> None:
        if self._old is not None:
            self._move(max(MOVE_AT_LEAST, MOVE_PER_ADD * count))
        wanted = self._taken + count
        if wanted * 4 > len(self._cells):
            self._prepare(self._size_for(count), max(MOVE_AT_LEAST, CLEAR_PER_ADD * count))
        if wanted * 8 <= len(self._cells) * 3:
            return
        if self._old is not None:
            self._move(len(self._old))
        size = self._size_for(count)
        self._prepare(size, size)
        assert self._next is not None
        self._old, self._moved = self._cells, 0
        self._cells, self._next, self._cleared = self._next, None, 0
        self._taken = 0
        self._move(max(MOVE_AT_LEAST, MOVE_PER_ADD * count))

    def _size_for(self, count: int) -> int:
        size = len(self._cells)
        while (self._count + count) * 5 > size:
            size *= 2
        return size

    def _prepare(self, size: int, count: int) -> None:
        """Clear some more of the array that will be needed soon: the system hands out memory when it is first touched,
        and tens of megabytes in one step would be felt."""
        if self._next is None or len(self._next) != size:
            self._next, self._cleared = np.empty(size, dtype=np.uint64), 0
        self._next[self._cleared : self._cleared + count] = 0
        self._cleared += count

    def _move(self, count: int) -> None:
        assert self._old is not None
        part = self._old[self._moved : self._moved + count]
        cells = part[(part != 0) & (part != _GONE)]
        places = _places(cells >> _SHIFT, len(self._cells) - 1)
        _insert(self._cells, places, np.ones(len(cells), dtype=np.int64), cells)
        part[part != 0] = _GONE  # probing of what has not been moved yet must still get past here
        self._taken += len(cells)
        self._moved += count
        if self._moved >= len(self._old):
            self._old = None


def _insert(cells: Words, at: Slots, steps: Slots, values: Words) -> None:
    """Put each value into the first empty cell on its way from `at` on, which it reached after so many steps.

    Where two want one cell, one of them goes on.
    """
    mask = len(cells) - 1
    while True:
        busy = cells.take(at).nonzero()[0]
        if len(busy):
            free = np.ones(len(at), dtype=np.bool_)
            free[busy] = False
            cells[at[free]] = values[free]
        else:
            cells[at] = values
        lost = (cells.take(at) != values).nonzero()[0]
        if not len(lost):
            return
        steps = steps[lost]
        at = (at[lost] + steps) & mask
        steps = steps + 1
        values = values[lost]


def _strike(cells: Words, marks: Words, values: Words) -> Slots:
    """Mark the cells with these values as gone; the positions of those that were not found."""
    mask = len(cells) - 1
    at = _places(marks, mask)
    step = 1
    open_ = np.arange(len(values))
    left: list[Slots] = [open_[:0]]
    while len(open_):
        cell = cells[at]
        hit = cell == values[open_]
        cells[at[hit]] = _GONE
        left.append(open_[cell == 0])
        going_on = ~hit & (cell != 0)
        open_ = open_[going_on]
        at = (at[going_on] + step) & mask
        step += 1
    return np.concatenate(left)


def _places(marks: Words, mask: int) -> Slots:
    """The first cell to look at; the lowest bit of a mark is always set and says nothing."""
    places = (marks >> _ONE).astype(np.int64)
    places &= mask
    return places


def _marks(words: Words) -> Words:
    mixed = words[:, 1] * np.uint64(_B)
    mixed ^= words[:, 0]
    mixed *= np.uint64(_A)
    mixed >>= _SHIFT
    mixed |= _ONE
    return mixed


def _mark(high: int, low: int) -> int:
    return (((((low * _B) & _ALL) ^ high) * _A & _ALL) >> 32) | 1
