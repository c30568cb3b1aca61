from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.bench import store as bench
from fedsched.bench.frame import BenchOptions

pytestmark = pytest.mark.plans_by_hand


def test_a_small_run_reports_every_figure_and_keeps_the_log_small(tmp_path: Path) -> None:
    said: list[str] = []
    result = bench.run(BenchOptions(tmp_path, seed=1, count=10_000, say=said.append))

    assert {"ratio_dict_insert", "last_over_first_decile", "bytes_per_alloc", "longest_gc_pause_ms"} <= set(
        result.figures
    )
    assert all(value >= 0 for value in result.figures.values())
    assert result.figures["log_bytes_per_alloc"] < 40
    assert len([row for row in result.rows if "decile" in row]) == bench.DECILES
    assert said


def test_without_the_systems_word_memory_is_computed_from_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_resident_bytes", lambda: 0)
    result = bench.run(BenchOptions(tmp_path, count=10_000))

    assert 100 < result.figures["bytes_per_alloc"] < 250
