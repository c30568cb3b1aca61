"""Bytes beside columns: what some slots have and most do not, such as task states.

Plain dicts from slot to bytes, one for each stretch of slots: a single one of a million would take tens of
milliseconds whenever it grows. No order is kept: whoever needs one goes through the columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from fedsched.state.past import Keeper, Past

STRETCH_SHIFT: Final = 14
"""16 Ki slots to a dict: less than a millisecond to grow."""


class SlotMapReader(Protocol):
    """Reads the bytes of a slot, live or as a snapshot saw them."""

    def get(self, slot: int) -> bytes | None: ...


class SlotBook:
    """Old values; None where there was none."""

    __slots__ = ("old",)

    def __init__(self) -> None:
        self.old: dict[int, bytes | None] = {}

    def absorb(self, newer: SlotBook) -> None:
        for slot, value in newer.old.items():
            self.old.setdefault(slot, value)


class SlotMap:
    """The live bytes."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._number = keeper.enrol()
        self._stretches: dict[int, dict[int, bytes]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._stretches.values()))

    def get(self, slot: int) -> bytes | None:
        stretch = self._stretches.get(slot >> STRETCH_SHIFT)
        return None if stretch is None else stretch.get(slot)

    def put(self, slots: list[int], values: Iterable[bytes]) -> None:
        if not slots:
            return
        self._note(slots)
        number = min(slots) >> STRETCH_SHIFT
        if number == max(slots) >> STRETCH_SHIFT:
            self._stretches.setdefault(number, {}).update(zip(slots, values, strict=True))
            return
        for slot, value in zip(slots, values, strict=True):
            self._stretches.setdefault(slot >> STRETCH_SHIFT, {})[slot] = value

    def drop(self, slots: Iterable[int]) -> None:
        """Forget what these slots have, if anything."""
        present = [slot for slot in slots if self.get(slot) is not None] if self._stretches else []
        self._note(present)
        for slot in present:
            number = slot >> STRETCH_SHIFT
            stretch = self._stretches[number]
            del stretch[slot]
            if not stretch:
                del self._stretches[number]

    def view(self, past: Past) -> SlotMapView:
        return SlotMapView(self, self._number, past)

    def _note(self, slots: list[int]) -> None:
        if self._keeper.past is not None:
            old = self._keeper.past.book(self._number, SlotBook).old
            for slot in slots:
                if slot not in old:
                    old[slot] = self.get(slot)


_UNKNOWN: Final = b"(not in this book)"


class SlotMapView:
    """The bytes as a snapshot saw them."""

    __slots__ = ("_live", "_number", "_past")

    def __init__(self, live: SlotMap, number: int, past: Past) -> None:
        self._live = live
        self._number = number
        self._past = past

    def get(self, slot: int) -> bytes | None:
        for book in self._past.chain(self._number):
            old: bytes | None = book.old.get(slot, _UNKNOWN)
            if old is not _UNKNOWN:
                return old
        return self._live.get(slot)
