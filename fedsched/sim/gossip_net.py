"""The network of a simulated pool: delay, loss, duplicates, and cuts of one direction or both.

Datagrams are lost, doubled and reordered. Streams are not: loss only makes them slow, as it does in life; but a cut in
either direction ends them. Regions are near or far; everything is drawn from one stream of chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

RESEND_S = 0.3
"""What a lost segment costs a stream."""


@dataclass(frozen=True, slots=True)
class NetOptions:
    """How good the network is."""

    near_s: float = 0.0005
    far_s: float = 0.02
    """One way, between hosts of one region and of two."""
    jitter: float = 0.5
    """How much of the delay comes on top by chance, on average."""
    loss: float = 0.0
    duplicates: float = 0.0


class GossipNet:
    """Says when, and whether, something arrives."""

    def __init__(self, chance: random.Random, options: NetOptions) -> None:
        self.options = options
        self._draw = chance.random
        self.mute: set[int] = set()
        """Hosts whose words reach nobody."""
        self.deaf: set[int] = set()
        """Hosts whom no word reaches."""
        self.region_cuts: set[tuple[int, int]] = set()
        """One way: from the first region to the second."""

    def heal(self) -> None:
        self.mute.clear()
        self.deaf.clear()
        self.region_cuts.clear()

    def is_cut(self, source: int, target: int, source_region: int, target_region: int) -> bool:
        if source in self.mute or target in self.deaf:
            return True
        return (source_region, target_region) in self.region_cuts

    def is_lost(self) -> bool:
        return self.options.loss > 0 and self._draw() < self.options.loss

    def is_doubled(self) -> bool:
        return self.options.duplicates > 0 and self._draw() < self.options.duplicates

    def delay_s(self, is_near: bool) -> float:
        options = self.options
        base = options.near_s if is_near else options.far_s
        return base * (1 + 2 * options.jitter * self._draw())

    def stream_delay_s(self, is_near: bool, legs: int) -> float:
        """That many crossings, each repeated until it gets through."""
        delay = 0.0
        for _ in range(legs):
            delay += self.delay_s(is_near)
            while self.is_lost():
                delay += RESEND_S
        return delay
