"""What a simulated federation is like and what happens to it, drawn from its seed before it starts.

Some regions are left alone: nothing happens inside them, and nobody writes to them from outside. What they do must not
depend on anything that happens elsewhere, so a second run in which they have the world to themselves must be the same
for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fedsched.sim.streams import stream

NAMES: Final = ("eu", "us", "asia", "africa", "mars")
CALM_S: Final = 4.0
"""Before anything goes wrong: everybody registers and gets going."""
CHAOS_S: Final = 32.0
FROZEN_MAX_S: Final = 20.0
WAN_KINDS: Final = ("cut off", "cut off", "cut", "cut one way", "cut one way")
OWN_KINDS: Final = ("stall", "leader killed", "leader steps down", "restart", "rolling restart", "upgrade")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong, or is done to a region."""

    at_s: float
    kind: str
    region: str
    other: str = ""
    length_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A federation's nature and fate."""

    regions: tuple[str, ...]
    left_alone: tuple[str, ...]
    far_s: float
    loss: float
    troubles: tuple[Trouble, ...]

    def undisturbed(self) -> Plan:
        """As if there were nobody else in the world, and nothing went wrong in it."""
        return replace(self, regions=self.left_alone, troubles=())

    def has(self, kind: str) -> bool:
        return any(one.kind == kind for one in self.troubles)


def draw_plan(seed: int) -> Plan:
    chance = stream(seed, "federation-plan")
    regions = NAMES[: chance.choice((2, 2, 3, 3, 3, 4, 5))]
    left_alone = tuple(sorted(chance.sample(regions, 1 if len(regions) < 4 else 2)))
    others = [name for name in regions if name not in left_alone]
    troubles: list[Trouble] = []
    for _ in range(chance.randrange(1, 4)):
        one, other = chance.sample(regions, 2)
        at_s = CALM_S + chance.random() * CHAOS_S * 0.8
        length_s = min(chance.choice((1.0, 6.0, 30.0)) * (0.5 + chance.random()), CALM_S + CHAOS_S - at_s)
        troubles.append(Trouble(at_s, chance.choice(WAN_KINDS), one, other, length_s))
    for name in others:
        at_s = CALM_S
        for _ in range(chance.randrange(0, 3)):
            at_s += 1.0 + chance.random() * 12.0
            length_s = min(chance.choice((2.0, 8.0, FROZEN_MAX_S)), CALM_S + CHAOS_S - at_s)
            if length_s > 0:
                troubles.append(Trouble(at_s, chance.choice(OWN_KINDS), name, length_s=length_s))
    if chance.random() < 0.25:
        at_s = CALM_S + chance.random() * CHAOS_S * 0.5
        troubles.append(Trouble(at_s, "lost", chance.choice(others)))
    return Plan(
        regions=regions,
        left_alone=left_alone,
        far_s=chance.choice((0.005, 0.03, 0.12)),
        loss=chance.choice((0.0, 0.0, 0.02, 0.05)),
        troubles=tuple(sorted(troubles, key=lambda one: (one.at_s, one.kind, one.region))),
    )
