"""The leader's share of one term: everybody's progress, waiting reads, a transfer under way.

Decides what is sent to whom. Appends are built when the effects are taken, not when something is proposed, so that
whatever gathered meanwhile shares one message per follower and one disk write.
"""

from __future__ import annotations

from fedsched.raft import rare
from fedsched.raft.digests import DigestBook
from fedsched.raft.entry import Entry
from fedsched.raft.log import RaftLog
from fedsched.raft.membership import Config
from fedsched.raft.messages import Append, Heartbeat, Message, SnapshotMeta, SnapshotOffer
from fedsched.raft.progress import Mode, Progress
from fedsched.raft.quorum import has_quorum, majority_reached
from fedsched.raft.reads import LeaderReads
from fedsched.raft.settings import CoreSettings


class Office:
    """Exists from winning an election until stepping down."""

    def __init__(
        self, server_id: str, term: int, log: RaftLog, settings: CoreSettings, config: Config, now: int
    ) -> None:
        self.term = term
        self.start = log.last + 1
        """Index of the office's first own entry; until it is committed, nothing of this term is."""
        self.peers: dict[str, Progress] = {}
        """Sorted by id: what is sent in which order must not depend on hashing."""
        self.reads = LeaderReads(settings.waiting_reads)
        self.digests = DigestBook()
        self.transfer_to: str | None = None
        self.transfer_until = 0
        self.since_heartbeat = 0
        self.since_check = 0
        self._server_id = server_id
        self._log = log
        self._settings = settings
        self._own = Progress(server_id, 0, now)
        self._slice: tuple[int, int, tuple[Entry, ...]] = (0, 0, ())
        self.configure(config, now)
        for progress in self.peers.values():
            progress.is_active = False  # whoever just voted has until the first quorum check to show up again

    # --------------------------------------------------------------- membership

    def configure(self, config: Config, now: int) -> None:
        """Keep progress for exactly the members, and for a while for those that just left, so that they hear of it."""
        peers = dict(self.peers)
        for server_id in config.members - {self._server_id}:
            known = peers.get(server_id)
            if known is None:
                peers[server_id] = Progress(server_id, self._log.last + 1, now)
            else:
                known.departs_at = 0
        for server_id, progress in peers.items():
            if server_id not in config.members and not progress.departs_at:
                progress.departs_at = now + self._settings.election_ticks
        self.peers = {server_id: peers[server_id] for server_id in sorted(peers)}
        everybody = {**self.peers, self._server_id: self._own}
        self._config = config
        self._groups = [
            [everybody[server_id] for server_id in sorted(group)] for group in (config.voters, config.outgoing) if group
        ]

    def let_departed_go(self, now: int, config_index: int) -> None:
        for server_id, progress in list(self.peers.items()):
            if progress.departs_at and (progress.match >= config_index or now >= progress.departs_at):
                if progress.match >= config_index:
                    rare.sometimes("departed_server_told")
                del self.peers[server_id]

    # ------------------------------------------------------------------ quorums

    def quorum_match(self) -> int:
        """The highest index that a quorum holds durably. We count only if we vote, and only what we synced."""
        self._own.match = self._log.durable
        return min(majority_reached([progress.match for progress in group]) for group in self._groups)

    def has_contact(self) -> bool:
        """Whether a quorum was heard from since the last time this was asked."""
        active = {self._server_id}
        for progress in self.peers.values():
            if progress.is_active:
                active.add(progress.server_id)
            progress.is_active = False
        return has_quorum(self._config, active)

    def is_round_confirmed(self) -> bool:
        wanted = self.reads.round
        answered = {self._server_id}
        answered.update(server_id for server_id, progress in self.peers.items() if progress.round >= wanted)
        return has_quorum(self._config, answered)

    def best_successor(self, now: int) -> str | None:
        """Of the voters heard from lately the one with the longest log; of equal ones the first by id."""
        voters = [p for p in self.peers.values() if p.server_id in self._config.voters]
        recent = now - self._settings.election_ticks
        best = max(voters, key=lambda p: (p.last_contact > recent, p.match), default=None)
        return best.server_id if best else None

    # ------------------------------------------------------------------ replies

    def verified(self, progress: Progress, index: int) -> bool:
        """A follower holds everything up to `index`; True if that was news."""
        news = progress.acknowledged(index)
        if progress.mode is Mode.PROBE:
            is_found = index == progress.match
        else:
            # What was offered is there: go on from the log, or offer anew if that was compacted further meanwhile.
            offered = progress.offered
            is_found = offered is not None and progress.match >= min(offered.index, self._log.prev_index)
        if is_found:
            progress.replicate()
        return news

    def refused(self, progress: Progress, index: int, hint_index: int, hint_term: int) -> None:
        """A follower does not have (index, our term there). The hint is where its log may begin to agree with ours."""
        if progress.mode is Mode.REPLICATE and index > progress.match:
            progress.probe()  # everything up to match is certain, so something on the way got lost
        elif progress.mode is Mode.PROBE and index == progress.next - 1:
            common, _ = self._log.skip_back(hint_index, hint_term)
            progress.probe_from(max(min(index, common + 1), progress.match + 1))
        else:
            rare.sometimes("stale_refusal")

    # ------------------------------------------------------------------ sending

    def heartbeats(self, out: list[Message], commit: int) -> None:
        """One to everybody. The commit index is capped at what the receiver is known to hold."""
        self.since_heartbeat = 0
        for server_id, progress in self.peers.items():
            out.append(
                Heartbeat(
                    sender=self._server_id,
                    to=server_id,
                    term=self.term,
                    commit=min(commit, progress.match),
                    round=self.reads.round,
                )
            )

    def fill(
        self, out: list[Message], commit: int, snapshot: SnapshotMeta | None, now: int, *, spread_commit: bool = True
    ) -> None:
        """Everything that may be sent to anybody right now."""
        for progress in self.peers.values():
            if progress.mode is Mode.SNAPSHOT or progress.is_paused:
                continue
            if progress.next <= self._log.prev_index:
                assert snapshot is not None, "a log is only compacted behind a snapshot"
                progress.offer(snapshot, now)
                out.append(self._offer(progress, snapshot))
            elif progress.mode is Mode.REPLICATE:
                self._stream(progress, out, commit, spread_commit)
            else:
                progress.is_paused = True
                self._probe(progress, out, commit)

    def offer_again(self, progress: Progress, out: list[Message], now: int) -> None:
        """The follower lives but has not reported for a while: the offer, or its report, may have been lost."""
        if progress.offered is not None and now - progress.offered_at >= self._settings.election_ticks:
            rare.sometimes("resend_snapshot_offer")
            progress.offered_at = now
            out.append(self._offer(progress, progress.offered))

    def _stream(self, progress: Progress, out: list[Message], commit: int, spread_commit: bool) -> None:
        log, settings = self._log, self._settings
        is_silent = True
        while progress.next <= log.last:
            if not progress.has_room(settings.window_messages, settings.window_bytes):
                rare.sometimes("window_full")
                break
            message, size = self._append(progress, commit)
            progress.sent(message.prev_index + len(message.entries), size)
            progress.commit_told = min(commit, progress.next - 1)
            out.append(message)
            is_silent = False
        is_untold = spread_commit and progress.commit_told < min(commit, progress.next - 1)
        if is_silent and (progress.poked or is_untold):
            progress.commit_told = min(commit, progress.next - 1)
            out.append(self._empty(progress, commit))
        progress.poked = False

    def _probe(self, progress: Progress, out: list[Message], commit: int) -> None:
        if progress.next <= self._log.last:
            out.append(self._append(progress, commit)[0])
        else:
            out.append(self._empty(progress, commit))

    def _append(self, progress: Progress, commit: int) -> tuple[Append, int]:
        """The next message with records, and its size. Followers that are level share the slice of the log."""
        log, first = self._log, progress.next
        last = log.fitting(first, self._settings.message_bytes)
        if self._slice[0] != first or self._slice[1] != last:
            self._slice = (first, last, tuple(log.slice(first, last)))
        prev_term = log.term(first - 1)
        assert prev_term is not None
        message = Append(
            sender=self._server_id,
            to=progress.server_id,
            term=self.term,
            prev_index=first - 1,
            prev_term=prev_term,
            commit=commit,
            entries=self._slice[2],
        )
        return message, log.bytes_between(first - 1, last)

    def _empty(self, progress: Progress, commit: int) -> Append:
        prev_term = self._log.term(progress.next - 1)
        assert prev_term is not None
        return Append(
            sender=self._server_id,
            to=progress.server_id,
            term=self.term,
            prev_index=progress.next - 1,
            prev_term=prev_term,
            commit=commit,
        )

    def _offer(self, progress: Progress, meta: SnapshotMeta) -> SnapshotOffer:
        return SnapshotOffer(sender=self._server_id, to=progress.server_id, term=self.term, meta=meta)
