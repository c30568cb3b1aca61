"""What a server does with the word of a leader: take its entries, its commit index, its snapshots."""

from __future__ import annotations

from fedsched.codec.cbor import CodecError
from fedsched.raft import rare
from fedsched.raft.elections import Elections
from fedsched.raft.entry import Entry
from fedsched.raft.ground import FOLLOWER
from fedsched.raft.log import RaftLog
from fedsched.raft.membership import ConfigHistory
from fedsched.raft.messages import (
    Append,
    AppendReply,
    Diverged,
    Heartbeat,
    HeartbeatReply,
    ReadIndex,
    ReadIndexReply,
    ReadReady,
    SnapshotDone,
    SnapshotMeta,
    SnapshotOffer,
)
from fedsched.raft.reads import Reader


class Following(Elections):
    """The follower's moves."""

    def _heed(self, sender: str) -> bool:
        """Somebody speaks as the leader of our term. False if that cannot be."""
        if self.leader != sender:
            if self.leader is not None:
                self._stop(f"{sender} and {self.leader} both lead this term")
                return False
            self._become_follower(self.term, sender)
        elif self.role != FOLLOWER:
            self._stop(f"{sender} speaks as leader in our name")
            return False
        self._elapsed = 0
        return True

    # ----------------------------------------------------------------- entries

    def _on_append(self, message: Append) -> None:
        if not self._heed(message.sender):
            return
        entries, log, prev = message.entries, self.log, message.prev_index
        verified = prev + len(entries)
        if entries and (entries[0].index != prev + 1 or entries[-1].index != verified):
            self.counters["messages_malformed"] += 1
            return
        if prev < log.prev_index:
            rare.sometimes("append_below_log_start")
            entries = entries[log.prev_index - prev :]  # compacted, so committed, so the same as the leader's
        elif not log.matches(prev, message.prev_term):
            self._refuse(message)
            return
        if entries and not self._take(entries):
            return
        is_news = min(message.commit, verified) > self.commit
        if is_news:
            self._commit_to(min(message.commit, verified))
        if message.entries or not is_news or verified > self._acked:
            self._acked = max(self._acked, verified)
            self._acknowledge(message.sender, verified)

    def _acknowledge(self, leader: str, index: int) -> None:
        self._send_after_store(AppendReply(sender=self.server_id, to=leader, term=self.term, ok=True, index=index))

    def _refuse(self, message: Append) -> None:
        """Say where the logs may begin to agree: not after our last entry with a term up to the leader's there."""
        prev, log = message.prev_index, self.log
        if prev <= self.commit:
            self._stop(
                f"leader {message.sender} has term {message.prev_term} at committed index {prev}, we {log.term(prev)}"
            )
            return
        hint_index, hint_term = log.skip_back(prev, message.prev_term)
        if hint_index < self.commit:
            rare.sometimes("hint_at_commit")
            hint_index, hint_term = self.commit, log.term(self.commit) or 0
        self._send(
            AppendReply(
                sender=self.server_id,
                to=message.sender,
                term=self.term,
                ok=False,
                index=prev,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )

    def _take(self, entries: tuple[Entry, ...]) -> bool:
        """Bring the log in line with entries that follow a matching one. Equal ones stay where they are."""
        log = self.log
        new = entries
        if entries[0].index <= log.last:
            known = 0
            for entry in entries:
                if log.term(entry.index) != entry.term:
                    break
                known += 1
            if known:
                rare.sometimes("skip_known_entries")
            new = entries[known:]
            if new and new[0].index <= log.last:
                first = new[0].index
                if first <= self.commit:
                    self._stop(f"leader wants to replace the committed entry {first}")
                    return False
                self._truncate(first)
        for entry in new:
            log.append(entry)
        try:
            if self.history.note(new):
                self._config_moved = True
        except CodecError as why:
            self._stop(f"cannot read a membership entry: {why}")
            return False
        self._dirty = True
        return True

    def _on_heartbeat(self, message: Heartbeat) -> None:
        if not self._heed(message.sender):
            return
        if message.commit > self.log.last:
            self._stop(
                f"leader {message.sender} knows we held index {message.commit}, our log ends at {self.log.last}: "
                "data was lost; wipe this server and let it join under a new id"
            )
            return
        if message.commit > self.commit:
            self._commit_to(message.commit)
        self._send(
            HeartbeatReply(
                sender=self.server_id,
                to=message.sender,
                term=self.term,
                round=message.round,
                digest_index=self._digests.index,
                digest=self._digests.digest,
            )
        )

    def _on_diverged(self, message: Diverged) -> None:
        if message.sender == self.leader and self._digests.differs(message.index, message.expected):
            self._stop(f"the state at index {message.index} differs from what a majority has computed")

    # --------------------------------------------------------------- snapshots

    def _on_snapshot_offer(self, message: SnapshotOffer) -> None:
        if not self._heed(message.sender):
            return
        meta = message.meta
        if meta.index <= self.commit or self.log.matches(meta.index, meta.term):
            rare.sometimes("snapshot_offer_not_needed")
            self._commit_snapshot(meta)
            self._acknowledge(message.sender, meta.index)
        else:
            self._fetch = message
            self._dirty = True

    def snapshot_received(self, meta: SnapshotMeta) -> None:
        """A snapshot fetched from a leader lies verified on our disk."""
        if self._fatal:
            return
        if meta.index <= self.commit:
            rare.sometimes("snapshot_fallen_behind")
        elif self.log.matches(meta.index, meta.term):
            rare.sometimes("snapshot_over_matching_log")
            self._commit_snapshot(meta)
        elif self.office is not None:
            self._stop(f"snapshot {meta.index} holds committed entries that this leader's log does not have")
            return
        else:
            self._replace_log(meta)
        self._report(meta, ok=True)

    def snapshot_failed(self, meta: SnapshotMeta) -> None:
        """Fetching ended without a usable snapshot; whoever leads may offer another."""
        self.counters["snapshot_fetches_failed"] += 1
        self._report(meta, ok=False)

    def _commit_snapshot(self, meta: SnapshotMeta) -> None:
        """A snapshot is of committed state: if our log holds its last entry, that much is committed."""
        if meta.index > self.commit:
            self._commit_to(meta.index)

    def _replace_log(self, meta: SnapshotMeta) -> None:
        """Nothing of our log beyond the commit index can be part of a log that holds the snapshot's last entry."""
        rare.sometimes("snapshot_replaces_log")
        self.log = RaftLog(meta.index, meta.term)
        self.history = ConfigHistory(meta.config, meta.config_index)
        self.snapshot = self._reset = self._install = meta
        self._passed_on = meta.index
        self._config_moved = True
        self._commit_reset(meta.index)

    def _commit_reset(self, index: int) -> None:
        self.commit = index
        self._dirty = True
        self._lost += self._unsettled.settle(self.log, index)

    def _report(self, meta: SnapshotMeta, *, ok: bool) -> None:
        if self.role != FOLLOWER or self.leader is None:
            return
        done = SnapshotDone(sender=self.server_id, to=self.leader, term=self.term, index=meta.index, ok=ok)
        if ok:
            self._send_after_store(done)
            self._acknowledge(self.leader, meta.index)
        else:
            self._send(done)

    # ------------------------------------------------------------------- reads

    def read_index(self, ctx: int) -> None:
        """Ask for an index at which a read is linearizable; the answer comes as `Effects.reads`."""
        if self.office is not None:
            self._add_read(self.office, Reader("", ctx))
        elif self.leader is not None and self._reads.add(ctx):
            self._dirty = True
        else:
            self._answer(Reader("", ctx), 0)

    def _ask_leader(self) -> None:
        """One question on behalf of everybody who waits."""
        if self.leader is None or not self._reads.can_ask:
            return
        question = self._reads.ask(self.now)
        self._send(ReadIndex(sender=self.server_id, to=self.leader, term=self.term, ctx=question))

    def _expire_reads(self) -> None:
        expired = self._reads.expired(self.now, self.settings.election_ticks)
        if expired:
            rare.sometimes("expired_follower_read")
            self._fail_reads(expired)

    def _on_read_index(self, request: ReadIndex) -> None:
        reader = Reader(request.sender, request.ctx)
        if self.office is not None:
            self._add_read(self.office, reader)
        else:
            self._answer(reader, 0)

    def _on_read_index_reply(self, reply: ReadIndexReply) -> None:
        if reply.sender != self.leader:
            return
        for ctx in self._reads.answered(reply.ctx):
            self._ready_reads.append(ReadReady(ctx, reply.index))
            self._dirty = True
        if self._reads.can_ask:
            self._dirty = True
