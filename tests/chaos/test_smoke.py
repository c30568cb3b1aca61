"""Half a minute of chaos on three real servers, as part of every test run; `just chaos` does ten minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.plan import Plan, draw_plan
from tests.chaos.run import PROXY, Chaos
from tests.sizes import size

SEED = 78
"""Its minute holds kills and pauses of the leader, a leader cut off, one that is deaf, a flapping follower, and the end
of all servers at once."""

ONE_OF_EACH = (0, 2, 3, 4, 5, 6, 7, 10)
"""Which of its steps are done in every run, with shorter rests between them."""


def a_plan() -> Plan:
    plan = draw_plan(SEED, minutes=1)
    if size(0, 1):
        return plan
    steps = [replace(plan.steps[number], rest_s=1.0) for number in ONE_OF_EACH]
    assert {(step.kind, step.target) for step in steps} == {(step.kind, step.target) for step in plan.steps}
    return replace(plan, minutes=0.5, steps=steps)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_kills_pauses_and_cuts_lose_nothing(tmp_path: Path) -> None:
    report = Chaos(a_plan(), tmp_path, links=PROXY, resume_p99_s=10.0, resume_max_s=15.0).run()

    assert report.has_passed, report.table()
    assert report.leader_hits >= 4
