"""The server's one fleet, kept in step with the state: whoever schedules or verifies here reads this one."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.scheduler.fleet import Fleet
from fedsched.server.machine import StateMachine
from fedsched.state.changes import Changes


class FleetFeed:
    """Follows the machine's changes from the moment it is made."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.fleet = Fleet.of(machine.store)
        self.before: list[Callable[[int], None]] = []
        """Called with the newest index before the fleet follows the state there: what was counted in advance for an
        entry up to that index has to be taken back, because now it comes for real."""
        machine.listen(self._heard)

    def _heard(self, gathered: list[Changes]) -> None:
        for hook in self.before:
            hook(gathered[-1].index)
        for changes in gathered:
            self.fleet.note(self._machine.store, changes)
