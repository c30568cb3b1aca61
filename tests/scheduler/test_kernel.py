"""The kernel places exactly as re-scoring every node for every placement does."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel import place
from fedsched.scheduler.kernel_placed import occurrences
from fedsched.scheduler.kernel_request import PlaceRequest, PropertyLimit, SpreadBlock, Verdict
from fedsched.scheduler.reference import place_by_argmax, place_slowly
from fedsched.scheduler.score import AFFINITY, ANTI_AFFINITY, FINAL, FIT, RESCHEDULE_PENALTY, SPREAD, tie_seed
from tests.scheduler.fleets import Refusals, a_fleet, a_request, any_request, by_slot, occupy, slots


def placed(request: PlaceRequest) -> list[int]:
    found: list[int] = place(request).node_slots.tolist()
    return found


def twin(request: PlaceRequest) -> PlaceRequest:
    """The same request with a check that has heard nothing yet."""
    check = request.check
    return replace(request, check=Refusals(check._seed, check._share)) if isinstance(check, Refusals) else request


class TestSameAsTheReference:
    @pytest.mark.parametrize("part", range(8))
    def test_on_any_fleet_with_any_mix_of_blocks(self, part: int) -> None:
        for seed in range(part * 250, part * 250 + 250):
            request = any_request(random.Random(seed))
            slow = twin(request)
            assert placed(request) == place_slowly(slow), f"seed {seed}"
            if isinstance(request.check, Refusals) and isinstance(slow.check, Refusals):
                assert request.check.asked == slow.check.asked[: len(request.check.asked)], f"seed {seed}"

    @pytest.mark.parametrize("algorithm", ["binpack", "spread", "balanced"])
    @pytest.mark.parametrize("seed", range(4))
    def test_on_a_large_fleet_where_most_nodes_are_never_looked_at(self, algorithm: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        fleet = a_fleet([(4000, 8192)] * 3000)
        if seed:
            where = rng.integers(0, 3000, 6000 * seed)
            amounts = rng.choice([50, 100, 250], (len(where), 3)).astype(float)
            fleet.add(where, amounts, 1)
        mask = fleet.ready & (rng.random(fleet.size) < 0.8)
        for count in (1, 2, 40, 300):
            request = a_request(
                fleet,
                count,
                mask=mask,
                seed=tie_seed("e", seed * 100 + count),
                algorithm=algorithm,
                collisions=rng.integers(0, 3000, 30) if seed % 2 else None,
            )
            assert placed(request) == place_by_argmax(request)

    def test_on_a_fleet_with_far_more_equal_nodes_than_placements(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 5000)
        occupy(fleet, 17, cpu=1000, memory=1000)
        request = a_request(fleet, 20, seed=99, collisions=slots(3, 4))
        assert placed(request) == place_by_argmax(request)
        assert placed(request)[0] == 17

    def test_when_one_node_takes_hundreds(self) -> None:
        fleet = a_fleet([(100_000, 100_000), (90_000, 100_000), (500, 500)])
        for algorithm in ("binpack", "spread", "balanced"):
            request = a_request(fleet, 900, cpu=100, memory=100, algorithm=algorithm, group_count=900, seed=5)
            assert placed(request) == place_by_argmax(request)

    def test_the_argmax_reference_agrees_with_the_slow_one(self) -> None:
        for seed in range(60):
            request = any_request(random.Random(seed))
            plain = replace(request, spreads=(), limits=(), check=None, bonuses={}, penalty=None)
            assert place_by_argmax(plain) == place_slowly(plain)

    def test_the_fleet_is_as_before_afterwards(self) -> None:
        for seed in range(40):
            request = any_request(random.Random(seed))
            fleet = request.fleet
            before = (fleet.occupied_cpu.copy(), fleet.held_memory.copy(), fleet.occupied_allocs.copy())
            place(request)
            after = (fleet.occupied_cpu, fleet.held_memory, fleet.occupied_allocs)
            assert all((one == two).all() for one, two in zip(before, after, strict=True))


class TestChoice:
    def test_the_fuller_node_wins_unless_spreading(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 3)
        occupy(fleet, 1, cpu=1000, memory=1000)
        assert placed(a_request(fleet)) == [1]
        assert placed(a_request(fleet, algorithm="spread")) != [1]

    def test_balanced_prefers_what_leaves_both_resources_alike(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        occupy(fleet, 0, cpu=2000, memory=1000)
        occupy(fleet, 1, cpu=1000, memory=2000)
        assert placed(a_request(fleet)) == [0]
        assert placed(a_request(fleet, algorithm="balanced")) == [1]

    def test_two_of_a_group_do_not_share_a_node_while_another_is_empty(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        occupy(fleet, 0, cpu=500, memory=256)
        request = a_request(fleet, group_count=3, collisions=slots(0))
        assert placed(request) == [1]
        assert placed(replace(request, group_count=10)) == [1]
        final = {score.slot: score.final for score in place(request).best()}
        assert final[0] == pytest.approx(-0.174529, abs=5e-7)
        assert final[1] == pytest.approx(0.177519, abs=5e-7)

    def test_an_affinity_of_0_halves_the_score(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        (best, *_) = place(a_request(fleet, bonuses={AFFINITY: np.zeros(fleet.size)})).best()
        assert best.final == pytest.approx(0.177519 / 2, abs=5e-7)
        assert best.scores[AFFINITY] == 0

    def test_a_penalty_counts_only_on_penalty_nodes(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        answer = place(a_request(fleet, 2, penalty=slots(0), group_count=4))
        assert answer.node_slots[0] == 1
        scores = answer.best()
        assert [score.scores[RESCHEDULE_PENALTY] for score in scores] == [0, -1]
        assert scores[1].final == pytest.approx((0.177519 - 1) / 2, abs=5e-7)

    def test_equal_nodes_are_taken_in_another_order_by_another_evaluation(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 50)
        first = {placed(a_request(fleet, seed=tie_seed(str(number))))[0] for number in range(40)}
        assert len(first) > 10

    def test_a_mask_rules_out(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 4)
        mask = np.zeros(fleet.size, dtype=np.bool_)
        mask[2] = True
        assert placed(a_request(fleet, 3, mask=mask)) == [2, 2, 2]
        assert placed(a_request(fleet, 1, mask=np.zeros_like(mask))) == []
        assert placed(a_request(fleet, 3, mask=np.zeros_like(mask))) == []
        assert placed(a_request(fleet, 0)) == []

    def test_distinct_hosts_takes_each_node_once_and_none_that_has_one(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 4)
        answer = place(a_request(fleet, 9, distinct_hosts=True, taken=slots(2)))
        assert sorted(answer.node_slots.tolist()) == [0, 1, 3]
        assert answer.unplaced == 6
        assert answer.exhaustion().distinct == 4

    def test_distinct_property_keeps_to_its_limit(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 6)
        racks = by_slot(fleet, [0, 0, 1, 1, 2, -1])
        answer = place(a_request(fleet, 9, limits=(PropertyLimit(racks, 2, {1: 1, 2: 2}),)))
        assert sorted(int(racks[slot]) for slot in answer.node_slots) == [0, 0, 1]
        assert answer.exhaustion() == (0, {}, {}, 6)
        assert placed(a_request(fleet, 2, limits=(PropertyLimit(racks, 0),))) == []


class TestSpread:
    @pytest.mark.parametrize("percent", range(10, 101, 10))
    def test_targets_are_met_to_the_allocation(self, percent: int) -> None:
        fleet = a_fleet([(4000, 8192)] * 10)
        values = by_slot(fleet, [0] * 5 + [1] * 5)
        targets = {0: float(percent), 1: 100.0 - percent} if percent < 100 else {0: 100.0}
        for seed in range(200):
            request = a_request(fleet, 10, seed=tie_seed("e", seed), spreads=(SpreadBlock(values, 100, targets),))
            assert sum(slot < 5 for slot in placed(request)) == percent // 10

    @pytest.mark.parametrize(("targets", "wanted"), [({0: 50.0}, [6]), ({0: 50.0, 1: 25.0, 2: 25.0}, [6, 3, 3])])
    def test_three_datacenters(self, targets: dict[int, float], wanted: list[int]) -> None:
        fleet = a_fleet([(4000, 8192)] * 12)
        values = by_slot(fleet, [slot % 3 for slot in range(12)])
        for seed in range(200):
            request = a_request(fleet, 12, seed=tie_seed("e", seed), spreads=(SpreadBlock(values, 100, targets),))
            counts = np.bincount(values[placed(request)], minlength=3).tolist()
            assert counts[: len(wanted)] == wanted

    def test_without_targets_all_values_get_alike(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 30)
        values = by_slot(fleet, [slot % 5 for slot in range(30)])
        request = a_request(fleet, 20, spreads=(SpreadBlock(values),))
        assert np.bincount(values[placed(request)]).tolist() == [4] * 5

    def test_what_is_there_already_counts(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 4)
        values = by_slot(fleet, [0, 0, 1, 1])
        request = a_request(fleet, 2, spreads=(SpreadBlock(values, used={0: 2}),), group_count=4)
        assert [slot // 2 for slot in placed(request)] == [1, 1]

    def test_two_used_of_eight_desired(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        block = SpreadBlock(by_slot(fleet, [0, 1]), 100, {0: 80.0}, {0: 2})
        best = {
            score.slot: score.scores[SPREAD]
            for score in place(a_request(fleet, group_count=10, spreads=(block,))).best()
        }
        assert best == {0: 0.625, 1: 0.5}

    def test_two_blocks_by_weight(self) -> None:
        fleet = a_fleet([(4000, 8192)])
        zone = SpreadBlock(by_slot(fleet, [0]), 100, {0: 70.0})
        rack = SpreadBlock(by_slot(fleet, [0]), 50, {0: 50.0})
        (best,) = place(a_request(fleet, group_count=10, spreads=(zone, rack))).best()
        assert best.scores[SPREAD] == pytest.approx(0.838095, abs=5e-7)

    def test_a_value_that_nothing_is_left_for_costs_one_per_block(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        blocks = tuple(SpreadBlock(by_slot(fleet, [0, 1]), weight, {0: 100.0}) for weight in (50, 10))
        best = {
            score.slot: score.scores[SPREAD] for score in place(a_request(fleet, group_count=4, spreads=blocks)).best()
        }
        assert best[1] == -2

    def test_a_target_of_nothing_gets_the_lowest_boost(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        block = SpreadBlock(by_slot(fleet, [0, 1]), 100, {0: 0.0, 1: 10.0}, {1: 5})
        best = {
            score.slot: score.scores[SPREAD]
            for score in place(a_request(fleet, group_count=10, spreads=(block,))).best()
        }
        assert best[1] == -5
        assert best[0] == -5
        fresh = replace(block, used={})
        best = {
            score.slot: score.scores[SPREAD]
            for score in place(a_request(fleet, group_count=10, spreads=(fresh,))).best()
        }
        assert best == {0: -1, 1: 0}

    @pytest.mark.parametrize("targets", [{}, {0: 50.0}])
    def test_a_node_without_the_attribute_is_the_last_choice(self, targets: dict[int, float]) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        block = SpreadBlock(by_slot(fleet, [-1, 0]), 100, targets)
        request = a_request(fleet, spreads=(block,), group_count=10)
        best = {score.slot: score.scores[SPREAD] for score in place(request).best()}
        assert best[0] == -1
        assert placed(request) == [1]


class TestCloserLook:
    @pytest.mark.parametrize("spread", [False, True])
    def test_a_refused_node_is_passed_over_for_good(self, spread: bool) -> None:
        fleet = a_fleet([(4000, 8192)] * 4)
        occupy(fleet, 1, cpu=500, memory=500)
        asked: list[int] = []

        def check(slot: int) -> Verdict:
            asked.append(slot)
            return Verdict.NEVER if slot == 1 else Verdict.YES

        blocks = (SpreadBlock(by_slot(fleet, [0] * 4)),) if spread else ()
        answer = place(a_request(fleet, 5, check=check, spreads=blocks))
        assert asked.count(1) == 1
        assert 1 not in answer.node_slots
        assert answer.refused().tolist() == [1]
        assert len(answer.node_slots) == 5

    @pytest.mark.parametrize("spread", [False, True])
    def test_a_node_refused_for_now_is_asked_again_for_the_next(self, spread: bool) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        occupy(fleet, 1, cpu=500, memory=500)
        asked: list[int] = []

        def check(slot: int) -> Verdict:
            asked.append(slot)
            return Verdict.NOT_NOW if asked == [1] else Verdict.YES

        blocks = (SpreadBlock(by_slot(fleet, [0] * 2)),) if spread else ()
        assert placed(a_request(fleet, 2, check=check, spreads=blocks)) == [0, 1]
        assert asked == [1, 0, 1]

    def test_when_all_are_refused_nothing_is_placed(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 100)
        answer = place(a_request(fleet, 5, check=lambda slot: Verdict.NEVER))
        assert answer.unplaced == 5
        assert len(answer.refused()) == 100
        assert place(a_request(fleet, 5, check=lambda slot: Verdict.NOT_NOW)).unplaced == 5
        assert not len(place(a_request(fleet, 1)).refused())

    def test_an_error_in_the_check_leaves_the_fleet_alone(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 4)

        def check(slot: int) -> Verdict:
            raise ValueError(slot)

        with pytest.raises(ValueError, match=r"0|1|2|3"):
            place(a_request(fleet, 5, check=check))
        assert not fleet.occupied_cpu.any()


class TestAnswer:
    def test_every_placement_has_its_scores(self) -> None:
        fleet = a_fleet([(4000, 8192)])
        scores = place(a_request(fleet, 2, group_count=10)).scores()
        assert scores[FIT] == pytest.approx([0.177519, 0.317608], abs=5e-7)
        assert scores[ANTI_AFFINITY] == pytest.approx([0, -0.2])
        assert scores[FINAL] == pytest.approx([0.177519, 0.058804], abs=5e-7)

    def test_scores_of_a_spread_are_those_at_the_time_of_each_placement(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        scores = place(a_request(fleet, 3, spreads=(SpreadBlock(by_slot(fleet, [0, 1])),), group_count=100)).scores()
        assert scores[SPREAD].tolist() == [0, 1, -1]

    def test_the_best_five_of_the_first_placement(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 9)
        for slot in range(9):
            occupy(fleet, slot, cpu=100 * slot, memory=100 * slot)
        best = place(a_request(fleet, 3)).best()
        assert [score.slot for score in best] == [8, 7, 6, 5, 4]
        assert best[0].scores.keys() == {FIT, ANTI_AFFINITY, RESCHEDULE_PENALTY}
        spread = place(a_request(fleet, 3, spreads=(SpreadBlock(by_slot(fleet, [0] * 9)),))).best()
        assert [score.slot for score in spread] == [8, 7, 6, 5, 4]
        nobody = a_request(fleet, 3, cpu=9999, spreads=(SpreadBlock(by_slot(fleet, [0] * 9)),))
        assert place(nobody).best() == []
        assert place(nobody).unplaced == 3

    def test_why_the_rest_found_no_room(self) -> None:
        fleet: Fleet = a_fleet([(1000, 8192), (4000, 400), (4000, 8192), (4000, 8192), (400, 100)], disk=300)
        fleet.cap_disk[2] = 50
        fleet.max_allocs[3] = 1
        fleet.node_class[:3] = fleet.classes.id_of("small")
        answer = place(a_request(fleet, 9, ask=Usage(500, 300, 100)))
        assert answer.unplaced == 5
        why = answer.exhaustion()
        assert why.nodes == 5
        assert why.by_dimension == {"cpu": 2, "memory": 1, "disk": 1, "max allocation exceeded": 1}
        assert why.by_class == {"small": 3}

    def test_it_must_be_read_before_the_fleet_changes(self) -> None:
        fleet = a_fleet([(4000, 8192)])
        answer = place(a_request(fleet))
        occupy(fleet, 0, cpu=1)
        for read in (answer.scores, answer.best, answer.exhaustion):
            with pytest.raises(AssertionError, match="changed"):
                read()

    def test_occurrences(self) -> None:
        assert occurrences(slots(3, 1, 3, 3, 1, 7)).tolist() == [0, 0, 1, 2, 1, 0]
        assert occurrences(slots()).tolist() == []
