"""Decides which server a client dials next, and after how long.

A client stays with the server it has. When that is gone it goes through all others in random order; every attempt waits
a random part of a time that grows from 1 to 30 seconds, so that the clients of a server that fell spread out. What the
servers say about themselves takes the place of what the settings say; the settings are tried again when nobody of those
answers, because a whole region may have moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
SERVERS_MAX: Final = 64
"""Nobody has more servers in a region; what is told beyond that is ignored."""


class ServerList:
    """The servers one client knows of, by address."""

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = tuple(dict.fromkeys(configured))
        self._learned: tuple[str, ...] = ()
        self._round: list[str] = []
        self._failures = 0
        self._has_dialled = False
        self.current = ""

    @property
    def known(self) -> tuple[str, ...]:
        """All of them, those that servers named first."""
        return tuple(dict.fromkeys([*self._learned, *self._configured]))

    def learn(self, addresses: Iterable[str]) -> None:
        """The servers of the region, as one of them names them; none at all says nothing."""
        found = tuple(dict.fromkeys(address for address in addresses if address))[:SERVERS_MAX]
        if found and found != self._learned:
            self._learned = found
            self._round = [address for address in self._round if address in self.known]

    def next(self, order: Sequence[float]) -> str:
        """Whom to dial; empty if nobody is known. `order` are numbers in [0, 1), as many as there are servers."""
        if not self._round:
            known = [address for address in self.known if address != self.current] or list(self.known)
            ranked = sorted(zip(order, known, strict=False))
            self._round = [address for _, address in ranked]
            if self.current in self.known and self.current not in self._round:
                self._round.append(self.current)  # last: it was the one that was lost
        self.current = self._round.pop(0) if self._round else ""
        self._has_dialled = True
        return self.current

    def pause_s(self, chance: float) -> float:
        """How long to wait before dialling; nothing before the very first attempt."""
        if not self._has_dialled:
            return 0.0
        longest = min(LONGEST_S, FIRST_S * (1 << min(self._failures, 16)))
        return longest * chance

    def failed(self) -> None:
        """The server could not be reached, or did not do."""
        self._failures += 1

    def settled(self) -> None:
        """The server answers: stay with it."""
        self._failures = 0
        self._round = []
