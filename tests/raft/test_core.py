"""What the scripts cannot say well: refusals with numbers, restarts, broken promises, what a status tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import PAYLOAD_BYTES_MAX, Entry, EntryKind
from fedsched.raft.membership import Config, Promote, Remove, bootstrap_entry
from fedsched.raft.messages import (
    REFUSED_NOT_LEADER,
    REFUSED_STALE_EPOCH,
    REFUSED_TOO_LARGE,
    Accepted,
    Append,
    AppendReply,
    Diverged,
    HardState,
    Heartbeat,
    HeartbeatReply,
    ReadIndex,
    ReadIndexReply,
    ReadReady,
    Refused,
    Restored,
    SnapshotMeta,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)
from fedsched.raft.settings import CoreSettings
from tests.raft.region import SMALL, Region, a_config, a_log


def a_core(restored: Restored | None = None, server_id: str = "1", settings: CoreSettings = SMALL) -> RaftCore:
    if restored is None:
        restored = Restored(entries=(bootstrap_entry(a_config("123")),))
    return RaftCore(server_id, restored, settings, lambda n: n - 1)


def a_snapshot(index: int, term: int, config: Config | None = None, config_index: int = 1) -> SnapshotMeta:
    return SnapshotMeta(f"s{index}", index, term, config or a_config("123"), config_index)


def an_append(prev: tuple[int, int], *entries: Entry, term: int = 5, commit: int = 0, to: str = "1") -> Append:
    return Append(
        sender="2", to=to, term=term, prev_index=prev[0], prev_term=prev[1], commit=commit, entries=tuple(entries)
    )


# -------------------------------------------------------------------- restarting


def test_a_new_core_says_where_it_stands() -> None:
    effects = a_core().take_effects()

    assert effects.role is not None
    assert (effects.role.role, effects.role.term, effects.role.leader, effects.role.epoch) == ("follower", 1, None, 1)
    assert effects.config == a_config("123")
    assert effects.hard_state == HardState(1, None, 0)
    assert (effects.at_term, effects.last_index, effects.last_term) == (1, 1, 1)


def test_the_commit_hint_allows_replay_as_far_as_the_log_goes() -> None:
    log = (bootstrap_entry(a_config("123")), *a_log([1, 2], after=1))

    assert a_core(Restored(HardState(2, "3", 2), log)).take_effects().commit_to == 2
    assert a_core(Restored(HardState(2, "3", 99), log)).take_effects().commit_to == 3


def test_a_vote_of_an_older_term_is_not_carried_into_the_logs_term() -> None:
    core = a_core(Restored(HardState(1, "3"), (bootstrap_entry(a_config("123")), *a_log([4], after=1))))

    assert (core.term, core.vote) == (4, None)


def test_a_snapshot_newer_than_the_log_takes_its_place() -> None:
    log = (bootstrap_entry(a_config("123")), *a_log([1, 1], after=1))
    core = a_core(Restored(HardState(3), log, a_snapshot(9, 3)))

    effects = core.take_effects()

    assert effects.reset == a_snapshot(9, 3)
    assert effects.install is None
    status = core.status()
    assert (status.first_index, status.last, status.commit, status.applied, status.snapshot_index) == (10, 9, 9, 9, 9)


def test_a_log_that_keeps_a_tail_from_before_the_snapshot_is_taken_as_it_is() -> None:
    config = bootstrap_entry(a_config("1234"))
    log = (*a_log([1], after=3), config._replace(index=5), *a_log([2, 2], after=5))
    core = a_core(Restored(HardState(2, commit=7), log, a_snapshot(5, 1, a_config("1234"), 5), 3, 1))

    effects = core.take_effects()

    assert effects.reset is None
    assert effects.commit_to == 7
    assert core.config_at(6) == (a_config("1234"), 5)
    assert core.status().applied == 5


def test_a_log_that_starts_after_the_snapshot_is_refused() -> None:
    with pytest.raises(AssertionError, match="the snapshot covers 2"):
        a_core(Restored(HardState(1), a_log([1], after=5), a_snapshot(2, 1), 5, 1))


def test_a_fresh_server_can_found_a_region_once() -> None:
    core = a_core(Restored())
    core.take_effects()

    assert core.bootstrap(a_config("12"))
    effects = core.take_effects()

    assert effects.append == (bootstrap_entry(a_config("12")),)
    assert effects.config == a_config("12")
    assert effects.hard_state == HardState(1)
    assert not core.bootstrap(a_config("13"))


# ---------------------------------------------------------------------- proposing


def test_each_proposal_gets_its_own_place() -> None:
    region = Region("123")
    region.elect("1")

    answers = [region.propose("1", "a"), region.propose("1", "b", "c"), region.propose("1", "d")]

    assert answers == [Accepted(3, 3, 2), Accepted(4, 5, 2), Accepted(6, 6, 2)]


def test_proposals_between_two_takes_share_one_message_and_one_write() -> None:
    region = Region("123")
    region.elect("1")
    region.settle()
    core = region.core("1")

    for payload in (b"a", b"b", b"c"):
        core.propose([payload])
    effects = core.take_effects()

    assert len(effects.append) == 3
    assert [len(message.entries) for message in effects.send_now if isinstance(message, Append)] == [3, 3]
    assert not core.has_effects


def test_one_oversized_payload_refuses_the_batch() -> None:
    region = Region("1")
    region.elect("1")

    answer = region.core("1").propose([b"small", b"x" * (PAYLOAD_BYTES_MAX + 1)])

    assert isinstance(answer, Refused)
    assert answer.reason == REFUSED_TOO_LARGE
    assert str(PAYLOAD_BYTES_MAX) in answer.detail


def test_an_epoch_is_good_for_one_leadership() -> None:
    region = Region("123")
    region.elect("1")
    epoch = region.core("1").epoch
    assert isinstance(region.core("1").propose([b"a"], epoch), Accepted)
    region.core("1").transfer_leadership("2")
    region.pump("1")
    region.deliver()
    region.elect("1")

    assert region.core("1").propose([b"b"], epoch) == Refused(REFUSED_STALE_EPOCH, "1")


def test_a_version_entry_travels_like_any_other() -> None:
    region = Region("12")
    region.elect("1")

    region.core("1").propose([b"2"], kind=EntryKind.RESTORE)
    region.pump("1")
    region.settle()

    assert region.servers["2"].applied[-1].kind is EntryKind.RESTORE


@pytest.mark.parametrize(("payloads", "kind"), [([], EntryKind.COMMAND), ([b"x"], EntryKind.CONFIG)])
def test_callers_that_break_the_rules_are_told_at_once(payloads: list[bytes], kind: EntryKind) -> None:
    with pytest.raises(AssertionError):
        a_core().propose(payloads, kind=kind)


def test_uncommitted_bytes_are_counted_from_the_start_of_an_office() -> None:
    region = Region("123", logs={each: a_log([2, 2, 2], after=1) for each in "123"})
    region.cut("3")
    region.expire("1")
    while region.core("1").office is None:
        region.tick("1")
        region.deliver(lambda message: not isinstance(message, Append))

    assert region.core("1").status().uncommitted_bytes == region.core("1").log.bytes


# ------------------------------------------------------------------------ reading


def test_too_many_reads_are_told_to_ask_again() -> None:
    region = Region("123", settings=replace(SMALL, waiting_reads=1))
    region.elect("1")
    for server_id in "12":
        core = region.core(server_id)
        core.read_index(1)
        core.read_index(2)

        assert core.take_effects().reads == [ReadReady(2, 0)]


def test_the_answer_of_somebody_who_does_not_lead_is_ignored() -> None:
    region = Region("123")
    region.elect("1")
    region.core("2").read_index(7)
    question = next(each for each in region.core("2").take_effects().send_now if isinstance(each, ReadIndex))

    region.step(ReadIndexReply(sender="3", to="2", term=2, ctx=question.ctx, index=9))
    region.core("2").read_index(8)
    region.step(ReadIndexReply(sender="1", to="2", term=2, ctx=question.ctx, index=2))

    assert region.story[-1] == "2 read 7 at 2"
    assert [type(each) for each in region.wire] == [ReadIndex]


# ---------------------------------------------------------------- broken promises


def a_stopped_core() -> RaftCore:
    region = Region("123")
    region.elect("1")
    core = region.core("2")
    core.step(Heartbeat(sender="3", to="2", term=2, commit=0, round=0))
    return core


def test_a_stopped_core_says_why_and_does_nothing_else() -> None:
    core = a_stopped_core()
    effects = core.take_effects()
    assert "both lead this term" in effects.fatal
    assert not effects.needs_store
    assert not core.has_effects

    core.tick()
    core.step(Vote(sender="3", to="2", term=9, last_index=9, last_term=9))
    core.snapshot_received(a_snapshot(9, 9))

    assert core.term == 2
    assert core.take_effects().fatal == effects.fatal
    assert not core.bootstrap(a_config("2"))


def test_a_stopped_leader_takes_nothing() -> None:
    region = Region("123")
    region.elect("1")
    core = region.core("1")
    core.step(Heartbeat(sender="3", to="1", term=2, commit=0, round=0))

    refused = Refused(REFUSED_NOT_LEADER, "1")
    assert core.propose([b"x"]) == refused
    assert core.propose_config(Remove("2")) == refused
    assert core.transfer_leadership() == refused


@pytest.mark.parametrize(
    "message",
    [
        Append(sender="3", to="2", term=2, prev_index=1, prev_term=1, commit=0),
        SnapshotOffer(sender="3", to="2", term=2, meta=a_snapshot(9, 2)),
    ],
)
def test_any_word_of_a_second_leader_stops_a_follower(message: Append | SnapshotOffer) -> None:
    region = Region("123")
    region.elect("1")

    region.step(message)

    assert "both lead" in region.servers["2"].fatal


def test_a_membership_entry_nobody_can_read_stops_the_server() -> None:
    core = a_core()

    core.step(an_append((1, 1), Entry(2, 5, EntryKind.CONFIG, b"\xff")))

    assert "cannot read a membership entry" in core.take_effects().fatal


def test_a_leader_that_is_handed_a_contradicting_snapshot_stops() -> None:
    region = Region("123")
    region.elect("1")

    region.core("1").snapshot_received(a_snapshot(9, 9))
    region.pump("1")

    assert "this leader's log does not have" in region.servers["1"].fatal


def test_applying_ahead_of_the_commit_is_noticed() -> None:
    with pytest.raises(AssertionError, match="only 0 was passed on"):
        a_core().applied(1)


def test_an_older_snapshot_does_not_hide_a_newer_one() -> None:
    region = Region("1")
    region.elect("1")
    core = region.core("1")
    core.snapshot_made(a_snapshot(2, 2), 1)

    core.snapshot_made(a_snapshot(1, 1), 1)

    assert core.snapshot == a_snapshot(2, 2)
    assert core.status().first_index == 2


def test_a_snapshot_of_unapplied_state_is_noticed() -> None:
    with pytest.raises(AssertionError, match="snapshot 5"):
        a_core().snapshot_made(a_snapshot(5, 1), 1)


# ----------------------------------------------------------------------- messages


def test_messages_for_others_are_dropped_and_counted() -> None:
    core = a_core()

    core.step(an_append((1, 1), to="3"))

    assert core.status().counters["messages_foreign"] == 1
    assert core.leader is None


def test_an_append_with_a_hole_is_dropped_and_counted() -> None:
    core = a_core()

    core.step(an_append((1, 1), *a_log([5, 5], after=2)))

    assert core.status().counters["messages_malformed"] == 1
    assert core.status().last == 1


def test_an_append_that_only_moves_the_commit_index_is_not_answered() -> None:
    core = a_core()
    core.step(an_append((1, 1), *a_log([5], after=1)))
    core.take_effects()

    core.step(an_append((2, 5), commit=2))
    assert core.take_effects().after_store == []

    core.step(an_append((2, 5), commit=2))
    assert core.take_effects().after_store == [AppendReply(sender="1", to="2", term=5, ok=True, index=2)]


def test_a_refusal_never_hints_below_what_is_committed() -> None:
    core = a_core()
    core.step(an_append((1, 1), *a_log([5, 5, 5], after=1), commit=3))
    core.take_effects()

    core.step(an_append((9, 4), term=6))

    reply = core.take_effects().send_now[0]
    assert reply == AppendReply(sender="1", to="2", term=6, ok=False, index=9, hint_index=3, hint_term=5)


def test_what_was_compacted_needs_no_checking() -> None:
    region = Region("12")
    region.elect("1")
    region.propose("1", "a", "b")
    region.settle()
    region.snapshot("2")
    whole = region.core("1").entries(1, 4)

    late = an_append((1, 1), *whole[1:], *a_log([2], after=4), to="2", term=2)
    region.step(replace(late, sender="1"))

    assert region.core("2").status().last == 5
    reply = region.wire[-1]
    assert isinstance(reply, AppendReply)
    assert (reply.ok, reply.index) == (True, 5)


def test_only_the_leader_may_call_for_an_election() -> None:
    core = a_core()
    core.step(an_append((1, 1)))

    core.step(TimeoutNow(sender="3", to="1", term=5))
    assert core.role == "follower"
    core.step(TimeoutNow(sender="2", to="1", term=5))
    assert core.role == "candidate"


def test_a_learner_is_never_called_to_lead() -> None:
    core = a_core(Restored(entries=(bootstrap_entry(a_config("23", learners="1")),)))
    core.step(an_append((1, 1)))

    core.step(TimeoutNow(sender="2", to="1", term=5))

    assert core.role == "follower"


def test_a_verdict_on_another_digest_changes_nothing() -> None:
    core = a_core()
    core.step(an_append((1, 1)))
    core.note_digest(1, b"mine")

    core.step(Diverged(sender="2", to="1", term=5, index=1, expected=b"mine"))
    core.step(Diverged(sender="3", to="1", term=5, index=1, expected=b"other"))
    core.step(Diverged(sender="2", to="1", term=5, index=9, expected=b"other"))

    assert core.take_effects().fatal == ""


def test_a_new_leader_compares_with_the_digests_it_made_before() -> None:
    region = Region("123")
    region.elect("1")
    region.settle()
    region.core("2").note_digest(2, b"mine")
    region.core("1").transfer_leadership("2")
    region.pump("1")
    region.deliver()

    for sender in "13":
        region.step(HeartbeatReply(sender=sender, to="2", term=3, round=0, digest_index=2, digest=b"theirs"))

    assert "differs from what a majority has computed" in region.servers["2"].fatal


def test_a_completion_of_what_was_overwritten_since_vouches_for_nothing() -> None:
    core = a_core()
    core.step(an_append((1, 1), *a_log([4, 4], after=1), term=4))
    core.step(an_append((0, 0), term=5))
    written = core.take_effects()
    core.step(an_append((2, 4), *a_log([5], after=2), term=5))

    core.stored(written.last_index, written.last_term, written.at_term)

    assert core.status().durable == 1


def test_an_old_commit_hint_is_written_along_with_the_next_entries() -> None:
    core = a_core()
    core.step(an_append((1, 1), *a_log([5, 5], after=1), commit=2))
    assert core.take_effects().hard_state == HardState(5, None, 2)

    core.step(an_append((3, 5), commit=3))
    assert core.take_effects().hard_state is None
    core.step(an_append((3, 5), *a_log([5], after=3), commit=3))
    assert core.take_effects().hard_state == HardState(5, None, 3)


# ------------------------------------------------------------------------- status


def test_a_status_tells_what_operators_ask_for() -> None:
    region = Region("123", learners="4")
    region.elect("1")
    region.propose("1", "a")
    region.settle()
    status = region.core("1").status()

    assert (status.role, status.term, status.leader, status.is_established) == ("leader", 2, "1", True)
    assert (status.commit, status.applied, status.last, status.durable, status.first_index) == (3, 3, 3, 3, 1)
    assert [(peer.id, peer.match, peer.mode, peer.is_active) for peer in status.peers] == [
        (server_id, 3, "replicate", True) for server_id in "234"
    ]
    assert status.log_bytes > 0
    assert status.uncommitted_bytes == 0
    assert status.counters["elections_won"] == 1
    follower = region.core("2").status()
    assert (follower.peers, follower.is_established, follower.leader) == ((), False, "1")


def test_a_silent_peer_shows_in_the_status() -> None:
    region = Region("123")
    region.elect("1")
    region.cut("3")
    region.settle(9)

    quiet = {peer.id: peer.last_contact_ticks for peer in region.core("1").status().peers}

    assert quiet["3"] == 9
    assert quiet["2"] <= 2
    assert region.core("3").status().leader_contact_ticks == 9


def test_the_log_can_be_looked_at() -> None:
    core = a_core(Restored(HardState(2), (bootstrap_entry(a_config("123")), *a_log([2, 2], after=1))))

    assert [entry.index for entry in core.entries(2, 3)] == [2, 3]
    assert core.term_at(3) == 2
    with pytest.raises(LookupError, match="1 to 3, not 4"):
        core.term_at(4)


def test_a_fetch_that_ends_without_a_leader_is_reported_to_nobody() -> None:
    core = a_core()
    core.take_effects()

    core.snapshot_received(a_snapshot(9, 4))
    effects = core.take_effects()

    assert effects.install == effects.reset == a_snapshot(9, 4)
    assert effects.after_store == []


def test_a_link_that_breaks_while_probing_changes_nothing() -> None:
    region = Region("123")
    region.elect("1")
    for peer in ("2", "2", "9"):
        region.core("1").peer_unreachable(peer)

    assert [peer.mode for peer in region.core("1").status().peers] == ["probe", "replicate"]


def test_a_leader_without_a_vote_hands_over_only_once() -> None:
    region = Region("123")
    region.elect("1")
    region.settle()
    region.propose("1", "a")
    region.core("1").propose_config(Remove("1"))
    region.pump("1")
    region.deliver(lambda message: isinstance(message, Append | AppendReply))
    core = region.core("1")
    assert core.status().transferring_to == "2"
    core._append_own((b"late",), EntryKind.COMMAND)
    region.pump("1")
    region.deliver(lambda message: isinstance(message, Append | AppendReply))

    assert core.counters["transfers"] == 1


def test_a_departed_server_is_let_go_when_it_cannot_be_told() -> None:
    region = Region("1234")
    region.elect("1")
    region.settle()
    region.cut("4")
    region.core("1").propose_config(Remove("4"))
    region.pump("1")
    region.deliver()
    assert "4" in region.core("1").office.peers  # type: ignore[union-attr]

    region.settle(SMALL.election_ticks + 1)

    assert "4" not in region.core("1").office.peers  # type: ignore[union-attr]


def test_a_departing_server_that_comes_back_stays() -> None:
    region = Region("1234")
    region.elect("1")
    region.settle()
    office = region.core("1").office
    assert office is not None
    office.configure(a_config("123"), now=region.core("1").now)
    assert office.peers["4"].departs_at

    office.configure(a_config("1234"), now=region.core("1").now)

    assert not office.peers["4"].departs_at


def test_promotion_needs_no_second_request() -> None:
    region = Region("12", learners="3")
    region.elect("1")
    region.settle()

    region.core("1").propose_config(Promote("3"), based_on=1)
    region.pump("1")
    region.settle()

    assert region.core("3").config == a_config("123")
