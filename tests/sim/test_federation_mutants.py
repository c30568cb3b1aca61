"""Bugs planted between regions: each is noticed, by the promise that it breaks.

`python -m fedsched.sim.federation_mutants` tries all.
"""

from __future__ import annotations

import pytest

from fedsched.sim.federation_mutants import MUTANTS, Mutant, hunt, is_right, planted
from fedsched.sim.federation_mutants import main as hunt_all
from fedsched.sim.federation_run import main

pytestmark = pytest.mark.plans_by_hand

QUICK = [mutant for mutant in MUTANTS if mutant.is_quick]
SEEDS_MAX = 6


@pytest.mark.sim
@pytest.mark.parametrize("mutant", QUICK, ids=lambda one: one.name)
def test_a_planted_bug_is_noticed(mutant: Mutant) -> None:
    catch = hunt(mutant, SEEDS_MAX)

    assert is_right(catch, mutant), catch


def test_every_promise_between_regions_has_a_bug_that_breaks_it() -> None:
    promises = {broken.partition(" ")[0] for mutant in MUTANTS for broken in mutant.broken}

    assert {"R-63", "R-64", "R-65", "R-67"} <= promises
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 8


@pytest.mark.sim
def test_a_broken_seed_is_told_in_full_with_the_way_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(one for one in MUTANTS if one.name == "calls for others are answered here")

    with planted(mutant):
        assert main(["--first", "0"]) == 1
        told = capsys.readouterr().out
        assert main(["--first", "0", "--keep-going"]) == 1
        short = capsys.readouterr().out

    assert "seed 0 breaks R-63 each region answers for itself" in told
    assert "replay: python -m fedsched.sim.federation_run --first 0 --trace" in told
    assert "left alone: " in told
    assert len(short.splitlines()) == 1


@pytest.mark.sim
def test_the_hunt_says_what_was_noticed_and_what_was_not() -> None:
    said: list[str] = []

    assert hunt_all(["shares are not stored with deeds"], said.append) == 0
    assert hunt_all(["shares are not stored with deeds", "--seeds", "0"], said.append) == 1

    assert "R-65" in said[0]
    assert "NOT NOTICED" in said[2]
