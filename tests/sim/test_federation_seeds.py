"""The simulated federation of every change: one seed with all promises between regions, and the same story told again.

`just sim-federation 1000` runs a thousand; this is what fits into every change. Seeds that found something are run with
FEDSCHED_TESTS_LONG=1 (as `just long` does); what they found has tests of its own at the lowest depth that shows it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from fedsched.sim import long_cuts
from fedsched.sim.federation_plan import NAMES, OWN_KINDS, WAN_KINDS, WISHES, draw_plan
from fedsched.sim.federation_run import main, run_company, run_seed, story

pytestmark = pytest.mark.plans_by_hand  # the simulator recomputes every plan itself

SEEDS = (36,)
lived = functools.cache(run_seed)
FOUND = (
    329,  # a part that a person stopped before its turn was taken for one passed over
    27,  # a plan made before a region's turn took that turn back
    10,  # a server that stopped while a link fell silent crashed with two errors at once
    5,  # a link that broke under a call counted as an answer
)
"""Seeds that found something, and what it was when they did."""
LONG_CUTS = (4, 9, 12, 18)
"""Cuts after which regions did not find each other again: they had forgotten one another."""


@pytest.mark.sim
@pytest.mark.parametrize("seed", [*SEEDS, *(FOUND if os.environ.get("FEDSCHED_TESTS_LONG") else ())])
def test_seeds_hold_every_promise_between_regions(seed: int) -> None:
    report = lived(seed)

    assert report.broken is None, story(report)
    assert report.counts["PlanApply"] > 0
    assert report.virtual_s > 1024 + 50
    if draw_plan(seed).wishes:
        assert report.counts["deed: run"] > 0


@pytest.mark.sim
def test_what_goes_with_a_seed_holds_as_well() -> None:
    assert run_company(0) is None
    assert run_company(1) is None


@pytest.mark.parametrize("seed", LONG_CUTS)
def test_regions_find_each_other_after_a_cut_of_any_length(seed: int) -> None:
    assert long_cuts.run_seed(seed).failures


@pytest.mark.sim
def test_a_seed_tells_the_same_story_in_a_process_with_other_hashes() -> None:
    here = lived(36)
    done = subprocess.run(
        [sys.executable, "-m", "fedsched.sim.federation_run", "--first", "36"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert here.trace_hash in done.stdout


def test_seeds_draw_every_kind_of_federation_and_of_trouble() -> None:
    plans = [draw_plan(seed) for seed in range(300)]

    assert draw_plan(5) == plans[5]
    assert {len(plan.regions) for plan in plans} == set(range(2, len(NAMES) + 1))
    assert {one.kind for plan in plans for one in plan.wishes} == set(WISHES)
    assert {bool(plan.left_alone) for plan in plans} == {True, False}
    assert {one.kind for plan in plans for one in plan.troubles} == {*WAN_KINDS, *OWN_KINDS, "lost"}
    for plan in plans:
        alone = set(plan.left_alone)
        assert alone < set(plan.regions)
        assert bool(plan.wishes) is (len(plan.regions) - len(alone) > 1)
        assert not any(alone & {one.through, *one.regions} for one in plan.wishes)
        assert not any(one.region in alone for one in plan.troubles if one.kind not in WAN_KINDS)


@pytest.mark.sim
def test_processes_share_the_seeds_and_their_counts_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "2", "--seeds", "2", "--step", "34", "--jobs", "2", "--counts"]) == 0

    printed = capsys.readouterr().out
    assert "2 federations, 0 broken" in printed
    assert "trouble: " in printed
