"""One minute of chaos on three real servers, as part of every test run; `just chaos` does ten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import draw_plan
from tests.chaos.run import PROXY, Chaos

SEED = 78
"""Its minute holds kills and pauses of the leader, a leader cut off, one that is deaf, a flapping follower, and the end
of all servers at once."""


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_one_minute_of_kills_pauses_and_cuts_loses_nothing(tmp_path: Path) -> None:
    plan = draw_plan(SEED, minutes=1)

    report = Chaos(plan, tmp_path, links=PROXY, resume_p99_s=10.0, resume_max_s=15.0).run()

    assert report.has_passed, report.table()
    assert report.leader_hits >= 4
