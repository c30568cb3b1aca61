"""What must hold of a region of daemons, written down as it happens.

The book knows no Raft. It is told what was applied where, what was promised to whom, who held office when, and what
left a server for another; the first thing that contradicts the rest is raised as `Broken`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from fedsched.raft.messages import AppendReply, Message, Vote, VoteReply
from fedsched.sim.disk import LogImage
from fedsched.sim.linear import Operation, check
from fedsched.sim.machine import Command, Outcome
from fedsched.sim.trace import Trace, describe
from fedsched.sim.verdict import Broken

CLOSING_S = 0.001
"""Virtual time only moves when everybody waits, so this is ample for a cancelled office to be left."""


@dataclass(slots=True)
class Proposal:
    """One entry that somebody wants to have replicated, and how that ended."""

    server: str
    ended: str = ""
    """committed, lost, refused or unknown; empty while it is open."""
    index: int = 0


@dataclass(slots=True)
class HeldOffice:
    """A term of office at one server, from opening to closing."""

    server: str
    term: int
    must_close_by: float = float("inf")
    is_open: bool = True


@dataclass(slots=True)
class Applied:
    """One command as the first server to apply it saw it."""

    term: int
    payload: bytes
    outcome: Outcome
    digest: bytes
    first: str


@dataclass(slots=True)
class Book:
    """The story so far."""

    trace: Trace
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    """Turns that trio gave to children; part of the trace, so that two equal traces mean two equal schedules."""
    applied: dict[int, Applied] = field(default_factory=dict)
    history: list[Operation] = field(default_factory=list)
    trap: Callable[[str, str], None] | None = None
    """Called with server and kind of every event, in the middle of whatever it is."""
    _offices: dict[int, HeldOffice] = field(default_factory=dict)
    _proposals: dict[int, Proposal] = field(default_factory=dict)
    _committed_at: dict[int, int] = field(default_factory=dict)

    def note(self, server: str, kind: str, detail: str) -> None:
        """One event of the story."""
        self.trace.note(round(trio.current_time() * 1e6), server, kind, f"{detail} /{self.steps}")
        if self.trap is not None:
            self.trap(server, kind)

    # ---------------------------------------------------------------- applying

    def apply(self, server: str, index: int, term: int, payload: bytes, outcome: Outcome, digest: bytes) -> None:
        """A server applied a command: the same one, with the same result and state, as everybody else there."""
        seen = self.applied.get(index)
        if seen is None:
            self.applied[index] = Applied(term, payload, outcome, digest, server)
            attempt = Command.decode(payload).attempt
            if attempt in self._committed_at:
                raise Broken(
                    "applied once", f"attempt {attempt} is at {self._committed_at[attempt]} and at {index}", server
                )
            self._committed_at[attempt] = index
        elif (seen.term, seen.payload) != (term, payload):
            raise Broken("same log", f"{server} applied another entry at {index} than {seen.first}", server, seen.first)
        elif (seen.outcome, seen.digest) != (outcome, digest):
            raise Broken("same state", f"{server} and {seen.first} differ after {index}", server, seen.first)

    def loaded(self, server: str, index: int, digest: bytes) -> None:
        """A server took over a whole state that ends with the command at `index`."""
        self.counts["states loaded"] += 1
        seen = self.applied.get(index)
        if seen is not None and seen.digest != digest:
            raise Broken("same state", f"{server} loaded a state at {index} that {seen.first} never had", server)

    # --------------------------------------------------------------- proposals

    def proposed(self, attempt: int, server: str) -> None:
        self._proposals[attempt] = Proposal(server)
        self.note(server, "propose", str(attempt))

    def ended(self, attempt: int, how: str, index: int = 0, outcome: object = None) -> None:
        """Somebody learned how a proposal ended."""
        proposal = self._proposals[attempt]
        self.note(proposal.server, "ended", f"{attempt} {how} {index}")
        self.counts[f"proposals {how}"] += 1
        if proposal.ended:
            raise Broken("ends once", f"attempt {attempt} was {proposal.ended} and then {how}", proposal.server)
        proposal.ended, proposal.index = how, index
        if how == "committed":
            seen = self.applied.get(index)
            if seen is None or Command.decode(seen.payload).attempt != attempt or seen.outcome != outcome:
                raise Broken(
                    "true outcome", f"attempt {attempt} was committed at {index} with {outcome}", proposal.server
                )

    # ----------------------------------------------------------------- offices

    def office_opened(self, server: str, term: int) -> HeldOffice:
        self.note(server, "office", f"opened {term}")
        self.counts["offices"] += 1
        other = self._offices.get(term)
        if other is not None:
            raise Broken("one office", f"term {term} was held by {other.server}, then {server}", server, other.server)
        office = self._offices[term] = HeldOffice(server, term)
        return office

    def office_closed(self, office: HeldOffice) -> None:
        self.note(office.server, "office", f"closed {office.term}")
        office.is_open = False
        if trio.current_time() > office.must_close_by:
            raise Broken("office ends", f"the office of term {office.term} outlived its leadership", office.server)

    def role_moved(self, server: str, role: str, term: int, patience_s: float) -> None:
        """What a server says of itself; an office of any other term has to close."""
        self.note(server, "role", f"{role} {term}")
        for office in self._offices.values():
            if office.is_open and office.server == server and (role != "leader" or term != office.term):
                office.must_close_by = min(office.must_close_by, trio.current_time() + patience_s + CLOSING_S)

    # ------------------------------------------------------------------- wires

    def sending(self, message: Message, durable: LogImage) -> None:
        """Nothing that others rely on leaves a server before its disk holds it."""
        self.note(message.sender, "send", describe(message))
        hard = durable.hard_state
        if not isinstance(message, Vote | VoteReply | AppendReply) or message.term < hard.term:
            return
        match message:
            case VoteReply(granted=True):
                is_durable = (hard.term, hard.vote) == (message.term, message.to)
            case Vote():
                is_durable = (hard.term, hard.vote) == (message.term, message.sender)
            case AppendReply(ok=True):
                is_durable = message.term == hard.term and durable.last_index >= message.index
            case _:
                is_durable = True
        if not is_durable:
            raise Broken("durable first", f"{describe(message)} left while the disk held {hard}", message.sender)

    # --------------------------------------------------------------------- end

    def close(self) -> None:
        """All is quiet: what was said to whom, against what is in the log."""
        for office in self._offices.values():
            if office.is_open and trio.current_time() > office.must_close_by:
                raise Broken("office ends", f"the office of term {office.term} is still open", office.server)
        for attempt, proposal in self._proposals.items():
            index = self._committed_at.get(attempt)
            if not proposal.ended:
                raise Broken("ends once", f"attempt {attempt} never ended", proposal.server)
            if proposal.ended in ("lost", "refused") and index is not None:
                raise Broken(
                    "true outcome", f"attempt {attempt} was {proposal.ended}, yet it is at {index}", proposal.server
                )
            if proposal.ended == "committed" and index != proposal.index:
                raise Broken("true outcome", f"attempt {attempt} is not at {proposal.index}", proposal.server)
        for finding in check(self.history):
            raise Broken("linearizable", f"key {finding.key}: {finding.verdict.value}, {finding.what}")
