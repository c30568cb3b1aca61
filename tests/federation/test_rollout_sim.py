"""Rollouts under faults, from seeds; and bugs that are planted on purpose, which the same seeds must notice.

A few hundred seeds are run with every change, more with FEDSCHED_TESTS_LONG=1 (as `just long` does).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from fedsched.sim.rollout_mutants import PLANTED, Patch, noticed_at
from fedsched.sim.rollout_world import World

BATCH = 50
BATCHES = 100 if os.environ.get("FEDSCHED_TESTS_LONG") else 4


@pytest.mark.parametrize("first", range(0, BATCH * BATCHES, BATCH))
def test_a_rollout_keeps_its_promises_through_every_fault(first: int) -> None:
    for seed in range(first, first + BATCH):
        try:
            World(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_seeds_see_every_kind_of_end() -> None:
    ends: Counter[str] = Counter()
    for seed in range(100):
        world = World(seed)
        world.run()
        ends[world.record.status.value] += 1
        ends["adopted"] += world.adoptions > 0
        ends["adopted without a person"] += world.adoptions_alone > 0
        ends["rested for a canary"] += world.strategy.canary_region and world.canary_was_let_go
        ends["restarted"] += world.restarts > 0
        ends["skipped"] += any(one.is_skipped for one in world.record.regions)

    kinds = (
        "successful",
        "failed",
        "adopted",
        "adopted without a person",
        "rested for a canary",
        "restarted",
        "skipped",
    )
    assert all(ends[kind] >= 3 for kind in kinds), ends


def test_a_seed_tells_the_same_story_twice() -> None:
    def story(seed: int) -> object:
        world = World(seed)
        world.run()
        return world.record, [(one.name, one.status, dict(one.deeds)) for one in world.regions.values()]

    assert [story(seed) for seed in range(5)] == [story(seed) for seed in range(5)]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_noticed(plant: Patch) -> None:
    assert noticed_at(plant) is not None
