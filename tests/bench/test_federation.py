"""The bench of regions: it measures what it says, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.bench.federation import run
from fedsched.bench.frame import BenchOptions


@pytest.mark.processes
def test_no_request_to_another_region_fails_when_a_server_there_is_killed(tmp_path: Path) -> None:
    result = run(BenchOptions(directory=tmp_path, count=8))

    assert [row["phase"] for row in result.rows] == ["all well", "dead_server", "dead_leader"]
    assert [row["failed"] for row in result.rows] == [0, 0, 0]
    assert result.figures["forward_usual_ms"] > 0
    assert result.figures["forward_dead_server_added_ms"] <= 1000, "one dial, and nothing else, may be waited for"
    assert result.figures["forward_dead_server_failed"] == result.figures["forward_dead_leader_failed"] == 0
