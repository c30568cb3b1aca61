"""How long a server lets news gather before it passes them on.

A server with little to do passes everything on at once. Under load, gathering saves more than it costs: twice as long
a wait is half as many frames. How much load there is shows in things that need no measuring of their own: how many
frames were sent the last time, how late the event loop wakes somebody who asked for a time, and whether there is room
for what is sent.
"""

from __future__ import annotations

from typing import Final

SOON_S: Final = 0.002
"""When there was nothing for a while: long enough for one commit's changes to come together."""
SHORTEST_S: Final = 0.05
LONGEST_S: Final = 2.0
FRAMES_PER_S: Final = 1_000
"""About as many frames leave a server in a second: a tenth of a core, and what a client makes of them."""
PER_LATE: Final = 8.0
"""How long to gather for each second of being late: about an eighth of what is sent then waits for its turn."""
SMOOTH: Final = 0.2
"""How much the newest measurement counts."""
STUCK: Final = 1.5
"""How much longer to gather, and longer again, while those for whom it is do not read."""
BEHIND_S: Final = 0.4
"""From here on clients are asked to gather longer as well."""
CLIENTS_MS: Final = 200
CLIENTS_BEHIND_MS: Final = 1_000
FAR_BEHIND_S: Final = 1.2
CLIENTS_FAR_BEHIND_MS: Final = 2_000


class Pace:
    """The pace of one server. Time is an argument."""

    def __init__(self) -> None:
        self.window_s = SHORTEST_S
        self._late_s = 0.0
        self._stuck = 1.0

    def due_at(self, last: float, now: float) -> float:
        """When to pass on news that came now, with the last ones passed on at `last`."""
        return max(last + self.window_s, now + SOON_S)

    def woke(self, late_s: float, *, frames: int = 0, is_stuck: bool = False) -> None:
        """Somebody who asked to be woken was woken so much later.

        The last time, so many frames were sent, and many of those for whom they are had no room for them.
        """
        self._late_s += SMOOTH * (late_s - self._late_s)
        self._stuck = min(self._stuck * STUCK, LONGEST_S / SHORTEST_S) if is_stuck else max(1.0, self._stuck / STUCK)
        self.window_s = min(LONGEST_S, self._stuck * max(SHORTEST_S, frames / FRAMES_PER_S, PER_LATE * self._late_s))

    @property
    def is_behind(self) -> bool:
        return self.window_s > BEHIND_S

    @property
    def clients_ms(self) -> int:
        """For how long clients should gather what they report."""
        if self.window_s > FAR_BEHIND_S:
            return CLIENTS_FAR_BEHIND_MS
        return CLIENTS_BEHIND_MS if self.is_behind else CLIENTS_MS
