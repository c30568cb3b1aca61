"""What a server of any role has: term and vote, log, config, commit index, and the effects it is gathering.

The roles are built on this one by one (`leading`, `elections`, `following`); `core` puts them together and holds the
theory. Here live the few moves that all of them share and that must be right everywhere: how a term rises, how a role
changes, how the commit index moves, what goes into one set of effects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from fedsched.raft import rare
from fedsched.raft.campaign import Campaign
from fedsched.raft.digests import OwnDigests
from fedsched.raft.entry import Entry
from fedsched.raft.flaps import FlapGuard
from fedsched.raft.log import RaftLog
from fedsched.raft.membership import Config, ConfigHistory
from fedsched.raft.messages import (
    Effects,
    HardState,
    Lost,
    Message,
    ReadIndexReply,
    ReadReady,
    Restored,
    RoleChange,
    SnapshotMeta,
    SnapshotOffer,
)
from fedsched.raft.office import Office
from fedsched.raft.reads import FollowerReads, Reader
from fedsched.raft.settings import CoreSettings
from fedsched.raft.unsettled import Unsettled

FOLLOWER = "follower"
PRECANDIDATE = "precandidate"
CANDIDATE = "candidate"
LEADER = "leader"


class Ground:
    """State and moves common to all roles."""

    def __init__(self, server_id: str, restored: Restored, settings: CoreSettings, draw: Callable[[int], int]) -> None:
        self.server_id = server_id
        self.settings = settings
        self.role = FOLLOWER
        self.leader: str | None = None
        self.epoch = 1
        self.now = 0
        """Ticks since the start."""
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.snapshot = restored.snapshot
        self.office: Office | None = None
        """The leader's share; exists exactly while this server leads."""
        self._draw = draw
        self._campaign: Campaign | None = None
        self._reads = FollowerReads(settings.waiting_reads, draw(1 << 48))
        self._digests = OwnDigests()
        self._flaps = FlapGuard(settings)
        self._unsettled = Unsettled()
        self._acked = 0
        """The highest index acknowledged to the current leader in the current term."""
        self._number = 0
        self._reset: SnapshotMeta | None
        self._clear_effects()
        self._fatal = ""
        self._restore(restored)
        self._reset_timer()
        self._config_moved = self._role_moved = self._dirty = True

    @property
    def config(self) -> Config:
        """The config in force: the newest in the log, committed or not."""
        return self.history.current

    @property
    def is_established(self) -> bool:
        """Leads, and has applied an entry of its own term: leader-only services may run."""
        return self.office is not None and self._applied >= self.office.start

    def _restore(self, restored: Restored) -> None:
        hard, snapshot = restored.hard_state, restored.snapshot
        self.log = RaftLog(restored.prev_index, restored.prev_term, restored.entries)
        base = 0
        if snapshot is not None:
            base = snapshot.index
            if snapshot.index >= self.log.prev_index and not self.log.matches(snapshot.index, snapshot.term):
                # The snapshot was on disk before the log was told to make way for it.
                self.log = RaftLog(snapshot.index, snapshot.term)
                self._reset = snapshot
        assert self.log.prev_index <= base, f"log starts after {self.log.prev_index}, the snapshot covers {base}"
        self.history = ConfigHistory(snapshot.config, snapshot.config_index) if snapshot else ConfigHistory()
        tail = self.log.slice(max(self.history.index + 1, self.log.first), self.log.last)
        self.history.note(tail)
        self.term = max(hard.term, self.log.last_term)
        self.vote = hard.vote if hard.term == self.term else None
        self.commit = max(base, min(hard.commit, self.log.last))
        self._applied = self._passed_on = base
        self._hint = hard.commit
        self._hard_moved = self.term != hard.term

    # ------------------------------------------------------------ shared moves

    def _become_follower(self, term: int, leader: str | None) -> None:
        """Follow `leader` (or nobody yet) in `term`. The vote is forgotten only if the term rises."""
        if term > self.term:
            self.term = term
            self.vote = None
            self._hard_moved = True
        self._campaign = None
        self._move_to(FOLLOWER, leader)
        self._reset_timer()

    def _move_to(self, role: str, leader: str | None) -> None:
        if self.office is not None:
            self._close_office(self.office)
        if leader != self.leader:
            self._fail_reads(self._reads.drop())
        self.role = role
        self.leader = leader
        self.epoch += 1
        self._acked = 0
        self._role_moved = self._dirty = True

    def _close_office(self, office: Office) -> None:
        self.office = None
        self.counters["leaderships_lost"] += 1
        self._unsettled.add(max(office.start, self.commit + 1), self.log.last, office.term)
        if office.transfer_to is None and self._flaps.lost(self.now):
            rare.sometimes("flap_guard_widens")
        for reader in office.reads.drop():
            self._answer(reader, 0)

    def _reset_timer(self) -> None:
        ticks = self.settings.election_ticks
        if self._flaps.is_wide(self.now):
            ticks *= 2
        self._elapsed = 0
        self._timeout = ticks + self._draw(ticks)

    def _commit_to(self, index: int) -> None:
        """Everything up to `index` is known to be committed."""
        assert self.commit < index <= self.log.last, f"commit {self.commit} to {index} in a log up to {self.log.last}"
        self.commit = index
        self._dirty = True
        if index > self.log.durable:
            rare.sometimes("commit_beyond_durable")
        if self._unsettled:
            self._lost += self._unsettled.settle(self.log, index)

    def _truncate(self, first: int) -> None:
        rare.sometimes("truncate_conflict")
        self.log.truncate(first)
        if self.history.truncate(first):
            rare.sometimes("config_rolled_back")
            self._config_moved = True

    def _stop(self, why: str) -> None:
        """A promise was broken; the only right thing left is to stop."""
        self._fatal = f"server {self.server_id}, term {self.term}: {why}"
        self._dirty = True

    # --------------------------------------------------------------- answering

    def _send(self, message: Message) -> None:
        self._send_now.append(message)
        self._dirty = True

    def _send_after_store(self, message: Message) -> None:
        self._after_store.append(message)
        self._dirty = True

    def _answer(self, reader: Reader, index: int) -> None:
        """Tell whoever wanted to read; index 0 means "ask again"."""
        if reader.server_id:
            self._send(
                ReadIndexReply(sender=self.server_id, to=reader.server_id, term=self.term, ctx=reader.ctx, index=index)
            )
        else:
            self._ready_reads.append(ReadReady(reader.ctx, index))
            self._dirty = True

    def _fail_reads(self, contexts: list[int]) -> None:
        for ctx in contexts:
            self._answer(Reader("", ctx), 0)

    # ----------------------------------------------------------------- effects

    def _clear_effects(self) -> None:
        self._send_now: list[Message] = []
        self._after_store: list[Message] = []
        self._ready_reads: list[ReadReady] = []
        self._lost: list[Lost] = []
        self._reset = None
        self._install: SnapshotMeta | None = None
        self._fetch: SnapshotOffer | None = None
        self._hard_moved = self._role_moved = self._config_moved = self._dirty = False

    def _gather(self) -> Effects:
        """One set of effects out of everything that happened since the last one."""
        self._number += 1
        if self._fatal:
            self._clear_effects()
            return Effects(number=self._number, fatal=self._fatal)
        log = self.log
        append = log.take_unsaved()
        effects = Effects(
            number=self._number,
            hard_state=self._hard_state(append),
            reset=self._reset,
            append=append,
            send_now=self._send_now,
            after_store=self._after_store,
            commit_to=self._newly_safe(),
            install=self._install,
            fetch=self._fetch,
            reads=self._ready_reads,
            lost=self._lost,
            at_term=self.term,
            last_index=log.last,
            last_term=log.last_term,
        )
        if self._role_moved:
            effects.role = RoleChange(self.role, self.term, self.leader, self.epoch)
        if self._config_moved:
            effects.config = self.config
        self._clear_effects()
        return effects

    def _hard_state(self, append: tuple[Entry, ...]) -> HardState | None:
        """Term and vote when they moved; the commit hint travels along with whatever is written anyway."""
        if not self._hard_moved and (self._hint >= self.commit or not append):
            return None
        self._hint = self.commit
        return HardState(self.term, self.vote, self.commit)

    def _newly_safe(self) -> int:
        """How far entries may be applied now: committed, and durable here."""
        safe = min(self.commit, self.log.durable)
        if safe <= self._passed_on:
            return 0
        self._passed_on = safe
        return safe
