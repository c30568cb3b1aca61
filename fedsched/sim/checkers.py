"""Feeds the invariants: everything the servers do and everything the users are told passes through here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry
from fedsched.raft.messages import Effects, Message, SnapshotMeta
from fedsched.sim.cores import SimServer
from fedsched.sim.invariants import INVARIANTS, OutcomesTrue, ReadsFresh
from fedsched.sim.machine import Outcome
from fedsched.sim.truth import Truth
from fedsched.sim.verdict import Broken


class Checkers:
    """All invariants of one run, fed by its servers and users."""

    def __init__(self, find: Callable[[str], SimServer | None]) -> None:
        self.truth = Truth(find)
        self.invariants = [make(self.truth) for make in INVARIANTS]
        self._started = self._hooks("started")
        self._took = self._hooks("took")
        self._sent = self._hooks("sent")
        self._applied = self._hooks("applied")
        self._made = self._hooks("made")
        self._installed = self._hooks("installed")
        self._after = self._hooks("after")
        self._outcomes = next(each for each in self.invariants if isinstance(each, OutcomesTrue))
        self._reads = next(each for each in self.invariants if isinstance(each, ReadsFresh))
        self._commit_seen: dict[str, int] = {}

    def _hooks(self, name: str) -> list[Callable[..., None]]:
        """The hook of this name of every invariant that has one of its own."""
        return [getattr(each, name) for each in self.invariants if name in type(each).__dict__]

    # --- from servers -------------------------------------------------------------------------------------------------

    def started(self, server: SimServer) -> None:
        core = server.core
        assert core is not None
        self._commit_seen[server.id] = core.commit
        for hook in self._started:
            hook(server, core)

    def took(self, server: SimServer, effects: Effects) -> None:
        core = server.core
        assert core is not None
        self._note_commit(server, core)
        for hook in self._took:
            hook(server, core, effects)

    def sent(self, server: SimServer, message: Message) -> None:
        for hook in self._sent:
            hook(server, message)

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        for hook in self._applied:
            hook(server, entry, outcome)

    def made(self, server: SimServer, meta: SnapshotMeta) -> None:
        for hook in self._made:
            hook(server, meta)

    def installed(self, server: SimServer, meta: SnapshotMeta) -> None:
        for hook in self._installed:
            hook(server, meta)

    def fatal(self, server: SimServer, why: str) -> None:
        """A core stopped itself: in a world where disks do what they promise, that is a broken promise of its own."""
        raise Broken("core_alarm", why, server.id)

    def after_event(self, owner: Any) -> None:
        if owner is None or owner.core is None or owner.is_clone:
            return
        core = owner.core
        if core.commit != self._commit_seen[owner.id]:
            self._note_commit(owner, core)
        for hook in self._after:
            hook(owner, core)

    def _note_commit(self, server: SimServer, core: RaftCore) -> None:
        """Take in what a server newly knows to be committed; two servers must never know different things."""
        seen, commit = self._commit_seen[server.id], core.commit
        if commit == seen:
            return
        self._commit_seen[server.id] = commit
        truth = self.truth
        for index in range(seen + 1, commit + 1):
            term = core.log.term(index)
            if term is None or (index <= core.log.prev_index and index not in truth.committed):
                continue
            if truth.committed.setdefault(index, term) != term:
                what = f"{server.id} takes ({index}, term {term}) for committed, it is of term {truth.committed[index]}"
                raise Broken("state_machine_safety", what, server.id)
            truth.entry_terms_committed.add(term)
        if commit > truth.commit_max:
            truth.commit_max = commit
            truth.commit_by_term[core.term] = commit

    # --- from users ---------------------------------------------------------------------------------------------------

    def attempted(self, attempt: int, request: str, payload: bytes) -> None:
        self._outcomes.attempted(attempt, request, payload)

    def accepted(self, attempt: int, index: int, term: int) -> None:
        """Nothing to hold against anybody yet."""

    def ended(self, attempt: int, outcome: str, index: int) -> None:
        self._outcomes.ended(attempt, outcome, index)

    def read_floor(self) -> int:
        return self.truth.commit_max

    def read_confirmed(self, server_id: str, floor: int, index: int) -> None:
        self._reads.confirmed(server_id, floor, index)
