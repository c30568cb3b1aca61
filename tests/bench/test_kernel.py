from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedsched.bench import kernel, kernel_racks, quality
from fedsched.bench.frame import BENCHES, BenchOptions
from fedsched.bench.sampling import Sampler, candidates_for
from fedsched.scheduler.fleet_usage import Usage

FIGURES = {
    "placements_per_s",
    "ratio_sampling",
    "identical",
    "growth_50k_over_5k",
    "small_ns_per_node",
    "spread_share",
    "rack_1200_per_s",
    "rack_1200_spread_per_s",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "NODES", 120)
    monkeypatch.setattr(kernel, "LARGE", 240)
    monkeypatch.setattr(kernel_racks, "NODES", 1_600)
    monkeypatch.setattr(kernel_racks, "ROUNDS_MAX", 3)


@pytest.mark.usefixtures("small")
def test_the_kernel_bench_reports_its_figures_and_finds_itself_exact(tmp_path: Path) -> None:
    said: list[str] = []

    result = kernel.run(BenchOptions(tmp_path, seed=3, count=4, duration_s=0.5, say=said.append))

    assert result.figures.keys() == FIGURES
    assert result.figures["identical"] is True
    assert all(value > 0 for value in result.figures.values())
    assert {(row["racks"], row["count"]) for row in result.rows if "racks" in row} == {
        (25, 300),
        (25, 1200),
        (50, 1200),
        (75, 1200),
    }
    assert len(said) == 4


def test_a_kernel_that_is_not_exact_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "place_slowly", lambda request: [])
    rows: list[dict[str, object]] = []

    assert kernel._identical(BenchOptions(tmp_path, seed=1), rows) is False
    assert rows[0]["identical"] is False


def test_the_quality_bench_compares_all_ways_at_all_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "NODES", 40)

    result = quality.run(BenchOptions(tmp_path, seed=1))

    assert len(result.rows) == 4 * 4 * 2
    assert {row["way"] for row in result.rows} == {"binpack", "balanced", "spread", "sampling"}
    assert result.figures["unplaced_90_balanced"] < result.figures["unplaced_90_binpack"]
    by_row = {(row["way"], row["fill"], row["constrained"]): row for row in result.rows}
    assert by_row["spread", 0.3, False]["nodes_used"] > by_row["binpack", 0.3, False]["nodes_used"]


def test_both_benches_are_offered() -> None:
    assert {"kernel", "quality"} <= BENCHES.keys()


class TestSampling:
    @pytest.mark.parametrize(
        ("nodes", "limit"),
        [(1, 2), (4, 2), (5, 3), (8, 3), (9, 4), (17, 5), (32, 5), (100, 7), (1000, 10), (5000, 13), (10_000, 14)],
    )
    def test_it_compares_as_many_nodes_as_the_logarithm(self, nodes: int, limit: int) -> None:
        assert candidates_for(nodes) == limit

    def test_it_never_overfills_and_keeps_to_the_classes_allowed(self) -> None:
        setting = kernel.a_setting(50, 1)
        sampler = Sampler(setting.fleet, setting.classes.tolist())
        ask = Usage(4_000, 9_000, 10)
        placed = sampler.place(setting.allowed[0], ask, 10_000, random.Random(1), 2)
        assert {int(setting.classes[slot]) for slot in placed} <= setting.allowed[0]
        assert len(placed) < 10_000
        assert all(used <= cap for used, cap in zip(sampler.cpu, sampler.cap_cpu, strict=True))
        assert all(used <= cap for used, cap in zip(sampler.memory, sampler.cap_memory, strict=True))

    def test_nodes_that_score_nothing_are_used_when_there_is_nothing_else(self) -> None:
        setting = kernel.a_setting(3, 1)
        sampler = Sampler(setting.fleet, [0] * setting.fleet.size)
        assert len(sampler.place(frozenset({0}), Usage(0, 0, 0), 5, random.Random(1), 2)) == 5
