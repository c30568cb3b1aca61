"""The life of a member: joining, comparing tables, leaving, finding the lost, forgetting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.gossip.asked import (
    AnswerStream,
    ChangeTags,
    EventNews,
    ForceLeave,
    Gone,
    Join,
    JoinEnded,
    KeepIncarnation,
    Leave,
    LookAt,
    MemberNews,
    NewsKind,
    OpenStream,
    Packet,
    Publish,
    StreamAnswered,
    StreamAsked,
    StreamFailed,
)
from fedsched.gossip.core import GossipCore
from fedsched.gossip.messages import Ack, Compare, Dead, Difference, Ping, PushPull, Rows, State, Summary
from fedsched.gossip.profiles import FED
from fedsched.model.errors import BadRequest
from tests.gossip.kit import a_core, addr, alive, hear, live, of_kind, said, state
from tests.gossip.test_wire import LARGE, SMALL


def talk(asker: GossipCore, opened: OpenStream, asked: GossipCore, now: float) -> list[object]:
    """Carry one exchange to the other side and back; what the asker then wants."""
    (answer,) = of_kind(asked.handle(StreamAsked(1, asker.addr, opened.messages), now), AnswerStream)
    return list(asker.handle(StreamAnswered(opened.op, answer.messages), now))


def test_who_joins_learns_of_all_and_is_learned_of() -> None:
    pool = a_core("a", "b", "c")
    newcomer = GossipCore(FED, alive("new", 9), random.Random(2), 0.0)

    (opened,) = of_kind(newcomer.handle(Join((addr(1),)), 1.0), OpenStream)
    effects = talk(newcomer, opened, pool, 1.0)

    assert JoinEnded(1) in effects
    assert newcomer.members.digest == pool.members.digest
    assert newcomer.members.up == 5


def test_joining_is_tried_again_until_somebody_answers() -> None:
    core = a_core()
    (opened,) = of_kind(core.handle(Join((addr(2),)), 0.0), OpenStream)

    effects = core.handle(StreamFailed(opened.op), 1.0)

    assert JoinEnded(0) in effects
    assert [again.to for again in of_kind(live(core, 3.0), OpenStream)] == [addr(2)]


def test_differing_tables_are_found_by_their_digests_and_made_equal() -> None:
    one, other = a_core("a", "b"), GossipCore(FED, alive("x", 9), random.Random(3), 0.0)
    for member in ("b", "c"):
        hear(other, alive(member, {"b": 3, "c": 4}[member], inc=5))

    effects = hear(one, Ping(1, "me", "x", addr(9), other.members.digest), now=10.0)
    (opened,) = of_kind(effects, OpenStream)
    assert isinstance(opened.messages[0], Summary)
    (rest,) = [effect for effect in talk(one, opened, other, 10.0) if isinstance(effect, OpenStream)]
    talk(one, rest, other, 10.0)

    assert one.members.digest == other.members.digest
    assert one.members.up == other.members.up == 5


def test_tables_are_not_compared_while_news_is_on_its_way() -> None:
    core = a_core("a")
    hear(core, alive("b", 3), now=10.0)

    assert not of_kind(hear(core, Ping(1, "me", "a", addr(2), 0), now=10.2), OpenStream)
    assert of_kind(hear(core, Ping(1, "me", "a", addr(2), 0), now=10.6), OpenStream)


def test_comparisons_that_change_nothing_become_rare() -> None:
    core = a_core("a")
    asked_at: list[float] = []
    now = 10.0
    while now < 100:
        for opened in of_kind(hear(core, Ping(1, "me", "a", addr(2), 0), now=now), OpenStream):
            asked_at.append(now)
            core.handle(StreamAnswered(opened.op, (Difference("a", (), b""),)), now)
        now += 0.25

    assert len(asked_at) < 12


def test_a_death_in_anothers_table_is_only_an_accusation() -> None:
    core, other = a_core("a", "b"), a_core("a", "b")
    hear(other, Dead(1, "a", "b"))
    rows = tuple(member.row() for member in other.members if member.name == "a")

    core.handle(StreamAsked(1, addr(3), (Rows("b", rows),)), 1.0)

    assert state(core, "a") is State.SUSPECT


def test_equal_digests_end_the_periodic_exchange_after_one_round_trip() -> None:
    core = a_core("a")
    effects = core.handle(StreamAsked(5, addr(2), (Compare("a", core.members.digest, 1),)), 1.0)

    assert of_kind(effects, AnswerStream) == [AnswerStream(5, (Compare("me", core.members.digest, 1),))]


def test_a_pool_with_other_versions_is_refused() -> None:
    core = a_core("a")
    odd = alive("z", 9)._replace(versions=(2, 3, 3, 1, 1, 1))
    other = GossipCore(FED, odd, random.Random(1), 0.0)
    (opened,) = of_kind(other.handle(Join((addr(1),)), 0.0), OpenStream)

    effects = talk(other, opened, core, 0.0)

    assert JoinEnded(0) in effects
    assert state(core, "z") is None


def test_a_farewell_goes_out_at_once_by_gossip_and_stream_and_ends() -> None:
    core = a_core("a", "b", "c")

    effects = core.handle(Leave(), 1.0)
    later = live(core, 5.0)

    farewell = Dead(1, "me", "me")
    assert all(opened.messages == (farewell,) for opened in of_kind(effects, OpenStream))
    assert len(of_kind(effects, OpenStream)) == 3
    assert farewell in said(later, Dead)
    assert of_kind(later, Gone) == [Gone()]


def test_who_leaves_still_answers() -> None:
    core = a_core("a")
    core.handle(Leave(), 1.0)

    assert said(hear(core, Ping(1, "me", "a", addr(2), 0), now=1.5), Ack)


def test_the_dead_are_looked_for_soon_and_then_at_leisure() -> None:
    core = a_core("a")
    hear(core, Dead(1, "a", "x"), now=0.0)

    tries = [opened for opened in of_kind(live(core, 65.0), OpenStream) if isinstance(opened.messages[0], PushPull)]

    assert 4 <= len(tries) <= 7


def test_the_dead_and_the_gone_are_forgotten_in_the_end() -> None:
    core = a_core("a", "b")
    hear(core, Dead(1, "a", "a"), Dead(1, "b", "x"))

    core.wake(FED.tombstone_s + 20)
    assert (core.members.get("a"), state(core, "b")) == (None, State.DEAD)
    news = of_kind(core.wake(FED.reconnect_timeout_s + 40), MemberNews)

    assert [(piece.kind, piece.member.name) for piece in news] == [(NewsKind.REAP, "b")]


def test_changed_tags_are_told_with_a_higher_incarnation() -> None:
    core = a_core("a")

    effects = core.handle(ChangeTags(b"\xa0"), 1.0)

    assert of_kind(effects, KeepIncarnation) == [KeepIncarnation(2)]
    with pytest.raises(BadRequest):
        core.handle(ChangeTags(bytes(513)), 1.0)


def test_announcements_are_heard_once_and_bounded() -> None:
    one, other = a_core("a"), a_core("b")
    (news,) = of_kind(one.handle(Publish("deploy", b"x"), 1.0), EventNews)

    heard = [of_kind(hear(other, news.event), EventNews) for _ in range(2)]

    assert heard == [[news], []]
    with pytest.raises(BadRequest):
        one.handle(Publish("deploy", bytes(600)), 1.0)


def test_evidence_from_elsewhere_makes_a_probe_out_of_turn() -> None:
    core = a_core("a", "b")

    assert [ping.target for ping in said(core.handle(LookAt("b"), 0.0), Ping)] == ["b"]


@given(st.lists(st.tuples(st.sampled_from(["packet", "stream", "wake"]), st.one_of(SMALL, LARGE)), max_size=12))
@settings(max_examples=60)
def test_well_formed_nonsense_does_no_harm(story: list[tuple[str, object]]) -> None:
    core = a_core("a", "b", "c")
    now, inc = 0.0, core.me.inc
    for how, message in story:
        now += 0.7
        if how == "packet":
            core.handle(Packet(addr(2), (message,)), now)  # type: ignore[arg-type]
        elif how == "stream":
            core.handle(StreamAsked(1, addr(2), (message,)), now)  # type: ignore[arg-type]
        else:
            core.wake(now)
        assert core.me.inc >= inc
        assert core.me.state is State.ALIVE
        assert core.members.up == sum(member.is_up for member in core.members)
        inc = core.me.inc


def test_nobody_of_a_region_that_is_failed_as_a_whole_is_forgotten() -> None:
    """However long a cut lasts, those on the other side are all there is to find the way back by."""
    core = a_core("a", "b")
    core.handle(Packet(addr(9), (alive("c", 9, region="far"), alive("d", 10, region="far"))), 0.0)
    hear(core, Dead(1, "b", "x"), Dead(1, "c", "x"), Dead(1, "d", "x"))

    core.wake(2 * FED.reconnect_timeout_s)

    assert state(core, "b") is None  # its region lives
    assert (state(core, "c"), state(core, "d")) == (State.DEAD, State.DEAD)
    core.handle(ForceLeave("c", prune=True), 2 * FED.reconnect_timeout_s)
    assert state(core, "c") is None
