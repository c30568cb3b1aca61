"""A few real agents, each a region; `just gossip-agents` does it with 48. Then what the harness makes of their logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.wan.agents import Outcome, measure
from tests.wan.news import FAILED, LEFT, UP, News


@pytest.mark.processes
def test_agents_of_many_regions_find_each_other_and_notice_who_goes(tmp_path: Path) -> None:
    outcome = measure(tmp_path, 6, kills=1, leaves=1, quiet_s=0.2)

    assert outcome.violations() == [], outcome.text()
    assert len(outcome.deaths_s) == len(outcome.leaves_s) == 1


def test_too_late_is_a_violation_and_in_time_is_none() -> None:
    outcome = Outcome(48, full_s=2.9, deaths_s=[8.9], leaves_s=[1.9])
    assert outcome.violations() == []

    outcome.full_s, outcome.deaths_s = 3.1, [8.9, 9.25]

    assert outcome.violations() == [
        "full membership was known to all after 3.10 s, 3 s is the limit",
        "a death was known to all after 9.25 s, 9 s is the limit",
    ]


def test_of_agents_that_were_kept_from_running_nothing_is_said_but_what_they_did_wrong() -> None:
    outcome = Outcome(10, deaths_s=[12.0], watched_s=20.0, lags_s=[0.2] * 49)
    assert len(outcome.violations()) == 1

    outcome.lags_s += [0.2] * 2
    assert outcome.is_starved
    assert outcome.violations() == []

    outcome.problems = ["wrongly taken for failed: a of b"]
    assert outcome.violations() == outcome.problems


def a_line(second: int, member: str, what: str) -> str:
    event = {"time": f"2026-08-21T10:00:{second:02}.000Z", "event": "gossip_member", "member": member, "what": what}
    return json.dumps(event) + "\n"


def second(at: float | None) -> int | None:
    return None if at is None else int(at) % 60


def test_a_belief_counts_from_the_first_line_that_said_so(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a line of something else\n" + a_line(1, "b", "join") + a_line(2, "b", "update"))
    news = News({"a": log, "b": tmp_path / "b.log"})
    news.read()
    assert second(news.known_at("b", UP, ["a"])["a"]) == 1

    with log.open("a") as out:
        out.write(a_line(5, "b", "failed") + a_line(7, "b", "join")[:-5])  # a line that is just being written
    news.read()

    assert second(news.known_at("b", FAILED, ["a"])["a"]) == 5
    assert news.known_at("b", UP, ["a"]) == {"a": None}
    assert news.failures(0, lambda name: False) == ["a of b"]
    assert news.failures(0, lambda name: name == "b") == []


def test_all_know_only_when_the_last_one_does(tmp_path: Path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in "abc"}
    for name, path in logs.items():
        path.write_text("".join(a_line(3, other, "join") for other in "abc" if other != name))
    logs["a"].write_text(logs["a"].read_text() + a_line(8, "c", "leave"))
    news = News(logs)
    news.read()

    assert second(news.all_know_at("ab", UP, "abc")) == 3
    assert news.all_know_at("c", LEFT, "ab") is None
    assert news.missing("c", LEFT, "abc") == ["b of c"]

    logs["b"].write_text(logs["b"].read_text() + a_line(9, "c", "leave"))
    news.read()

    assert second(news.all_know_at("c", LEFT, "ab")) == 9
