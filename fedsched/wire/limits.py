"""The bounds of one link, and the few numbers both ends must agree on."""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 1
"""The newest version of the frames this code speaks."""

DATA_BYTES_MAX: Final = 256 * 1024
"""One item of a stream, for both ends and for ever: every window holds at least two, so an item can always be sent."""

DATA_OVERHEAD: Final = 64
"""Charged to the credit with every item, so that a flood of tiny ones is bounded like one of large ones."""

CREDIT_MAX: Final = 1 << 32

FRAME_OVERHEAD_MAX: Final = 4096
"""More than any header needs; what a payload must leave free in a frame."""


class LinkLimits(NamedTuple):
    """What one end of a link is ready to hold, and how long it waits."""

    greeting_bytes_max: int = 4 * 1024
    """Largest frame from a peer that is not yet admitted."""
    frame_bytes_max: int = 1024 * 1024
    """Largest frame from an admitted peer; told to it in the greeting."""
    calls_max: int = 256
    """Calls of the peer served at once; the next one is answered `busy`."""
    served_bytes_max: int = 16 * 1024 * 1024
    """Request bytes held for the calls being served; beyond it a call is answered `busy`."""
    own_calls_max: int = 1024
    """Calls of this end in flight."""
    window_bytes: int = 1024 * 1024
    """How much of one stream the peer may send ahead of its reader."""
    outbox_bytes_max: int = 4 * 1024 * 1024
    """Above this, calls, replies and stream data wait for the writer. Small control frames may go a little beyond; a
    peer that makes us answer and does not read is cut off there."""
    greeting_s: float = 5.0
    """How long a new peer may take until its greeting is there."""
    keepalive_s: float = 15.0
    """After this much silence the peer is asked for a sign of life."""
    silence_s: float = 60.0
    """After this much silence the link is dead."""

    def checked(self) -> LinkLimits:
        """Itself, or an error that names the setting that cannot work."""
        if self.window_bytes < 2 * (DATA_BYTES_MAX + DATA_OVERHEAD):
            raise ValueError(f"window_bytes is {self.window_bytes}, it must hold two items of {DATA_BYTES_MAX} bytes")
        if self.frame_bytes_max < DATA_BYTES_MAX + FRAME_OVERHEAD_MAX:
            raise ValueError(f"frame_bytes_max is {self.frame_bytes_max}, a stream's item needs {DATA_BYTES_MAX}")
        if not 0 < self.keepalive_s < self.silence_s:
            raise ValueError(f"keepalive_s ({self.keepalive_s}) must lie between 0 and silence_s ({self.silence_s})")
        return self


DEFAULT_LIMITS: Final = LinkLimits()


class ByteBudget:
    """Request bytes held at once by all links that share it; one per listener or process."""

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0

    def take(self, amount: int) -> bool:
        """Charge these bytes, if there is room for them."""
        if self.used + amount > self.limit:
            return False
        self.used += amount
        return True

    def give(self, amount: int) -> None:
        """They are no longer held."""
        self.used -= amount
