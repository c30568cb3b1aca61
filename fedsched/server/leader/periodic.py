"""Runs the periodic core while this server leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedsched.server.desk import Desk
from fedsched.server.leader.core_service import CoreService, Duty
from fedsched.server.leader.periodic_core import LaunchPeriodic, PeriodicCore, PeriodicEffect, command_of
from fedsched.state.changes import Changes
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.telemetry.log import Logger


class PeriodicService(CoreService):
    """Launches periodic jobs."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, "periodic")

    def begin(self) -> Duty:
        return _Duty(self._desk.env.new_id, self._desk.log)


class _Duty:
    def __init__(self, new_id: Callable[[], str], log: Logger) -> None:
        self._core = PeriodicCore()
        self._new_id = new_id
        self._log = log

    def decide(self, store: Store, changes: list[Changes], now_ns: int) -> Iterable[Command]:
        # A change of everything is a new office or a launch that could not be written: both are caught up on.
        effects: list[PeriodicEffect] = []
        if any(change.is_everything for change in changes):
            effects += self._core.begin(store, now_ns, self._new_id)
        else:
            self._core.note(store, changes, now_ns)
        effects += self._core.wake(store, now_ns, self._new_id)
        for effect in effects:
            self._tell(effect)
        return [command for effect in effects if (command := command_of(effect)) is not None]

    def wake_at_ns(self) -> int | None:
        return self._core.wake_at_ns()

    def _tell(self, effect: PeriodicEffect) -> None:
        if isinstance(effect, LaunchPeriodic):
            self._log.info("periodic_launch", job=effect.job_id, namespace=effect.namespace, child=effect.child.id)
        else:
            self._log.info(
                "periodic_launch_skipped",
                job=effect.job_id,
                namespace=effect.namespace,
                launch_ns=effect.launch_ns,
                why=effect.reason,
            )
