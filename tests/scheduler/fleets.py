"""Fleets made of columns, without a state behind them, and any request for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel_request import PlaceRequest, PropertyLimit, SpreadBlock, Verdict
from fedsched.scheduler.score import AFFINITY, DEVICES


def a_fleet(nodes: Sequence[tuple[int, int]], *, disk: int = 100_000) -> Fleet:
    """Ready nodes with this much cpu and memory, nothing on them."""
    fleet = Fleet()
    fleet.ensure(max(1, len(nodes)))
    here = slice(0, len(nodes))
    fleet.present[here] = fleet.ready[here] = True
    fleet.cap_cpu[here] = [cpu for cpu, _ in nodes]
    fleet.cap_memory[here] = [memory for _, memory in nodes]
    fleet.cap_disk[here] = disk
    return fleet


def occupy(fleet: Fleet, slot: int, *, cpu: float = 0, memory: float = 0, disk: float = 0, allocs: int = 1) -> None:
    fleet.add(np.array([slot], dtype=np.int64), np.array([[cpu, memory, disk]]), allocs)


def a_request(fleet: Fleet, count: int = 1, *, cpu: int = 500, memory: int = 256, **fields: Any) -> PlaceRequest:
    fields.setdefault("mask", fleet.ready.copy())
    fields.setdefault("group_count", count)
    return PlaceRequest(fleet=fleet, ask=fields.pop("ask", Usage(cpu, memory, 0)), count=count, **fields)


def slots(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def by_slot(fleet: Fleet, values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Values of an attribute, one per node; the slots without a node have none."""
    column = np.full(fleet.size, -1, dtype=np.int64)
    column[: len(values)] = values
    return column


class Refusals:
    """A closer look that refuses by a rule of its own; two of the same seed say the same to the same questions."""

    def __init__(self, seed: int, share: float) -> None:
        self._seed = seed
        self._share = share
        self.asked: list[int] = []

    def __call__(self, slot: int) -> Verdict:
        chance = random.Random(f"{self._seed}/{slot}/{len(self.asked)}").random()
        self.asked.append(slot)
        if chance > self._share:
            return Verdict.YES
        return Verdict.NEVER if chance > self._share / 2 else Verdict.NOT_NOW


def any_request(rng: random.Random) -> PlaceRequest:
    """A request with any mix of everything; shapes repeat, so that ties are common."""
    count_nodes = rng.choice([1, 2, 3, 5, 8, 13, 20])
    shapes = rng.sample([(4000, 8192), (8000, 8192), (2000, 16384), (3900, 7936), (1000, 1000)], rng.randint(1, 3))
    fleet = a_fleet([rng.choice(shapes) for _ in range(count_nodes)], disk=rng.choice([1000, 100_000]))
    for _ in range(rng.choice([0, 0, 3, 20])):
        occupy(
            fleet,
            rng.randrange(count_nodes),
            cpu=rng.choice([100, 500, 1000]),
            memory=rng.choice([128, 256, 1000]),
            disk=rng.choice([0, 50]),
        )
    if rng.random() < 0.2:
        fleet.max_allocs[: count_nodes // 2] = rng.randint(1, 4)
    mask = fleet.ready.copy()
    for slot in range(count_nodes):
        mask[slot] &= rng.random() < 0.85
    count = rng.choice([1, 2, 3, 7, 15, 30])

    def some() -> Any:
        return slots(*(rng.randrange(count_nodes) for _ in range(rng.randint(0, 6)))) if rng.random() < 0.4 else None

    fields: dict[str, Any] = {}
    if rng.random() < 0.3:
        fields["bonuses"] = {AFFINITY: np.array([rng.choice([-1, -0.25, 0, 1 / 3, 1.0]) for _ in range(fleet.size)])}
        if rng.random() < 0.3:
            fields["bonuses"][DEVICES] = np.array([rng.choice([0, 0.5]) for _ in range(fleet.size)])
    if rng.random() < 0.5:
        fields["spreads"] = tuple(_any_spread(rng, fleet, count_nodes) for _ in range(rng.choice([1, 1, 2, 3])))
    if rng.random() < 0.2:
        values = by_slot(fleet, [rng.choice([-1, 0, 1, 2, 3]) for _ in range(count_nodes)])
        used = {value: rng.randint(0, 2) for value in range(rng.randint(0, 3))}
        fields["limits"] = (PropertyLimit(values, rng.choice([1, 2, 5]), used),)
    if rng.random() < 0.25:
        fields["check"] = Refusals(rng.randrange(1 << 30), rng.choice([0.1, 0.5]))
    return PlaceRequest(
        fleet=fleet,
        mask=mask,
        ask=Usage(rng.choice([0, 100, 300, 500]), rng.choice([0, 64, 256, 500]), rng.choice([0, 100, 300])),
        count=count,
        group_count=rng.choice([1, count, count * 3]),
        collisions=some(),
        penalty=some(),
        distinct_hosts=rng.random() < 0.15,
        taken=some(),
        algorithm=rng.choice(["binpack", "binpack", "spread", "balanced"]),
        seed=rng.randrange(1 << 64),
        **fields,
    )


def _any_spread(rng: random.Random, fleet: Fleet, count_nodes: int) -> SpreadBlock:
    kinds = rng.choice([2, 3, 5])
    values = by_slot(fleet, [rng.choice([*range(kinds), rng.choice([-1, 0])]) for _ in range(count_nodes)])
    targets: dict[int, float] = {}
    if rng.random() < 0.5:
        targets = {0: rng.choice([0, 30, 50, 100])}
        if rng.random() < 0.5:
            targets[1] = 100 - targets[0] if rng.random() < 0.5 else 20
    used = {value: rng.randint(0, 4) for value in range(kinds) if rng.random() < 0.4}
    return SpreadBlock(values, rng.choice([50, 100, 10]), targets, used)
