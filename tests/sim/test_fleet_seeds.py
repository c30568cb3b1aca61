"""The simulated region of every change: a few seeds with all invariants, and the same story when told again.

`just sim 1000` runs a thousand; this is what fits into every change.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedsched.sim.fleet_options import FEATURES, draw_options
from fedsched.sim.fleet_run import main, run_seed, story

pytestmark = pytest.mark.plans_by_hand  # the simulator recomputes every plan itself

SEEDS = (0, 7)
FOUND = (
    158,  # deployments of a job that was purged and came again never ended
    269,  # a drain ended while plans that had been on their way still brought allocations
    331,  # a plan in flight that only noted something about an allocation gave its place away
    423,  # what was replaced in the canaries' own version took their names, and kept them after the promotion
    462,  # an evaluation that had ended was kept for its priority, and a newer one of its job was cancelled for it
    684,  # more had to go than the state alone would say, because of a plan on its way
    943,  # room that a plan had not taken after all was news to nobody
)
"""Seeds that found something, and what it was when they did."""


@pytest.mark.sim
@pytest.mark.parametrize("seed", [*SEEDS, *FOUND])
def test_seeds_hold_every_invariant_of_scheduling(seed: int) -> None:
    report = run_seed(seed)

    assert report.broken is None, story(report)
    assert report.counts["PlanApply"] > 0
    assert report.virtual_s > 60


@pytest.mark.sim
def test_a_seed_tells_the_same_story_in_a_process_with_other_hashes() -> None:
    here = run_seed(9)
    done = subprocess.run(
        [sys.executable, "-m", "fedsched.sim.fleet_run", "--first", "9"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert here.trace_hash in done.stdout


def test_seeds_differ_in_what_they_have() -> None:
    drawn = [draw_options(seed) for seed in range(200)]

    assert draw_options(5) == drawn[5]
    for feature in FEATURES:
        assert 20 < sum(feature in options.features for options in drawn) < 180


@pytest.mark.sim
def test_processes_share_the_seeds_and_their_counts_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "7", "--seeds", "2", "--step", "2", "--jobs", "2", "--counts"]) == 0

    printed = capsys.readouterr().out
    assert "2 regions, 0 broken" in printed
    assert "PlanApply" in printed
