"""Keeps one record on disk up to date, and lets the world see it only when it is there.

A change is written when somebody waits for it, or a moment later if nobody does: then it goes along with what comes
after it. Changes that come while a write is under way are written together afterwards. Whoever must not go on before
its change is safe waits for `settled`. A write that failed is tried again until it works; meanwhile nothing new is
shown.

There is no child here and no timer: the journal's thread takes the newest record when it writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from fedsched.model.errors import FedschedError

T = TypeVar("T")

RETRY_S: Final = 5.0
LAZY_S: Final = 0.1
"""How long a change may wait for company if nobody waits for it. Servers are told five times a second."""

Told = Callable[[FedschedError | None], None]


@dataclass(slots=True, eq=False)
class RowChange:
    """A row that has changed. It is written as it is when its turn comes."""

    alloc_id: str
    task: str
    """Empty: the allocation's own record."""
    take: Callable[[], tuple[int, Any]]
    """The newest record, and which change of it that is. Called in another thread."""
    done: Callable[[int, Any, FedschedError | None], None]
    """That record is on disk, or could not be written. Called on the event loop."""


class ChangeJournal(Protocol):
    """What writes rows; `journal.Journal` is it."""

    def submit(self, change: RowChange, delay_s: float = 0.0) -> None:
        """Write this row, at the latest after the delay. Never waits. Not again before `done` was called."""

    def hurry(self, change: RowChange) -> None:
        """Do not wait for the rest of the delay."""


class StateWriter(Generic[T]):
    """Writes the newest record, then hands it to `publish`."""

    def __init__(
        self,
        journal: ChangeJournal,
        alloc_id: str,
        task: str,
        record: T,
        publish: Callable[[T], None],
        on_error: Callable[[FedschedError], None],
    ) -> None:
        self._journal = journal
        self._newest: tuple[int, T] = (0, record)
        """One attribute: another thread reads it."""
        self._publish = publish
        self._on_error = on_error
        self._change = RowChange(alloc_id, task, self._take, self._done)
        self._is_submitted = False
        self._written = 0
        self._waiting: list[tuple[int, bool, Told]] = []
        """The change that somebody waits for, and whether they wait on when a write fails."""

    def changed(self, record: T) -> None:
        """There is something new to write."""
        self._newest = (self._newest[0] + 1, record)
        if not self._is_submitted:
            self._submit(LAZY_S)

    @property
    def is_settled(self) -> bool:
        return self._written == self._newest[0]

    def when_settled(self, told: Told, *, is_patient: bool = False, is_urgent: bool = True) -> None:
        """Call `told` when everything up to now is on disk (at once if it is), or with the error if that failed. A
        patient one is told only when it worked; one that is not urgent does not make it any sooner."""
        if self.is_settled:
            told(None)
            return
        self._waiting.append((self._newest[0], is_patient, told))
        if not self._is_submitted:
            self._submit(0.0 if is_urgent else LAZY_S)
        elif is_urgent:
            self._journal.hurry(self._change)

    async def settled(self) -> None:
        """Return when everything up to now is on disk; raise if writing it failed."""
        await self._wait(is_patient=False)

    async def wait_settled(self) -> None:
        """Return when everything is on disk, however long that takes."""
        while not self.is_settled:
            await self._wait(is_patient=True)

    async def _wait(self, *, is_patient: bool) -> None:
        if self.is_settled:
            return
        event = trio.Event()
        failures: list[FedschedError] = []

        def told(error: FedschedError | None) -> None:
            if error is not None:
                failures.append(error)
            event.set()

        self.when_settled(told, is_patient=is_patient)
        await event.wait()
        if failures:
            raise failures[0]

    def _submit(self, delay_s: float) -> None:
        self._is_submitted = True
        self._journal.submit(self._change, delay_s)

    def _take(self) -> tuple[int, T]:
        return self._newest

    def _done(self, number: int, record: T, error: FedschedError | None) -> None:
        self._is_submitted = False
        over = [one for one in self._waiting if one[0] <= number and not (error and one[1])]
        self._waiting = [one for one in self._waiting if one not in over]
        if error is not None:
            self._on_error(error)
            # One that waits for what was changed since has not been told anything yet: its try is due at once.
            has_news = any(wanted > number for wanted, _, _ in self._waiting)
            self._submit(0.0 if has_news else RETRY_S)
        else:
            self._written = number
            self._publish(record)
        for _, _, told in over:
            told(error)
        if not self._is_submitted and not self.is_settled:
            self._submit(0.0 if self._waiting else LAZY_S)
