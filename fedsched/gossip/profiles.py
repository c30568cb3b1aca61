"""Timings: how often a member looks at others, and how patient it is.

Four sets, for four kinds of networks. `fed` is the default: it probes once a second like the local ones, but learns how
long an answer takes from each region instead of assuming it. `wan`, `lan` and `local` have the numbers that users of
other gossip pools know.

All formulas that depend on the size of the pool are here, so that the other modules have no numbers of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

HOUR_S: Final = 3600.0
LARGE_POOL: Final = 32
"""Beyond this many members full exchanges become rarer as the pool grows, so that their total cost stays level."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of timings. All members of a pool should use the same."""

    name: str
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    """How long a direct answer may take before others are asked to help."""
    probe_timeout_max_s: float = 0.5
    """Above `probe_timeout_s`: the time-out adapts to the answers of a region, between the two."""
    probes_max: int = 3
    """How many may be under way: one dead target must not halve the rate of probing."""
    ring_every: int = 0
    """Every so many probes one goes to the next member on the ring, so that each member is watched closely by one
    other and the time to the first look has a bound. 0: never."""
    indirect_checks: int = 3
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    suspicion_unit_s: float = 1.0
    """What `suspicion_mult` multiplies; elsewhere always the probe interval."""
    suspicion_min_s: float = 0.0
    second_opinions: float = 0.0
    """How many of those who hear of a suspicion look for themselves at once, on average over the pool."""
    retransmit_mult: int = 4
    gossip_interval_s: float = 0.2
    gossip_nodes: int = 3
    push_pull_interval_s: float = 30.0
    dead_gossip_s: float = 30.0
    stream_timeout_s: float = 10.0
    health_max: int = 8
    reap_interval_s: float = 15.0
    reconnect_first_s: float = 30.0
    reconnect_interval_s: float = 30.0
    reconnect_timeout_s: float = 24 * HOUR_S
    tombstone_s: float = 24 * HOUR_S
    reclaim_s: float = 30.0
    """How long a name stays with a dead member before a server with another id may have it."""
    settle_s: float = 0.5
    """Differing digests mean nothing while changes are still on their way."""
    packet_bytes_max: int = 1400

    @property
    def is_adaptive(self) -> bool:
        return self.probe_timeout_max_s > self.probe_timeout_s

    def retransmit_limit(self, members: int) -> int:
        """How often one member passes a piece of news on."""
        return _retransmit_limit(self.retransmit_mult, members)

    def suspicion_bounds_s(self, members: int) -> tuple[float, float]:
        """The shortest and the longest time between a suspicion and a death."""
        scale = max(1.0, math.log10(max(1, members)))
        shortest = max(self.suspicion_min_s, self.suspicion_mult * scale * self.suspicion_unit_s)
        return shortest, self.suspicion_max_mult * shortest

    def confirmations_wanted(self, members: int) -> int:
        """How many others must agree before the shortest time applies."""
        wanted = self.suspicion_mult - 2
        return wanted if members - 2 >= wanted else 0

    def push_pull_s(self, members: int) -> float:
        if members <= LARGE_POOL:
            return self.push_pull_interval_s
        return self.push_pull_interval_s * (math.ceil(math.log2(members) - 5) + 1)

    def linger_s(self, members: int) -> float:
        """How long a member that leaves stays up so that its farewell gets around."""
        return max(1.0, 2 * self.gossip_interval_s * math.log2(max(2, members)))


@lru_cache(maxsize=1024)
def _retransmit_limit(mult: int, members: int) -> int:
    return mult * math.ceil(math.log10(members + 1))


FED: Final = Profile(
    "fed",
    probe_timeout_s=0.3,
    probe_timeout_max_s=3.0,
    ring_every=3,
    suspicion_unit_s=0.6,
    suspicion_min_s=4.0,
    second_opinions=4.0,
    dead_gossip_s=60.0,
    reconnect_first_s=2.0,
    reconnect_timeout_s=72 * HOUR_S,
)
"""A suspicion is short because it is well founded: several members look at once, and each look tells the accused."""
WAN: Final = Profile(
    "wan",
    probe_interval_s=5.0,
    probe_timeout_s=3.0,
    probe_timeout_max_s=3.0,
    suspicion_mult=6,
    suspicion_unit_s=5.0,
    gossip_interval_s=0.5,
    gossip_nodes=4,
    push_pull_interval_s=60.0,
    dead_gossip_s=60.0,
    stream_timeout_s=30.0,
    reconnect_timeout_s=72 * HOUR_S,
)
LAN: Final = Profile("lan")
LOCAL: Final = Profile(
    "local",
    probe_timeout_s=0.2,
    probe_timeout_max_s=0.2,
    indirect_checks=1,
    suspicion_mult=3,
    retransmit_mult=2,
    gossip_interval_s=0.1,
    push_pull_interval_s=15.0,
    dead_gossip_s=15.0,
    stream_timeout_s=1.0,
)
PROFILES: Final = {profile.name: profile for profile in (FED, WAN, LAN, LOCAL)}
