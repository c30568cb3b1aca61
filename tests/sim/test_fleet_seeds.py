"""The simulated region of every change: 40 seeds, each with all invariants, and the same story when told again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedsched.sim.fleet_run import main, run_seed, story

SEEDS = 40
BATCH = 5


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_seeds_hold_every_invariant_of_scheduling(first: int) -> None:
    for seed in range(first, first + BATCH):
        report = run_seed(seed)

        assert report.broken is None, story(report)
        assert report.counts["PlanApply"] > 0
        assert report.virtual_s > 100


@pytest.mark.sim
def test_a_seed_tells_the_same_story_twice_also_in_a_process_with_other_hashes() -> None:
    here = run_seed(4)
    again = run_seed(4)
    done = subprocess.run(
        [sys.executable, "-m", "fedsched.sim.fleet_run", "--first", "4"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert here.trace_hash == again.trace_hash
    assert here.trace_hash in done.stdout
    assert run_seed(5).trace_hash != here.trace_hash


@pytest.mark.sim
def test_faults_of_every_kind_happen_and_matter() -> None:
    counts = sum((run_seed(seed).counts for seed in (1, 3, 7, 10)), start=run_seed(0).counts)

    for kind in ("leader", "workers", "follower", "silence", "return", "join", "clock"):
        assert counts[f"fault: {kind}"] > 0
    for outcome in ("leader_crash", "leader_steps_down", "evaluation_timed_out", "nodes_silent", "drains ended"):
        assert counts[outcome] > 0
    assert counts["plan.checked part"] + counts["plan.checked none"] > 0
    assert counts["preempted"] > 0


@pytest.mark.sim
def test_the_command_prints_the_hash_of_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first", "4", "--counts"]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("seed 4 ")
    assert "PlanApply" in printed
