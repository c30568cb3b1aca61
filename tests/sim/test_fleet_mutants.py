"""Planted bugs: each is noticed, by the promise that it breaks. `python -m fedsched.sim.fleet_mutants` tries all."""

from __future__ import annotations

import pytest

from fedsched.sim.fleet_mutants import MUTANTS, Mutant, hunt, planted
from fedsched.sim.fleet_mutants import main as hunt_all
from fedsched.sim.fleet_run import main

pytestmark = pytest.mark.plans_by_hand  # what is planted is for the simulator to notice

QUICK = [mutant for mutant in MUTANTS if mutant.is_quick]
SEEDS_MAX = 4


@pytest.mark.sim
@pytest.mark.parametrize("mutant", QUICK, ids=lambda one: one.name)
def test_a_planted_bug_is_noticed(mutant: Mutant) -> None:
    catch = hunt(mutant, SEEDS_MAX)

    assert catch.is_right(mutant), catch


def test_every_promise_of_scheduling_has_a_bug_that_breaks_it() -> None:
    promises = {f"R-{number}" for number in range(20, 30)}

    assert promises <= {promise for mutant in MUTANTS for promise in mutant.broken}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


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


@pytest.mark.sim
def test_the_hunt_says_what_was_noticed_and_what_was_not() -> None:
    said: list[str] = []

    assert hunt_all(["names are given twice"], said.append) == 0
    assert hunt_all(["launches overlap", "--seeds", "0"], said.append) == 1

    assert "R-23" in said[0]
    assert "NOT NOTICED" in said[2]
