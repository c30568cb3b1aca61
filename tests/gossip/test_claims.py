"""Which claim wins, and how a member takes back what is said of it."""

from __future__ import annotations

import pytest

from fedsched.gossip.asked import ForceLeave, KeepIncarnation, Leave, MemberNews, NewsKind, SendPacket, Warn
from fedsched.gossip.messages import Alive, Claim, Dead, NameTaken, State, Suspect
from fedsched.gossip.profiles import FED
from tests.gossip.kit import a_core, addr, alive, hear, live, of_kind, said, state

A, S, D, L = State.ALIVE, State.SUSPECT, State.DEAD, State.LEFT


def claim(kind: State, inc: int) -> Claim:
    match kind:
        case State.ALIVE:
            return alive("a", 2, inc)
        case State.SUSPECT:
            return Suspect(inc, "a", "b")
        case State.DEAD:
            return Dead(inc, "a", "b")
        case State.LEFT:
            return Dead(inc, "a", "a")


@pytest.mark.parametrize(
    ("claims", "believed"),
    [
        ([(A, 5), (A, 4)], (A, 5)),
        ([(A, 5), (S, 5)], (S, 5)),
        ([(A, 5), (S, 4)], (A, 5)),
        ([(S, 5), (A, 5)], (S, 5)),
        ([(S, 5), (A, 6)], (A, 6)),
        ([(S, 5), (D, 5)], (D, 5)),
        ([(D, 5), (S, 5)], (D, 5)),
        ([(D, 5), (A, 5)], (D, 5)),
        ([(D, 5), (A, 6)], (A, 6)),
        ([(D, 1), (D, 10), (A, 2)], (D, 10)),
        ([(D, 1), (S, 10), (A, 2)], (D, 10)),
        ([(A, 5), (L, 5)], (L, 5)),
        ([(L, 5), (D, 5)], (L, 5)),
        ([(D, 5), (L, 5)], (L, 5)),
        ([(L, 5), (A, 5)], (L, 5)),
        ([(L, 5), (A, 6)], (A, 6)),
    ],
)
def test_the_higher_incarnation_wins_and_then_the_worse_state(
    claims: list[tuple[State, int]], believed: tuple[State, int]
) -> None:
    core = a_core("a", "b")

    for kind, inc in claims:
        hear(core, claim(kind, inc))

    member = core.members.get("a")
    assert member is not None
    assert (member.state, member.inc) == believed


@pytest.mark.parametrize("accusation", [Suspect(8, "me", "a"), Dead(8, "me", "a"), Dead(8, "me", "me")])
def test_who_hears_itself_accused_speaks_up_louder_and_to_the_accuser(accusation: Claim) -> None:
    core = a_core("a", "b", inc=3)

    effects = hear(core, accusation, source=2)

    assert of_kind(effects, KeepIncarnation) == [KeepIncarnation(9)]
    kept, sent = ([type(effect) for effect in effects].index(kind) for kind in (KeepIncarnation, SendPacket))
    assert kept < sent
    assert [told.inc for told in said(effects, Alive, to=addr(2)) if told.node == "me"] == [9]
    assert core.awareness.score == 1


def test_an_old_accusation_is_none() -> None:
    core = a_core("a", inc=9)

    assert of_kind(hear(core, Suspect(8, "me", "a"), Dead(3, "me", "a")), KeepIncarnation) == []


def test_who_leaves_does_not_refute() -> None:
    core = a_core("a", inc=3)
    core.handle(Leave(), 0.0)

    assert of_kind(hear(core, Dead(8, "me", "a"), alive("me", 1, 9)), KeepIncarnation) == []


def test_a_former_self_is_outranked() -> None:
    core = a_core("a", inc=3)

    hear(core, alive("me", 1, 7, id="id-me")._replace(meta=b""))

    assert core.me.inc == 8


def test_a_stale_sign_of_life_is_answered_with_the_accusation_once_a_second() -> None:
    core = a_core("a", "b")
    hear(core, Dead(5, "a", "b"))

    answers = [hear(core, alive("a", 2, 3), now=now) for now in (1.0, 1.5, 2.1)]

    echoes = [said(effects, Dead, to=addr(2)).count(Dead(5, "a", "me")) for effects in answers]
    assert echoes == [1, 0, 1]


def test_a_suspect_dies_when_its_time_is_up_and_not_before() -> None:
    core = a_core("a", "b", "c", "d", "e")
    core._probe_tick = lambda _: None  # type: ignore[method-assign]
    hear(core, *(Suspect(1, "a", by) for by in ("b", "c", "d")), now=0.1)
    for member in ("b", "c"):
        core._note_heard(member)
    shortest, _ = FED.suspicion_bounds_s(6)

    assert not of_kind(live(core, 0.1 + shortest - 0.01), MemberNews)
    news = of_kind(live(core, 0.2 + shortest), MemberNews)

    assert [(piece.kind, piece.member.name) for piece in news] == [(NewsKind.FAILED, "a")]


def test_a_lone_accuser_waits_much_longer() -> None:
    core = a_core("a", "b", "c", "d", "e")
    hear(core, Suspect(1, "a", "b"))

    live(core, 10.0)

    assert state(core, "a") is State.SUSPECT


def test_a_server_that_moved_keeps_its_name() -> None:
    core = a_core("a", "b")

    news = of_kind(hear(core, alive("a", 9, inc=2)), MemberNews)

    assert [piece.kind for piece in news] == [NewsKind.UPDATE]
    assert core.members.get("a").addr == addr(9)  # type: ignore[union-attr]


def test_a_namesake_is_refused_while_the_owner_answers_and_is_told() -> None:
    core = a_core("a", "b")

    effects = hear(core, alive("a", 9, inc=50, id="other"), source=9)

    assert core.members.get("a").addr == addr(2)  # type: ignore[union-attr]
    assert [w.code for w in of_kind(effects, Warn)] == ["gossip_name_conflict"]
    assert said(effects, NameTaken, to=addr(9)) == [NameTaken("a", addr(2), "id-a")]


def test_a_dead_ones_name_is_free_after_a_while_and_one_that_left_at_once() -> None:
    core = a_core("a", "b")
    hear(core, Dead(1, "a", "b"), Dead(1, "b", "b"))

    hear(core, alive("a", 8, inc=2, id="new-a"), alive("b", 9, inc=2, id="new-b"), now=1.0)
    assert (state(core, "a"), state(core, "b")) == (State.DEAD, State.ALIVE)
    hear(core, alive("a", 8, inc=2, id="new-a"), now=31.0)

    assert state(core, "a") is State.ALIVE


def test_a_renamed_server_leaves_its_old_name_behind() -> None:
    core = a_core("a", "b")

    hear(core, alive("z", 2, inc=2, id="id-a"))

    assert (state(core, "a"), state(core, "z")) == (State.LEFT, State.ALIVE)


def test_a_failed_member_can_be_made_to_leave_and_be_forgotten() -> None:
    core = a_core("a", "b")
    hear(core, Dead(1, "a", "b"))

    effects = core.handle(ForceLeave("a", prune=True), 1.0)

    assert [piece.kind for piece in of_kind(effects, MemberNews)] == [NewsKind.LEAVE, NewsKind.REAP]
    assert core.members.get("a") is None


def test_two_namesakes_do_not_outbid_each_other() -> None:
    core = a_core("a", inc=3)

    effects = hear(core, alive("me", 9, inc=80, id="other"))

    assert core.me.inc == 3
    assert [w.code for w in of_kind(effects, Warn)] == ["gossip_name_conflict"]
