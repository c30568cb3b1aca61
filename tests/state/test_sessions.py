from __future__ import annotations

import pytest

from fedsched.state.tables import sessions
from fedsched.state.tables.jobs import JobDeregister, job_register
from fedsched.state.tables.sessions import IDLE_NS, WINDOW, RequestId
from tests.builders import a_job
from tests.state.worlds import SECOND, World


def stop(world: World, request: RequestId, *, time_ns: int | None = None) -> int:
    """A command that adds a version each time it is carried out; the index it was decided at."""
    return world.do(JobDeregister(namespace="default", id="web"), request=request, time_ns=time_ns).result.index


def version(world: World) -> int:
    row = world.store.jobs.row("default", "web")
    assert row is not None
    return row.version


def a_world() -> World:
    world = World()
    world.register(a_job())
    return world


def test_a_repeated_request_happens_once_and_gets_the_first_answer() -> None:
    world = a_world()
    first = stop(world, RequestId(b"s", 1))
    again = stop(world, RequestId(b"s", 1))

    assert first == again == 2
    assert version(world) == 1
    assert world.index == 3


def test_a_repeated_refusal_is_the_same_refusal() -> None:
    world = a_world()
    refused = job_register(a_job(priority=3), evaluation=None, enforce_index=True, check_index=77)
    first = world.do(refused, request=RequestId(b"s", 1)).result
    world.register(a_job(priority=4))

    assert world.do(refused, request=RequestId(b"s", 1)).result == first
    assert first.code == "conflict"


def test_requests_of_one_session_may_arrive_out_of_order() -> None:
    world = a_world()
    stop(world, RequestId(b"s", 5))
    stop(world, RequestId(b"s", 4))

    assert version(world) == 2


def test_acknowledged_results_are_let_go_and_their_numbers_never_carried_out_again() -> None:
    world = a_world()
    stop(world, RequestId(b"s", 1))
    stop(world, RequestId(b"s", 2, 1))
    assert [row.sequence for row in world.store.sessions.results.scan()] == [2]

    late = world.do(JobDeregister(namespace="default", id="web"), request=RequestId(b"s", 1))
    assert late.result.code == "conflict"
    assert version(world) == 2


def test_an_acknowledgement_never_covers_its_own_request() -> None:
    world = a_world()
    stop(world, RequestId(b"s", 1, 99))

    assert stop(world, RequestId(b"s", 1, 99)) == 2
    assert version(world) == 1


def test_only_a_window_of_results_is_kept() -> None:
    world = a_world()
    stop(world, RequestId(b"s", 1))
    stop(world, RequestId(b"s", WINDOW + 1))

    assert [row.sequence for row in world.store.sessions.results.scan()] == [WINDOW + 1]
    late = world.do(JobDeregister(namespace="default", id="web"), request=RequestId(b"s", 1))
    assert late.result.code == "conflict"


def test_an_idle_session_is_forgotten_by_log_time() -> None:
    world = a_world()
    stop(world, RequestId(b"old", 1), time_ns=SECOND)
    stop(world, RequestId(b"new", 1), time_ns=SECOND + IDLE_NS)
    assert {row.session for row in world.store.sessions.rows.scan()} == {b"old", b"new"}

    stop(world, RequestId(b"new", 2), time_ns=2 * SECOND + IDLE_NS)
    assert {row.session for row in world.store.sessions.rows.scan()} == {b"new"}
    assert {row.session for row in world.store.sessions.results.scan()} == {b"new"}


def test_log_time_never_goes_back() -> None:
    world = a_world()
    stop(world, RequestId(b"a", 1), time_ns=50 * SECOND)
    stop(world, RequestId(b"b", 1), time_ns=SECOND)

    assert world.store.time_ns == 50 * SECOND
    assert {row.time_ns for row in world.store.sessions.rows.scan()} == {50 * SECOND}


def test_beyond_the_bound_the_session_idle_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    world = a_world()
    for name in (b"a", b"b", b"c", b"d"):
        stop(world, RequestId(name, 1))

    assert {row.session for row in world.store.sessions.rows.scan()} == {b"b", b"c", b"d"}


def test_results_survive_an_image() -> None:
    from tests.state.test_histories import restored

    world = a_world()
    stop(world, RequestId(b"s", 1))
    other = World()
    other.store = restored(world.store)

    assert stop(other, RequestId(b"s", 1)) == 2
    assert version(other) == 1
