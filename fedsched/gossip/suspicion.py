"""How long a suspected member has to speak up: Lifeguard's dynamic suspicion time-out.

A lone accuser waits long, because it may itself be the one that is cut off. Each further member that accuses on its own
shortens the wait, down to a minimum. The time always counts from the first accusation, so that a confirmation may end
the wait on the spot.

Confirmations can only come from members within reach. A region of three that is cut off would wait for four for ever;
so no more are wanted than there are members heard from lately. If nobody is heard at all, this member is probably the
isolated one, and keeps the long wait.
"""

from __future__ import annotations

import math


def timeout_s(confirmations: int, wanted: int, shortest_s: float, longest_s: float) -> float:
    """From the first accusation to the death, with this many confirmations so far; in whole milliseconds."""
    if wanted < 1:
        return shortest_s
    share = math.log(confirmations + 1) / math.log(wanted + 1)
    wait = longest_s - (longest_s - shortest_s) * share
    return math.floor(max(shortest_s, wait) * 1000) / 1000


class Suspicion:
    """One member under suspicion, as seen from here."""

    __slots__ = ("_longest_s", "_shortest_s", "_wanted", "confirmers", "inc", "started")

    def __init__(self, inc: int, by: str, now: float, bounds_s: tuple[float, float], wanted: int) -> None:
        self.inc = inc
        self.started = now
        self.confirmers = {by}
        """Who accuses; the first one does not count as a confirmation."""
        self._shortest_s, self._longest_s = bounds_s
        self._wanted = wanted

    def confirm(self, by: str) -> bool:
        """Count this accuser; False if it says nothing new."""
        if by in self.confirmers or len(self.confirmers) > self._wanted:
            return False
        self.confirmers.add(by)
        return True

    def ends_at(self, within_reach: int) -> float:
        """When the member is dead unless it speaks up; `within_reach`: how many others were heard lately."""
        wanted = min(self._wanted, within_reach) if within_reach else self._wanted
        confirmations = min(len(self.confirmers) - 1, wanted)
        return self.started + timeout_s(confirmations, wanted, self._shortest_s, self._longest_s)
