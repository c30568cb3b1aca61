"""Whose clock is looked at, and what that says."""

from __future__ import annotations

import pytest

from fedsched.federation.clock_core import EVERY_S, TRIP_MAX_S, Clocks, skew_of
from fedsched.federation.directory import Server


def a_server(name: str, region: str = "us", *, is_alive: bool = True) -> Server:
    return Server(id=f"id-{name}", name=name, region=region, rpc="127.0.0.1:1", is_alive=is_alive)


def names(found: tuple[Server, ...]) -> list[str]:
    return [server.name for server in found]


def test_one_server_of_each_region_is_asked_every_half_minute_all_in_turn() -> None:
    clocks = Clocks("id-me")
    servers = [a_server("b"), a_server("a"), a_server("c", "asia"), a_server("me", "eu"), a_server("d", "eu")]
    assert names(clocks.due(servers, 0.0)) == ["c", "d", "a"]
    assert names(clocks.due(servers, EVERY_S - 0.1)) == []
    assert names(clocks.due(servers, EVERY_S)) == ["c", "d", "b"]
    assert names(clocks.due(servers, 2 * EVERY_S)) == ["c", "d", "a"]


def test_who_does_not_answer_is_left_out_and_asked_first_when_it_is_back() -> None:
    clocks = Clocks("id-me")
    assert names(clocks.due([a_server("a", is_alive=False), a_server("b")], 0.0)) == ["b"]
    assert names(clocks.due([a_server("a"), a_server("b")], EVERY_S)) == ["a"]


def test_the_other_clock_was_read_in_the_middle() -> None:
    assert skew_of(110.0, 100.0, 100.5) == pytest.approx(9.75)
    assert skew_of(90.0, 100.0, 100.0) == -10


def test_what_took_long_or_went_backwards_says_nothing() -> None:
    assert skew_of(110.0, 100.0, 100.0 + TRIP_MAX_S + 0.1) is None
    assert skew_of(110.0, 100.0, 99.0) is None
