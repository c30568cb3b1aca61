"""Numbers in columns: one fixed-width record per slot, written and read a batch at a time.

A slot is a small stable number. The lowest free slots are given out first, holes before new ground; which slot comes
next therefore follows from the slots in use alone, and a server restored from an image goes on exactly like one that
lived through it all.

Storage grows by whole segments that never move, so growth never copies. For snapshots a page of records is copied
before its first change, once per snapshot (see `past`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.state.past import Keeper, Past

SEGMENT_SHIFT: Final = 20
SEGMENT_ROWS: Final = 1 << SEGMENT_SHIFT
"""A segment is zeroed by the kernel when it is touched, so an empty one costs addresses and no memory."""
PAGE_SHIFT: Final = 8
PAGE_ROWS: Final = 1 << PAGE_SHIFT
"""256 records of 88 bytes: 3 us to copy, and one scattered change does not drag much along."""

SMALL_SEGMENT_ROWS: Final = (1 << 10, 1 << 14, SEGMENT_ROWS)
"""The first segment starts small (there are thousands of stores in a test run); at most 16 Ki records get copied."""

Slots = NDArray[np.int64]
Rows = NDArray[np.void]


def raw(rows: Rows) -> Rows:
    """The same records as plain bytes. numpy copies records field by field, bytes thirty times faster."""
    return rows.view(f"V{rows.dtype.itemsize}")


def copied(rows: Rows) -> Rows:
    """A copy to change, cheaper than `rows.copy()` for the same reason."""
    return raw(rows).copy().view(rows.dtype)


def picked(rows: Rows, where: Any) -> Rows:
    """`rows[where]`, cheaper."""
    chosen: Rows = raw(rows)[where]
    return chosen.view(rows.dtype)


class ColumnsBook:
    """Pages as they were before."""

    __slots__ = ("high", "pages")

    def __init__(self, high: int) -> None:
        self.high = high
        self.pages: dict[int, Rows] = {}

    def absorb(self, newer: ColumnsBook) -> None:
        for number, page in newer.pages.items():
            self.pages.setdefault(number, page)


class ColumnsReader:
    """What a reader may ask of columns, live or as a snapshot saw them."""

    dtype: np.dtype[np.void]
    high: int
    """One more than the highest slot ever used."""

    def read(self, slots: Slots) -> Rows:
        """Copies of the records in these slots."""
        raise NotImplementedError

    def one(self, slot: int) -> Any:
        """A copy of one record."""
        return self.read(np.array([slot], dtype=np.int64))[0]

    def follow(self, slot: int, field: str, limit: int = SEGMENT_ROWS) -> list[int]:
        """A chain: `slot`, then the one its `field` names, and so on. Links are slots plus one, 0 is the end."""
        raise NotImplementedError

    def in_use(self, start: int, stop: int) -> Slots:
        """The slots in use from `start` up to (not including) `stop`."""
        slots = np.arange(start, min(stop, self.high), dtype=np.int64)
        used: Slots = slots[self.read(slots)["used"] != 0]
        return used


class Columns(ColumnsReader):
    """The live columns. `dtype` must have a field `used`, which is 0 exactly in free slots."""

    def __init__(self, keeper: Keeper, dtype: np.dtype[np.void]) -> None:
        self.dtype = dtype
        self.high = 0
        self.count = 0
        self._keeper = keeper
        self._number = keeper.enrol()
        self._segments: list[Rows] = []
        """Plain bytes; `_fields` has the same memory as records."""
        self._fields: list[Rows] = []
        self._used: list[NDArray[np.bool_]] = []
        self._holes: list[int] = []
        """Free slots below `high`, per segment."""
        self._hole_count = 0

    def read(self, slots: Slots) -> Rows:
        if not len(slots):
            return np.empty(0, dtype=self.dtype)
        parts = self._parts(slots)
        if len(parts) == 1:
            number, rows, _ = parts[0]
            return self._segments[number].take(rows).view(self.dtype)
        found = raw(np.empty(len(slots), dtype=self.dtype))
        for number, rows, where in parts:
            found[where] = self._segments[number].take(rows)
        return found.view(self.dtype)

    def write(self, slots: Slots, records: Rows) -> None:
        """Replace the records in these slots, all of which are in use."""
        if not len(slots):
            return
        self._note(slots)
        plain = raw(records)
        for number, rows, where in self._parts(slots):
            self._segments[number][rows] = plain if where is None else plain[where]

    def put(self, slots: Slots, field: str, values: Any) -> None:
        """Replace one field in these slots; `values` is an array of the same length or one value for all."""
        if not len(slots):
            return
        self._note(slots)
        for number, rows, where in self._parts(slots):
            self._fields[number][field][rows] = values if where is None or np.ndim(values) == 0 else values[where]

    def claim(self, count: int) -> Slots:
        """The lowest `count` free slots, ascending. They are in use once something is written to them."""
        found: list[Slots] = []
        missing = count
        if self._hole_count:
            for number, holes in enumerate(self._holes):
                if holes and missing:
                    taken = self._claim_holes(number, min(holes, missing))
                    found.append(taken)
                    missing -= len(taken)
        if missing:
            found.append(self._claim_new(missing))
        self.count += count
        return found[0] if len(found) == 1 else np.concatenate(found)

    def claim_exactly(self, slots: Slots) -> None:
        """Take these slots, which are beyond every slot taken so far and ascend. For restoring an image."""
        first, last = int(slots[0]), int(slots[-1])
        assert first >= self.high, f"slot {first} is not beyond {self.high}"
        gap = self.high
        self._claim_new(last + 1 - self.high)
        taken = np.zeros(last + 1 - gap, dtype=np.bool_)
        taken[slots - gap] = True
        self._mark_free(np.flatnonzero(~taken) + gap)
        self.count += len(slots)

    def release(self, slots: Slots) -> None:
        """Free these slots; their records become zero."""
        if not len(slots):
            return
        self.write(slots, np.zeros(len(slots), dtype=self.dtype))
        self._mark_free(slots)
        self.count -= len(slots)

    def one(self, slot: int) -> Any:
        return self._fields[slot >> SEGMENT_SHIFT][slot & (SEGMENT_ROWS - 1)].copy()

    def value(self, slot: int, field: str) -> Any:
        """One field of one record."""
        return self._fields[slot >> SEGMENT_SHIFT][field][slot & (SEGMENT_ROWS - 1)]

    def follow(self, slot: int, field: str, limit: int = SEGMENT_ROWS) -> list[int]:
        links = [segment[field] for segment in self._fields]
        found: list[int] = []
        while slot >= 0 and len(found) < limit:
            found.append(slot)
            slot = int(links[slot >> SEGMENT_SHIFT][slot & (SEGMENT_ROWS - 1)]) - 1
        return found

    def view(self, past: Past) -> ColumnsView:
        return ColumnsView(self, self._number, past)

    def nbytes(self) -> int:
        """Memory taken up, in bytes: of the last segment only what has been touched."""
        return self.high * (self.dtype.itemsize + 1)

    def page(self, number: int) -> Rows:
        """One page, as plain bytes, not copied."""
        start = number << PAGE_SHIFT
        segment = self._segments[start >> SEGMENT_SHIFT]
        row = start & (SEGMENT_ROWS - 1)
        return segment[row : row + PAGE_ROWS]

    def _parts(self, slots: Slots) -> list[tuple[int, Slots, Slots | None]]:
        """Per segment: its number, the rows wanted of it, and where those stand in the batch (None: it is all)."""
        if len(self._segments) == 1:
            return [(0, slots, None)]
        numbers = slots >> SEGMENT_SHIFT
        rows = slots & (SEGMENT_ROWS - 1)
        first = int(numbers[0])
        if (numbers == first).all():
            return [(first, rows, None)]
        return [(number, rows[where], where) for number, where in groups(numbers)]

    def _note(self, slots: Slots) -> None:
        past = self._keeper.past
        if past is None:
            return
        book = past.book(self._number, lambda: ColumnsBook(self.high))
        for page in np.unique(slots[slots < book.high] >> PAGE_SHIFT).tolist():
            if page not in book.pages:
                book.pages[page] = self.page(page).copy()

    def _claim_holes(self, number: int, count: int) -> Slots:
        below = min(SEGMENT_ROWS, self.high - (number << SEGMENT_SHIFT))
        rows = np.flatnonzero(~self._used[number][:below])[:count]
        self._used[number][rows] = True
        self._holes[number] -= count
        self._hole_count -= count
        return rows + (number << SEGMENT_SHIFT)

    def _claim_new(self, count: int) -> Slots:
        if self._keeper.past is not None:
            self._keeper.past.book(self._number, lambda: ColumnsBook(self.high))
        start, stop = self.high, self.high + count
        while stop > self._capacity():
            self._grow(stop)
        for number in range(start >> SEGMENT_SHIFT, ((stop - 1) >> SEGMENT_SHIFT) + 1):
            base = number << SEGMENT_SHIFT
            self._used[number][max(0, start - base) : stop - base] = True
        self.high = stop
        return np.arange(start, stop, dtype=np.int64)

    def _mark_free(self, slots: Slots) -> None:
        for number, where in groups(slots >> SEGMENT_SHIFT):
            self._used[number][slots[where] & (SEGMENT_ROWS - 1)] = False
            self._holes[number] += len(where)
        self._hole_count += len(slots)

    def _capacity(self) -> int:
        if not self._segments:
            return 0
        return ((len(self._segments) - 1) << SEGMENT_SHIFT) + len(self._segments[-1])

    def _grow(self, wanted: int) -> None:
        """A whole new segment, or a longer first one while the table is small."""
        if self._segments and len(self._segments[0]) == SEGMENT_ROWS:
            self._add_segment(SEGMENT_ROWS)
            return
        old = self._segments.pop() if self._segments else None
        used = self._used.pop() if old is not None else None
        holes = self._holes.pop() if old is not None else 0
        self._fields.clear()
        self._add_segment(next(rows for rows in SMALL_SEGMENT_ROWS if rows >= min(wanted, SEGMENT_ROWS)))
        if old is not None and used is not None:
            self._segments[0][: len(old)] = old
            self._used[0][: len(used)] = used
            self._holes[0] = holes

    def _add_segment(self, rows: int) -> None:
        self._fields.append(np.zeros(rows, dtype=self.dtype))
        self._segments.append(raw(self._fields[-1]))
        self._used.append(np.zeros(rows, dtype=np.bool_))
        self._holes.append(0)


class ColumnsView(ColumnsReader):
    """Columns as a snapshot saw them."""

    def __init__(self, live: Columns, number: int, past: Past) -> None:
        self.dtype = live.dtype
        self._live = live
        self._number = number
        self._past = past

    @property
    def high(self) -> int:  # type: ignore[override]
        book: ColumnsBook | None = next(self._past.chain(self._number), None)
        return self._live.high if book is None else book.high

    def read(self, slots: Slots) -> Rows:
        rows = self._live.read(slots)
        books: list[ColumnsBook] = [book for book in self._past.chain(self._number) if book.pages]
        if not books or not len(slots):
            return rows
        plain = raw(rows)
        for number, where in groups(slots >> PAGE_SHIFT):
            page = next((book.pages[number] for book in books if number in book.pages), None)
            if page is not None:
                plain[where] = page[slots[where] & (PAGE_ROWS - 1)]
        return rows

    def follow(self, slot: int, field: str, limit: int = SEGMENT_ROWS) -> list[int]:
        books: list[ColumnsBook] = [book for book in self._past.chain(self._number) if book.pages]
        found: list[int] = []
        while slot >= 0 and len(found) < limit:
            found.append(slot)
            number = slot >> PAGE_SHIFT
            page = next((book.pages[number] for book in books if number in book.pages), None)
            page = self._live.page(number) if page is None else page
            slot = int(page.view(self.dtype)[field][slot & (PAGE_ROWS - 1)]) - 1
        return found


def groups(numbers: NDArray[Any]) -> Iterator[tuple[int, Slots]]:
    """Each distinct number, ascending, with the positions at which it stands, ascending."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts = [0, *cuts.tolist(), len(ordered)]
    for start, stop in pairwise(starts):
        yield int(ordered[start]), order[start:stop]
