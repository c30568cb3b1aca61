"""Keys kept in order, so that a page of a list costs the page and not the table.

A list of short sorted lists: finding the right one and the place in it are two binary searches, and an insert moves at
most one short list's tail. No key is ever compared with anything but keys of its own table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")

RUN_MAX: Final = 512
"""Keys per run before it is split. At a million keys both searches and the move stay around a microsecond."""


class SortedKeys(Generic[K]):
    """A set of keys in ascending order."""

    __slots__ = ("_maxes", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[Any]] = []
        self._maxes: list[Any] = []

    def add(self, key: K) -> None:
        """Put in a key that is not there yet."""
        if not self._runs:
            self._runs.append([key])
            self._maxes.append(key)
            return
        at = min(bisect_left(self._maxes, key), len(self._runs) - 1)
        run = self._runs[at]
        insort(run, key)
        if len(run) > RUN_MAX:
            half = run[RUN_MAX // 2 :]
            del run[RUN_MAX // 2 :]
            self._runs.insert(at + 1, half)
            self._maxes.insert(at + 1, half[-1])
        self._maxes[at] = run[-1]

    def remove(self, key: K) -> None:
        """Take out a key that is there."""
        at = bisect_left(self._maxes, key)
        run = self._runs[at]
        place = bisect_left(run, key)
        assert run[place] == key, f"key {key!r} is not among the sorted keys"
        del run[place]
        if run:
            self._maxes[at] = run[-1]
        else:
            del self._runs[at]
            del self._maxes[at]

    def page(self, start: K | None, limit: int, *, after: bool = False, back: bool = False) -> list[K]:
        """At most `limit` keys in order, from `start` on (`after`: without it); from the very first if it is None.

        With `back` the order is descending, and None is the very last.
        """
        return self._page_back(start, limit, after) if back else self._page_on(start, limit, after)

    def _page_on(self, start: K | None, limit: int, after: bool) -> list[K]:
        at = place = 0
        if start is not None:
            at = (bisect_right if after else bisect_left)(self._maxes, start)
            if at < len(self._runs):
                place = (bisect_right if after else bisect_left)(self._runs[at], start)
        keys: list[K] = []
        while at < len(self._runs) and len(keys) < limit:
            keys += self._runs[at][place : place + limit - len(keys)]
            at, place = at + 1, 0
        return keys

    def _page_back(self, start: K | None, limit: int, after: bool) -> list[K]:
        at = len(self._runs) - 1
        end = len(self._runs[at]) if self._runs else 0
        if start is not None and self._runs:
            at = min(bisect_left(self._maxes, start), at)
            end = (bisect_left if after else bisect_right)(self._runs[at], start)
        keys: list[K] = []
        while at >= 0 and len(keys) < limit:
            keys += self._runs[at][max(0, end - limit + len(keys)) : end][::-1]
            at -= 1
            end = len(self._runs[at])
        return keys
