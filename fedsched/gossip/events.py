"""Lamport clocks, and the announcements they order.

The clock orders events among themselves and says nothing about real time. A ring remembers the last 512 times, so that
an event that arrives by many ways is delivered once. A member that joins, or comes back, starts at the pool's present:
history is not replayed to it.
"""

from __future__ import annotations

from typing import Final

from fedsched.gossip.messages import UserEvent

RING: Final = 512
LTIME_MAX: Final = 2**63 - 1
LEAP_MAX: Final = 2**32
"""A claim further ahead than this is damage or malice: it would use up the clock."""
PER_SLOT_MAX: Final = 16
"""Events of one moment that are remembered: concurrent ones of different members share a time."""


class LamportClock:
    """Counts what happened, ours and what we heard of."""

    __slots__ = ("time",)

    def __init__(self, time: int = 1) -> None:
        self.time = time

    def stamp(self) -> int:
        """The time of something that happens here, now."""
        self.time += 1
        return self.time - 1

    def witness(self, ltime: int) -> None:
        """Something of that time was heard of: whatever happens here from now on is later."""
        if self.time <= ltime < self.time + LEAP_MAX:
            self.time = ltime + 1


class EventRing:
    """Which events were seen."""

    def __init__(self, ltime: int = 1) -> None:
        self.clock = LamportClock(ltime)
        self._since = ltime if ltime > 1 else 0
        """Anything older happened before this member's time."""
        self._slots: list[tuple[int, tuple[UserEvent, ...]]] = [(0, ())] * RING

    def publish(self, name: str, payload: bytes, coalesce: bool) -> UserEvent:
        event = UserEvent(self.clock.stamp(), name, payload, coalesce)
        self._remember(event)
        return event

    def receive(self, event: UserEvent) -> bool:
        """True if it is to be delivered and passed on: the first time, and only then."""
        if event.ltime >= self.clock.time + LEAP_MAX:
            return False
        self.clock.witness(event.ltime)
        if event.ltime < self._since or event.ltime + RING < self.clock.time:
            return False
        return self._remember(event)

    def begin_at(self, ltime: int) -> None:
        """Joined a pool whose clock says this: its history is none of ours."""
        self.clock.witness(ltime - 1)
        self._since = max(self._since, min(ltime, self.clock.time))

    def recent(self, count: int = 64) -> tuple[UserEvent, ...]:
        """The latest events, oldest first, for a full exchange."""
        events = [event for _, events in self._slots for event in events]
        return tuple(sorted(events)[-count:])

    def _remember(self, event: UserEvent) -> bool:
        slot = event.ltime % RING
        ltime, events = self._slots[slot]
        if ltime > event.ltime:
            return False
        if ltime < event.ltime:
            events = ()
        if event in events or len(events) >= PER_SLOT_MAX:
            return False
        self._slots[slot] = (event.ltime, (*events, event))
        return True
