"""What a simulated region is like, drawn from its seed before it starts: its pace, and which features it has.

A few features at a time reach further than all at once, so each seed switches a random half of them off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedsched.sim.streams import stream

FEATURES: Final = (
    "canaries",
    "clocks",
    "cores",
    "devices",
    "disconnects",
    "dispatches",
    "drains",
    "forgetting",
    "labels",
    "memory",
    "networks",
    "people and deployments",
    "periodic",
    "preemption",
    "reverts",
    "summer time",
    "system jobs",
    "volumes",
)
PLAIN_S: Final = 1_700_000_000.0
CLOCK_CHANGES: Final = (1_698_541_200.0, 1_711_846_800.0)
"""When clocks in Berlin were put back in the autumn of 2023 and forward in the spring after it."""
BEFORE_CHANGE_S: Final = 75.0


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """One region's nature."""

    commit_s: float
    lag_s: float
    link_s: float
    loss: float
    pace_s: float
    """How long people rest between two wishes, on average."""
    wall_s: float
    """What the clocks say at the start."""
    features: frozenset[str]


def draw_options(seed: int) -> FleetOptions:
    chance = stream(seed, "fleet-options")
    commit_s = chance.choice((0.005, 0.02, 0.2))
    lag_s = chance.choice((0.01, 0.2, 1.0))
    link_s = chance.choice((0.002, 0.02, 0.2))
    loss = chance.choice((0.0, 0.02, 0.1))
    pace_s = chance.choice((0.2, 0.5, 1.5))
    change_s = chance.choice(CLOCK_CHANGES)
    features = frozenset(chance.sample(FEATURES, chance.randrange(len(FEATURES) // 3, len(FEATURES))))
    wall_s = change_s - BEFORE_CHANGE_S if "summer time" in features else PLAIN_S
    return FleetOptions(commit_s, lag_s, link_s, loss, pace_s, wall_s, features)
