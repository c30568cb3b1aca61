"""Blocking queries: a read that waits until what it looked at has moved on. Nothing here polls.

An endpoint says, for a request, what its answer depends on and which index that has (`Looked`). Dispatch asks for it
before it answers, so that every such reply carries the index to wait above next, and lets a call that names an index
wait here until the answer would be a newer one.

Indexes are as fine as the rows allow, so that somebody who reads, thinks and reads again is not answered at once
because of what happened to others meanwhile. Where no single row says when an answer changed, a table's index does.
What was there before a saved state was put in place of it counts as changed by that, whatever its rows say.

What is not there has no row to say since when. It counts as gone since its table last lost a row, which a server knows
from when it started: so whoever was told of its absence waits until it appears, and others that come, which is what
usually happens to tables, do not disturb the wait; and whoever saw it and asks again is told that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from fedsched.env.env import Chance
from fedsched.rpc.server_side import CallContext
from fedsched.server.machine import StateMachine
from fedsched.state.adopting import INDEX_AHEAD
from fedsched.state.changes import Change, Changes
from fedsched.state.store import State
from fedsched.state.waits import WAITERS_MAX, Topic, Waiter, Waits, one_row

WAIT_DEFAULT_S: Final = 300.0
WAIT_MAX_S: Final = 300.0
JITTER_PART: Final = 16
"""A wait is up to a sixteenth longer than asked for, so that those who began together do not all come back together."""
EVALUATIONS: Final = "evaluations"
_OF_JOB: Final = "evaluations of a job"
"""Not a table: what a change of an evaluation is passed on as, since its key does not name the job."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What an answer depends on."""

    index: int
    """When any of it last changed."""
    topics: tuple[Topic, ...]
    """Whatever raises the index touches one of these."""
    absent_from: str = ""
    """The table that does not have what was asked for; then `index` is not used."""


Look = Callable[[Any, CallContext], Looked]
"""What the answer to a request depends on, as the state is now."""


def look_at_evaluations(state: State, namespace: str, job_id: str) -> Looked:
    """All evaluations of a job. One that is cleaned away is not reported: nobody waits for less."""
    indexes = [row.modify_index for row in state.evaluations.of_job(namespace, job_id)]
    topics = (one_row(_OF_JOB, namespace, job_id),)
    return Looked(max(indexes), topics) if indexes else Looked(0, topics, absent_from=EVALUATIONS)


def look_at_row(state: State, table: str, *key: Any) -> Looked:
    """One row, there or not."""
    index = state.row_index(table, key)
    return Looked(index, (one_row(table, *key),), absent_from="" if index else table)


class StateWaits:
    """Everybody who waits for this server's state to change."""

    def __init__(self, machine: StateMachine, dice: Chance, *, limit: int = WAITERS_MAX) -> None:
        self._machine = machine
        self._dice = dice
        self._core = Waits(limit)
        self._events: dict[Waiter, trio.Event] = {}
        self._known_since = machine.store.index
        """What was deleted before that, nobody here remembers."""
        self._shrunk: dict[str, int] = {}
        """When each table last lost a row, since then."""
        machine.listen(self._changed)

    def __len__(self) -> int:
        return len(self._core)

    def look(self, look: Look, request: Any, context: CallContext) -> Looked:
        """What the answer depends on now, with an index that never goes back: at least 1, at least the last restore."""
        looked = look(request, context)
        index = self._absent_since(looked.absent_from) if looked.absent_from else looked.index
        restore = self._machine.store.meta.rows.get(INDEX_AHEAD)
        return replace(looked, index=max(1, index, restore.modify_index if restore else 0))

    async def wait_newer(self, look: Callable[[], Looked], after: int, wait_s: float) -> None:
        """Return once what is looked at has an index above `after`, or when time is up.

        A wait that is not positive means the usual one. Raises `Busy` when too many wait already.
        """
        wait_s = min(wait_s, WAIT_MAX_S) if wait_s > 0 else WAIT_DEFAULT_S
        with trio.move_on_after(wait_s + self._dice.uniform(0, wait_s / JITTER_PART)):
            while (looked := look()).index <= after:
                await self._wait_change(looked, after)

    async def _wait_change(self, looked: Looked, after: int) -> None:
        event = trio.Event()
        waiters: list[Waiter] = []
        try:
            for topic in looked.topics:
                waiter = self._core.add(topic, after=after, current=looked.index)
                assert waiter is not None, "looked at something newer, and still waiting"
                waiters.append(waiter)
                self._events[waiter] = event
            await event.wait()
        finally:
            for waiter in waiters:
                self._core.remove(waiter)
                self._events.pop(waiter, None)

    def _absent_since(self, table: str) -> int:
        return max(self._known_since, self._shrunk.get(table, 0))

    def _changed(self, gathered: list[Changes]) -> None:
        for changes in gathered:
            if changes.is_everything:
                self._known_since = changes.index
            for table in changes.shrunk:
                self._shrunk[table] = changes.index
            self._wake(changes)
            by_job = self._of_jobs(changes)
            if by_job:
                self._wake(by_job)

    def _wake(self, changes: Changes) -> None:
        for waiter in self._core.wake(changes):
            self._events.pop(waiter).set()

    def _of_jobs(self, changes: Changes) -> Changes:
        """The jobs whose evaluations changed, as changes of their own."""
        by_job = Changes(changes.index)
        for (evaluation_id,) in changes.keys(EVALUATIONS):
            row = self._machine.store.evaluations.row(evaluation_id)
            if row is not None:
                by_job.rows.append(Change(_OF_JOB, (row.namespace, row.job_id), changes.index))
        return by_job
