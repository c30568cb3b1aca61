"""What the placement kernel is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.score import Algorithm

NO_VALUE: Final = -1
"""The number of an attribute's value on a node that does not have the attribute."""


class Verdict(Enum):
    """What a closer look at a node comes to, when it is about to be chosen."""

    YES = "take it"
    NOT_NOW = "not for this placement"
    NEVER = "not for any placement of this request"


Check = Callable[[int], Verdict]
"""Looks closer at a node slot: ports, devices, cores, volumes. On `YES` the placement is made; the check notes that."""


@dataclass(frozen=True, slots=True)
class SpreadBlock:
    """One spread block: which value of its attribute each node has, and how the group's allocations lie now."""

    values: NDArray[np.int64]
    """Per node slot the number of its value, `NO_VALUE` without the attribute."""
    weight: int = 50
    targets: Mapping[int, float] = field(default_factory=dict)
    """Percent by value. None given: spread evenly."""
    used: Mapping[int, int] = field(default_factory=dict)
    """Allocations of the group by value: existing and planned, without those the plan stops."""


@dataclass(frozen=True, slots=True)
class PropertyLimit:
    """One distinct_property constraint."""

    values: NDArray[np.int64]
    """Per node slot the number of its value, `NO_VALUE` without the attribute: such a node is not taken."""
    limit: int = 1
    used: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """Place `count` allocations that are all alike, one after the other, each on the node that is then the best."""

    fleet: Fleet
    mask: NDArray[np.bool_]
    """Per slot: may be considered at all (ready, in pool and datacenter, feasible)."""
    ask: Usage
    count: int
    group_count: int = 1
    """How many the group is to have in all; what anti-affinity is measured by."""
    collisions: Slots | None = None
    """Node slots of the group's allocations that are there already, one entry for each."""
    penalty: Slots | None = None
    """Node slots to be avoided, because an earlier attempt failed there."""
    penalties: tuple[Slots, ...] = ()
    """The same when each placement has nodes of its own to avoid: one entry per placement, in order. Instead of
    `penalty`."""
    bonuses: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Entries that every node has (node affinity, device affinity), by name: one value per slot."""
    spreads: tuple[SpreadBlock, ...] = ()
    distinct_hosts: bool = False
    taken: Slots | None = None
    """With distinct_hosts: node slots that already have an allocation it must stay apart from."""
    limits: tuple[PropertyLimit, ...] = ()
    algorithm: Algorithm = "binpack"
    seed: int = 0
    """Breaks ties, see `score.tie_seed`."""
    check: Check | None = None

    def candidates(self) -> NDArray[np.bool_]:
        """The mask without nodes that distinct_hosts or a distinct_property rules out from the start."""
        mask = self.mask
        if self.distinct_hosts and self.taken is not None and len(self.taken):
            mask = mask.copy()
            mask[self.taken] = False
        for limit in self.limits:
            full = [value for value, used in limit.used.items() if used >= limit.limit]
            mask = mask & (limit.values[: len(mask)] != NO_VALUE)
            if limit.limit <= 0:
                mask = np.zeros_like(mask)
            elif full:
                mask &= ~np.isin(limit.values[: len(mask)], full)
        return mask


class NodeScore(NamedTuple):
    """How one node scored."""

    slot: int
    scores: dict[str, float]
    """By the name of the entry. Those that were 0 and did not count are listed too."""
    final: float


class Exhaustion(NamedTuple):
    """Why no further allocation fits: the nodes that may be considered, counted by what they lack."""

    nodes: int
    by_dimension: dict[str, int]
    by_class: dict[str, int]
    """By node class; nodes without one are not in it."""
    distinct: int
    """Nodes that have room but were ruled out by distinct_hosts or a distinct_property."""
