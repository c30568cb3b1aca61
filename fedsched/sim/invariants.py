"""The invariants of Raft, each a class with a name, checked after every event by an observer that sees all disks.

Every check is incremental: an event touches one server, so only what that server changed is looked at, against what the
observer remembers of the whole run. Nothing here uses the core's own arithmetic (quorums are counted anew), or a broken
core would be judged by its own mistake.

To add an invariant, write a class with the hooks it needs and name it in `INVARIANTS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, decode_config, encode_config
from fedsched.raft.messages import AppendReply, Effects, Message, SnapshotMeta, Vote, VoteReply
from fedsched.sim.cores import DIGEST_EVERY, SimServer
from fedsched.sim.machine import Outcome
from fedsched.sim.quorums import has_quorum, overlap
from fedsched.sim.truth import Invariant, Truth, config_of, config_text, holds
from fedsched.sim.verdict import Broken


class ElectionSafety(Invariant):
    """1. At most one leader per term, over the whole run, and each elected by a quorum of what its log calls voters."""

    name = "election_safety"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._leaders: dict[int, str] = {}

    def after(self, server: SimServer, core: RaftCore) -> None:
        if core.role == "leader":
            other = self._leaders.get(core.term)
            if other is None:
                self._leaders[core.term] = server.id
                self._check_votes(server, core)
            elif other != server.id:
                raise Broken(self.name, f"{other} and {server.id} both lead term {core.term}", other, server.id)

    def _check_votes(self, server: SimServer, core: RaftCore) -> None:
        term, config = core.term, config_of(core)
        voters = {voter for voter in config.members if self.truth.votes.get((voter, term)) == server.id}
        own = server.disk.durable.hard_state
        if own.term == term and own.vote == server.id:
            voters.add(server.id)
        self.require(
            has_quorum(config, voters),
            f"{server.id} leads term {term} with the votes of {sorted(voters)}"
            f" out of {sorted(config.voters)}/{sorted(config.outgoing)}",
            server.id,
        )


class LeaderAppendOnly(Invariant):
    """2. A leader never overwrites or removes its own entries."""

    name = "leader_append_only"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._led: dict[str, tuple[int, int, int]] = {}

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        if core.role != "leader":
            self._led.pop(server.id, None)
            return
        incarnation, term, last = self._led.get(server.id, (-1, -1, -1))
        if (incarnation, term) == (server.incarnation, core.term):
            rewrites = effects.reset is not None or (effects.append and effects.append[0].index <= last)
            self.require(
                not rewrites and effects.last_index >= last,
                f"{server.id} leads term {term} and changes its log at or below {last}",
                server.id,
            )
        self._led[server.id] = (server.incarnation, core.term, effects.last_index)


class LogMatching(Invariant):
    """3. Equal (index, term) in two logs implies equal payload and equal prefix."""

    name = "log_matching"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._known: dict[tuple[int, int], tuple[int, int, int]] = {}

    def started(self, server: SimServer, core: RaftCore) -> None:
        image = server.disk.durable
        self._compare(server, image.prev_term, image.entries)

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        if effects.append:
            before = effects.append[0].index - 1
            if effects.reset is not None:
                prev_term = effects.reset.term if effects.reset.index == before else None
            else:
                prev_term = server.disk.ahead.term_at(before)
            if prev_term is None:
                raise Broken(self.name, f"{server.id} writes index {before + 1} without knowing {before}", server.id)
            self._compare(server, prev_term, effects.append)

    def _compare(self, server: SimServer, prev_term: int, entries: Iterable[Entry]) -> None:
        known = self._known
        for entry in entries:
            what = (crc32(entry.payload), entry.kind, prev_term)
            if known.setdefault((entry.index, entry.term), what) != what:
                raise Broken(self.name, f"{server.id} holds another ({entry.index}, term {entry.term})", server.id)
            prev_term = entry.term


class LeaderCompleteness(Invariant):
    """4. Every entry committed in an earlier term is in each later leader's log."""

    name = "leader_completeness"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._checked: dict[str, int] = {}

    def after(self, server: SimServer, core: RaftCore) -> None:
        if core.role != "leader" or self._checked.get(server.id) == core.term:
            return
        self._checked[server.id] = core.term
        earlier = [index for term, index in self.truth.commit_by_term.items() if term < core.term]
        index = max(earlier, default=0)
        if index > core.log.prev_index:
            self.require(
                core.log.term(index) == self.truth.committed[index],
                f"{server.id} leads term {core.term} without the entry committed at {index}",
                server.id,
            )


