"""Runs the drain core while this server leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedsched.server.desk import Desk
from fedsched.server.leader.core_service import CoreService, Duty
from fedsched.server.leader.drain_core import DrainCore, EndDrain, command_of
from fedsched.state.changes import Changes
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.telemetry.log import Logger


class DrainService(CoreService):
    """Empties the nodes that are to be emptied."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, "drain")

    def begin(self) -> Duty:
        return _Duty(self._desk.env.new_id, self._desk.log)


class _Duty:
    def __init__(self, new_id: Callable[[], str], log: Logger) -> None:
        self._core = DrainCore()
        self._new_id = new_id
        self._log = log

    def decide(self, store: Store, changes: list[Changes], now_ns: int) -> Iterable[Command]:
        matters = self._core.note(store, changes)
        due_ns = self._core.wake_at_ns()
        if not matters and (due_ns is None or due_ns > now_ns):
            return []
        effects = self._core.review(store, now_ns, self._new_id)
        for effect in effects:
            if isinstance(effect, EndDrain):
                self._log.info("drain_ended", nodes=list(effect.node_ids), forced=effect.is_forced)
        return [command_of(effect) for effect in effects]

    def wake_at_ns(self) -> int | None:
        return self._core.wake_at_ns()
