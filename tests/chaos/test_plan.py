from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import ALL, KILL, OTHER_FAULTS, PAUSE, Plan, draw_plan


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_hold_at_least_sixty_leader_kills_or_pauses_and_every_other_fault(seed: int) -> None:
    plan = draw_plan(seed, minutes=10)

    assert sum(step.hits_leader_process for step in plan.steps) >= 64
    assert {(step.kind, step.target) for step in plan.steps} >= set(OTHER_FAULTS)
    assert sum(step.hold_s + step.rest_s for step in plan.steps) <= 600


@pytest.mark.parametrize("seed", range(20))
def test_one_minute_holds_at_least_four_leader_kills_or_pauses(seed: int) -> None:
    assert sum(step.hits_leader_process for step in draw_plan(seed, minutes=1).steps) >= 4


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert draw_plan(7, 3) == draw_plan(7, 3)
    assert draw_plan(7, 3).steps != draw_plan(8, 3).steps


def test_a_stored_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    plan = draw_plan(3, 2)
    (tmp_path / "plan.json").write_text(plan.to_json())

    assert Plan.load(tmp_path / "plan.json") == plan


def test_only_kills_and_pauses_that_meet_the_leader_count_as_such() -> None:
    counted = {(step.kind, step.target) for step in draw_plan(1, 10).steps if step.hits_leader_process}

    assert counted == {(KILL, "leader"), (PAUSE, "leader"), (KILL, ALL)}
