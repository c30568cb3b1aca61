"""The gossip bench, in small."""

from __future__ import annotations

from fedsched.bench import BENCHES
from fedsched.bench import gossip as bench


def test_the_promises_are_kept_in_a_few_runs() -> None:
    assert "gossip" in BENCHES
    assert bench._worst(bench._times(bench._death, 1, 2, bench.FED)) <= 9
    assert bench._worst(bench._times(bench._join, 1, 2, bench.FED)) <= 2
    assert bench._worst(bench._times(bench._leave, 1, 2, bench.FED)) <= 2
    assert bench._false_deaths(1, minutes=0.5)[0] == 0
