"""Planted bugs: each is noticed, by the promise that it breaks."""

from __future__ import annotations

import pytest

from fedsched.sim.fleet_mutants import MUTANTS, Mutant, planted
from fedsched.sim.fleet_run import main, run_seed

SEEDS_MAX = 20
"""Enough that every bug meets its moment; most do in the first few."""


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_planted_bug_is_noticed(mutant: Mutant) -> None:
    with planted(mutant):
        for seed in range(mutant.first, mutant.first + SEEDS_MAX):
            broken = run_seed(seed).broken
            if broken is not None:
                break
        else:
            pytest.fail(f"{mutant.name}: not noticed in {SEEDS_MAX} seeds")

    assert broken.invariant.startswith(mutant.broken), broken


@pytest.mark.sim
def test_a_broken_seed_is_told_in_full_with_the_way_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(one for one in MUTANTS if one.name == "names are given twice")

    with planted(mutant):
        assert main(["--first", "0"]) == 1
        told = capsys.readouterr().out
        assert main(["--first", "0", "--keep-going"]) == 1
        short = capsys.readouterr().out

    assert "seed 0 breaks R-23 names unique" in told
    assert "replay: python -m fedsched.sim.fleet_run --first 0 --trace" in told
    assert len(short.splitlines()) == 1
