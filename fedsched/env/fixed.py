"""A world in which everything is known beforehand, for tests and small simulations."""

from __future__ import annotations

import random

from fedsched.env.env import Chance
from fedsched.env.ids import uuid_text


class FixedEnv:
    """An `Env` that repeats exactly: time stands still until told to move, chance and ids follow from the seed."""

    def __init__(self, seed: int = 0, *, now: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._seed = seed
        self._now = now
        self._wall = wall
        self._streams: dict[str, random.Random] = {}

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def rng(self, stream: str) -> Chance:
        return self._stream(stream)

    def new_id(self) -> str:
        return uuid_text(self._stream("ids").randbytes(16))

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks; it cannot pass backwards."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self._now += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or a time daemon would."""
        self._wall += seconds

    def _stream(self, name: str) -> random.Random:
        dice = self._streams.get(name)
        if dice is None:
            dice = self._streams[name] = random.Random(f"{self._seed}/{name}")
        return dice
