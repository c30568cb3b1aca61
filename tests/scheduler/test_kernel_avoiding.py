"""Replacements that each avoid nodes of their own are placed exactly as if they were placed one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel import place
from fedsched.scheduler.kernel_request import PlaceRequest, SpreadBlock, Verdict
from fedsched.scheduler.reference import place_slowly
from fedsched.scheduler.score import FINAL, RESCHEDULE_PENALTY
from tests.scheduler.fleets import Refusals, a_fleet, a_request, any_request, by_slot, occupy, slots


def any_avoiding(seed: int) -> PlaceRequest:
    """Any request in which each placement avoids any nodes; some avoid none, some the same as others."""
    rng = random.Random(seed)
    request = any_request(rng)
    nodes = int(request.fleet.present.sum())
    kinds = [slots(*(rng.randrange(nodes) for _ in range(rng.choice([0, 1, 1, 2, 6])))) for _ in range(4)]
    penalties = tuple(
        rng.choice(kinds) if rng.random() < 0.6 else slots(rng.randrange(nodes)) for _ in range(request.count)
    )
    return replace(request, penalty=None, penalties=penalties)


def twin(request: PlaceRequest) -> PlaceRequest:
    check = request.check
    return replace(request, check=Refusals(check._seed, check._share)) if isinstance(check, Refusals) else request


class TestSameAsTheReference:
    @pytest.mark.parametrize("part", range(8))
    def test_on_any_fleet_with_any_nodes_to_avoid_per_placement(self, part: int) -> None:
        for seed in range(part * 250, part * 250 + 250):
            request = any_avoiding(seed)
            slow = twin(request)
            assert place(request).node_slots.tolist() == place_slowly(slow), f"seed {seed}"
            if isinstance(request.check, Refusals) and isinstance(slow.check, Refusals):
                assert request.check.asked == slow.check.asked[: len(request.check.asked)], f"seed {seed}"

    def test_in_one_go_as_one_after_the_other(self) -> None:
        for seed in range(100):
            request = replace(any_avoiding(seed), check=None, spreads=(), limits=(), distinct_hosts=False)
            fleet = request.fleet
            alone: list[int] = []
            counted = []
            for penalty in request.penalties:
                known = [] if request.collisions is None else request.collisions.tolist()
                one = replace(request, count=1, penalties=(), penalty=penalty, collisions=slots(*known, *alone))
                found = place(one).node_slots
                if not len(found):
                    break
                alone += found.tolist()
                counted.append(fleet.place(found, request.ask))
            for made in counted:
                fleet.release(made)
            assert place(request).node_slots.tolist() == alone, f"seed {seed}"


class TestChoice:
    def test_each_goes_where_it_did_not_fail_though_another_failed_there(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        request = a_request(fleet, 2, group_count=100, penalties=(slots(0), slots(1)))
        assert place(request).node_slots.tolist() == [1, 0]

    def test_an_avoided_node_is_taken_when_it_is_still_the_best(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        occupy(fleet, 1, cpu=4000, memory=8192)
        assert place(a_request(fleet, 2, penalties=(slots(0), slots(0)))).node_slots.tolist() == [0, 0]

    def test_one_that_avoids_nothing_is_placed_as_ever(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 30)
        plain = a_request(fleet, 12, seed=7)
        avoiding = replace(plain, penalties=(slots(),) * 11 + (slots(3),))
        assert place(avoiding).node_slots.tolist()[:11] == place(plain).node_slots.tolist()[:11]

    def test_a_node_outside_the_mask_cannot_be_avoided_into(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 3)
        mask = fleet.ready.copy()
        mask[1] = False
        found = place(a_request(fleet, 4, mask=mask, penalties=(slots(1, 2),) * 4)).node_slots.tolist()
        assert 1 not in found

    def test_a_refused_node_is_asked_once(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 3)
        asked: list[int] = []

        def check(slot: int) -> Verdict:
            asked.append(slot)
            return Verdict.NEVER if slot == 1 else Verdict.YES

        answer = place(a_request(fleet, 5, check=check, penalties=(slots(0), slots(1), slots(0), slots(1), slots(2))))
        assert asked.count(1) == 1
        assert answer.refused().tolist() == [1]
        assert len(answer.node_slots) == 5

    def test_nothing_to_place_or_nowhere_to_go(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        nobody = a_request(fleet, 2, ask=Usage(9999, 1, 1), penalties=(slots(0), slots(1)))
        assert place(nobody).unplaced == 2
        assert place(nobody).best() == []


class TestAnswer:
    def test_the_penalty_is_in_the_score_of_whom_it_met_only(self) -> None:
        fleet = a_fleet([(4000, 8192)])
        scores = place(a_request(fleet, 2, group_count=10, penalties=(slots(0), slots()))).scores()
        assert scores[RESCHEDULE_PENALTY].tolist() == [-1, 0]
        assert scores[FINAL] == pytest.approx([(0.177519 - 1) / 2, (0.317608 - 0.2) / 2], abs=5e-7)

    def test_the_best_nodes_are_those_for_the_first(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 2)
        blocks = (SpreadBlock(by_slot(fleet, [0, 0])),)
        answer = place(a_request(fleet, 2, group_count=9, penalties=(slots(0), slots(1)), spreads=blocks))
        best = answer.best()
        assert best == answer.best()  # however often it is asked
        assert [score.slot for score in best] == [1, 0]
        assert best[1].scores[RESCHEDULE_PENALTY] == -1

    def test_a_count_of_many_thousand_touches_each_node_a_few_times(self) -> None:
        fleet = a_fleet([(4000, 8192)] * 1000)
        rng = np.random.default_rng(3)
        penalties = tuple(rng.integers(0, 1000, 2) for _ in range(3000))
        found = place(a_request(fleet, 3000, group_count=3000, penalties=penalties)).node_slots
        assert len(found) == 3000
        shunned = sum(int(slot) in penalty.tolist() for slot, penalty in zip(found, penalties, strict=True))
        assert shunned == 0
