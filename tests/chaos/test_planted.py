"""The whole harness against real servers with a planted bug: the run must fail, and for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import ISOLATE, LEADER, Plan, Step
from tests.chaos.planted import STALE_READS
from tests.chaos.run import PROXY, Chaos


@pytest.mark.processes
def test_servers_that_answer_reads_without_asking_the_leader_are_caught(tmp_path: Path) -> None:
    steps = [Step(kind=ISOLATE, target=LEADER, hold_s=4.0, rest_s=0.5) for _ in range(2)]
    plan = Plan(seed=5, minutes=0.5, steps=steps)

    report = Chaos(plan, tmp_path, links=PROXY, program=["-m", "tests.chaos.planted", STALE_READS]).run()

    assert not report.has_passed
    assert report.checks["every history linearizable"] > 0
    assert any("stale read" in violation or "lost write" in violation for violation in report.violations)
