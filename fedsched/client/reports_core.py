"""Decides what a client says about its allocations, and when.

Changes gather for a moment; of each allocation only its newest state is ever said, and nothing that servers have
acknowledged already. One report is under way at a time: it counts as said when servers confirm that it is written, and
is said again if they do not within five seconds, or over a new stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fedsched.client.journal_records import AllocReport

PACE_S: Final = 0.2
AGAIN_S: Final = 5.0
REPORT_MAX: Final = 4_096
"""Allocations in one report."""


@dataclass(frozen=True, slots=True)
class Saying:
    """One report."""

    number: int
    reports: Mapping[str, AllocReport]


class ReportsCore:
    """What one client has said, and what it has yet to say."""

    def __init__(self, acked: Mapping[str, AllocReport] | None = None) -> None:
        self._acked = dict(acked or {})
        self._due: dict[str, bool] = {}
        """Allocations that changed; true for those that are said even if servers know it all already."""
        self._said: dict[str, AllocReport] = {}
        self._said_forced: set[str] = set()
        self._number = 0
        self._said_at = 0.0
        self._at = math.inf
        self._pace_s = PACE_S
        self._is_open = False

    @property
    def unsaid(self) -> int:
        """Allocations whose newest state servers have not confirmed."""
        return len(self._due.keys() | self._said.keys())

    def wake_at(self) -> float:
        """When `next` may have something to say."""
        if not self._is_open:
            return math.inf
        return self._said_at + AGAIN_S if self._said else self._at

    # ---- what happens ---------------------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """There is a new stream: whatever was not confirmed is said again over this one."""
        self._is_open = True
        self._number = 0
        self._say_again()
        self._at = now

    def closed(self) -> None:
        """The stream is over."""
        self._is_open = False
        self._say_again()

    def changed(self, alloc_id: str, now: float) -> None:
        """Something about this allocation may be different."""
        self._due.setdefault(alloc_id, False)
        self._at = min(self._at, now + self._pace_s)

    def say_all(self, alloc_ids: Iterable[str], now: float) -> None:
        """Servers have missed this node: they are told of these whether or not they knew."""
        for alloc_id in alloc_ids:
            self._due[alloc_id] = True
        self._at = min(self._at, now)

    def pace(self, pace_s: float) -> None:
        """Servers ask for another pace."""
        self._pace_s = pace_s

    def forget(self, alloc_id: str) -> None:
        """Neither servers nor this client have anything more to say about it."""
        for known in (self._due, self._said, self._acked):
            known.pop(alloc_id, None)

    def next(self, now: float, report_of: Callable[[str], AllocReport | None]) -> Saying | None:
        """The next report, if it is due and there is anything to say."""
        if not self._is_open:
            return None
        if self._said:
            if now < self._said_at + AGAIN_S:
                return None
            self._say_again()
        elif now < self._at:
            return None
        found: dict[str, AllocReport] = {}
        for alloc_id in list(self._due):
            report = report_of(alloc_id)
            if report is None or (report == self._acked.get(alloc_id) and not self._due[alloc_id]):
                del self._due[alloc_id]
                continue
            found[alloc_id] = report
            if len(found) == REPORT_MAX:
                break
        self._at = now + self._pace_s if found else math.inf
        return Saying(self._number + 1, found) if found else None

    def sent(self, number: int, reports: Mapping[str, AllocReport], now: float) -> None:
        """A report, or the first part of what `next` gave, is under way."""
        self._number = number
        self._said, self._said_at = dict(reports), now
        self._said_forced = {alloc_id for alloc_id in reports if self._due.pop(alloc_id, False)}
        self._at = now + self._pace_s if self._due else math.inf

    def written(self, number: int, now: float) -> dict[str, AllocReport]:
        """Servers have written the reports up to this number; gives what they have acknowledged just now."""
        if not self._said or number != self._number:
            return {}
        acked, self._said = self._said, {}
        self._said_forced = set()
        self._acked.update(acked)
        if self._due:
            self._at = min(self._at, now + self._pace_s)
        return acked

    def _say_again(self) -> None:
        self._due = {one: one in self._said_forced for one in self._said} | self._due
        self._said = {}
        self._said_forced = set()
        if self._due:
            self._at = -math.inf