class StateMachineSafety(Invariant):
    """5. No two servers apply different entries at one index; digests agree."""

    name = "state_machine_safety"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._entries: dict[int, tuple[int, int]] = {}
        self._digests: dict[int, bytes] = {}

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        what = (entry.term, crc32(entry.payload))
        if self._entries.setdefault(entry.index, what) != what:
            raise Broken(self.name, f"{server.id} applies another entry at {entry.index}", server.id)
        if entry.index % DIGEST_EVERY == 0:
            self._compare(server, entry.index)

    def installed(self, server: SimServer, meta: SnapshotMeta) -> None:
        known = self._entries.get(meta.index)
        self.require(
            known is None or known[0] == meta.term,
            f"{server.id} installs a snapshot of ({meta.index}, term {meta.term}), applied elsewhere in another term",
            server.id,
        )
        self._compare(server, meta.index)

    def _compare(self, server: SimServer, index: int) -> None:
        digest = server.machine.digest()
        if self._digests.setdefault(index, digest) != digest:
            raise Broken(self.name, f"{server.id} has another state than others at {index}", server.id)


class NeverBack(Invariant):
    """6. Term and commit never go back on a server, restarts included (commit as known to be true)."""

    name = "never_back"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._seen: dict[str, tuple[int, int]] = {}

    def started(self, server: SimServer, core: RaftCore) -> None:
        term = server.disk.durable.hard_state.term
        self.require(core.term >= term, f"{server.id} starts in term {core.term}, its disk says {term}", server.id)
        top = self.truth.commit_max
        self.require(core.commit <= top, f"{server.id} starts with commit {core.commit}, true is {top}", server.id)
        self._seen[server.id] = (core.term, core.commit)

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        if effects.hard_state is not None:
            before = server.disk.ahead.hard_state
            self.require(
                effects.hard_state.term >= before.term and effects.hard_state.commit <= self.truth.commit_max,
                f"{server.id} writes {effects.hard_state} over {before}; commit is {self.truth.commit_max}",
                server.id,
            )

    def after(self, server: SimServer, core: RaftCore) -> None:
        term, commit = self._seen[server.id]
        if core.term != term or core.commit != commit:
            if core.term < term or core.commit < commit:
                what = f"{server.id} went from (term {term}, commit {commit}) to ({core.term}, {core.commit})"
                raise Broken(self.name, what, server.id)
            self._seen[server.id] = (core.term, core.commit)


class PromisesKept(Invariant):
    """7. A vote or acknowledgement that left a server is still honoured after its crash.

    It is durable when it leaves, no other vote of that term ever leaves, and an acknowledged entry stays in the log as
    long as the term does.
    """

    name = "promises_kept"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._votes = truth.votes
        self._acked: dict[str, tuple[int, int]] = {}
        self._term: dict[str, int] = {}

    def sent(self, server: SimServer, message: Message) -> None:
        kind = type(message)
        if kind is AppendReply:
            if message.ok:  # type: ignore[attr-defined]
                self._acknowledged(server, message.term, message.index)  # type: ignore[attr-defined]
        elif kind is VoteReply:
            if message.granted:  # type: ignore[attr-defined]
                self._voted(server, message.term, message.to)
        elif kind is Vote:
            self._voted(server, message.term, server.id)

    def _acknowledged(self, server: SimServer, term: int, index: int) -> None:
        durable = server.disk.durable
        if durable.hard_state.term < term or (durable.hard_state.term == term and durable.last_index < index):
            what = (
                f"{server.id} acknowledges {index} in term {term}; durable: {durable.hard_state}, {durable.last_index}"
            )
            raise Broken(self.name, what, server.id)
        entry_term = durable.term_at(index)
        is_there = durable.hard_state.term == term and entry_term is not None and index > durable.prev_index
        if is_there and not server.disk.will_keep(index, entry_term or 0, term):
            what = f"{server.id} acknowledges {index} in term {term} and is about to drop it"
            raise Broken(self.name, what, server.id)
        if self._acked.get(server.id, (0, 0)) < (term, index):
            self._acked[server.id] = (term, index)
        self._term[server.id] = max(self._term.get(server.id, 0), term)

    def _voted(self, server: SimServer, term: int, candidate: str) -> None:
        hard = server.disk.durable.hard_state
        self.require(
            hard.term > term or (hard.term == term and hard.vote == candidate),
            f"{server.id} votes for {candidate} in term {term}; its disk says {hard}",
            server.id,
        )
        first = self._votes.setdefault((server.id, term), candidate)
        self.require(
            first == candidate,
            f"{server.id} votes for {first} and for {candidate} in term {term}",
            server.id,
            candidate,
        )
        self._term[server.id] = max(self._term.get(server.id, 0), term)

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        term, index = self._acked.get(server.id, (0, 0))
        if effects.at_term == term and effects.last_index < index:
            raise Broken(self.name, f"{server.id} acknowledged {index} in term {term} and then dropped it", server.id)

    def started(self, server: SimServer, core: RaftCore) -> None:
        promised = self._term.get(server.id, 0)
        self.require(core.term >= promised, f"{server.id} starts in term {core.term}, spoke in {promised}", server.id)
        vote = self._votes.get((server.id, core.term))
        self.require(
            vote is None or core.vote == vote,
            f"{server.id} forgot its vote for {vote} in term {core.term} (now {core.vote})",
            server.id,
        )
        term, index = self._acked.get(server.id, (0, 0))
        self.require(
            core.term > term or core.log.last >= index,
            f"{server.id} acknowledged {index} in term {term} and starts with a log up to {core.log.last}",
            server.id,
        )


