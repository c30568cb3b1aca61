"""Each invariant is shown a violation of its own and must name it; what is allowed must pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.log import RaftLog
from fedsched.raft.membership import Config, bootstrap_entry, encode_config
from fedsched.raft.messages import AppendReply, Effects, HardState, SnapshotMeta, Vote, VoteReply
from fedsched.sim.checkers import Checkers
from fedsched.sim.disk import LogImage, Transaction
from fedsched.sim.invariants import (
    INVARIANTS,
    ConfigsOverlap,
    DurableFirst,
    ElectionSafety,
    LeaderAppendOnly,
    LeaderCompleteness,
    LogMatching,
    MatchTrue,
    NeverBack,
    OutcomesTrue,
    PromisesKept,
    ReadsFresh,
    StateMachineSafety,
)
from fedsched.sim.machine import Outcome
from fedsched.sim.quorums import has_quorum, overlap
from fedsched.sim.region import info
from fedsched.sim.truth import Truth, config_of, config_text
from fedsched.sim.verdict import Broken

THREE = Config(voters=frozenset("abc"), servers=tuple(info(each) for each in "abc"))


def an_entry(index: int, term: int = 1, payload: bytes = b"x", kind: EntryKind = EntryKind.COMMAND) -> Entry:
    return Entry(index, term, kind, payload)


def a_config_entry(index: int, term: int, config: Config) -> Entry:
    return an_entry(index, term, encode_config(config), EntryKind.CONFIG)


def a_log(last: int, term: int = 1, config: Config = THREE) -> list[Entry]:
    return [bootstrap_entry(config), *(an_entry(index, term) for index in range(2, last + 1))]


def a_server(server_id: str = "a", entries: list[Entry] | None = None, **core: Any) -> Any:
    """A server whose log is durable, and whatever else a test says of its core."""
    entries = a_log(3) if entries is None else entries
    durable = LogImage()
    durable.apply(Transaction(append=tuple(entries), hard_state=HardState(core.get("term", 1))))
    disk = SimpleNamespace(durable=durable, ahead=durable.copy(), will_keep=lambda *args: True)
    fields: dict[str, Any] = {
        "role": "follower",
        "term": 1,
        "vote": None,
        "commit": 0,
        "log": RaftLog(0, 0, entries),
        "config": THREE,
        "snapshot": None,
        "office": None,
    }
    return SimpleNamespace(
        id=server_id,
        incarnation=0,
        applied=0,
        is_clone=False,
        disk=disk,
        core=SimpleNamespace(**{**fields, **core}),
        machine=SimpleNamespace(digest=lambda: b"same"),
    )


def a_truth(*servers: Any) -> Truth:
    return Truth({server.id: server for server in servers}.get)


def broken(invariant: str, call: Any, *args: Any) -> str:
    with pytest.raises(Broken) as found:
        call(*args)
    assert found.value.invariant == invariant
    return found.value.what


def test_every_invariant_has_a_name_and_says_what_it_means() -> None:
    names = [invariant.name for invariant in INVARIANTS]

    assert len(set(names)) == len(names) == 12
    assert all(invariant.__doc__ for invariant in INVARIANTS)


# --- elections --------------------------------------------------------------------------------------------------------


def elected(server_id: str, truth: Truth, term: int = 2) -> Any:
    server = a_server(server_id, role="leader", term=term)
    for voter in "abc":
        truth.votes.setdefault((voter, term), server_id)
    return server


def test_two_leaders_of_one_term_break_election_safety() -> None:
    truth = a_truth()
    check = ElectionSafety(truth)
    first, second = elected("a", truth), elected("b", truth)
    check.after(first, first.core)
    check.after(first, first.core)

    assert "both lead" in broken("election_safety", check.after, second, second.core)


def test_a_leader_without_a_quorum_of_votes_breaks_election_safety() -> None:
    truth = a_truth()
    server = a_server("a", role="leader", term=2)
    server.disk.durable.hard_state = HardState(2, "a")

    assert "votes of ['a']" in broken("election_safety", ElectionSafety(truth).after, server, server.core)


def test_a_leader_that_lacks_what_was_committed_breaks_completeness() -> None:
    truth = a_truth()
    truth.committed[3], truth.commit_by_term[1] = 1, 3
    check = LeaderCompleteness(truth)
    whole, short = a_server("a", role="leader", term=2), a_server("b", a_log(2), role="leader", term=2)
    check.after(whole, whole.core)

    assert "without the entry committed at 3" in broken("leader_completeness", check.after, short, short.core)


# --- logs -------------------------------------------------------------------------------------------------------------


def test_a_leader_that_rewrites_its_log_is_found() -> None:
    check = LeaderAppendOnly(a_truth())
    server = a_server(role="leader", term=2)
    check.took(server, server.core, Effects(last_index=5))
    check.took(server, server.core, Effects(append=(an_entry(6, 2),), last_index=6))

    assert "changes its log" in broken(
        "leader_append_only", check.took, server, server.core, Effects(append=(an_entry(4, 2),), last_index=6)
    )
    server.core.role = "follower"
    check.took(server, server.core, Effects(append=(an_entry(2, 2),), last_index=2))


def test_one_place_in_two_logs_with_two_contents_is_found() -> None:
    check = LogMatching(a_truth())
    one, other = a_server("a"), a_server("b")
    check.started(one, one.core)
    check.took(one, one.core, Effects(append=(an_entry(4, 2, b"this"),)))

    what = broken("log_matching", check.took, other, other.core, Effects(append=(an_entry(4, 2, b"that"),)))

    assert "another (4, term 2)" in what


def test_a_write_after_a_gap_is_found() -> None:
    check, server = LogMatching(a_truth()), a_server()

    assert "without knowing" in broken(
        "log_matching", check.took, server, server.core, Effects(append=(an_entry(9, 2),))
    )


def test_a_write_behind_a_snapshot_is_compared_with_it() -> None:
    check, server = LogMatching(a_truth()), a_server()
    meta = SnapshotMeta(id="s", index=8, term=2, config=THREE, config_index=1)

    check.took(server, server.core, Effects(reset=meta, append=(an_entry(9, 2),)))

    assert "without knowing" in broken(
        "log_matching", check.took, server, server.core, Effects(reset=meta, append=(an_entry(11, 2),))
    )


def test_a_match_beyond_what_the_peer_holds_is_found() -> None:
    peer = a_server("b", a_log(2))
    check = MatchTrue(a_truth(peer))
    office = SimpleNamespace(peers={"b": SimpleNamespace(match=2)})
    server = a_server("a", role="leader", office=office)
    check.after(server, server.core)
    office.peers["b"].match = 3

    assert "takes 3 for common with b" in broken("match_true", check.after, server, server.core)
    peer.disk.durable.hard_state = HardState(9)
    office.peers["b"].match = 4
    check.after(server, server.core)  # it follows a newer leader by now


# --- state ------------------------------------------------------------------------------------------------------------


def test_two_entries_at_one_index_and_two_states_at_one_index_are_found() -> None:
    check = StateMachineSafety(a_truth())
    one, other = a_server("a"), a_server("b")
    check.applied(one, an_entry(8), None)

    assert "another entry" in broken("state_machine_safety", check.applied, other, an_entry(8, 2), None)
    other.machine.digest = lambda: b"different"
    assert "another state" in broken("state_machine_safety", check.applied, other, an_entry(8), None)
    meta = SnapshotMeta(id="s", index=8, term=2, config=THREE, config_index=1)
    assert "in another term" in broken("state_machine_safety", check.installed, other, meta)


def test_what_two_servers_know_to_be_committed_must_agree() -> None:
    servers = {each: a_server(each) for each in "ab"}
    checkers = Checkers(servers.get)
    for server in servers.values():
        checkers.started(server)
    servers["b"].core.log = RaftLog(0, 0, [bootstrap_entry(THREE), an_entry(2, 1), an_entry(3, 2)])
    for server in servers.values():
        server.core.commit = 3
    checkers.after_event(servers["a"])

    assert "takes (3, term 2)" in broken("state_machine_safety", checkers.after_event, servers["b"])
    checkers.after_event(None)


def test_terms_and_commits_that_fall_are_found() -> None:
    truth = a_truth()
    check = NeverBack(truth)
    server = a_server(term=3)
    check.started(server, server.core)
    server.core.term, server.core.commit = 4, 2
    check.after(server, server.core)
    server.core.commit = 1

    assert "went from" in broken("never_back", check.after, server, server.core)
    assert "writes" in broken("never_back", check.took, server, server.core, Effects(hard_state=HardState(term=2)))
    assert "true is 0" in broken("never_back", check.started, server, server.core)
    server.core.term = 1
    assert "its disk says 3" in broken("never_back", check.started, server, server.core)


# --- promises ---------------------------------------------------------------------------------------------------------


def a_vote_reply(term: int, to: str) -> VoteReply:
    return VoteReply(sender="a", to=to, term=term, granted=True)


def an_ack(term: int, index: int) -> AppendReply:
    return AppendReply(sender="a", to="b", term=term, ok=True, index=index)


def test_a_vote_that_is_not_durable_and_a_second_vote_are_found() -> None:
    check, server = PromisesKept(a_truth()), a_server(term=2)

    assert "its disk says" in broken("promises_kept", check.sent, server, a_vote_reply(2, "b"))
    server.disk.durable.hard_state = HardState(2, "b")
    check.sent(server, a_vote_reply(2, "b"))
    server.disk.durable.hard_state = HardState(2, "c")
    assert "votes for b and for c" in broken("promises_kept", check.sent, server, a_vote_reply(2, "c"))
    assert "its disk says" in broken(
        "promises_kept", check.sent, server, Vote(sender="a", to="b", term=3, last_index=1, last_term=1)
    )
    check.sent(server, VoteReply(sender="a", to="b", term=2, granted=False))


def test_an_acknowledgement_that_is_not_durable_or_not_kept_is_found() -> None:
    check, server = PromisesKept(a_truth()), a_server(term=2)

    assert "acknowledges 4" in broken("promises_kept", check.sent, server, an_ack(2, 4))
    check.sent(server, an_ack(2, 3))
    assert "then dropped it" in broken(
        "promises_kept", check.took, server, server.core, Effects(at_term=2, last_index=2)
    )
    server.disk.will_keep = lambda *args: False
    assert "about to drop it" in broken("promises_kept", check.sent, server, an_ack(2, 3))
    check.sent(server, AppendReply(sender="a", to="b", term=2, ok=False, index=9))


def test_a_start_that_forgets_term_vote_or_entries_is_found() -> None:
    truth = a_truth()
    check, server = PromisesKept(truth), a_server(term=2)
    server.disk.durable.hard_state = HardState(2, "b")
    check.sent(server, a_vote_reply(2, "b"))
    check.sent(server, an_ack(2, 3))

    server.core.vote = None
    assert "forgot its vote" in broken("promises_kept", check.started, server, server.core)
    server.core.vote, server.core.log = "b", RaftLog(0, 0, a_log(2))
    assert "starts with a log up to 2" in broken("promises_kept", check.started, server, server.core)
    server.core.term = 1
    assert "spoke in 2" in broken("promises_kept", check.started, server, server.core)


def test_applying_committing_or_counting_what_is_not_durable_is_found() -> None:
    peers = [a_server("a", role="leader"), a_server("b", a_log(2)), a_server("c", a_log(2))]
    check = DurableFirst(a_truth(*peers))
    server = peers[0]
    check.started(server, server.core)
    assert "does not hold yet" in broken("durable_first", check.applied, server, an_entry(4), None)
    check.after(server, server.core)
    server.core.commit = 3

    assert "which only ['a'] hold" in broken("durable_first", check.after, server, server.core)


def test_a_commit_of_an_older_term_by_counting_is_found() -> None:
    peers = [a_server(each, role="leader", term=2) for each in "abc"]
    check = DurableFirst(a_truth(*peers))
    server = peers[0]
    check.started(server, server.core)
    check.after(server, server.core)
    server.core.commit = 3

    assert "by counting" in broken("durable_first", check.after, server, server.core)


def test_claims_beyond_log_and_disk_are_found() -> None:
    check, server = DurableFirst(a_truth()), a_server()
    check.started(server, server.core)
    server.core.commit = 9
    assert "last 3" in broken("durable_first", check.after, server, server.core)

    server.core.commit = 0
    server.core.log.durable = 2
    server.disk.will_keep = lambda *args: False
    assert "a crash loses it" in broken("durable_first", check.after, server, server.core)


# --- users ------------------------------------------------------------------------------------------------------------


def outcomes() -> OutcomesTrue:
    check = OutcomesTrue(a_truth())
    for attempt, request in ((1, "r1"), (2, "r1"), (3, "r3")):
        check.attempted(attempt, request, f"p{attempt}".encode())
    return check


def applied(check: OutcomesTrue, index: int, attempt: int, *, is_repeat: bool = False) -> None:
    check.applied(a_server(), an_entry(index, payload=f"p{attempt}".encode()), Outcome(True, index, is_repeat))


def test_outcomes_that_are_not_true_are_found() -> None:
    check = outcomes()
    applied(check, 5, 1)

    assert "applied at 5" in broken("outcomes_true", check.ended, 1, "committed", 6)
    check = outcomes()
    applied(check, 5, 1)
    assert "yet 5 holds it" in broken("outcomes_true", check.ended, 1, "lost", 0)
    check = outcomes()
    check.ended(3, "refused", 0)
    assert "called refused" in broken("outcomes_true", applied, check, 7, 3)
    assert "ended as" in broken("outcomes_true", check.ended, 3, "committed", 7)


def test_a_proposal_in_two_places_and_a_request_that_counts_twice_are_found() -> None:
    check = outcomes()
    applied(check, 5, 1)
    applied(check, 6, 2, is_repeat=True)
    assert "is at 5 and at 7" in broken("outcomes_true", applied, check, 7, 1)

    check = outcomes()
    applied(check, 5, 1)
    assert "took effect at 5 and again at 6" in broken("outcomes_true", applied, check, 6, 2)


def test_a_read_below_what_was_committed_before_it_is_found() -> None:
    check = ReadsFresh(a_truth())
    check.confirmed("a", 5, 5)

    assert "confirms a read at 4" in broken("reads_fresh", check.confirmed, "a", 5, 4)


# --- configs ----------------------------------------------------------------------------------------------------------


def joint(old: str, new: str) -> Config:
    return Config(voters=frozenset(new), outgoing=frozenset(old), servers=tuple(map(info, sorted({*old, *new}))))


def test_a_second_open_config_a_hasty_one_and_one_without_overlap_are_found() -> None:
    truth = a_truth()
    server = a_server("a", [*a_log(3), a_config_entry(4, 1, joint("abc", "abd"))])
    effects = Effects(append=(a_config_entry(5, 1, joint("abd", "abde")),))
    assert "is not committed" in broken("configs_overlap", ConfigsOverlap(truth).took, server, server.core, effects)

    truth.committed[4] = 1
    assert "before anything of term 1" in broken(
        "configs_overlap", ConfigsOverlap(truth).took, server, server.core, effects
    )

    truth.entry_terms_committed.add(1)
    apart = Effects(append=(a_config_entry(5, 1, Config(voters=frozenset("xyz"))),))
    assert "need not overlap" in broken("configs_overlap", ConfigsOverlap(truth).took, server, server.core, apart)
    two = Effects(append=(a_config_entry(5, 1, joint("abd", "abde")), a_config_entry(6, 1, joint("abde", "ab"))))
    assert "while the one at 5" in broken("configs_overlap", ConfigsOverlap(truth).took, server, server.core, two)


def test_a_config_behind_a_snapshot_has_nothing_to_be_compared_with() -> None:
    check, server = ConfigsOverlap(a_truth()), a_server("a", [])
    check.took(server, server.core, Effects(append=(a_config_entry(1, 1, THREE),)))


def test_a_snapshot_with_another_config_than_the_one_in_force_is_found() -> None:
    check, server = ConfigsOverlap(a_truth()), a_server()
    meta = SnapshotMeta(id="s", index=3, term=1, config=joint("abc", "ab"), config_index=1)
    check.made(server, meta)  # nothing is known yet
    check.applied(server, bootstrap_entry(THREE), None)

    assert "cuts a snapshot at 3" in broken("configs_overlap", check.made, server, meta)


def test_campaigning_by_another_config_than_the_logs_is_found() -> None:
    check, server = ConfigsOverlap(a_truth()), a_server(role="candidate", config=joint("abc", "ab"))

    assert "its log says (voters a b c)" in broken("configs_overlap", check.after, server, server.core)


def test_the_config_of_a_log_without_one_is_its_snapshots() -> None:
    meta = SnapshotMeta(id="s", index=3, term=1, config=THREE, config_index=1)

    assert config_of(a_server(entries=[]).core) == Config()
    assert config_of(a_server(entries=[], snapshot=meta).core) == THREE
    assert config_text(Config()) == "no config"


def test_quorums_are_more_than_half_of_each_set() -> None:
    assert has_quorum(THREE, {"a", "b"})
    assert not has_quorum(THREE, {"a"})
    assert not has_quorum(Config(), {"a"})
    assert not has_quorum(joint("abc", "cde"), {"c", "d"})
    assert has_quorum(joint("abc", "cde"), {"a", "c", "d"})


def test_one_step_changes_of_one_voter_overlap_and_larger_ones_need_a_joint_step() -> None:
    two, five = Config(voters=frozenset("ab")), Config(voters=frozenset("abcde"))

    assert overlap(two, THREE)
    assert not overlap(Config(voters=frozenset("a")), Config(voters=frozenset("b")))
    assert not overlap(THREE, five)
    assert overlap(THREE, joint("abc", "abcde"))
    assert overlap(joint("abc", "abcde"), five)


def test_a_core_that_gives_up_is_an_alarm() -> None:
    assert "why" in broken("core_alarm", Checkers({}.get).fatal, a_server(), "why")
