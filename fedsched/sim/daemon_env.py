"""What a simulated daemon sees of the world: virtual time, seeded chance, and a log that becomes part of the story."""

from __future__ import annotations

import trio

from fedsched.env.env import Chance
from fedsched.env.ids import uuid_text
from fedsched.sim.daemon_book import Book
from fedsched.sim.daemon_plan import DaemonOptions
from fedsched.sim.streams import stream
from fedsched.sim.verdict import Broken
from fedsched.sim.virtual_disk import PLANNED_FAILURE
from fedsched.telemetry.log import Event


class DaemonEnv:
    """Time and chance of one life."""

    def __init__(self, options: DaemonOptions, name: str, life: int) -> None:
        self._options = options
        self._prefix = f"env-{name}-{life}"
        self._dice: dict[str, Chance] = {}
        self._cpu = stream(options.seed, f"{self._prefix}-cpu")
        self._spent_s = 0.0

    def now(self) -> float:
        """Looking at the clock costs time, which is how slices of work come to an end here."""
        self._spent_s += self._options.cpu_s * self._cpu.random()
        return trio.current_time() + self._spent_s

    def wall(self) -> float:
        return trio.current_time()

    def rng(self, stream_name: str) -> Chance:
        dice = self._dice.get(stream_name)
        if dice is None:
            dice = self._dice[stream_name] = stream(self._options.seed, f"{self._prefix}-{stream_name}")
        return dice

    def new_id(self) -> str:
        return uuid_text(self.rng("ids").randbytes(16))


class LogToBook:
    """The daemons' own log lines, as part of the story."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def write(self, event: Event) -> None:
        fields = {name: value for name, value in event.fields.items() if name != "server"}
        self._book.note(event.fields["server"], "log", f"{event.name} {fields}")
        self._book.counts[event.name] += 1
        if event.name == "raft_failed" and PLANNED_FAILURE not in event.fields["why"]:
            raise Broken("no false alarm", f"{event.fields['why']}", event.fields["server"])

    def close(self) -> None:
        """Nothing to let go of."""