class DurableFirst(Invariant):
    """8. Applied <= durable <= last; commit <= what a quorum holds durably, as seen on the disks themselves."""

    name = "durable_first"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._leader_commit: dict[str, tuple[int, int]] = {}
        self._durable: dict[str, int] = {}

    def started(self, server: SimServer, core: RaftCore) -> None:
        self._durable[server.id] = core.log.durable

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        durable = server.disk.durable
        if entry.index > durable.prev_index and durable.term_at(entry.index) != entry.term:
            raise Broken(self.name, f"{server.id} applies {entry.index}, which its disk does not hold yet", server.id)

    def after(self, server: SimServer, core: RaftCore) -> None:
        if not server.applied <= core.commit <= core.log.last:
            raise Broken(
                self.name,
                f"{server.id}: applied {server.applied}, commit {core.commit}, last {core.log.last}",
                server.id,
            )
        if core.log.durable != self._durable[server.id]:
            self._check_durable(server, core)
        if core.role == "leader":
            seen = self._leader_commit.get(server.id)
            now = (core.term, core.commit)
            if seen != now:
                self._leader_commit[server.id] = now
                if seen is not None and seen[0] == core.term:
                    self._check_quorum(server, core)

    def _check_durable(self, server: SimServer, core: RaftCore) -> None:
        """What a core takes for durable is on disk, and nothing under way will take it off again."""
        index = self._durable[server.id] = core.log.durable
        if index <= core.log.prev_index:
            return  # a snapshot stands for it
        term = core.log.term(index)
        assert term is not None
        if not holds(server, index, term) or not server.disk.will_keep(index, term):
            raise Broken(
                self.name, f"{server.id} takes ({index}, term {term}) for durable, but a crash loses it", server.id
            )

    def _check_quorum(self, server: SimServer, core: RaftCore) -> None:
        index, term = core.commit, core.log.term(core.commit)
        if term is None:
            return
        config = config_of(core)
        holders = {
            member
            for member in config.members
            if (peer := self.truth.find(member)) is not None and holds(peer, index, term)
        }
        self.require(
            has_quorum(config, holders),
            f"{server.id} commits {index} of term {term}, which only {sorted(holders)} hold durably"
            f" out of {sorted(config.voters)}/{sorted(config.outgoing)}",
            server.id,
        )
        self.require(
            term == core.term, f"{server.id} in term {core.term} commits {index} of term {term} by counting", server.id
        )


class OutcomesTrue(Invariant):
    """9. Every proposal ends once, with a truthful outcome; no request takes effect twice."""

    name = "outcomes_true"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._by_payload: dict[bytes, tuple[int, str]] = {}
        self._ended: dict[int, tuple[str, int]] = {}
        self._index: dict[int, int] = {}
        self._effective: dict[str, int] = {}
        self._top = 0

    def attempted(self, attempt: int, request: str, payload: bytes) -> None:
        self._by_payload[payload] = (attempt, request)

    def ended(self, attempt: int, outcome: str, index: int) -> None:
        before = self._ended.setdefault(attempt, (outcome, index))
        self.require(before == (outcome, index), f"proposal {attempt} ended as {before} and as {(outcome, index)}")
        at = self._index.get(attempt)
        if outcome == "committed":
            self.require(at == index, f"proposal {attempt} was called committed at {index}; applied at {at}")
        else:
            self.require(at is None, f"proposal {attempt} was called {outcome}, yet {at} holds it")

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        if entry.index <= self._top or outcome is None:
            return
        self._top = entry.index
        attempt, request = self._by_payload[entry.payload]
        ended, _ = self._ended.get(attempt, ("", 0))
        if ended in ("refused", "lost"):
            raise Broken(self.name, f"proposal {attempt} was called {ended}, yet {entry.index} holds it", server.id)
        if self._index.setdefault(attempt, entry.index) != entry.index:
            raise Broken(self.name, f"proposal {attempt} is at {self._index[attempt]} and at {entry.index}", server.id)
        if not outcome.is_repeat and self._effective.setdefault(request, entry.index) != entry.index:
            at = self._effective[request]
            raise Broken(self.name, f"request {request} took effect at {at} and again at {entry.index}", server.id)


