"""When a client registers and beats: what it is told, what it does after failures, and whom it dials next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.heartbeat_core import GRACE_S, Do, HeartbeatCore, Refusal
from fedsched.client.server_list import LONGEST_S, SERVERS_MAX, ServerList


def a_ready_node(now: float = 0.0, ttl_s: float = 30.0) -> HeartbeatCore:
    core = HeartbeatCore(now)
    core.linked(now)
    core.registered(ttl_s, now)
    core.beaten(ttl_s, now, is_ready=True)
    return core


def test_a_new_node_registers_as_soon_as_there_is_a_server_and_then_says_that_it_is_ready() -> None:
    core = HeartbeatCore(0.0)
    assert (core.due(5.0), core.wake_at()) == (Do.NOTHING, math.inf)

    core.linked(5.0)
    assert core.due(5.0) is Do.REGISTER
    core.registered(30.0, 5.1)

    assert core.due(5.1) is Do.BEAT
    core.beaten(30.0, 5.2, is_ready=True)
    assert core.due(5.2) is Do.NOTHING
    assert core.wake_at() == pytest.approx(5.2 + 20.0)


def test_a_sign_of_life_comes_well_before_its_time_is_up() -> None:
    core = a_ready_node(ttl_s=30.0)

    assert core.due(19.9) is Do.NOTHING
    assert core.due(20.0) is Do.BEAT


def test_a_node_that_is_not_taken_for_ready_beats_again_within_a_second() -> None:
    core = a_ready_node()
    core.beaten(30.0, 100.0, is_ready=False)

    assert core.due(101.0) is Do.BEAT
    assert not core.is_ready


def test_after_a_failure_the_next_try_falls_inside_what_is_left_of_the_time() -> None:
    for chance in (0.0, 0.3, 0.999):
        core = a_ready_node(ttl_s=30.0)
        core.failed(Refusal.OTHER, 20.0, chance)
        assert 21.0 <= core.wake_at() <= 31.0

    late = a_ready_node(ttl_s=30.0)
    late.failed(Refusal.OTHER, 40.0, 0.5)
    assert late.wake_at() == 41.5

    very_late = a_ready_node(ttl_s=30.0)
    very_late.failed(Refusal.OTHER, 30.0 + 300.0, 0.999)
    assert 330.0 + 1.0 <= very_late.wake_at() <= 330.0 + 30.0


@given(ttl=st.floats(1, 400), late=st.floats(0, 2000), chance=st.floats(0, 0.999999))
@settings(max_examples=200)
def test_a_retry_is_never_faster_than_a_second_nor_slower_than_half_a_minute(
    ttl: float, late: float, chance: float
) -> None:
    core = a_ready_node(ttl_s=ttl)
    core.failed(Refusal.OTHER, late, chance)

    assert 1.0 - 1e-6 <= core.wake_at() - late <= 30.0 + 1e-6


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_whoever_was_never_heard_or_hears_of_no_leader_waits_15_to_30_seconds(chance: float) -> None:
    fresh = HeartbeatCore(0.0)
    fresh.linked(0.0)
    fresh.failed(Refusal.OTHER, 1.0, chance)
    assert 16.0 <= fresh.wake_at() <= 31.0

    known = a_ready_node()
    known.failed(Refusal.NO_LEADER, 20.0, chance)
    assert 35.0 <= known.wake_at() <= 50.0


def test_a_development_agent_does_not_wait_that_long() -> None:
    core = HeartbeatCore(0.0, is_dev=True)
    core.linked(0.0)
    core.failed(Refusal.OTHER, 1.0, 0.9)

    assert core.wake_at() == 2.0


@pytest.mark.parametrize("why", [Refusal.UNKNOWN_NODE, Refusal.WRONG_SECRET])
def test_a_node_that_servers_do_not_know_registers_again_at_once_and_then_patiently(why: Refusal) -> None:
    core = a_ready_node()
    core.failed(why, 20.0, 0.5)
    assert core.due(20.0) is Do.REGISTER

    core.failed(why, 20.1, 0.5)  # the registration was refused as well
    assert core.due(30.0) is Do.NOTHING
    assert core.wake_at() == pytest.approx(20.1 + 22.5)


def test_a_changed_node_is_registered_again_without_losing_its_rhythm() -> None:
    core = a_ready_node(ttl_s=30.0)
    core.changed(5.0)
    assert core.due(5.0) is Do.REGISTER

    core.registered(30.0, 5.1)

    assert core.due(5.1) is Do.NOTHING
    assert core.wake_at() == pytest.approx(25.1)


def test_a_change_before_the_first_registration_needs_none_of_its_own() -> None:
    core = HeartbeatCore(0.0)
    core.changed(1.0)

    assert core.wake_at() == math.inf


def test_a_server_that_fails_twice_in_a_row_is_left_for_another() -> None:
    core = a_ready_node()
    core.failed(Refusal.OTHER, 20.0, 0.5)
    assert not core.wants_another_server
    core.failed(Refusal.OTHER, 25.0, 0.5)
    assert core.wants_another_server

    core.linked(30.0)
    assert not core.wants_another_server
    assert core.due(30.0) is Do.BEAT


def test_contact_counts_from_the_start_plus_a_grace_until_the_first_answer() -> None:
    core = HeartbeatCore(100.0)
    assert core.last_ok == 100.0 + GRACE_S

    core.linked(101.0)
    core.registered(10.0, 101.0)
    core.beaten(10.0, 102.0, is_ready=True)
    assert core.last_ok == 102.0


def test_without_a_link_nothing_is_due() -> None:
    core = a_ready_node()
    core.unlinked()

    assert core.due(10_000.0) is Do.NOTHING


# ---- which server --------------------------------------------------------------------------------------------------


def chances(count: int = SERVERS_MAX) -> list[float]:
    return [number / count for number in range(count)]


def test_the_first_server_is_dialled_at_once_and_the_next_after_a_random_part_of_a_growing_time() -> None:
    servers = ServerList(["a", "b", "c"])
    assert servers.pause_s(0.9) == 0.0
    servers.next(chances())

    pauses = []
    for _ in range(8):
        servers.failed()
        pauses.append(servers.pause_s(1.0))
        servers.next(chances())

    assert pauses[0] == 2.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S
    assert servers.pause_s(0.0) == 0.0


def test_a_server_that_was_lost_is_tried_again_only_after_all_others() -> None:
    servers = ServerList(["a", "b", "c"])
    first = servers.next([0.1, 0.2, 0.3])
    servers.settled()

    others = [servers.next([0.5, 0.4, 0.3]) for _ in range(2)]

    assert first == "a"
    assert sorted(others) == ["b", "c"]
    assert servers.next([0.1, 0.2, 0.3]) == "a"


def test_all_servers_get_their_turn_in_an_order_that_chance_decides() -> None:
    one, other = ServerList(["a", "b", "c"]), ServerList(["a", "b", "c"])

    assert [one.next([0.1, 0.2, 0.3]) for _ in range(3)] == ["a", "b", "c"]
    assert [other.next([0.3, 0.1, 0.2]) for _ in range(3)] == ["b", "c", "a"]


def test_what_servers_say_about_themselves_comes_first_and_settings_stay_as_a_last_resort() -> None:
    servers = ServerList(["old"])
    servers.learn(["s1:4647", "s2:4647", "", "s1:4647"])
    assert servers.known == ("s1:4647", "s2:4647", "old")

    servers.learn([])
    assert servers.known == ("s1:4647", "s2:4647", "old")

    servers.learn([f"s{number}" for number in range(1_000)])
    assert len(servers.known) == SERVERS_MAX + 1


def test_nobody_is_dialled_when_nobody_is_known() -> None:
    assert ServerList([]).next([]) == ""
