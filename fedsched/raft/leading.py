"""What only a leader does: take proposals, commit, confirm reads, change the membership, hand over."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.raft import rare
from fedsched.raft.entry import PAYLOAD_BYTES_MAX, RECORD_OVERHEAD, Entry, EntryKind
from fedsched.raft.ground import LEADER, Ground
from fedsched.raft.membership import BadChange, Config, ConfigChange, changed, encode_config, settled
from fedsched.raft.messages import (
    REFUSED_BAD_CHANGE,
    REFUSED_BUSY,
    REFUSED_CONFIG_CHANGED,
    REFUSED_CONFIG_IN_FLIGHT,
    REFUSED_NO_TARGET,
    REFUSED_NOT_ESTABLISHED,
    REFUSED_NOT_LEADER,
    REFUSED_STALE_EPOCH,
    REFUSED_TOO_LARGE,
    REFUSED_TRANSFERRING,
    Accepted,
    AppendReply,
    Diverged,
    HeartbeatReply,
    Refused,
    SnapshotDone,
    TimeoutNow,
)
from fedsched.raft.office import Office
from fedsched.raft.progress import Mode, Progress
from fedsched.raft.reads import Reader


class Leading(Ground):
    """The leader's moves."""

    # --------------------------------------------------------------- proposals

    def propose(
        self, payloads: Sequence[bytes], epoch: int | None = None, kind: EntryKind = EntryKind.COMMAND
    ) -> Accepted | Refused:
        """Append these payloads, all or none. A refusal is definite: nothing was appended anywhere."""
        assert payloads, "a proposal has at least one payload"
        assert kind is not EntryKind.CONFIG, "membership goes through propose_config"
        office = self.office
        if office is None or self._fatal:
            return Refused(REFUSED_NOT_LEADER, self.leader)
        if epoch is not None and epoch != self.epoch:
            return Refused(REFUSED_STALE_EPOCH, self.leader)
        if office.transfer_to is not None:
            return Refused(REFUSED_TRANSFERRING, office.transfer_to)
        total = RECORD_OVERHEAD * len(payloads)
        for payload in payloads:
            total += len(payload)
            if len(payload) > PAYLOAD_BYTES_MAX:
                return Refused(
                    REFUSED_TOO_LARGE,
                    self.leader,
                    f"an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} fit",
                )
        waiting = self.log.bytes_between(self.commit, self.log.last)
        if waiting and waiting + total > self.settings.uncommitted_bytes:
            rare.sometimes("uncommitted_limit")
            self.counters["proposals_refused_busy"] += 1
            return Refused(REFUSED_BUSY, self.leader, f"{waiting} bytes wait to be committed")
        return self._append_own(payloads, kind)

    def propose_config(self, change: ConfigChange, based_on: int | None = None) -> Accepted | Refused:
        """Change the membership. `based_on` is the config index the caller looked at; refused if that is out of date.

        At most one config is uncommitted at any time, and none is proposed before an own-term entry is committed.
        """
        office = self.office
        if office is None or self._fatal:
            return Refused(REFUSED_NOT_LEADER, self.leader)
        if office.transfer_to is not None:
            return Refused(REFUSED_TRANSFERRING, office.transfer_to)
        if self.commit < office.start:
            return Refused(REFUSED_NOT_ESTABLISHED, self.leader)
        if self.history.index > self.commit or self.config.is_joint:
            return Refused(REFUSED_CONFIG_IN_FLIGHT, self.leader)
        if based_on is not None and based_on != self.history.index:
            return Refused(
                REFUSED_CONFIG_CHANGED, self.leader, f"based on config {based_on}, now it is {self.history.index}"
            )
        try:
            config = changed(self.config, change)
        except BadChange as why:
            return Refused(REFUSED_BAD_CHANGE, self.leader, str(why))
        return self._append_config(office, config)

    def _append_own(self, payloads: Sequence[bytes], kind: EntryKind) -> Accepted:
        log, term = self.log, self.term
        first = index = log.last + 1
        for payload in payloads:
            log.append(Entry(index, term, kind, payload))
            index += 1
        self._dirty = True
        return Accepted(first, index - 1, term)

    def _append_config(self, office: Office, config: Config) -> Accepted:
        accepted = self._append_own((encode_config(config),), EntryKind.CONFIG)
        self.history.push(accepted.first, config)
        self._config_moved = True
        office.configure(config, self.now)
        self.counters["configs_proposed"] += 1
        return accepted

    # ------------------------------------------------------------------ office

    def _become_leader(self) -> None:
        self._campaign = None
        self._move_to(LEADER, self.server_id)
        self.counters["elections_won"] += 1
        office = Office(self.server_id, self.term, self.log, self.settings, self.config, self.now)
        self.office = office
        self._append_own((b"",), EntryKind.EMPTY)
        for index, digest in self._digests.items():
            self._compare_digest(office, self.server_id, index, digest)

    def _step_down(self, why: str) -> None:
        """Give up leadership within the term; the vote stays what it is."""
        self.counters[f"step_downs_{why}"] += 1
        self._become_follower(self.term, None)

    def _tick_leader(self, office: Office) -> None:
        settings = self.settings
        office.since_heartbeat += 1
        office.since_check += 1
        if office.since_check >= settings.election_ticks:
            office.since_check = 0
            if not office.has_contact():
                rare.sometimes("step_down_without_quorum")
                self._step_down("no_quorum")
                return
        if office.transfer_to is not None and self.now >= office.transfer_until:
            self._transfer_failed(office)
            if self.office is None:
                return
        office.let_departed_go(self.now, self.history.index)
        if office.since_heartbeat >= settings.heartbeat_ticks:
            office.heartbeats(self._send_now, self.commit)
            self._dirty = True

    def _advance_commit(self) -> None:
        """Commit what a quorum holds if the newest of it is of this term; older ones only go along (paper 5.4.2)."""
        office = self.office
        if office is None:
            return
        index = office.quorum_match()
        if index <= self.commit:
            return
        if self.log.term(index) != self.term:
            rare.sometimes("old_term_not_committed")
            return
        self._commit_to(index)
        if self.history.index <= index:
            self._config_committed(office)

    def _config_committed(self, office: Office) -> None:
        """Nothing about the membership is open: finish a joint change, or go if this server is no longer a voter."""
        if self.config.is_joint:
            rare.sometimes("auto_leave_joint")
            self._append_config(office, settled(self.config))
        elif not self.config.is_voter(self.server_id) and office.transfer_to is None:
            rare.sometimes("hand_over_after_removal")
            self._start_transfer(office, office.best_successor(self.now))

    # ----------------------------------------------------------------- replies

    def _peer(self, sender: str) -> tuple[Office, Progress] | None:
        """The office and the sender's progress; None if a reply concerns nobody (any more)."""
        office = self.office
        progress = office.peers.get(sender) if office is not None else None
        if office is None or progress is None:
            self.counters["replies_unexpected"] += 1
            return None
        progress.heard(self.now)
        return office, progress

    def _on_append_reply(self, reply: AppendReply) -> None:
        found = self._peer(reply.sender)
        if found is None:
            return
        office, progress = found
        self._dirty = True
        if not reply.ok:
            office.refused(progress, reply.index, reply.hint_index, reply.hint_term)
        elif reply.index > self.log.last:
            self.counters["replies_unexpected"] += 1
        elif office.verified(progress, reply.index):
            self._advance_commit()
            if office.transfer_to == reply.sender:
                self._try_hand_over(office)

    def _on_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        found = self._peer(reply.sender)
        if found is None:
            return
        office, progress = found
        progress.is_paused = False
        if progress.mode is Mode.SNAPSHOT:
            office.offer_again(progress, self._send_now, self.now)
            self._dirty = True
        elif progress.mode is Mode.PROBE:
            self._dirty = True
        elif progress.match < self.log.last:
            progress.poked = True
            self._dirty = True
        if office.transfer_to == reply.sender:
            self._try_hand_over(office)
        if reply.round > progress.round:
            progress.round = reply.round
            if office.reads.is_round_out and office.is_round_confirmed():
                self._answer_round(office)
        if reply.digest_index:
            self._compare_digest(office, reply.sender, reply.digest_index, reply.digest)

    def _on_snapshot_done(self, done: SnapshotDone) -> None:
        found = self._peer(done.sender)
        if found is None:
            return
        _, progress = found
        if progress.offered is None or progress.offered.index != done.index:
            return
        if done.ok:
            progress.probe_from(max(progress.match, done.index) + 1)
        else:
            self.counters["snapshots_failed"] += 1
            progress.probe()
            progress.is_paused = True  # offered anew after the next heartbeat, not at once
        self._dirty = True

    def peer_unreachable(self, server_id: str) -> None:
        """The link to it broke: whatever was on the way may be gone."""
        progress = self.office.peers.get(server_id) if self.office is not None else None
        if progress is not None and progress.mode is Mode.REPLICATE:
            rare.sometimes("peer_unreachable_in_replicate")
            progress.probe()
            progress.is_paused = True

    # ------------------------------------------------------------------- reads

    def _add_read(self, office: Office, reader: Reader) -> None:
        if self.commit < office.start:
            rare.sometimes("read_before_establishment")
        if office.reads.add(reader):
            self._dirty = True
        else:
            self._answer(reader, 0)

    def _start_round(self, office: Office) -> None:
        """Ask everybody whether we still lead, once for all reads that wait; not before an own entry is committed."""
        if not office.reads.can_start or self.commit < office.start:
            return
        office.reads.start(self.commit)
        if office.is_round_confirmed():
            self._answer_round(office)
        else:
            office.heartbeats(self._send_now, self.commit)

    def _answer_round(self, office: Office) -> None:
        index, readers = office.reads.confirmed()
        for reader in readers:
            self._answer(reader, index)
        self._dirty = True

    # ---------------------------------------------------------------- transfer

    def transfer_leadership(self, target: str | None = None) -> Refused | None:
        """Hand over to `target`, or to the most caught-up voter. None: under way; watch for the role change."""
        office = self.office
        if office is None or self._fatal:
            return Refused(REFUSED_NOT_LEADER, self.leader)
        if office.transfer_to is not None:
            return Refused(REFUSED_TRANSFERRING, office.transfer_to)
        chosen = office.best_successor(self.now) if target is None else target
        if chosen is None or chosen not in office.peers or chosen not in self.config.voters:
            return Refused(REFUSED_NO_TARGET, self.leader, f"{target or 'nobody'} is not another voter")
        self._start_transfer(office, chosen)
        return None

    def _start_transfer(self, office: Office, target: str | None) -> None:
        assert target is not None, "a config has voters, and this server is not the only one"
        self.counters["transfers"] += 1
        office.transfer_to = target
        office.transfer_until = self.now + self.settings.election_ticks
        self._dirty = True
        self._try_hand_over(office)

    def _try_hand_over(self, office: Office) -> None:
        target = office.transfer_to
        progress = office.peers.get(target) if target is not None else None
        if progress is not None and progress.match == self.log.last:
            self._send(TimeoutNow(sender=self.server_id, to=progress.server_id, term=self.term))

    def _transfer_failed(self, office: Office) -> None:
        """The target did not take over in time: lead on, or, without a vote of our own, leave it to the others."""
        rare.sometimes("abandon_transfer")
        self.counters["transfers_failed"] += 1
        if self.config.is_voter(self.server_id):
            office.transfer_to = None
        else:
            rare.sometimes("leader_without_vote")
            self._step_down("removed")

    # ----------------------------------------------------------------- digests

    def note_digest(self, index: int, digest: bytes) -> None:
        """The state machine's digest after applying `index`; compared with everybody else's."""
        self._digests.note(index, digest)
        if self.office is not None:
            self._compare_digest(self.office, self.server_id, index, digest)

    def _compare_digest(self, office: Office, server_id: str, index: int, digest: bytes) -> None:
        expected, differing = office.digests.note(server_id, index, digest, self.config)
        for culprit in differing:
            rare.sometimes("digest_minority")
            self.counters["digests_differing"] += 1
            if culprit == self.server_id:
                self._stop(f"the state at index {index} differs from what a majority has computed")
            else:
                self._send(Diverged(sender=self.server_id, to=culprit, term=self.term, index=index, expected=expected))
