"""Raft as a pure state machine: stimuli in, effects out; no clock, socket, disk, thread or chance inside.

Theory
------

*Sources.* Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm (extended version)": 5.1 to 5.4
for elections and replication, 6 for joint membership, 7 for snapshots. Ongaro's dissertation: 3.10 (leadership
transfer), 4.2.2 (servers that left), 6.4 (ReadIndex), 9.6 (pre-vote), 10.2.1 (sending while writing).

*States.* A server is follower, pre-candidate, candidate or leader in some term. Independently of that it may be a
voter, a learner, or in no config at all.

    follower --time-out, is voter--> pre-candidate --quorum would vote--> candidate --quorum voted--> leader
        ^                                 |                                   |                          |
        +--------- a leader or a higher term is heard, a ballot is lost, no contact with a quorum -------+

*Stimuli.* `tick`, `step` (a message), `propose`, `propose_config`, `transfer_leadership`, `read_index`; and reports
from the runner: `stored`, `applied`, `snapshot_made`, `snapshot_received`, `snapshot_failed`, `peer_unreachable`,
`note_digest`. None of them does anything by itself: what should happen is gathered and handed out by `take_effects`.

*Invariants* this module keeps, whatever arrives in whatever order:

 1. The term never falls; the vote changes only from nobody to somebody, or back to nobody when the term rises.
 2. What a peer may rely on leaves only after it is durable: vote grants, vote requests (they advertise a log end) and
    acknowledgements are in `after_store`. A candidate's own vote and a leader's own match are no exception.
 3. An acknowledgement names the index that was verified against the leader's log, never the end of our own.
 4. Entries at or below the commit index are never cut off; a message that asks for it stops the server.
 5. A leader commits by counting only entries of its own term; older ones go along.
 6. Nothing is passed on for applying before it is committed *and* durable here.
 7. A config counts from the moment it is appended. At most one is uncommitted, and none is proposed before an entry of
    the own term is committed. Every quorum is joint while two sets of voters exist.
 8. Replies count once per server and term, by id; a leader without a vote does not count itself.
 9. A read is confirmed only after an own-term commit and by a heartbeat round that began after the read did.
10. A completion of a write issued in another term says nothing about the log's end (`stored`): the same index and term
    may have been overwritten and written again since.

*Departures and additions.*

 - Pre-vote and the lease are always on. A server that hears a live leader ignores (pre)vote requests without even
   taking over their term, unless the leader itself asked for the election (`force`).
 - A learner, and a server without any config, answers vote requests: it may be a voter already without knowing it, and
   its answer counts only where the asker's config says so. It never campaigns; but a server whose vote ends with a
   change not yet known to be committed still does, because it may be the only one that can win (dissertation 4.2.2).
 - Voters always change through a joint config, which the leader leaves by itself as soon as it is committed. Servers
   that left are still sent entries for one election time-out, so that they learn of it.
 - A refused append answers with the last place where the logs could agree; both sides skip whole terms.
 - An empty append that only moves the commit index is not answered: the reply would tell the leader nothing.
 - "Lost" is said of a proposal only when another entry is committed in its place (`unsettled`), not when it is cut off.
 - State digests ride on heartbeat replies (`digests`); a server that lost leadership too often stands back (`flaps`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedsched.raft import rare
from fedsched.raft.entry import Entry
from fedsched.raft.following import Following
from fedsched.raft.membership import Config, bootstrap_entry
from fedsched.raft.messages import (
    Append,
    AppendReply,
    Diverged,
    Effects,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    Restored,
    SnapshotDone,
    SnapshotMeta,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from fedsched.raft.settings import CoreSettings
from fedsched.raft.status import CoreStatus, PeerStatus

_FROM_LEADERS = (Append, Heartbeat, SnapshotOffer)


class RaftCore(Following):
    """One server's share of its region's consensus. All methods return at once; none may be called from two threads."""

    def __init__(self, server_id: str, restored: Restored, settings: CoreSettings, draw: Callable[[int], int]) -> None:
        """`draw(n)` gives a number in [0, n): the only chance there is, for election time-outs."""
        super().__init__(server_id, restored, settings, draw)
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            Append: self._on_append,
            AppendReply: self._on_append_reply,
            Heartbeat: self._on_heartbeat,
            HeartbeatReply: self._on_heartbeat_reply,
            Vote: self._on_vote,
            VoteReply: self._on_vote_reply,
            ReadIndex: self._on_read_index,
            ReadIndexReply: self._on_read_index_reply,
            SnapshotOffer: self._on_snapshot_offer,
            SnapshotDone: self._on_snapshot_done,
            TimeoutNow: self._on_timeout_now,
            Diverged: self._on_diverged,
        }

    # ----------------------------------------------------------------- stimuli

    def tick(self) -> None:
        """One step of the logical clock."""
        if self._fatal:
            return
        self.now += 1
        if self.office is not None:
            self._tick_leader(self.office)
        else:
            self._tick_election()
            self._expire_reads()

    def step(self, message: Message) -> None:
        """A message from a peer, or from ourselves (our own vote, once durable)."""
        if self._fatal:
            return
        if message.to != self.server_id:
            self.counters["messages_foreign"] += 1
            return
        kind = type(message)
        if kind is PreVote:
            self._on_prevote(message)  # type: ignore[arg-type]
        elif kind is PreVoteReply:
            self._on_prevote_reply(message)  # type: ignore[arg-type]
        elif message.term < self.term:
            self._answer_old(message)
        elif message.term == self.term or self._raise_term(message):
            self._handlers[kind](message)

    def stored(self, upto_index: int, upto_term: int, at_term: int) -> None:
        """A write issued in `at_term` is durable, and with it the log up to this entry (0: only term and vote)."""
        log = self.log
        if at_term != self.term:
            rare.sometimes("stored_in_old_term")
        elif upto_index > log.durable:
            if log.matches(upto_index, upto_term):
                log.durable = upto_index
                self._dirty = True
                self._advance_commit()
            else:
                rare.sometimes("stored_since_overwritten")

    def applied(self, index: int) -> None:
        """The state machine has applied everything up to `index`."""
        assert index <= self._passed_on, f"applied {index}, but only {self._passed_on} was passed on"
        self._applied = max(self._applied, index)

    def bootstrap(self, config: Config) -> bool:
        """Found a region: every founder writes the same first entry, so it does not matter whose is replicated.

        Does nothing on a server that has a log or has taken part in an election: a region exists then, and its leader
        will send the same entry.
        """
        if self.log.last or self.term or self._fatal:
            return False
        first = bootstrap_entry(config)
        self.term = first.term
        self.log.append(first)
        self.history.note([first])
        self.epoch += 1
        self._hard_moved = self._config_moved = self._role_moved = self._dirty = True
        self._reset_timer()
        return True

    def snapshot_made(self, meta: SnapshotMeta, compact_to: int) -> None:
        """A snapshot of our own state is on disk: the log up to `compact_to` is no longer needed."""
        assert compact_to <= meta.index <= self._passed_on, f"snapshot {meta.index}, compact to {compact_to}"
        if self.snapshot is None or meta.index > self.snapshot.index:
            self.snapshot = meta
        self.log.compact(compact_to)
        self.history.compact(compact_to)

    # ----------------------------------------------------------------- effects

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` would have anything to say."""
        return self._dirty

    def take_effects(self, *, spread_commit: bool = True) -> Effects:
        """What is to be done, once; see `Effects` for the order of duties.

        Without `spread_commit` nothing is sent only to tell followers of a new commit index: a runner that expects more
        proposals in a moment lets it travel with those, and takes effects once more if none came.
        """
        office = self.office
        if office is None:
            self._ask_leader()
        else:
            self._start_round(office)
            office.fill(self._send_now, self.commit, self.snapshot, self.now, spread_commit=spread_commit)
        return self._gather()

    # ----------------------------------------------------------------- looking

    def entries(self, first: int, last: int) -> list[Entry]:
        """Entries `first..last` as far as the log has them; none if it no longer reaches back to `first`."""
        return self.log.slice(first, last)

    def term_at(self, index: int) -> int:
        """The term at `index`, which must lie in the log or be its compaction point."""
        term = self.log.term(index)
        if term is None:
            raise LookupError(f"the log holds {self.log.first} to {self.log.last}, not {index}")
        return term

    def config_at(self, index: int) -> tuple[Config, int]:
        """The config in force at `index`, and the index that brought it."""
        return self.history.at(index)

    def status(self) -> CoreStatus:
        office, log = self.office, self.log
        return CoreStatus(
            server_id=self.server_id,
            role=self.role,
            term=self.term,
            leader=self.leader,
            epoch=self.epoch,
            commit=self.commit,
            applied=self._applied,
            last=log.last,
            last_term=log.last_term,
            durable=log.durable,
            first_index=log.first,
            log_bytes=log.bytes,
            snapshot_index=self.snapshot.index if self.snapshot else 0,
            config=self.config,
            config_index=self.history.index,
            leader_contact_ticks=0 if office else self._elapsed,
            is_established=self.is_established,
            uncommitted_bytes=log.bytes_between(self.commit, log.last) if office else 0,
            transferring_to=office.transfer_to if office else None,
            digest_disagreement_at=office.digests.disagreement_at if office else 0,
            peers=self._peer_statuses(),
            counters=dict(self.counters),
        )

    def _peer_statuses(self) -> tuple[PeerStatus, ...]:
        if self.office is None:
            return ()
        return tuple(
            PeerStatus(
                id=progress.server_id,
                match=progress.match,
                next=progress.next,
                mode=progress.mode.value,
                inflight=progress.inflight,
                inflight_bytes=progress.inflight_bytes,
                last_contact_ticks=self.now - progress.last_contact,
                is_active=self.now - progress.last_contact < self.settings.election_ticks,
            )
            for progress in self.office.peers.values()
            if not progress.departs_at
        )

    # ------------------------------------------------------------------- terms

    def _raise_term(self, message: Message) -> bool:
        """Take over a higher term; False if the message is to be ignored instead."""
        if isinstance(message, Vote):
            if self._ignores(message):
                return False
            self._become_follower(message.term, None)
        elif isinstance(message, _FROM_LEADERS):
            self._become_follower(message.term, message.sender)
        else:
            self._become_follower(message.term, None)
        return True

    def _answer_old(self, message: Message) -> None:
        """Whoever leads or campaigns in an old term learns that it is old; anything else is simply late."""
        if isinstance(message, _FROM_LEADERS):
            rare.sometimes("answer_stale_leader")
            index = message.prev_index if isinstance(message, Append) else 0
            self._send(AppendReply(sender=self.server_id, to=message.sender, term=self.term, ok=False, index=index))
        elif isinstance(message, Vote):
            self._refuse_vote(message)
