"""How a snapshot stays cheap: writers note what was there before, readers of a snapshot look at those notes first.

Taking a snapshot copies nothing. Every container of the store (`table.OrderedMap`, `columns.Columns`) asks the keeper,
before it changes something, whether a snapshot is held; if so it puts the old value into the *past* of the newest one,
once. A reader of a snapshot asks that snapshot's past, then the pasts of all newer snapshots, then the live value: the
first answer is what the snapshot saw. Writing therefore costs the same for one snapshot as for ten.

A snapshot lives as long as its `Lease`. When the lease goes, its past is folded into the next older one that is still
held, or dropped. Leases belong to the thread that applies: a snapshot read from another thread could see half a change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar


class Book(Protocol):
    """The old values of one container."""

    def absorb(self, newer: Any) -> None:
        """Take over what a newer book holds, wherever this one says nothing."""


B = TypeVar("B", bound=Book)


class Past:
    """What has changed since one snapshot was taken, as it was before; one book per container that changed."""

    __slots__ = ("books", "newer")

    def __init__(self) -> None:
        self.books: dict[int, Any] = {}
        self.newer: Past | None = None

    def book(self, number: int, make: Callable[[], B]) -> B:
        """The book of container `number`, begun with `make` if there is none yet."""
        book: B | None = self.books.get(number)
        if book is None:
            book = self.books[number] = make()
        return book

    def absorb(self, newer: Past) -> None:
        for number, book in newer.books.items():
            mine = self.books.get(number)
            if mine is None:
                self.books[number] = book
            else:
                mine.absorb(book)
        self.newer = newer.newer

    def chain(self, number: int) -> Iterator[Any]:
        """The books of one container, the one that counts most first."""
        past: Past | None = self
        while past is not None:
            book = past.books.get(number)
            if book is not None:
                yield book
            past = past.newer


class Lease:
    """Keeps one snapshot's past alive; whoever can still read the snapshot holds this."""

    __slots__ = ("__weakref__", "past")

    def __init__(self, past: Past) -> None:
        self.past = past


class Keeper:
    """Knows which snapshots are held, and where a writer has to note what it is about to change."""

    def __init__(self) -> None:
        self.past: Past | None = None
        """Set between `begin` and `end` if a snapshot is held; else writers need not note anything."""
        self._taken: list[tuple[weakref.ref[Lease], Past]] = []  # oldest first
        self._containers = 0

    def enrol(self) -> int:
        """A number for one more container."""
        self._containers += 1
        return self._containers

    def take(self) -> Lease:
        """Start a snapshot of everything as it is now. Not between `begin` and `end`."""
        assert self.past is None, "a snapshot was asked for in the middle of a change"
        self._prune()
        past = Past()
        if self._taken:
            self._taken[-1][1].newer = past
        lease = Lease(past)
        self._taken.append((weakref.ref(lease), past))
        return lease

    def begin(self) -> None:
        """A change starts: from here on `past` says where to note old values."""
        if self._taken:
            self._prune()
        self.past = self._taken[-1][1] if self._taken else None

    def end(self) -> None:
        self.past = None

    def held(self) -> int:
        """How many snapshots somebody can still read."""
        return sum(1 for lease, _ in self._taken if lease() is not None)

    def _prune(self) -> None:
        if all(lease() is not None for lease, _ in self._taken):
            return
        kept: list[tuple[weakref.ref[Lease], Past]] = []
        for lease, past in self._taken:
            if lease() is not None:
                kept.append((lease, past))
            elif kept:
                kept[-1][1].absorb(past)
        self._taken = kept
