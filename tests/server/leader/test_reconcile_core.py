"""What follows from gossip for the server set, and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from fedsched.raft.autopilot import FAILED, LEFT
from fedsched.raft.membership import Config, Removed, ServerInfo, first_config
from fedsched.server.leader.reconcile_core import (
    FAILED_AFTER_S,
    LOOK_S,
    SETTLE_S,
    Correct,
    Invite,
    ReconcileCore,
    Seen,
    Standing,
    verdicts,
)

LINKED: Mapping[str, bool] = {"b": True, "c": True}


def a_server(server_id: str, port: int = 1, name: str = "") -> ServerInfo:
    return ServerInfo(server_id, name or f"s-{server_id}", f"10.0.0.1:{port}")


def a_config(*ids: str, removed: tuple[Removed, ...] = ()) -> Config:
    found = first_config(map(a_server, ids))
    return Config(found.voters, servers=found.servers, removed=removed)


def seen(server_id: str, standing: Standing = Standing.UP, since: float = 0.0, **fields: object) -> Seen:
    return Seen(a_server(server_id, **fields), standing, since)  # type: ignore[arg-type]


CONFIG = a_config("a", "b", "c")


def test_a_set_that_gossip_agrees_with_is_let_be_and_looked_at_once_a_minute() -> None:
    core = ReconcileCore("a")
    assert core.decide(0.0, CONFIG, LINKED, map(seen, "abc")) == []
    assert core.wait_s() == LOOK_S


def test_a_newcomer_is_invited_at_once_and_then_less_and_less_often() -> None:
    core = ReconcileCore("a")
    times = [at / 2 for at in range(600) if core.decide(at / 2, CONFIG, LINKED, [seen("d")])]
    assert times[0] == 0
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] == SETTLE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LOOK_S


def test_one_that_was_cleaned_up_may_return_once_that_is_no_crossing_of_news() -> None:
    core = ReconcileCore("a")
    config = a_config("a", "b", removed=(Removed(a_server("c")),))
    assert core.decide(0.0, config, LINKED, [seen("c")]) == [Invite(a_server("c"), may_return=False)]
    assert core.decide(SETTLE_S, config, LINKED, [seen("c")]) == [Invite(a_server("c"), may_return=True)]


def test_one_whose_removal_was_asked_for_does_not_return_by_itself() -> None:
    core = ReconcileCore("a")
    config = a_config("a", "b", removed=(Removed(a_server("c"), "request-1"),))
    core.decide(0.0, config, LINKED, [seen("c")])
    assert core.decide(SETTLE_S, config, LINKED, [seen("c")]) == [Invite(a_server("c"), may_return=False)]


def test_a_server_that_moved_is_corrected_when_it_stays_away_from_its_old_place() -> None:
    core = ReconcileCore("a")
    away = {"b": False, "c": True}
    assert core.decide(0.0, CONFIG, away, [seen("b", port=9)]) == []
    assert core.wait_s() < SETTLE_S
    assert core.decide(SETTLE_S, CONFIG, away, [seen("b", port=9)]) == [
        Correct(a_server("b", 9), a_server("b").address)
    ]


def test_a_server_that_raft_talks_to_has_not_moved_whatever_gossip_says() -> None:
    core = ReconcileCore("a")
    for at in (0.0, SETTLE_S, 100.0):
        assert core.decide(at, CONFIG, LINKED, [seen("b", port=9), seen("a", port=7)]) == []


def test_those_that_do_not_answer_are_not_asked() -> None:
    core = ReconcileCore("a")
    pool = [seen("d", Standing.FAILED), seen("e", Standing.LEFT), seen("", Standing.UP)]
    assert core.decide(0.0, CONFIG, {}, pool) == []


def test_left_and_forgotten_servers_are_reported_as_left() -> None:
    links = {"b": False, "c": False}
    left = [seen("b", Standing.LEFT, 10.0)]
    assert verdicts(10.0 + SETTLE_S - 1, CONFIG, links, left, ()) == {}
    assert verdicts(10.0 + SETTLE_S, CONFIG, links, left, ["c", "x"]) == {"b": LEFT, "c": LEFT}


def test_a_failed_one_gets_a_minute_to_come_back() -> None:
    failed = [seen("b", Standing.FAILED, 10.0)]
    assert verdicts(10.0 + FAILED_AFTER_S - 1, CONFIG, {}, failed, ()) == {}
    assert verdicts(10.0 + FAILED_AFTER_S, CONFIG, {}, failed, ()) == {"b": FAILED}


def test_a_link_is_better_evidence_than_gossip() -> None:
    pool = [seen("b", Standing.LEFT), seen("c", Standing.FAILED)]
    assert verdicts(1000.0, CONFIG, LINKED, pool, ["a"]) == {"a": LEFT}
    assert verdicts(1000.0, CONFIG, {**LINKED, "a": True}, pool, ["a"]) == {}


def test_a_server_whose_name_another_one_has_by_now_is_gone() -> None:
    wiped = [seen("new", name="s-b", since=10.0)]
    assert verdicts(10.0, CONFIG, {}, wiped, ()) == {}
    assert verdicts(10.0 + SETTLE_S, CONFIG, {}, wiped, ()) == {"b": LEFT}


def test_servers_that_gossip_never_heard_of_are_nobodys_business() -> None:
    assert verdicts(1000.0, CONFIG, {}, (), ()) == {}
