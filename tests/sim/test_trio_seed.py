"""The one place that knows trio's private scheduler names: it works, it cleans up, and it says when they moved."""

from __future__ import annotations

from types import ModuleType

import pytest
import trio
from trio._core import _run as trio_run

from fedsched.sim import trio_seed


async def who_runs_when() -> list[int]:
    """The order in which ten children get their turns."""
    order: list[int] = []

    async def child(number: int) -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(child, number)
    return order


def test_trio_still_has_the_two_private_names_that_seed_its_scheduler() -> None:
    assert isinstance(getattr(trio_run, trio_seed.SWITCH), bool)
    assert hasattr(getattr(trio_run, trio_seed.DICE), "seed")


def test_one_seed_gives_one_order_and_other_seeds_give_others() -> None:
    orders = [trio_seed.run(seed, who_runs_when) for seed in (1, 1, 2, 3)]

    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


def test_without_a_seed_the_order_is_not_repeatable() -> None:
    """Should this fail, trio schedules in a fixed order by itself, and the seeding has lost its purpose."""
    orders = {tuple(trio.run(who_runs_when)) for _ in range(6)}

    assert len(orders) > 1


def test_time_jumps_when_everybody_waits() -> None:
    async def sleep_long() -> float:
        await trio.sleep(3_600)
        return trio.current_time()

    assert trio_seed.run(1, sleep_long) == 3_600


def test_the_scheduler_is_left_as_it_was_found() -> None:
    switch, dice = getattr(trio_run, trio_seed.SWITCH), getattr(trio_run, trio_seed.DICE).getstate()

    trio_seed.run(1, who_runs_when)

    assert getattr(trio_run, trio_seed.SWITCH) is switch
    assert getattr(trio_run, trio_seed.DICE).getstate() == dice


@pytest.mark.parametrize("missing", [trio_seed.SWITCH, trio_seed.DICE])
def test_a_trio_without_the_names_is_refused_loudly(missing: str) -> None:
    moved = ModuleType("another_trio")
    for name in {trio_seed.SWITCH, trio_seed.DICE} - {missing}:
        setattr(moved, name, getattr(trio_run, name))

    with pytest.raises(trio_seed.TrioMoved, match=f"another_trio.{trio_seed.SWITCH}"), trio_seed.seeded(1, moved):
        pass
