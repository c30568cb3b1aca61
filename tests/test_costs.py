"""The counter that tests of cost rely on sees what it is there to see."""

from __future__ import annotations

import numpy as np
import pytest

from tests.costs import Cost, assert_flat, cost_of

FEW, MANY = 20_000, 40_000


def test_a_loop_costs_its_rounds_whatever_it_does() -> None:
    def total(count: int) -> int:
        found = 0
        for number in range(count):
            found += number
        return found

    small, large = cost_of(lambda: total(1000)), cost_of(lambda: total(2000))

    assert large.lines == pytest.approx(2 * small.lines, rel=0.01)
    with pytest.raises(AssertionError, match="lines instead of"):
        assert_flat(small, large)


@pytest.mark.parametrize("shape", ["comprehension", "generator"])
def test_a_loop_on_one_line_is_seen_too(shape: str) -> None:
    def total(count: int) -> int:
        return sum([2 * n for n in range(count)]) if shape == "comprehension" else sum(2 * n for n in range(count))

    with pytest.raises(AssertionError, match="lines instead of"):
        assert_flat(cost_of(lambda: total(1000)), cost_of(lambda: total(2000)))


@pytest.mark.parametrize("work", [sorted, list, lambda known: np.array(known) > 3, lambda known: known[:-1]])
def test_what_is_done_inside_c_is_seen_by_what_it_makes(work: object) -> None:
    few, many = list(range(FEW)), list(range(MANY))

    with pytest.raises(AssertionError, match="bytes instead of"):
        assert_flat(cost_of(lambda: work(few)), cost_of(lambda: work(many)))  # type: ignore[operator]


def test_work_that_does_not_grow_passes_and_counts_the_same_each_time() -> None:
    few, many = dict.fromkeys(range(FEW)), dict.fromkeys(range(MANY))

    assert_flat(cost_of(lambda: few.get(7)), cost_of(lambda: many.get(7)))
    assert cost_of(lambda: few.get(7)).lines == cost_of(lambda: few.get(7)).lines


def test_hardly_more_is_allowed_but_columns_may_be_longer() -> None:
    assert_flat(Cost(1000, 0), Cost(1020, 0))
    assert_flat(Cost(1000, 100_000), Cost(1000, 1_000_000), is_vector=True)
    with pytest.raises(AssertionError):
        assert_flat(Cost(1000, 0), Cost(1060, 0))
