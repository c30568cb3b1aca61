"""Bytes beside columns: what some slots have and most do not, such as task states.

A plain dict from slot to bytes. No order is kept: whoever needs one goes through the columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from fedsched.state.past import Keeper, Past


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
        self._values: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, slot: int) -> bytes | None:
        return self._values.get(slot)

    def put(self, slots: list[int], values: Iterable[bytes]) -> None:
        self._note(slots)
        self._values.update(zip(slots, values, strict=True))

    def drop(self, slots: Iterable[int]) -> None:
        """Forget what these slots have, if anything."""
        present = [slot for slot in slots if slot in self._values] if self._values else []
        self._note(present)
        for slot in present:
            del self._values[slot]

    def view(self, past: Past) -> SlotMapView:
        return SlotMapView(self, self._number, past)

    def _note(self, slots: list[int]) -> None:
        if self._keeper.past is not None:
            old = self._keeper.past.book(self._number, SlotBook).old
            for slot in slots:
                if slot not in old:
                    old[slot] = self._values.get(slot)


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
