from __future__ import annotations

import json
from collections import Counter

import pytest

from fedsched.sim.linear import CAS, GET, PUT, Operation
from tests.chaos import checks
from tests.chaos.nemesis import Outcome
from tests.chaos.plan import ALL, ISOLATE, KILL, LEADER, Step
from tests.chaos.report import Report


def a_put(value: str, index: int | None, *, key: str = "k", at: float = 1.0) -> Operation:
    is_open = index is None
    ret = None if is_open else at + 0.5
    return Operation(client="c", op=PUT, key=key, argument=value, result=index, call=at, ret=ret, info=is_open)


def an_outcome(resumed_s: float | None = 1.0, *, kind: str = KILL, target: str = LEADER) -> Outcome:
    step = Step(kind=kind, target=target, hold_s=1)
    return Outcome(step=step, victims=["s1"], at_s=1.0, resumed_s=resumed_s, leader_changes=1, has_quorum=target != ALL)


def test_a_write_that_is_there_or_was_replaced_by_a_later_one_is_kept() -> None:
    history = [a_put("a", 5), a_put("b", 7, at=2.0), a_put("x", None, key="j"), a_put("y", 3, key="j")]

    assert checks.acknowledged_writes_kept(history, {"k": ("b", 7), "j": ("y", 3)}) == []
    assert checks.acknowledged_writes_kept(history, {"k": ("b", 7), "j": ("x", 9)}) == []


@pytest.mark.parametrize("final", [("a", 5), (None, 0), ("b", 8), ("z", 9)])
def test_an_acknowledged_write_that_is_gone_is_told(final: tuple[str | None, int]) -> None:
    [problem] = checks.acknowledged_writes_kept([a_put("a", 5), a_put("b", 7, at=2.0)], {"k": final})

    assert problem.startswith("k: 'b' was acknowledged at index 7")


def test_a_key_that_nobody_can_read_at_the_end_is_told() -> None:
    assert checks.acknowledged_writes_kept([a_put("a", 5)], {}) != []


def test_a_refused_compare_and_set_owes_nothing() -> None:
    refused = Operation(client="c", op=CAS, key="k", argument=[4, "n"], result=None, call=3.0, ret=4.0)

    assert checks.acknowledged_writes_kept([a_put("a", 5), refused], {"k": ("a", 5)}) == []


def test_a_broken_history_is_told_with_its_key() -> None:
    stale = Operation(client="d", op=GET, key="k", result=["a", 1], call=5.0, ret=6.0)
    seen: list[tuple[int, int]] = []

    problems = checks.linearizable(
        [a_put("a", 1), a_put("b", 2, at=3.0), stale, a_put("z", 1, key="other")],
        progress=lambda done, of: seen.append((done, of)),
    )

    assert len(problems) == 1
    assert problems[0].startswith("k is broken: stale read")
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "error agent broke\n    | Traceback (most recent call last):\n    |   File",
        "  + Exception Group Traceback (most recent call last):",
        "Fatal Python error: Segmentation fault",
    ],
)
def test_a_traceback_in_a_log_is_told_with_its_server(text: str) -> None:
    [problem] = checks.logs_clean({"s1": "all well", "s2": text})

    assert problem.startswith("s2 logged 1 traceback")


def test_exit_codes_other_than_zero_are_told() -> None:
    assert checks.exits_clean({"s1": 0, "s2": -9}) == ["s2 ended with -9 after SIGTERM"]


def test_slow_resumption_is_told_but_not_for_a_fault_that_takes_the_majority() -> None:
    quick = [an_outcome(1.0)] * 98

    assert checks.resumed_in_time([*quick, an_outcome(30.0, target=ALL)]) == []
    assert len(checks.resumed_in_time([*quick, an_outcome(5.0), an_outcome(5.0)])) == 1
    assert len(checks.resumed_in_time([*quick, an_outcome(11.0), an_outcome(11.0)])) == 2
    assert checks.resumed_in_time([]) != []


def test_a_run_that_did_little_does_not_pass() -> None:
    busy = Counter({PUT: 900, CAS: 200, GET: 1100})
    hits = [an_outcome()] * 60

    assert checks.enough_done(hits, busy, minutes=10) == []
    assert checks.enough_done(hits[:59], busy, minutes=10) != []
    assert checks.enough_done([*hits[:59], an_outcome(kind=ISOLATE)], busy, minutes=10) != []
    assert checks.enough_done(hits, Counter({PUT: 1100, GET: 10}), minutes=10) != []
    assert checks.enough_done([an_outcome()] * 4, busy, minutes=1) == []


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]

    assert checks.percentile(values, 0.5) == 50
    assert checks.percentile(values, 0.99) == 99
    assert checks.percentile([3.0], 0.99) == 3.0


def test_the_report_says_failed_and_why_and_its_json_holds_the_same() -> None:
    report = Report(
        seed=7,
        minutes=1,
        seconds=61.0,
        commit="abc",
        links="none",
        outcomes=[an_outcome(1.5), an_outcome(2.5, kind=ISOLATE), an_outcome(None, target=ALL)],
        counts=Counter({PUT: 3}),
        keys=2,
        violations=["no acknowledged write lost: k"],
        checks={"no acknowledged write lost": 1, "one leader per term": 0},
        figures={"restarts": 2},
    )

    table, data = report.table(), json.loads(report.to_json())

    assert table.endswith("VIOLATION: no acknowledged write lost: k\nFAILED")
    assert "isolate leader" in table
    assert (data["passed"], data["leader_kills_or_pauses"], data["resumed_s"]["max"]) == (False, 2, 2.5)
    assert data["by_fault"]["kill all"] == {"p50": 0.0, "p99": 0.0, "max": 0.0}
