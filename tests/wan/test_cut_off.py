"""One cut of some seconds between two real regions; `just cut-off` does long ones, and stalls, and compares latencies.

How long requests take is not judged here: on a crowded machine a few seconds of them say little.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sizes import size
from tests.wan.asker import Answer
from tests.wan.cut_off import CUT, HOWS, run
from tests.wan.cut_report import Cycle, Outcome, percentile
from tests.wan.spaces import missing

PROBLEM = missing()
GOOD = "No path to region 'far': far-1.far: fell silent; far-2.far: fell silent; far-3.far: fell silent"


@pytest.mark.processes
@pytest.mark.skipif(not size(False, True), reason="half a minute of waiting: a part of `just long`")
@pytest.mark.skipif(bool(PROBLEM), reason=f"no network namespaces here: {PROBLEM}")
def test_a_region_that_is_cut_off_fails_fast_hurts_nobody_and_heals_by_itself(tmp_path: Path) -> None:
    outcome = run(tmp_path, hows=size((CUT,), HOWS), lost_s=10.0, window_s=1.0, own_per_s=10.0)

    assert outcome.violations(with_latency=False) == [], outcome.text()
    assert outcome.own > 50
    assert outcome.refused


def an_outcome(*, lost_ms: float = 10.0, healed_s: float = 2.0, refused_s: float = 4.0, error: str = GOOD) -> Outcome:
    windows = Cycle(CUT, {"near": 6.0, "far": 14.0}, healed_s, 1.0, [0.01] * 100, [lost_ms / 1000] * 100)
    return Outcome([windows], own=200, refused=[Answer(0.0, refused_s, error)])


def test_what_the_limits_allow_is_no_violation() -> None:
    assert an_outcome(lost_ms=10.9, healed_s=29, refused_s=4.9).violations() == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (an_outcome(lost_ms=12), "p99 of own requests is 1.200 times what it was"),
        (an_outcome(healed_s=31), "all know all 31.0 s after healing"),
        (an_outcome(refused_s=5.2), "failed after 5.2 s"),
        (an_outcome(error="No path to region 'far'"), "does not say who was tried"),
        (
            Outcome([Cycle(whole=[0.01] * 2, lost=[0.01] * 2)], problems=["near's own request failed"]),
            "own request failed",
        ),
    ],
)
def test_what_they_do_not_allow_is_one(outcome: Outcome, problem: str) -> None:
    [found] = outcome.violations()
    assert problem in found


def test_noise_is_what_halves_of_equal_windows_differ_by() -> None:
    quiet = Cycle(whole=[0.01] * 100, lost=[0.02] * 100)
    assert Outcome([quiet]).noise == 1.0

    loud = Cycle(whole=[0.01] * 50 + [0.03] * 50, lost=[0.02] * 100)
    assert Outcome([loud]).noise == pytest.approx(3)


def test_a_machine_on_which_chance_does_as_much_is_not_one_to_judge_latency_on() -> None:
    loud = Cycle(whole=[0.01] * 50 + [0.03] * 50, lost=[0.01] * 100 + [0.06] * 100)

    assert Outcome([loud]).ratio == pytest.approx(2)
    assert Outcome([loud]).noise == pytest.approx(6)
    assert Outcome([loud]).is_too_noisy
    assert Outcome([loud]).violations() == []
    assert not an_outcome(lost_ms=12).is_too_noisy


def test_the_99th_percentile_is_the_smallest_that_99_of_100_do_not_exceed() -> None:
    assert percentile([float(number) for number in range(1, 101)]) == 99.0
    assert percentile([5.0]) == 5.0
