"""One log for a simulated region: commands in one order, committed late, with an unknown end when the leader changes.

Raft itself is simulated elsewhere. Here only what it lets its users see matters: an entry is appended by the leader of
one epoch, is committed a little later, is applied by every server at its own pace, and when leadership is lost the
uncommitted end of the log survives up to a point that nobody could have known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.errors import NotLeader, OutcomeUnknown, ProposalLost
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import RoleChange
from fedsched.server.machine import StateMachine

Promise = tuple[trio.Event, list[Any]]


class FleetLog:
    """The entries, and how many of them are committed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.committed = 0
        self.grown = trio.Event()
        """Something was appended or committed."""
        self.moved = trio.Event()
        """Something was committed."""

    def append(self, term: int, payload: bytes) -> int:
        entry = Entry(len(self.entries) + 1, term, EntryKind.COMMAND, payload)
        self.entries.append(entry)
        self.tell()
        return entry.index

    def commit(self, index: int) -> None:
        self.committed = max(self.committed, index)
        self.tell()
        event, self.moved = self.moved, trio.Event()
        event.set()

    def cut(self, keep: int) -> None:
        """The leader is gone: entries up to `keep` survive, and are therefore committed."""
        assert keep >= self.committed
        del self.entries[keep:]
        self.commit(keep)

    def tell(self) -> None:
        event, self.grown = self.grown, trio.Event()
        event.set()


class LogRaft:
    """One life of one server, as far as its users see of Raft."""

    def __init__(self, name: str, log: FleetLog, machine: StateMachine, applied: int) -> None:
        self.name = name
        self.role = RoleChange("follower", 0, None, 0)
        self.applied = applied
        self.servers: tuple[ServerInfo, ...] = ()
        """Nobody dials in this world."""
        self._log = log
        self._machine = machine
        self._promises: dict[int, Promise] = {}
        self._moved = trio.Event()
        self._changed = trio.Event()

    @property
    def is_leader(self) -> bool:
        return self.role.role == "leader"

    async def wait_applied(self, index: int) -> None:
        while self.applied < index:
            await self._moved.wait()

    async def wait_role_change(self) -> RoleChange:
        await self._changed.wait()
        return self.role

    def become(self, role: RoleChange) -> None:
        self.role = role
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def propose(
        self,
        payload: bytes,
        *,
        epoch: int | None = None,
        kind: EntryKind = EntryKind.COMMAND,
        is_essential: bool = False,
        on_appended: Callable[[int], None] | None = None,
    ) -> tuple[int, Any]:
        """As the real one: returns once applied here, or says that it never happened, or that nobody knows."""
        if not self.is_leader or (epoch is not None and epoch != self.role.epoch):
            raise NotLeader("this server is not the leader", leader=self.role.leader)
        index = self._log.append(self.role.term, payload)
        if on_appended is not None:
            on_appended(index)
        promise: Promise = (trio.Event(), [])
        self._promises[index] = promise
        await promise[0].wait()
        outcome = promise[1][0]
        if isinstance(outcome, Exception):
            raise outcome
        return index, outcome

    def apply(self, upto: int, looked_at: Callable[[LogRaft, Entry, Any], None]) -> None:
        """Apply what is committed, entry by entry; then tell whoever listens, as one slice."""
        settled: list[tuple[Promise, Any]] = []
        while self.applied < min(upto, self._log.committed):
            entry = self._log.entries[self.applied]
            result = self._machine.apply(entry)
            self.applied = entry.index
            looked_at(self, entry, result)
            promise = self._promises.pop(entry.index, None)
            if promise is not None:
                settled.append((promise, result))
        self._machine.after_apply(self.applied)
        for (event, place), result in settled:
            place.append(result)
            event.set()
        event, self._moved = self._moved, trio.Event()
        event.set()

    def fail_promises(self, kept: int) -> None:
        """Leadership is lost: entries beyond `kept` never happened, and of the others this server cannot tell."""
        promises, self._promises = self._promises, {}
        for index, (event, place) in promises.items():
            lost = index > kept
            place.append(ProposalLost("another entry took its place") if lost else OutcomeUnknown("leadership lost"))
            event.set()
