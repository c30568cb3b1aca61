"""The real world: the machine's clocks, and chance from the operating system."""

from __future__ import annotations

import os
import random
import time

from fedsched.env.env import Chance
from fedsched.env.ids import uuid_text


class RealEnv:
    """The `Env` of production.

    With a `seed`, the dice are repeatable while clocks and ids stay real: chaos tests start real processes with a seed
    and get the same jitter again. Give each process its own seed (mix in the server's name), because dice that agree
    between servers defeat the purpose of jitter. Ids never come from a seed: two processes must not make the same one.
    """

    def __init__(self, seed: str | None = None) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def rng(self, stream: str) -> Chance:
        dice = self._streams.get(stream)
        if dice is None:
            dice = random.Random() if self._seed is None else random.Random(f"{self._seed}/{stream}")
            self._streams[stream] = dice
        return dice

    def new_id(self) -> str:
        return uuid_text(os.urandom(16))
