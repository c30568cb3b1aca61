"""Trio with a seed: the same children run in the same order, and time is virtual.

Trio shuffles the children that are ready to run, on purpose, with dice of its own. Seeding those dice goes through two
private names, which Hypothesis uses as well. They are named here and nowhere else; when a trio release moves them, this
module says so instead of giving runs that only look repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, TypeVar

import trio
import trio.testing
from trio._core import _run as trio_run

T = TypeVar("T")

SWITCH: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
DICE: Final = "_r"


class TrioMoved(Exception):
    """This release of trio is not the one that we know how to seed."""


@contextmanager
def seeded(seed: int, module: ModuleType = trio_run) -> Iterator[None]:
    """Trio's scheduler follows this seed inside, and is left as it was found."""
    dice = getattr(module, DICE, None)
    if not isinstance(getattr(module, SWITCH, None), bool) or not isinstance(dice, random.Random):
        raise TrioMoved(
            f"trio {trio.__version__} has no {module.__name__}.{SWITCH} and .{DICE} any more: look at how its run loop"
            " picks the next child, and change fedsched.sim.trio_seed"
        )
    switch_before, dice_before = getattr(module, SWITCH), dice.getstate()
    setattr(module, SWITCH, True)
    dice.seed(seed)
    try:
        yield
    finally:
        setattr(module, SWITCH, switch_before)
        dice.setstate(dice_before)


def run(
    seed: int,
    async_fn: Callable[..., Awaitable[T]],
    *args: Any,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """As `trio.run`, with a scheduler that follows the seed and a clock that jumps whenever everybody waits."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded(seed):
        return trio.run(async_fn, *args, clock=clock, instruments=instruments)
