"""`fedsched bench fanout` in small: real connections to a real server, memory and news measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.bench import fanout
from fedsched.bench.frame import BENCHES, BenchOptions


@pytest.mark.processes
def test_a_few_connections_are_measured_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SETTLE_S", 0.2)
    monkeypatch.setattr(fanout, "ROUNDS", 2)
    result = fanout.run(BenchOptions(tmp_path, count=60))

    assert result.figures["connections"] == 60
    assert result.figures["push_per_s"] > 0
    assert result.figures["push_ratio_sockets"] > 0
    assert result.figures["frame_bytes"] > 96
    assert [row["missed"] for row in result.rows] == [0, 0]


def test_the_bench_is_listed() -> None:
    assert BENCHES["fanout"][0] == "fedsched.bench.fanout"
