"""How well this member itself seems to be: Lifeguard's local health.

Whoever misses answers may be the one who is slow. The score stretches the own probe interval, and with it the time that
others get; it never makes this member more certain of anybody's death.
"""

from __future__ import annotations


class Awareness:
    """A score from 0 (healthy) to `health_max` - 1."""

    __slots__ = ("_max", "lagged_at", "score")

    def __init__(self, health_max: int) -> None:
        self._max = health_max
        self.score = 0
        self.lagged_at = float("-inf")
        """When a deadline was last noticed late: probes under way at that time prove nothing."""

    def change(self, by: int) -> None:
        self.score = max(0, min(self._max - 1, self.score + by))

    def note_lag(self, now: float, interval_s: float) -> None:
        """A deadline came up late. It counts once per interval, however many were late together."""
        if now - self.lagged_at >= interval_s:
            self.change(+1)
        self.lagged_at = now

    def stretched(self, interval_s: float) -> float:
        return interval_s * (self.score + 1)
