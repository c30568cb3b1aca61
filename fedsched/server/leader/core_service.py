"""The loop around a core that reads the state: wait for a change or for its time, ask it, propose what it says.

Everything such a core decides follows from the state, so a proposal that fails is not kept and sent again: the core is
told that everything may have changed, and decides anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from fedsched.model.errors import FedschedError
from fedsched.server.desk import Desk
from fedsched.server.leader.state_watch import StateWatch
from fedsched.state.changes import Changes
from fedsched.state.fields import Command
from fedsched.state.store import Store

NS: Final = 1_000_000_000
LOOK_S: Final = 5.0
"""The longest wait: wall clocks jump, and a deadline that has come closer or passed must be noticed soon."""
PACE_S: Final = 0.01
"""The shortest: at most a hundred looks at the state each second, however busy the region is."""
RETRY_S: Final = 1.0


class Duty(Protocol):
    """What a service adds to the loop; lives for one term of office."""

    def decide(self, store: Store, changes: list[Changes], now_ns: int) -> Iterable[Command]:
        """Hear of changes and say what is to be written now. The first call is told that everything changed."""

    def wake_at_ns(self) -> int | None:
        """When to be asked again even if nothing changes, in wall time."""


class CoreService:
    """Runs one duty of a leader."""

    def __init__(self, desk: Desk, name: str) -> None:
        self._desk = desk
        self._name = name
        self._watch = StateWatch(desk.machine)

    def begin(self) -> Duty:
        """A fresh core, for one term of office."""
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        duty = self.begin()
        with self._watch.open():
            task_status.started()
            while True:
                changes = await self._watch.wait(self._pause_s(duty))
                store = self._desk.machine.store
                commands = duty.decide(store, changes, self._desk.proposals.now_ns())
                if not await self._propose(commands):
                    await trio.sleep(RETRY_S)
                    self._watch.tell_everything()
                await trio.sleep(PACE_S)

    async def _propose(self, commands: Iterable[Command]) -> bool:
        """Propose in order; False if one was refused or could not be written."""
        is_done = True
        for command in commands:
            try:
                await self._desk.proposals.propose(command, is_essential=True)
            except FedschedError as error:
                is_done = False
                self._desk.log.info("not_written", service=self._name, command=type(command).__name__, why=str(error))
        return is_done

    def _pause_s(self, duty: Duty) -> float:
        wake_at_ns = duty.wake_at_ns()
        if wake_at_ns is None:
            return LOOK_S
        return min(LOOK_S, max(0.0, (wake_at_ns - self._desk.proposals.now_ns()) / NS))
