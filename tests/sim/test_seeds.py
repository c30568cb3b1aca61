"""The simulation set of every change: 300 seeds, one in five run twice in processes with different hash seeds."""

from __future__ import annotations

import pytest

from fedsched.sim.batch import WorkerDied, run_elsewhere, run_here
from fedsched.sim.options import draw_options
from fedsched.sim.report import failure_text
from tests.sizes import size

SEEDS = 300
BATCH = 25
HASH_SEED = 7


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_seeds_hold_every_invariant_and_repeat_to_the_byte(first: int) -> None:
    seeds = range(first, first + BATCH)
    here = {result.seed: result for result in run_here(seeds)}
    for seed, result in here.items():
        replay = f"python -m fedsched.sim run --trace {seed}"
        assert result.failure is None, failure_text(result, draw_options(seed), replay)
        assert result.events > 100

    again = seeds[:: size(5, 1)]
    elsewhere = {result.seed: result for result in run_elsewhere(again, jobs=1, hash_seed=HASH_SEED)}

    assert {seed: result.trace for seed, result in elsewhere.items()} == {seed: here[seed].trace for seed in again}


def test_processes_with_different_hash_seeds_agree() -> None:
    seeds = range(400, 404)

    traces = [
        {result.seed: result.trace for result in run_elsewhere(seeds, jobs=2, hash_seed=hash_seed)}
        for hash_seed in (1, 2, 3)
    ]

    assert traces[0] == traces[1] == traces[2]
    assert len(set(traces[0].values())) == len(seeds)


def test_a_process_that_dies_is_noticed(tmp_path: pytest.TempPathFactory) -> None:
    with pytest.raises(WorkerDied, match="0 of 2"):
        list(run_elsewhere([1, 2], jobs=1, options_file=f"{tmp_path}/missing.json"))
