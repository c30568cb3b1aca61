"""`bench kernel`: how fast placement is, and that it is exact.

The main workload is C1M: jobs of 1,000 allocations with a class constraint, one after the other on a fleet that fills
up. Each placement is counted in the fleet at once, so what is measured is placing and writing back. Beside it, on
copies of the same fleet, run the baselines: plain-Python sampling (2 candidates, and the logarithm of the fleet), and
re-scoring every node for every placement in columns. The rack shape goes through a whole attempt of the service
scheduler, from state and evaluation to the finished plan.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.bench.frame import BenchOptions, BenchResult, Number
from fedsched.bench.kernel_racks import rack_rows
from fedsched.bench.sampling import Sampler, candidates_for
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel import place
from fedsched.scheduler.kernel_request import PlaceRequest, SpreadBlock
from fedsched.scheduler.reference import place_by_argmax, place_slowly

DURATION_S: Final = 45.0
CLASSES: Final = 8
ALLOWED: Final = 6
VALUES: Final = 50
NODES: Final = 5_000
LARGE: Final = 50_000
ASKS: Final = (Usage(100, 200, 10), Usage(50, 300, 0), Usage(150, 150, 50), Usage(80, 250, 0))
NOTES: Final = (
    "seconds are of CPU, for ours and for the baselines alike",
    "placements are counted in the fleet as they are made; baselines run on copies",
)
SHAPES: Final = ((32_000, 64_000), (24_000, 96_000), (48_000, 48_000))


class Setting(NamedTuple):
    """A fleet and what its jobs may use of it."""

    fleet: Fleet
    classes: NDArray[np.int64]
    masks: list[NDArray[np.bool_]]
    allowed: list[frozenset[int]]
    values: NDArray[np.int64]


def a_setting(nodes: int, seed: int) -> Setting:
    """Nodes of three shapes in eight classes; every job may use six of those."""
    chance = np.random.default_rng(seed)
    fleet = Fleet()
    fleet.ensure(nodes)
    here = slice(0, nodes)
    shapes = np.array(SHAPES, dtype=np.float64)[chance.integers(0, len(SHAPES), nodes)]
    fleet.present[here] = fleet.ready[here] = True
    fleet.cap_cpu[here], fleet.cap_memory[here], fleet.cap_disk[here] = shapes[:, 0], shapes[:, 1], 500_000
    classes = chance.integers(0, CLASSES, fleet.size)
    allowed = [frozenset((first + step) % CLASSES for step in range(ALLOWED)) for first in range(CLASSES)]
    masks = [fleet.ready & np.isin(classes, list(some)) for some in allowed]
    values = np.full(fleet.size, -1, dtype=np.int64)
    values[here] = np.arange(nodes) % VALUES
    return Setting(fleet, classes, masks, allowed, values)


def jobs(setting: Setting, count: int, seed: int, *, spread: bool = False) -> Iterator[PlaceRequest]:
    """One job after the other, without end."""
    chance = random.Random(seed)
    number = 0
    while True:
        yield PlaceRequest(
            fleet=setting.fleet,
            mask=setting.masks[number % CLASSES],
            ask=ASKS[number % len(ASKS)],
            count=count,
            group_count=count,
            seed=chance.getrandbits(64),
            spreads=(SpreadBlock(setting.values),) if spread else (),
        )
        number += 1


class Run(NamedTuple):
    """What a series of jobs came to."""

    placed: int
    seconds: float
    each_us: list[float]

    @property
    def per_s(self) -> float:
        return self.placed / self.seconds if self.seconds else 0.0


def run_jobs(requests: Iterator[PlaceRequest], evaluations: int, seconds: float) -> Run:
    """Place and count in the fleet, job by job."""
    placed, each = 0, []
    start = time.perf_counter()
    for _ in range(evaluations):
        before = time.process_time()
        request = next(requests)
        answer = place(request)
        if len(answer.node_slots):
            request.fleet.place(answer.node_slots, request.ask)
        placed += len(answer.node_slots)
        each.append((time.process_time() - before) * 1e6)
        if time.perf_counter() - start > seconds:
            break
    return Run(placed, sum(each) / 1e6, each)


def run(options: BenchOptions) -> BenchResult:
    seconds = options.duration_s or DURATION_S
    evaluations = options.count or 1_000
    figures: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    options.say("C1M against sampling ...")
    figures |= _c1m(options, evaluations, seconds * 0.25, rows)
    options.say("the same as the reference? ...")
    figures["identical"] = _identical(options, rows)
    options.say("other sizes ...")
    figures |= _sizes(options, min(evaluations, 40), seconds * 0.3, rows)
    options.say("racks, through the whole scheduler ...")
    racks = rack_rows(options, seconds * 0.25)
    rows += racks
    by_name = {(row["racks"], row["count"], row["spread"]): row["placements_per_s"] for row in racks}
    figures["rack_1200_per_s"] = by_name[25, 1200, False]
    figures["rack_1200_spread_per_s"] = by_name[25, 1200, True]
    return BenchResult(figures, rows, NOTES)


def _c1m(options: BenchOptions, evaluations: int, seconds: float, rows: list[dict[str, Any]]) -> dict[str, Number]:
    """The whole workload; the baselines place a few of its jobs at several stages of the fill."""
    setting = a_setting(NODES, options.seed)
    requests = jobs(setting, 1_000, options.seed)
    parts: list[Run] = []
    log2, two = [], []
    for stage in range(4):
        log2.append(_sampled(setting, options.seed + stage, candidates_for(NODES)))
        two.append(_sampled(setting, options.seed + stage, 2))
        parts.append(run_jobs(requests, max(1, evaluations // 4), seconds / 4))
    ours = Run(sum(p.placed for p in parts), sum(p.seconds for p in parts), [us for p in parts for us in p.each_us])
    argmax = _argmax(setting, options.seed)
    rows += [
        _rate("C1M", "exact greedy", ours.per_s, ours),
        _rate("C1M", f"sampling, {candidates_for(NODES)} candidates", statistics.mean(log2)),
        _rate("C1M", "sampling, 2 candidates", statistics.mean(two)),
        _rate("C1M", "every node every time, in columns", argmax),
    ]
    return {
        "placements_per_s": round(ours.per_s),
        "ratio_sampling": round(ours.per_s / statistics.mean(log2), 2),
    }


def _rate(workload: str, how: str, per_s: float, detail: Run | None = None) -> dict[str, Any]:
    each = sorted(detail.each_us) if detail is not None else []
    return {
        "workload": workload,
        "how": how,
        "placements_per_s": round(per_s),
        "p50_us": round(each[len(each) // 2], 1) if each else "",
        "p99_us": round(each[len(each) * 99 // 100], 1) if each else "",
    }


def _sampled(setting: Setting, seed: int, limit: int) -> float:
    """Placements per second of the baseline, on a copy of the fleet as it is."""
    sampler = Sampler(setting.fleet, setting.classes.tolist())
    chance = random.Random(seed)
    start = time.process_time()
    placed = sum(len(sampler.place(setting.allowed[n], ASKS[n], 1_000, chance, limit)) for n in range(3))
    return placed / (time.process_time() - start)


def _argmax(setting: Setting, seed: int) -> float:
    request = next(jobs(setting, 200, seed))
    start = time.process_time()
    placed = len(place_by_argmax(request))
    return placed / (time.process_time() - start)


def _identical(options: BenchOptions, rows: list[dict[str, Any]]) -> bool:
    """Sequence for sequence: on large fleets against columns, on small ones with spread against the slow reference."""
    chance = random.Random(options.seed)
    same, compared = True, 0
    setting = a_setting(2_000, options.seed)
    requests = jobs(setting, 150, options.seed)
    for _ in range(8):
        request = next(requests)
        answer = place(request)
        same &= answer.node_slots.tolist() == place_by_argmax(request)
        compared += len(answer.node_slots)
        setting.fleet.place(answer.node_slots, request.ask)
    for number in range(30):
        small = a_setting(chance.randint(5, 40), options.seed + number)
        requests = jobs(small, chance.randint(1, 30), number, spread=number % 2 == 0)
        for _ in range(3):
            request = next(requests)
            answer = place(request)
            same &= answer.node_slots.tolist() == place_slowly(request)
            compared += len(answer.node_slots)
            small.fleet.place(answer.node_slots, request.ask)
    rows.append({"workload": "identity", "sequences": 98, "placements_compared": compared, "identical": same})
    return same


def _sizes(options: BenchOptions, evaluations: int, seconds: float, rows: list[dict[str, Any]]) -> dict[str, Number]:
    """Fleets and jobs of all sizes, with and without a spread block."""
    costs: dict[tuple[int, int, bool], Run] = {}
    shapes = [
        (nodes, count, spread)
        for nodes in (500, 1_000, NODES, 10_000, LARGE)
        for count in (1, 10, 100, 1_000)
        for spread in (False, True)
    ]
    for nodes, count, spread in shapes:
        setting = a_setting(nodes, options.seed)
        requests = jobs(setting, count, options.seed, spread=spread)
        run_jobs(requests, 2 * len(ASKS), 0.3)  # the fleet is not empty, and the scores of each ask are known
        many = evaluations * (10 if count <= 10 else 1)
        cost = costs[nodes, count, spread] = run_jobs(requests, many, seconds / len(shapes) * 2)
        each = sorted(cost.each_us)
        rows.append(
            {
                "nodes": nodes,
                "count": count,
                "spread": spread,
                "placements_per_s": round(cost.per_s),
                "evaluations_per_s": round(len(each) / cost.seconds),
                "p50_us": round(each[len(each) // 2], 1),
                "p99_us": round(each[len(each) * 99 // 100], 1),
                "cold_us": round(_cold(setting, count, spread, options.seed), 1),
            }
        )
    usual, large = costs[NODES, 1_000, False], costs[LARGE, 1_000, False]
    single, spread_cost = costs[NODES, 1, False], costs[NODES, 1_000, True]
    return {
        "growth_50k_over_5k": round(statistics.median(large.each_us) / statistics.median(usual.each_us), 2),
        "small_ns_per_node": round(statistics.median(single.each_us) * 1e3 / NODES, 2),
        "spread_share": round(statistics.median(usual.each_us) / statistics.median(spread_cost.each_us), 3),
    }


def _cold(setting: Setting, count: int, spread: bool, seed: int) -> float:
    """One evaluation of an ask that was never met before: every node is scored first."""
    request = next(jobs(setting, count, seed, spread=spread))
    setting.fleet.fit_scores.clear()
    start = time.process_time()
    place(request)
    return (time.process_time() - start) * 1e6
