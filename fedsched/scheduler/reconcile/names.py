"""Places in a group: which are taken, and which come next."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.reconcile.held import Held

Indexes = NDArray[np.int32]


class Places:
    """Gives places to replacements: their own where they can keep it, else the lowest free one.

    One's own is lost if somebody else holds it too (a promoted canary) or if the count has shrunk below it. Places that
    others will ask for are left to them as long as there are enough.
    """

    def __init__(self, used: set[int], wanted: set[int], count: int) -> None:
        self.used = used
        self._wanted = wanted
        self._count = count
        self._unwanted = self._free = 0

    @property
    def has_free(self) -> bool:
        """Whether anything below the count is left."""
        while self._free < self._count and self._free in self.used:
            self._free += 1
        return self._free < self._count

    def take(self, own: int, beside: AbstractSet[int] = frozenset()) -> int:
        """A place, if possible none of those `beside`, which are held by others of the same version."""
        if own >= self._count or own in self.used or own in beside:
            own = self._other(own) if not beside else self._apart(own, beside)
        self.used.add(own)
        return own

    def _apart(self, own: int, beside: AbstractSet[int]) -> int:
        free = [place for place in range(self._count) if place not in self.used and place not in beside]
        unwanted = [place for place in free if place not in self._wanted]
        return (unwanted or free or [self._other(own)])[0]

    def _other(self, own: int) -> int:
        while self._unwanted < self._count and (self._unwanted in self.used or self._unwanted in self._wanted):
            self._unwanted += 1
        if self._unwanted < self._count:
            return self._unwanted
        return self._free if self.has_free else own


def fresh_names(taken: Iterable[int], count: int, wanted: int) -> Indexes:
    """The lowest free places below `count`; if there are not enough, 0, 1, 2... once more."""
    if wanted <= 0:
        return np.zeros(0, dtype=np.int32)
    free = np.ones(count, dtype=np.bool_)
    used = np.fromiter((index for index in taken if index < count), dtype=np.int64)
    free[used] = False
    names = np.flatnonzero(free)[:wanted].astype(np.int32)
    if len(names) < wanted:
        names = np.concatenate((names, np.arange(wanted - len(names), dtype=np.int32)))
    return names


def canary_names(
    taken: Iterable[int], canaries: Iterable[Held], destructive: Iterable[Held], count: int, wanted: int
) -> list[int]:
    """Places for canaries: those of allocations they will replace, then free ones, then beyond the count."""
    theirs = {held.name_index for held in canaries}
    used = set(taken)
    names = sorted({held.name_index for held in destructive if held.name_index < count} - theirs)[:wanted]
    chosen = theirs.union(names)
    for index in range(count):
        if len(names) >= wanted:
            return names
        if index not in used and index not in chosen:
            names.append(index)
    beyond = count
    while len(names) < wanted:
        if beyond not in theirs:
            names.append(beyond)
        beyond += 1
    return names
