"""Every number that the scheduling page gives for scores."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fedsched.scheduler.fits import KEPT_MAX, NO_FIT, compute, compute_one, entry_of_one, entry_units, fit_scores
from fedsched.scheduler.fleet_columns import LOG_MAX
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.score import (
    ANTI_AFFINITY_MIN,
    UNIT,
    Algorithm,
    Ties,
    affinity_entry,
    anti_affinity,
    desired_counts,
    even_boost,
    final_score,
    fit_entry,
    fit_score,
    free_share,
    in_units,
    mean_key,
    target_boost,
    tie_seed,
)
from tests.scheduler.fleets import a_fleet, occupy, slots

ALGORITHMS: tuple[Algorithm, ...] = ("binpack", "spread", "balanced")


class TestFitScore:
    @pytest.mark.parametrize(
        ("node", "used", "binpack", "over_18", "spread", "spread_over_18"),
        [
            ((4000, 8192), (0, 0), 0, 0, 18, 1),
            ((4000, 8192), (500, 256), 3.195337, 0.177519, 14.804663, 0.822481),
            ((4000, 8192), (1000, 2048), 8.753173, 0.486287, 9.246827, 0.513713),
            ((4000, 8192), (2000, 4096), 13.675445, 0.759747, 4.324555, 0.240253),
            ((4000, 8192), (3000, 1024), 10.722778, 0.595710, 7.277222, 0.404290),
            ((4000, 8192), (4000, 8192), 18, 1, 0, 0),
            ((14000 - 100, 8192 - 256), (500, 256), 1.510749, 0.083930, 16.489251, 0.916070),
            ((4096 - 2048, 8192 - 4096), (1024, 2048), 13.675445, 0.759747, 4.324555, 0.240253),
        ],
    )
    def test_the_table_of_fit_scores(
        self,
        node: tuple[int, int],
        used: tuple[int, int],
        binpack: float,
        over_18: float,
        spread: float,
        spread_over_18: float,
    ) -> None:
        free = free_share(used[0], node[0]), free_share(used[1], node[1])
        assert fit_score(*free) == pytest.approx(binpack, abs=5e-7)
        assert fit_entry(*free) == pytest.approx(over_18, abs=6e-7)
        assert fit_score(*free, "spread") == pytest.approx(spread, abs=5e-7)
        assert fit_entry(*free, "spread") == pytest.approx(spread_over_18, abs=6e-7)

    def test_scores_never_leave_their_range(self) -> None:
        assert fit_score(2.0, 2.0) == 0
        assert fit_score(-1.0, -1.0) == 18
        assert fit_score(2.0, 2.0, "spread") == 18

    def test_balanced_takes_off_half_of_what_is_left_over_unevenly(self) -> None:
        assert fit_entry(0.75, 0.25, "balanced") == fit_entry(0.75, 0.25) - 0.25
        assert fit_entry(0.5, 0.5, "balanced") == fit_entry(0.5, 0.5)

    def test_a_node_without_a_resource_has_none_used(self) -> None:
        assert free_share(0, 0) == 1.0


class TestOtherEntries:
    def test_anti_affinity(self) -> None:
        assert anti_affinity(2, 4) == -0.75
        assert anti_affinity(1, 10) == -0.2
        assert anti_affinity(10_000, 1) == ANTI_AFFINITY_MIN
        assert anti_affinity(0, 0) == -1

    def test_the_mean_of_the_entries_present(self) -> None:
        assert final_score(in_units(-0.75) + in_units(-1), 2) == -0.875
        assert mean_key(6, 2) == mean_key(3, 1)

    @pytest.mark.parametrize(
        ("matched", "score"),
        [((100, 50), 0.5), ((-100,), -1 / 3), ((-100, 50), -1 / 6), ((100,), 1 / 3), ((), 0)],
    )
    def test_affinities(self, matched: tuple[float, ...], score: float) -> None:
        assert affinity_entry(matched, (100, -100, 50, 50)) == pytest.approx(score)
        assert affinity_entry((), ()) == 0

    def test_an_empty_node_beats_one_that_has_one_of_the_group(self) -> None:
        second = fit_entry(free_share(1000, 4000), free_share(512, 8192))
        first = fit_entry(free_share(500, 4000), free_share(256, 8192))
        assert second == pytest.approx(0.317608, abs=5e-7)
        assert (second + anti_affinity(1, 3)) / 2 == pytest.approx(-0.174529, abs=5e-7)
        assert (second + anti_affinity(1, 10)) / 2 == pytest.approx(0.058804, abs=5e-7)
        assert first == pytest.approx(0.177519, abs=5e-7)


class TestSpreadBoosts:
    def test_with_targets(self) -> None:
        desired, rest = desired_counts({1: 80}, 10)
        assert (desired, rest) == ({1: 8.0}, 2.0)
        assert target_boost(desired[1], 2, 1.0) == 0.625
        assert target_boost(rest, 0, 1.0) == 0.5

    def test_targets_that_make_a_hundred_percent_leave_nothing(self) -> None:
        assert desired_counts({0: 30, 1: 70}, 7)[1] == 0

    def test_two_blocks_by_weight(self) -> None:
        first = target_boost(7, 0, 100 / 150)
        second = target_boost(5, 0, 50 / 150)
        assert first == pytest.approx(0.571429, abs=5e-7)
        assert second == pytest.approx(0.266667, abs=5e-7)
        assert first + second == pytest.approx(0.838095, abs=5e-7)

    @pytest.mark.parametrize(
        ("used", "here", "boost"),
        [
            ({}, 0, 0),
            ({"a": 2}, 2, -1),
            ({"a": 2}, 0, 1),
            ({"a": 2, "b": 3}, 2, 0.5),
            ({"a": 2, "b": 3}, 3, -0.5),
            ({"a": 3, "b": 3}, 3, -1),
            ({"a": 3, "b": 3}, 0, 1),
            ({"a": 1, "b": 3}, 3, -2),
        ],
    )
    def test_evenly(self, used: dict[str, int], here: int, boost: float) -> None:
        assert even_boost(here, min(used.values(), default=0), max(used.values(), default=0)) == boost


class TestTies:
    @pytest.mark.parametrize("size", [1, 2, 64, 1000, 8192])
    def test_every_slot_has_a_rank_of_its_own_and_back(self, size: int) -> None:
        ties = Ties(tie_seed("an evaluation", 7), size)
        ranks = ties.ranks(np.arange(ties.count))
        assert sorted(ranks.tolist()) == list(range(ties.count))
        assert ties.slots(0, ties.count)[ranks].tolist() == list(range(ties.count))
        assert [ties.rank(slot) for slot in range(min(size, 50))] == ranks[: min(size, 50)].tolist()

    def test_more_nodes_than_fit_beside_a_score_are_refused(self) -> None:
        assert Ties(1, 1 << 20).bits == 20
        with pytest.raises(AssertionError, match="1048577"):
            Ties(1, (1 << 20) + 1)

    def test_other_evaluations_and_newer_states_have_another_order(self) -> None:
        orders = {
            tuple(Ties(tie_seed(name, index), 64).ranks(np.arange(64)).tolist())
            for name in ("a", "b", "c")
            for index in range(5)
        }
        assert len(orders) == 15


class TestFits:
    """Columns and single numbers, kept and fresh: always the same to the last unit."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_columns_are_the_formula_to_the_unit(self, algorithm: Algorithm) -> None:
        rng = random.Random(5)
        caps = [(rng.randint(1, 64_000), rng.randint(1, 256_000)) for _ in range(500)]
        used = [(rng.randint(0, cpu), rng.randint(0, memory)) for cpu, memory in caps]
        got = entry_units(
            np.array([cpu for cpu, _ in used], dtype=float),
            np.array([cpu for cpu, _ in caps], dtype=float),
            np.array([memory for _, memory in used], dtype=float),
            np.array([memory for _, memory in caps], dtype=float),
            algorithm,
        ).tolist()
        for at, (cap, use) in enumerate(zip(caps, used, strict=True)):
            entry = fit_entry(free_share(use[0], cap[0]), free_share(use[1], cap[1]), algorithm)
            assert abs(got[at] - entry * UNIT) <= 0.5 + 1e-5
            assert entry_of_one(use[0], cap[0], use[1], cap[1], algorithm) == got[at]

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_what_is_kept_follows_the_fleet(self, algorithm: Algorithm) -> None:
        rng = random.Random(3)
        fleet = a_fleet([(4000, 8192)] * 100)
        fleet.max_allocs[:20] = 3
        ask = Usage(300, 300, 100)
        for changes in (0, 1, 5, 30, 300, 3):
            where = slots(*(rng.randrange(100) for _ in range(changes)))
            fleet.place(where, Usage(rng.choice([100, 1000]), 50, 10))
            fresh = compute(fleet, ask, algorithm, None)
            assert fit_scores(fleet, ask, algorithm).tolist() == fresh.tolist()
            assert [compute_one(fleet, ask, algorithm, slot) for slot in range(fleet.size)] == fresh.tolist()

    def test_falling_too_far_behind_means_a_look_at_everything(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 10)
        ask = Usage(300, 300, 0)
        fit_scores(fleet, ask, "binpack")
        for _ in range(3):
            fleet.place(slots(*[1] * (LOG_MAX // 2)), Usage(0, 0, 0))
        occupy(fleet, 3, cpu=4000)
        assert fit_scores(fleet, ask, "binpack")[3] == NO_FIT

    @pytest.mark.parametrize("full", [{"cpu": 3800}, {"memory": 8000}, {"disk": 99_950}])
    def test_each_resource_can_be_what_is_missing(self, full: dict[str, Any]) -> None:
        fleet = a_fleet([(4000, 8192)])
        occupy(fleet, 0, **full)
        assert fit_scores(fleet, Usage(300, 300, 100), "binpack")[0] == NO_FIT

    def test_an_exact_fit_is_a_fit(self) -> None:
        fleet = a_fleet([(300, 400)], disk=10)
        assert fit_scores(fleet, Usage(300, 400, 10), "binpack")[0] == UNIT

    def test_only_so_many_asks_are_kept(self) -> None:
        fleet = a_fleet([(4000, 8192)])
        for cpu in range(KEPT_MAX + 5):
            fit_scores(fleet, Usage(cpu, 1, 1), "binpack")
        assert len(fleet.fit_scores) == KEPT_MAX
        assert (Usage(0, 1, 1), "binpack") not in fleet.fit_scores
