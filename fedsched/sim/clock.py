"""Each server's own clock: it may run at half or double speed, and a process may stand still for any time.

Only ticks come from here; nothing in Raft looks at a wall clock. A paused process hears nothing and its ticks do not
pile up. When it wakes it gets one tick and then everything that arrived meanwhile, as a real one would after SIGCONT.
"""

from __future__ import annotations

from typing import Protocol

from fedsched.sim.options import TICK_US
from fedsched.sim.world import Event, Owner, World

RATE_MIN, RATE_MAX = 0.5, 2.0


class Ticked(Owner, Protocol):
    def tick(self) -> None: ...


class Clock:
    """Ticks for one server."""

    def __init__(self, world: World, owner: Ticked) -> None:
        self.rate = 1.0
        self._world = world
        self._owner = owner
        self._next: Event | None = None

    def start(self, phase: float) -> None:
        """Begin to tick; `phase` in [0, 1) says how far into a tick the process came up."""
        self._next = self._world.after(int(TICK_US * (1 - phase) / self.rate), self._owner, "tick", self._tick)

    def _tick(self) -> None:
        self._next = self._world.after(int(TICK_US / self.rate), self._owner, "tick", self._tick)
        self._owner.tick()

    def pause(self, for_us: int) -> None:
        """Stop the process now and wake it later."""
        if self._owner.is_paused:
            return
        self._owner.is_paused = True
        self._world.after(for_us, None, "resume", self.resume, detail=self._owner.id)

    def resume(self) -> None:
        """Wake up: one tick first, whatever the length of the pause, then all that is queued."""
        owner = self._owner
        if not owner.is_paused:
            return
        owner.is_paused = False
        if self._next is not None:
            self._next.is_off = True
            if self._next in owner.parked:
                owner.parked.remove(self._next)
        self._next = self._world.after(0, owner, "tick", self._tick)
        self._world.unpark(owner)
