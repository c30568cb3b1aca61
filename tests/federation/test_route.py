"""Which server answers for a region, and who is tried next."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.federation.directory import Directory, LeaderHint
from fedsched.federation.route import (
    DIAL_S,
    TRIES_MAX,
    ForwardingLoop,
    NoPath,
    Outcome,
    Route,
    Router,
    Wanted,
    check_hops,
)
from fedsched.model.errors import DeadlineExceeded
from fedsched.model.region import MemberStatus
from fedsched.raft.errors import OutcomeUnknown
from fedsched.rpc.context import HOPS_MAX
from tests.federation.builders import a_member

ME = ("id-me", "me.eu")


def never() -> float:
    return 0.0


def a_router(servers: int = 3, *, round_trips: tuple[float, ...] = (), leader: str = "") -> Router:
    directory = Directory("eu")
    for number in range(1, servers + 1):
        directory.member_seen(a_member(f"s{number}", "us"))
    for number, round_trip_s in enumerate(round_trips, 1):
        directory.round_trip_seen(f"id-s{number}", round_trip_s)
    if leader:
        directory.leader_told(LeaderHint("us", 1, leader))
    return Router(directory, ME)


def a_route(router: Router, now: float = 0.0, *, deadline: float = 10.0, may_repeat: bool = True) -> Route:
    return router.route(Wanted("us", deadline, may_repeat=may_repeat), now, never)


def names_tried(route: Route, now: float = 0.0) -> list[str]:
    """Everybody that a request would try if nobody could be reached."""
    names = []
    try:
        while True:
            names.append(route.next_try(now).server.name)
            route.failed(Outcome.NOT_SENT, "refused", now)
    except NoPath:
        return names


def test_the_leader_is_tried_first() -> None:
    assert names_tried(a_route(a_router(leader="id-s3")))[0] == "s3.us"


def test_the_nearer_of_two_comes_first() -> None:
    router = a_router(2, round_trips=(0.2, 0.01))
    chance = random.Random(1)
    firsts = [router.route(Wanted("us", 10), 0, chance.random).next_try(0).server.name for _ in range(200)]

    assert 120 <= firsts.count("s2.us") <= 180  # three in four


def test_a_suspected_server_comes_after_the_others() -> None:
    router = a_router(3)
    router._directory.member_seen(a_member("s1", "us"), is_suspect=True)

    assert names_tried(a_route(router)) == ["s2.us", "s3.us", "s1.us"]


def test_a_server_that_gossip_calls_dead_is_not_tried() -> None:
    router = a_router(2)
    router._directory.member_seen(a_member("s1", "us", status=MemberStatus.FAILED))

    assert names_tried(a_route(router)) == ["s2.us"]


def test_a_killed_server_costs_one_request_one_dial_and_the_next_ones_nothing() -> None:
    router = a_router(3, leader="id-s1")
    first = a_route(router)
    attempt = first.next_try(0.0)
    assert (attempt.server.name, attempt.dial_until) == ("s1.us", DIAL_S)
    first.failed(Outcome.NOT_SENT, "no connection", DIAL_S)
    assert first.next_try(DIAL_S).server.name != "s1.us"

    for now in (1.0, 1.5, 2.5, 5.0):
        assert a_route(router, now).next_try(now).server.name != "s1.us"


def test_after_its_rest_one_request_tries_a_server_again_and_the_others_wait_for_what_it_finds() -> None:
    router = a_router(1)
    route = a_route(router)
    route.next_try(0.0)
    route.failed(Outcome.NOT_SENT, "refused", 0.0)

    with pytest.raises(NoPath):
        a_route(router, 0.9).next_try(0.9)
    pioneer = a_route(router, 1.0)
    assert pioneer.next_try(1.0).server.name == "s1.us"
    with pytest.raises(NoPath):
        a_route(router, 1.5).next_try(1.5)
    pioneer.answered()
    assert a_route(router, 1.6).next_try(1.6).server.name == "s1.us"


def test_rests_grow_up_to_half_a_minute() -> None:
    router = a_router(1)
    server = router._directory.servers("us")[0]
    rests = []
    for _ in range(7):
        router.failed(server, "refused", 100.0)
        rests.append(next(s for s in range(1, 100) if not router.rests(server.id, 100.0 + s)))

    assert rests == [1, 2, 4, 8, 16, 30, 30]


def test_a_region_that_is_gone_fails_at_once_and_says_who_was_tried() -> None:
    router = a_router(2)
    names_tried(a_route(router))

    with pytest.raises(NoPath, match=r"No path to region 'us': s1.us: refused 1 s ago; s2.us: refused 1 s ago"):
        a_route(router, 0.7).next_try(0.7)


def test_a_region_that_nobody_knows_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(NoPath, match="known regions: eu, us"):
        a_router().route(Wanted("mars", 10), 0, never).next_try(0)


def test_at_most_three_servers_are_tried() -> None:
    assert len(names_tried(a_route(a_router(7)))) == TRIES_MAX


def test_a_server_that_declines_is_not_held_to_be_dead() -> None:
    router = a_router(2)
    route = a_route(router)
    first = route.next_try(0).server
    route.failed(Outcome.DECLINED, "no leader", 0)

    assert not router.rests(first.id, 0)
    assert route.next_try(0).server != first


def test_a_write_that_may_have_happened_is_not_sent_twice() -> None:
    route = a_route(a_router(), may_repeat=False)
    route.next_try(0)
    route.failed(Outcome.NO_ANSWER, "link lost", 0.5)

    with pytest.raises(OutcomeUnknown, match="did not answer"):
        route.next_try(0.5)


def test_a_write_that_was_not_sent_is_tried_elsewhere() -> None:
    route = a_route(a_router(), may_repeat=False)
    first = route.next_try(0).server
    route.failed(Outcome.NOT_SENT, "refused", 0.5)

    assert route.next_try(0.5).server != first


def test_a_caller_that_goes_leaves_no_blame() -> None:
    router = a_router(1)
    route = a_route(router)
    route.next_try(0)
    route.abandoned()

    assert a_route(router, 0.1).next_try(0.1).server.name == "s1.us"


def test_a_deadline_that_has_passed_is_the_end() -> None:
    route = a_route(a_router(), deadline=0.5)
    assert route.next_try(0).dial_until == 0.5
    route.failed(Outcome.NOT_SENT, "no connection", 0.5)

    with pytest.raises(DeadlineExceeded, match=r"asked s1\.us"):
        route.next_try(0.5)


def test_a_request_that_comes_back_is_refused() -> None:
    with pytest.raises(ForwardingLoop, match="came back"):
        a_router().route(Wanted("us", 10, hops=("a.eu", "me.eu")), 0, never)


def test_a_request_that_was_passed_on_too_often_is_refused() -> None:
    check_hops(("a", "b", "c"), ME)
    with pytest.raises(ForwardingLoop, match="4 times"):
        check_hops(("a", "b", "c", "d"), ME)


def test_a_server_that_has_not_failed_for_a_minute_is_like_any_other() -> None:
    router = a_router(2, leader="id-s1")
    names_tried(a_route(router))

    assert a_route(router, 61.0, deadline=70.0).next_try(61.0).server.name == "s1.us"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*Outcome, None]),
        st.floats(0.0, 3.0),  # how long the try took
        st.floats(0.0, 5.0),  # how long until the next request
    ),
    max_size=60,
)


@given(
    servers=st.integers(0, 6),
    dead=st.sets(st.integers(1, 6)),
    hops=st.lists(st.sampled_from(["s1.us", "id-s2", "s3.us", "x.asia"]), max_size=HOPS_MAX - 1, unique=True),
    patience_s=st.floats(0.1, 6.0),
    may_repeat=st.booleans(),
    story=EVENTS,
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_a_request_never_loops_never_tries_a_server_twice_and_ends_in_time(
    servers: int,
    dead: set[int],
    hops: list[str],
    patience_s: float,
    may_repeat: bool,
    story: list[tuple[Outcome | None, float, float]],
    seed: int,
) -> None:
    router = a_router(servers)
    for number in dead:
        if number <= servers:
            router._directory.member_seen(a_member(f"s{number}", "us", status=MemberStatus.FAILED))
    chance = random.Random(seed).random
    now = 0.0
    events = iter(story)
    for _ in range(5):
        deadline = now + patience_s
        route = router.route(Wanted("us", deadline, tuple(hops), may_repeat), now, chance)
        tried: list[str] = []
        unanswered: Outcome | None = None
        while True:
            try:
                attempt = route.next_try(now)
            except (NoPath, DeadlineExceeded, OutcomeUnknown):
                break
            assert now < deadline
            assert attempt.dial_until <= min(deadline, now + DIAL_S)
            assert not {attempt.server.id, attempt.server.name} & {*hops, *tried, *ME}
            assert int(attempt.server.name[1]) not in dead
            assert not (unanswered is Outcome.NO_ANSWER and not may_repeat)
            tried.append(attempt.server.name)
            outcome, took_s, _ = next(events, (Outcome.NOT_SENT, 1.0, 0.0))
            until = attempt.dial_until if outcome is Outcome.NOT_SENT else deadline
            now = min(now + took_s, until)  # the runner holds to what it was told
            if outcome is None:
                route.answered()
                break
            unanswered = outcome
            route.failed(outcome, "x", now)
        assert len(tried) <= TRIES_MAX
        assert now <= deadline
        now += next(events, (None, 0.0, 1.0))[2]


@given(seed=st.integers(0, 2**16), killed=st.integers(1, 3), every_s=st.floats(0.01, 1.0))
@settings(max_examples=100, deadline=None)
def test_many_requests_together_pay_little_for_a_killed_server(seed: int, killed: int, every_s: float) -> None:
    router = a_router(3, leader=f"id-s{killed}")
    chance = random.Random(seed).random
    now, paid = 0.0, 0
    for _ in range(100):
        route = router.route(Wanted("us", now + 5.0), now, chance)
        dials = 0
        while route.next_try(now).server.name == f"s{killed}.us":
            dials += 1
            route.failed(Outcome.NOT_SENT, "no connection", now)
        route.answered()
        assert dials <= 1
        paid += dials
        now += every_s

    assert paid <= 1 + 100 * every_s / 60  # once, and once more whenever it was forgotten
