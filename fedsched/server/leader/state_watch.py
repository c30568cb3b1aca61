"""How a leader's service hears of changes: gathered while it works, handed over when it looks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from fedsched.server.machine import StateMachine
from fedsched.state.changes import Changes

GATHER_MAX: Final = 4096
"""Changes kept for a service that is busy. One that falls further behind is told that everything changed."""


class StateWatch:
    """The changes of the state since one service last looked. Costs nothing while that service is not in office."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._gathered: list[Changes] = []
        self._is_open = False
        self._heard = trio.Event()
        machine.listen(self._hear)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen for as long as the block lasts; what went before is told as one change of everything."""
        self._gathered = [Changes(self._machine.store.index, is_everything=True)]
        self._heard = trio.Event()
        self._heard.set()
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            self._gathered = []

    async def wait(self, wait_s: float = math.inf) -> list[Changes]:
        """The changes there are, as soon as there are any; nothing if so many seconds pass without one."""
        with trio.move_on_after(max(0.0, wait_s)):
            await self._heard.wait()
        return self.take_nowait()

    def take_nowait(self) -> list[Changes]:
        """The changes there are at this moment."""
        gathered, self._gathered = self._gathered, []
        self._heard = trio.Event()
        return gathered

    def tell_everything(self) -> None:
        """Have the service look at the whole state again."""
        self._gathered.append(Changes(self._machine.store.index, is_everything=True))
        self._heard.set()

    def poke(self) -> None:
        """Wake the service without a change: something other than the state wants its attention."""
        self._heard.set()

    def _hear(self, changes: list[Changes]) -> None:
        if not self._is_open:
            return
        self._gathered += changes
        if len(self._gathered) > GATHER_MAX:
            self._gathered = [Changes(self._machine.store.index, is_everything=True)]
        self._heard.set()
