"""Who belongs to a region's server set, and how that may change.

Quorum arithmetic is joint from the first day: while `outgoing` is not empty, every decision needs a majority of both
`voters` and `outgoing`. A config takes effect as soon as it is appended to the log.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server as the config knows it. The id is immutable; the address may change by an ordinary change."""

    id: str
    name: str
    address: str
    """host:port of its server port."""


@dataclass(frozen=True, slots=True)
class Config:
    """One state of the membership."""

    voters: frozenset[str] = frozenset()
    outgoing: frozenset[str] = frozenset()
    """The voters being left behind; non-empty only in the joint state."""
    learners: frozenset[str] = frozenset()
    servers: tuple[ServerInfo, ...] = ()
    """Sorted by id; one for each id in the sets above."""