class ConfigsOverlap(Invariant):
    """10. At most one uncommitted config; quorums of successive configs overlap; none before an own-term commit.

    And everybody uses the newest config in its log, and a snapshot carries the one in force where it was cut.
    """

    name = "configs_overlap"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._known: set[tuple[int, int]] = set()
        self._applied: dict[int, bytes] = {}
        self._role: dict[str, str] = {}

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        if entry.kind is EntryKind.CONFIG:
            self._applied.setdefault(entry.index, entry.payload)

    def made(self, server: SimServer, meta: SnapshotMeta) -> None:
        index = max((each for each in self._applied if each <= meta.index), default=0)
        if index:
            self.require(
                meta.config_index == index and encode_config(meta.config) == self._applied[index],
                f"{server.id} cuts a snapshot at {meta.index} with the config of {meta.config_index}, not of {index}",
                server.id,
            )

    def after(self, server: SimServer, core: RaftCore) -> None:
        """Whoever begins to campaign or to lead does so by the newest config of its log."""
        role = core.role
        if self._role.get(server.id) != role:
            self._role[server.id] = role
            if role != "follower" and core.config != config_of(core):
                ours, true = config_text(core.config), config_text(config_of(core))
                raise Broken(self.name, f"{server.id} is {role} by ({ours}), its log says ({true})", server.id)

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        for place, entry in enumerate(effects.append):
            if entry.kind is EntryKind.CONFIG and (entry.index, entry.term) not in self._known:
                self._known.add((entry.index, entry.term))
                self._check(server, entry, effects, place)

    def _check(self, server: SimServer, entry: Entry, effects: Effects, place: int) -> None:
        found = _config_before(server, effects, place)
        if found is None:
            return
        index, term, before = found
        self.require(
            index <= 1 or self.truth.committed.get(index) == term,
            f"{server.id} appends a config at {entry.index} while the one at {index} is not committed",
            server.id,
        )
        self.require(
            entry.term in self.truth.entry_terms_committed,
            f"{server.id} appends a config at {entry.index} before anything of term {entry.term} is committed",
            server.id,
        )
        after = decode_config(entry.payload)
        self.require(
            overlap(before, after),
            f"quorums of ({config_text(before)}) and ({config_text(after)}) need not overlap",
            server.id,
        )


def _config_before(server: SimServer, effects: Effects, place: int) -> tuple[int, int, Config] | None:
    """The config in force just before the entry at this place of a write: (index, term, config)."""
    for entry in reversed(effects.append[:place]):
        if entry.kind is EntryKind.CONFIG:
            return entry.index, entry.term, decode_config(entry.payload)
    image = server.disk.ahead
    if effects.reset is None:
        first = effects.append[0].index
        for entry in reversed(image.entries[: max(0, first - image.prev_index - 1)]):
            if entry.kind is EntryKind.CONFIG:
                return entry.index, entry.term, decode_config(entry.payload)
    return None  # it lies in a snapshot, and is committed with it


class MatchTrue(Invariant):
    """11. Match never exceeds the true common prefix with that peer."""

    name = "match_true"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._checked: dict[tuple[str, str], tuple[int, int]] = {}

    def after(self, server: SimServer, core: RaftCore) -> None:
        if core.office is None:
            return
        term = core.term
        checked = self._checked
        for peer_id, progress in core.office.peers.items():
            now = (term, progress.match)
            if progress.match and checked.get((server.id, peer_id)) != now:
                checked[server.id, peer_id] = now
                self._check(server, core, peer_id, progress.match)

    def _check(self, server: SimServer, core: RaftCore, peer_id: str, match: int) -> None:
        peer = self.truth.find(peer_id)
        if peer is None or peer.disk.durable.hard_state.term > core.term:
            return  # it has moved on; what it does under a newer leader is not this one's business
        term = core.log.term(match)
        if match > core.log.last or (term is not None and not holds(peer, match, term)):
            end = peer.disk.durable.last_index
            what = f"{server.id} takes {match} for common with {peer_id}, whose disk ends at {end}"
            raise Broken(self.name, what, server.id, peer_id)


class ReadsFresh(Invariant):
    """12. Confirmed read index >= every commit acknowledged before the read began."""

    name = "reads_fresh"

    def confirmed(self, server_id: str, floor: int, index: int) -> None:
        self.require(
            index >= floor, f"{server_id} confirms a read at {index}; {floor} was committed before it", server_id
        )


INVARIANTS: tuple[type[Invariant], ...] = (
    ElectionSafety,
    LeaderAppendOnly,
    LogMatching,
    LeaderCompleteness,
    StateMachineSafety,
    NeverBack,
    PromisesKept,
    DurableFirst,
    OutcomesTrue,
    ConfigsOverlap,
    MatchTrue,
    ReadsFresh,
)
"""Invariant 13, liveness, is what `runner` demands after healing; the history is checked by `linear` at the end."""
