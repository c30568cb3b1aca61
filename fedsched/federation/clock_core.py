"""Deciding whose clock to compare with ours, and what a comparison says.

One server of each region every half minute, the one that was asked least recently first: so every server's clock is
looked at sooner or later, and a pool of many costs no more than one of few. The other clock is taken to have been read
in the middle of the call; a call that took long proves little and is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from fedsched.federation.directory import Server

EVERY_S: Final = 30.0
TRIP_MAX_S: Final = 1.0
"""The error of a comparison is at most half the trip."""


class Clocks:
    """Of one server."""

    def __init__(self, me: str) -> None:
        """`me` is this server's id."""
        self._me = me
        self._asked: dict[str, float] = {}
        self._region_asked: dict[str, float] = {}

    def due(self, servers: Iterable[Server], now: float) -> tuple[Server, ...]:
        """Whom to ask now: at most one server of each region. Those that are gone are forgotten."""
        regions: dict[str, list[Server]] = {}
        for server in servers:
            if server.is_alive and server.id != self._me:
                regions.setdefault(server.region, []).append(server)
        known = {server.id for found in regions.values() for server in found}
        self._asked = {one: at for one, at in self._asked.items() if one in known}
        self._region_asked = {one: at for one, at in self._region_asked.items() if one in regions}
        chosen = []
        for region, found in sorted(regions.items()):
            if now - self._region_asked.get(region, -math.inf) >= EVERY_S:
                server = min(found, key=lambda one: (self._asked.get(one.id, -math.inf), one.name))
                self._asked[server.id] = self._region_asked[region] = now
                chosen.append(server)
        return tuple(chosen)


def skew_of(theirs: float, before: float, after: float) -> float | None:
    """How far another clock is ahead of ours, which was read before and after; None if that took too long to tell."""
    if not 0 <= after - before <= TRIP_MAX_S:  # below 0: our own clock was set meanwhile
        return None
    return theirs - (before + after) / 2
