"""Keeps a server that cannot hold leadership from taking it again and again.

A server with a bad disk or link may win elections it then cannot live up to. After a few losses in a short time it
draws longer election time-outs for a while, so that somebody else gets there first. Only liveness depends on it.
"""

from __future__ import annotations

from collections import deque

from fedsched.raft.settings import CoreSettings


class FlapGuard:
    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._losses: deque[int] = deque(maxlen=settings.flap_losses)
        self._wide_until = 0

    def lost(self, now: int) -> bool:
        """Leadership was lost at this tick; True if the guard takes effect."""
        losses = self._losses
        losses.append(now)
        if len(losses) == losses.maxlen and now - losses[0] < self._settings.flap_window_ticks:
            self._wide_until = now + self._settings.flap_window_ticks
            return True
        return False

    def is_wide(self, now: int) -> bool:
        return now < self._wide_until
