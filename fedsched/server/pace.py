"""How long a server lets news gather before it passes them on.

A server with little to do passes everything on at once. Under load, gathering saves more than it costs: twice as long
a wait is half as many frames. How much load there is shows in two things that need no measuring of their own: how late
the event loop wakes somebody who asked for a time, and whether there is room for what is sent.
"""

from __future__ import annotations

from typing import Final

SOON_S: Final = 0.002
"""When there was nothing for a while: long enough for one commit's changes to come together."""
SHORTEST_S: Final = 0.05
LONGEST_S: Final = 1.0
LATE_S: Final = 0.01
"""Waking later than this means that the event loop (or the machine) is behind."""
CLIENTS_MS: Final = 200
CLIENTS_BEHIND_MS: Final = 1_000


class Pace:
    """The pace of one server. Time is an argument."""

    def __init__(self) -> None:
        self.window_s = SHORTEST_S

    def due_at(self, last: float, now: float) -> float:
        """When to pass on news that came now, with the last ones passed on at `last`."""
        return max(last + self.window_s, now + SOON_S)

    def woke(self, late_s: float, *, is_stuck: bool = False) -> None:
        """Somebody who asked to be woken was woken so much later; many for whom there are news do not read them."""
        if late_s > LATE_S or is_stuck:
            self.window_s = min(LONGEST_S, self.window_s * 1.5)
        else:
            self.window_s = max(SHORTEST_S, self.window_s * 0.8)

    @property
    def is_behind(self) -> bool:
        return self.window_s > 4 * SHORTEST_S

    @property
    def clients_ms(self) -> int:
        """For how long clients should gather what they report."""
        return CLIENTS_BEHIND_MS if self.is_behind else CLIENTS_MS
