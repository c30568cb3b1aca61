"""When a member looks for its pool: eagerly until it is in, and again when too few of the places are members."""

from __future__ import annotations

import random

import pytest

from fedsched.gossip.members import Member, encode_tags
from fedsched.gossip.messages import VERSIONS_NOW, Address, NameTaken, State
from fedsched.gossip.seeking import AGAIN_S, GiveUp, Pause, Seeking
from tests.gossip.kit import addr

ME = addr(1)
TAKEN = NameTaken("me", addr(9), "id-other")


def a_seeking(**changes: object) -> Seeking:
    return Seeking(ME, random.Random(1), **changes)  # type: ignore[arg-type]


def a_member(number: int, state: State = State.ALIVE, **tags: str) -> Member:
    return Member(f"m{number}", addr(number), 1, state, encode_tags(tags), VERSIONS_NOW, 0.0)


def places(*numbers: int) -> dict[str, tuple[Address, ...]]:
    return {f"host{number}": (addr(number),) for number in numbers}


def test_everybody_but_itself_is_asked_at_the_start() -> None:
    assert a_seeking().whom(places(1, 2, 3), ()) == (addr(2), addr(3))


def test_who_is_configured_alone_has_nobody_to_look_for() -> None:
    assert a_seeking().whom(places(1), ()) is None
    assert a_seeking().whom({}, ()) is None


def test_a_name_that_leads_nowhere_is_tried_again_soon() -> None:
    seeking = a_seeking()
    assert seeking.whom({"host2": ()}, ()) == ()
    verdict = seeking.asked(0, None, 0.0)
    assert isinstance(verdict, Pause)
    assert verdict.seconds < 1.5


def test_pauses_double_up_to_half_a_minute_with_some_chance() -> None:
    seeking = a_seeking()
    pauses = [seeking.asked(0, None, 0.0) for _ in range(8)]
    for pause, whole in zip(pauses, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
        assert isinstance(pause, Pause)
        assert 0.75 * whole <= pause.seconds <= 1.25 * whole
    assert seeking.asked(1, None, 0.0) == Pause(AGAIN_S)
    again = seeking.asked(0, None, 0.0)
    assert isinstance(again, Pause)
    assert again.seconds <= 1.25


@pytest.mark.parametrize(("up", "asks"), [(0, True), (1, True), (2, False), (4, False)])
def test_those_missing_are_asked_again_while_fewer_than_half_are_there(up: int, asks: bool) -> None:
    seeking = a_seeking()
    seeking.asked(1, None, 0.0)
    members = [a_member(number) for number in range(2, 2 + up)] + [a_member(5, State.DEAD)] * (up < 4)
    found = seeking.whom(places(2, 3, 4, 5), members)
    assert found == (tuple(addr(number) for number in range(2 + up, 6)) if asks else None)


def test_a_server_port_counts_as_the_place_of_its_member() -> None:
    seeking = a_seeking()
    seeking.asked(1, None, 0.0)
    configured = {"host2": (("10.0.0.2", 4647),)}
    assert seeking.whom(configured, [a_member(2, rpc_addr="10.0.0.2", port="4647")]) is None
    assert seeking.whom(configured, [a_member(2, rpc_addr="10.0.0.2", port="x")]) == (("10.0.0.2", 4647),)


def test_a_name_with_several_addresses_is_there_if_one_of_them_is() -> None:
    seeking = a_seeking()
    seeking.asked(1, None, 0.0)
    assert seeking.whom({"servers": (addr(2), addr(3), addr(4))}, [a_member(3)]) is None


def test_attempts_may_be_limited_for_those_who_never_got_in() -> None:
    seeking = a_seeking(retry_max=3)
    assert [type(seeking.asked(0, None, 0.0)) for _ in range(3)] == [Pause, Pause, GiveUp]
    found = a_seeking(retry_max=3)
    assert [type(found.asked(0, None, 0.0, is_alone=False)) for _ in range(4)] == [Pause] * 4
    was_in = a_seeking(retry_max=3, was_in=True)
    assert [type(was_in.asked(0, None, 0.0)) for _ in range(4)] == [Pause] * 4


def test_a_taken_name_is_final_once_its_owner_had_time_to_turn_out_dead() -> None:
    seeking = a_seeking(reclaim_s=30)
    assert isinstance(seeking.asked(0, TAKEN, 5.0), Pause)
    assert isinstance(seeking.asked(0, TAKEN, 64.9), Pause)
    verdict = seeking.asked(0, TAKEN, 65.0)
    assert isinstance(verdict, GiveUp)
    assert verdict.why.message == "gossip: the name me is taken by 10.0.0.9:4648, id id-other"


def test_who_was_let_in_before_is_never_ended_by_a_namesake() -> None:
    seeking = a_seeking(reclaim_s=30, was_in=True)
    assert [type(seeking.asked(0, TAKEN, at)) for at in (0.0, 100.0, 1000.0)] == [Pause] * 3
