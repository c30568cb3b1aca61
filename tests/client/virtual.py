"""An `Env` whose clocks are trio's: with a mock clock, time passes only when a test lets it."""

from __future__ import annotations

import random

import trio

from fedsched.env.env import Chance
from fedsched.env.ids import uuid_text


class VirtualEnv:
    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)

    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return 1_700_000_000.0 + trio.current_time()

    def rng(self, stream: str) -> Chance:
        return self._chance

    def new_id(self) -> str:
        return uuid_text(self._chance.randbytes(16))
