from __future__ import annotations

from collections import Counter

import pytest

from fedsched.raft import rare
from fedsched.sim.hunt import SCENARIO_SEEDS
from fedsched.sim.runner import Run
from fedsched.sim.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_reaches_its_race_and_the_core_survives_it(scenario: Scenario) -> None:
    wanted = Counter(scenario.reaches)
    reached = 0
    for seed in range(SCENARIO_SEEDS):
        result = Run(seed, scenario.options, scenario.schedule).go()
        assert result.failure is None, result.failure
        reached += all(result.marks.get(mark, 0) >= count for mark, count in wanted.items())

    assert set(wanted) <= rare.NAMES
    assert reached > 0, f"{scenario.name} has drifted past its race: {scenario.what}"
