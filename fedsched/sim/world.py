"""The event heap: everything that happens in a run happens here, one event after the other.

An entry of the heap is (time, tie-break, number, event). The tie-break is drawn from the scheduler's stream: events of
the same moment are explored in different orders by different seeds, and in the same order by the same seed.

Events belong to a server or to nobody. One that belongs to a server dies with the process it was meant for, and waits
while that process is paused; what waited is handed over when it resumes, behind exactly one tick.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any, Protocol

from fedsched.sim.streams import stream
from fedsched.sim.trace import Trace

ANY_PROCESS = -1
"""Marks an event that outlives a restart of its server: a message in the network, a restart itself."""


class Owner(Protocol):
    """What the heap needs to know of a server."""

    id: str
    incarnation: int
    """Rises whenever the process ends."""
    is_paused: bool
    parked: list[Event]


class Event:
    """Something that will happen unless it is called off (`is_off`)."""

    __slots__ = ("args", "call", "detail", "incarnation", "is_off", "kind", "owner")

    def __init__(
        self,
        owner: Owner | None,
        incarnation: int,
        kind: str,
        detail: str,
        call: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        self.owner = owner
        self.incarnation = incarnation
        self.kind = kind
        self.detail = detail
        self.call = call
        self.args = args
        self.is_off = False


class World:
    """Simulated time and what is due in it."""

    def __init__(self, seed: int, *, echo: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.trace = Trace(echo)
        self._heap: list[tuple[int, int, int, Event]] = []
        self._pushed = 0
        self._tie = stream(seed, "scheduler").getrandbits
        self.after_event: Callable[[Owner | None], None] = lambda owner: None

    def stream(self, name: str) -> random.Random:
        return stream(self.seed, name)

    def after(
        self,
        delay_us: int,
        owner: Owner | None,
        kind: str,
        call: Callable[..., None],
        *args: Any,
        detail: str = "",
        outlives: bool = False,
    ) -> Event:
        """Have `call(*args)` happen in `delay_us`."""
        incarnation = ANY_PROCESS if owner is None or outlives else owner.incarnation
        event = Event(owner, incarnation, kind, detail, call, args)
        self._push(self.now + delay_us, event)
        return event

    def step(self, until_us: int) -> bool:
        """Let the next event happen if it is due by `until_us`; False when there is none."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            time_us, _, _, event = heapq.heappop(heap)
            if event.is_off:
                continue
            owner = event.owner
            if owner is not None:
                if event.incarnation != ANY_PROCESS and event.incarnation != owner.incarnation:
                    continue
                if owner.is_paused:
                    owner.parked.append(event)
                    continue
            self.now = time_us
            self.happen(event)
            return True
        self.now = max(self.now, until_us)
        return False

    def happen(self, event: Event) -> None:
        """Let this event happen now."""
        owner = event.owner
        event.is_off = True
        self.trace.note(self.now, "" if owner is None else owner.id, event.kind, event.detail)
        event.call(*event.args)
        self.after_event(owner)

    def unpark(self, owner: Owner) -> None:
        """Hand over, in their old order, the events that waited while `owner` was paused."""
        parked, owner.parked = owner.parked, []
        for place, event in enumerate(parked, start=1):
            self._push(self.now + place, event)

    def due(self) -> list[Event]:
        """Everything that could happen next, in time order; for whoever wants to pick the order itself."""
        return [event for *_, event in sorted(self._heap, key=lambda entry: entry[:3]) if self._is_due(event)]

    @staticmethod
    def _is_due(event: Event) -> bool:
        if event.is_off:
            return False
        owner = event.owner
        return owner is None or (event.incarnation in (ANY_PROCESS, owner.incarnation) and not owner.is_paused)

    def _push(self, time_us: int, event: Event) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (time_us, self._tie(24), self._pushed, event))
