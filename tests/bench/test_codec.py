from __future__ import annotations

import random
from pathlib import Path

from fedsched.bench import codec
from fedsched.bench.frame import BenchOptions
from fedsched.codec import to_builtins


def test_it_reports_every_noun_both_ways_and_says_what_it_does(tmp_path: Path) -> None:
    said: list[str] = []

    result = codec.run(BenchOptions(tmp_path, seed=3, count=5, say=said.append))

    assert [(row["noun"], row["form"]) for row in result.rows] == [
        (noun, form) for noun in ("plan", "allocation", "node", "heartbeat") for form in ("ours", "plain")
    ]
    assert said == ["plan ...", "allocation ...", "node ...", "heartbeat ..."]
    assert all(value > 0 for value in result.figures.values())
    assert result.figures["plan_bytes_per_alloc"] <= 40


def test_the_same_seed_measures_the_same_bytes(tmp_path: Path) -> None:
    first, second = (codec.run(BenchOptions(tmp_path, seed=9, count=5)) for _ in range(2))

    assert [row["bytes"] for row in first.rows] == [row["bytes"] for row in second.rows]


def test_what_is_measured_reads_back_as_it_was() -> None:
    chance = random.Random(1)

    for noun in (codec._allocation(chance), codec._node(chance)):
        assert to_builtins(noun.decode(noun.encode())) == noun.plain
    beat = codec._heartbeat(chance)
    assert to_builtins(beat.decode(beat.encode())) == beat.plain["body"]
    plan = codec._plan(chance).decode(codec._plan(chance).encode())
    assert len(plan.command.placed[0].ids) == 16 * codec.PLAN_ALLOCATIONS
