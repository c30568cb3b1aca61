"""Decides when a client registers and when it gives a sign of life.

A node that servers know is told with every answer how long it may stay silent. It speaks after two thirds of that: the
servers' times are half again as long, on average, as the rate they want to hear the fleet at, and what is left over is
room for a second try. After a failure the next try falls inside what is left of that time, never sooner than a second
and never later than half a minute. Whoever was never heard, or hears that there is no leader, has nothing to hurry for
and waits 15 to 30 seconds, so that a region that just came back is not met by everybody at once.

All chance comes as numbers in [0, 1), all time as seconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

SHARE_OF_TTL: Final = 2 / 3
RETRY_S: Final = (15.0, 30.0)
"""When nothing was ever answered, or nobody leads."""
RETRY_DEV_S: Final = (1.0, 1.0)
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
SOON_S: Final = 1.0
"""Until the next sign of life, while servers do not take the node for ready."""
GRACE_S: Final = 50.0
"""Before the first answer, contact counts as lost this long after the start."""
FAILURES_MAX: Final = 2
"""In a row over one link; then another server is tried."""


class Do(Enum):
    """What is due."""

    NOTHING = 0
    REGISTER = 1
    BEAT = 2


class Refusal(Enum):
    """Why a call failed, as far as it matters here."""

    UNKNOWN_NODE = "the servers do not know this node"
    WRONG_SECRET = "the servers know this node by another secret"
    NO_LEADER = "the region has no leader"
    OTHER = "it was not answered"


class HeartbeatCore:
    """One node's side of it."""

    def __init__(self, now: float, *, is_dev: bool = False) -> None:
        self._retry_s = RETRY_DEV_S if is_dev else RETRY_S
        self._at = math.inf
        self._update_at = math.inf
        self._ttl_s = 0.0
        self._has_beaten = False
        self._failures = 0
        self.is_registered = False
        self.is_ready = False
        """Servers take the node for ready."""
        self.last_ok = now + GRACE_S
        """When a sign of life was answered last."""

    def wake_at(self) -> float:
        """When `due` next has something to say."""
        return min(self._at, self._update_at)

    def due(self, now: float) -> Do:
        """What is due now. Whoever carries it out says what came of it."""
        if not self.is_registered:
            return Do.REGISTER if self._at <= now else Do.NOTHING
        if self._update_at <= now:
            return Do.REGISTER
        return Do.BEAT if self._at <= now else Do.NOTHING

    # ---- what happens ---------------------------------------------------------------------------------------

    def linked(self, now: float) -> None:
        """There is a server to talk to. It is told of this node again: it may be of a region that started anew."""
        self._failures = 0
        self._at = now if not self.is_registered else min(self._at, now)

    def unlinked(self) -> None:
        """There is nobody to talk to."""
        self._at = math.inf

    def changed(self, now: float) -> None:
        """The node's own record is another one now: servers have to hear of it."""
        if self.is_registered:
            self._update_at = now

    def registered(self, ttl_s: float, now: float) -> None:
        """Servers know the node; it says at once that it is ready."""
        self.is_registered = True
        self._update_at = math.inf
        self._failures = 0
        self._ttl_s = ttl_s
        self._at = now if not self.is_ready else now + ttl_s * SHARE_OF_TTL

    def beaten(self, ttl_s: float, now: float, *, is_ready: bool) -> None:
        """A sign of life was answered."""
        self._has_beaten = True
        self._failures = 0
        self._ttl_s = ttl_s
        self.last_ok = now
        self.is_ready = is_ready
        self._at = now + (ttl_s * SHARE_OF_TTL if is_ready else min(SOON_S, ttl_s))

    def failed(self, why: Refusal, now: float, chance: float) -> None:
        """Either call failed."""
        if why in (Refusal.UNKNOWN_NODE, Refusal.WRONG_SECRET):
            was_registered, self.is_registered, self.is_ready = self.is_registered, False, False
            self._update_at = math.inf
            self._at = now if was_registered else now + self._patient(chance)
            return
        self._failures += 1
        pause_s = self._hurried(now, chance)
        if not self._has_beaten or why is Refusal.NO_LEADER or not self.is_registered:
            pause_s = self._patient(chance)
        if self._update_at <= now:
            self._update_at = now + pause_s
        self._at = now + pause_s

    @property
    def wants_another_server(self) -> bool:
        """This link's server has failed the node more than once."""
        return self._failures >= FAILURES_MAX

    def _patient(self, chance: float) -> float:
        low, high = self._retry_s
        return low + (high - low) * chance

    def _hurried(self, now: float, chance: float) -> float:
        left_s = self.last_ok + self._ttl_s - now
        if left_s < -RETRY_MAX_S:
            left_s = -left_s
        if left_s <= 0:
            return RETRY_MIN_S * (1 + chance)
        pause_s = left_s * chance
        if pause_s < RETRY_MIN_S:
            return RETRY_MIN_S + pause_s
        return min(pause_s, RETRY_MAX_S)
