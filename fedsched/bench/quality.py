"""`bench quality`: how well fleets are filled, because speed without quality does not count.

A fleet is filled with jobs of many shapes until they have asked for 30, 60, 90 and 95 % of it; with constraints every
job may use a part of the fleet only. Compared are the three algorithms of the kernel and the sampling baseline, over
the same jobs. Reported are the nodes in use, the share that found no room, the most allocations of one job on one node,
and how full the nodes in use are: the mean score says nothing about any of that.
"""

from __future__ import annotations

import random
import statistics
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.bench.frame import BenchOptions, BenchResult, Number
from fedsched.bench.sampling import Sampler, candidates_for
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel import place
from fedsched.scheduler.kernel_request import PlaceRequest
from fedsched.scheduler.score import Algorithm

SEEDS: Final = 5
NODES: Final = 500
CLASSES: Final = 10
FILLS: Final = (0.30, 0.60, 0.90, 0.95)
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("binpack", "balanced", "spread")
SAMPLING: Final = "sampling"
NODE: Final = (32_000, 64_000)
"""All nodes are alike, so that counting them means something."""
CPU: Final = (100, 250, 500, 1_000, 2_000)
MEMORY: Final = (256, 512, 1_024, 2_048, 4_096)
"""What jobs ask for, each independent of the other."""


class Wish(NamedTuple):
    """One job."""

    ask: Usage
    copies: int
    allowed: frozenset[int]


class Outcome(NamedTuple):
    """What a way of placing made of all jobs."""

    nodes_used: float
    unplaced: float
    most_of_one_job: float
    cpu: float
    memory: float


def run(options: BenchOptions) -> BenchResult:
    seeds = [options.seed * 1_000 + number for number in range(max(SEEDS, options.count or SEEDS))]
    rows: list[dict[str, Any]] = []
    found: dict[tuple[str, float, bool], Outcome] = {}
    for constrained in (False, True):
        for fill in FILLS:
            options.say(f"{fill:.0%} of the fleet, {'with' if constrained else 'without'} constraints ...")
            for way in (*ALGORITHMS, SAMPLING):
                each = [_fill(way, fill, constrained, seed) for seed in seeds]
                mean = found[way, fill, constrained] = Outcome(*map(statistics.mean, zip(*each, strict=True)))
                rows.append(_row(way, fill, constrained, mean))
    return BenchResult(_figures(found), rows, [f"mean over {len(seeds)} seeds, {NODES} nodes"])


def _figures(found: dict[tuple[str, float, bool], Outcome]) -> dict[str, Number]:
    """Sums over jobs with and without constraints."""

    def nodes(way: str, fill: float) -> float:
        return sum(found[way, fill, constrained].nodes_used for constrained in (False, True))

    def unplaced(way: str, fill: float) -> float:
        return round(statistics.mean(found[way, fill, constrained].unplaced for constrained in (False, True)), 5)

    low, high = FILLS[0], FILLS[2]
    return {
        "binpack_nodes_over_sampling_30": round(nodes("binpack", low) / nodes(SAMPLING, low), 4),
        "balanced_nodes_over_binpack_30": round(nodes("balanced", low) / nodes("binpack", low), 4),
        "unplaced_90_binpack": unplaced("binpack", high),
        "unplaced_90_balanced": unplaced("balanced", high),
        "unplaced_90_sampling": unplaced(SAMPLING, high),
    }


def _row(way: str, fill: float, constrained: bool, outcome: Outcome) -> dict[str, Any]:
    return {
        "fill": fill,
        "constrained": constrained,
        "way": way,
        "nodes_used": round(outcome.nodes_used, 1),
        "unplaced_share": round(outcome.unplaced, 5),
        "most_of_one_job": round(outcome.most_of_one_job, 1),
        "cpu_of_used": round(outcome.cpu, 4),
        "memory_of_used": round(outcome.memory, 4),
    }


def a_fleet(seed: int) -> tuple[Fleet, NDArray[np.int64]]:
    """Nodes in ten classes, and the class of each slot."""
    chance = np.random.default_rng(seed)
    fleet = Fleet()
    fleet.ensure(NODES)
    here = slice(0, NODES)
    fleet.present[here] = fleet.ready[here] = True
    fleet.cap_cpu[here], fleet.cap_memory[here], fleet.cap_disk[here] = *NODE, 1_000_000
    return fleet, chance.integers(0, CLASSES, fleet.size)


def wishes(fleet: Fleet, fill: float, constrained: bool, seed: int) -> list[Wish]:
    """Jobs until they ask for this share of the scarcer resource."""
    chance = random.Random(seed)
    left = [float(fleet.cap_cpu.sum()) * fill, float(fleet.cap_memory.sum()) * fill]
    found = []
    while min(left) > 0:
        ask = Usage(chance.choice(CPU), chance.choice(MEMORY), 100)
        count = chance.choice([1, 3, 10, 30, 100])
        share = chance.choice([2, 3, 5]) if constrained else CLASSES
        found.append(Wish(ask, count, frozenset(chance.sample(range(CLASSES), share))))
        left = [left[0] - ask.cpu * count, left[1] - ask.memory * count]
    return found


def _fill(way: str, fill: float, constrained: bool, seed: int) -> Outcome:
    fleet, classes = a_fleet(seed)
    jobs = wishes(fleet, fill, constrained, seed)
    sampler = Sampler(fleet, classes.tolist()) if way == SAMPLING else None
    chance = random.Random(seed)
    placed, most = 0, 0
    for job in jobs:
        if sampler is not None:
            slots = np.array(
                sampler.place(job.allowed, job.ask, job.copies, chance, candidates_for(NODES)), dtype=np.int64
            )
        else:
            slots = place(_request(fleet, classes, job, way, chance)).node_slots
        if len(slots):
            fleet.place(slots, job.ask)
            most = max(most, int(np.bincount(slots).max()))
        placed += len(slots)
    used = fleet.occupied_allocs > 0
    return Outcome(
        float(used.sum()),
        1 - placed / sum(job.copies for job in jobs),
        most,
        float(fleet.occupied_cpu[used].sum() / fleet.cap_cpu[used].sum()),
        float(fleet.occupied_memory[used].sum() / fleet.cap_memory[used].sum()),
    )


def _request(fleet: Fleet, classes: NDArray[np.int64], job: Wish, way: str, chance: random.Random) -> PlaceRequest:
    mask = fleet.ready & np.isin(classes, list(job.allowed))
    algorithm = next(known for known in ALGORITHMS if known == way)
    return PlaceRequest(
        fleet=fleet,
        mask=mask,
        ask=job.ask,
        count=job.copies,
        group_count=job.copies,
        algorithm=algorithm,
        seed=chance.getrandbits(64),
    )
