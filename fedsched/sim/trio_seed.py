"""Trio with a seed: the same children run in the same order, and time is virtual.

Trio shuffles the children that are ready to run, on purpose, with dice of its own. Seeding those dice goes through two
private names, which Hypothesis uses as well. They are named here and nowhere else; when a trio release moves them, this
module says so instead of giving runs that only look repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final, TypeVar

import trio
import trio.testing
from trio._core import _run as trio_run

from fedsched.sim.streams import stream

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


GROUP: Final[ContextVar[str]] = ContextVar("group", default="")
"""To which group a child belongs; inherited by those it starts."""


class GroupDice(random.Random):
    """Shuffles each group of children for itself, with dice of its own.

    What one group does then changes nothing in the order of another: two runs that differ in one group only are equal
    in all the others.
    """

    def shuffle(self, x: MutableSequence[Any]) -> None:
        groups: dict[str, list[Any]] = {}
        for child in x:
            groups.setdefault(child.context.get(GROUP, ""), []).append(child)
        shuffled = []
        for name in sorted(groups):
            self._dice_of(name).shuffle(groups[name])
            shuffled += groups[name]
        x[:] = shuffled

    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(a, version)
        self._seed = a
        self._dice: dict[str, random.Random] = {}

    def _dice_of(self, name: str) -> random.Random:
        if name not in self._dice:
            self._dice[name] = stream(self._seed, f"group-{name}")
        return self._dice[name]


@contextmanager
def grouped(module: ModuleType = trio_run) -> Iterator[None]:
    """Inside, children are shuffled group by group."""
    before = getattr(module, DICE)
    setattr(module, DICE, GroupDice(0))
    try:
        yield
    finally:
        setattr(module, DICE, before)


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
