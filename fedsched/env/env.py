"""What the world may tell us: the time, a dice roll, a fresh id.

An `Env` is made once by the agent (or by a test, or by the simulator) and handed down, so that a function's signature
shows what it may touch. Deciding code does not even get this: it is told the time as an argument.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """The part of `random.Random` that we use; any `random.Random` fits."""

    def random(self) -> float:
        """Give a number in [0, 1)."""

    def uniform(self, a: float, b: float, /) -> float:
        """Give a number between `a` and `b`."""

    def randrange(self, start: int, stop: int, /) -> int:
        """Give a whole number in [start, stop)."""

    def choice(self, seq: Sequence[T], /) -> T:
        """Pick one of a non-empty sequence."""

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """Put a list in a random order, in place."""

    def getrandbits(self, k: int, /) -> int:
        """Give `k` random bits."""

    def randbytes(self, n: int, /) -> bytes:
        """Give `n` random bytes."""


class Env(Protocol):
    """Everything unpredictable that a runner may ask for."""

    def now(self) -> float:
        """Give monotonic seconds: never go back, mean nothing to another process, fit for deadlines and durations."""

    def wall(self) -> float:
        """Give seconds since 1970: may jump either way, fit for showing to people and for stamping records."""

    def rng(self, stream: str) -> Chance:
        """Give the dice of one concern, by name.

        Each name has its own sequence: one more roll for "election" does not shift what "retry" will see, which keeps a
        seeded run comparable after a change. The same name always gives the same dice.
        """

    def new_id(self) -> str:
        """Give a fresh UUID as text."""
