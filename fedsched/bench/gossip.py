"""How soon a simulated pool knows, how rarely it errs, and what it costs: the real core in virtual time.

The figures are in simulated seconds, so they say the same on every machine: regions 20 ms apart, the `fed` profile.
Every figure is the worst of its runs. Beside them stand the same deaths with the profile that other pools use across
regions (`wan`), and without the ring, for comparison in the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fedsched.bench.frame import BenchOptions, BenchResult, Number
from fedsched.gossip.messages import State
from fedsched.gossip.profiles import FED, WAN, Profile
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_world import GossipWorld

POOL: Final = 48
LOSSY_POOL: Final = 100
LOSS: Final = 0.05
RUNS: Final = 40
WARM_S: Final = 12.0
LIMIT_S: Final = 400.0
FALSE_MINUTES: Final = 300.0
"""Simulated minutes of the lossy pool: 30,000 member-minutes in a minute and a half of CPU. `-duration` gives more."""
COST_S: Final = 120.0
NOTES: Final = (
    "times are simulated seconds: the same on every machine for the same seed",
    "a death is a process that ends without a word on a host that stays silent: streams to it are not refused",
)


def run(options: BenchOptions) -> BenchResult:
    runs = options.count or RUNS
    rows: list[dict[str, Any]] = []
    options.say(f"deaths, joins and leaves among {POOL} ...")
    deaths = _times(_death, options.seed, runs, FED)
    joins = _times(_join, options.seed, runs, FED)
    leaves = _times(_leave, options.seed, runs, FED)
    colds = _times(_cold_start, options.seed, max(1, runs // 4), FED)
    quarter = _times(_quarter_dies, options.seed, max(1, runs // 4), FED)
    rows += [
        _row("death", "fed", deaths),
        _row("death", "fed without its ring", _times(_death, options.seed, runs, replace(FED, ring_every=0))),
        _row("death", "wan", _times(_death, options.seed, max(1, runs // 8), WAN)),
        _row("a quarter dies", "fed", quarter),
        _row("join", "fed", joins),
        _row("leave", "fed", leaves),
        _row("cold start", "fed", colds),
    ]
    options.say(f"{LOSSY_POOL} members that lose {LOSS:.0%} ...")
    minutes = FALSE_MINUTES if options.duration_s is None else options.duration_s / 60
    false_deaths, lossy = _false_deaths(options.seed, minutes)
    rows.append(lossy)
    options.say("cost in pools of 10 and 1,000 ...")
    small, large = _cost(options.seed, 10), _cost(options.seed, 1_000)
    rows += [small, large]
    keys = ("datagrams_per_s", "bytes_per_s")
    figures: dict[str, Number] = {
        "death_known_s": _worst(deaths),
        "join_known_s": _worst(joins),
        "leave_known_s": _worst(leaves),
        "cold_start_s": _worst(colds),
        "quarter_dead_known_s": _worst(quarter),
        "false_deaths_per_1e5_member_minutes": round(false_deaths, 3),
        "cost_1000_over_10": round(max(large[key] / small[key] for key in keys), 3),
        "datagrams_per_member_s": large["datagrams_per_s"],
        "bytes_per_member_s": large["bytes_per_s"],
    }
    return BenchResult(figures, rows, NOTES)


def _times(measure: Callable[[GossipWorld], float], seed: int, runs: int, profile: Profile) -> list[float]:
    times = []
    for number in range(runs):
        formed = measure is not _cold_start
        world = GossipWorld(seed * 1_000 + number, POOL, profile=profile, formed=formed)
        if formed:
            world.run(WARM_S + 0.37 * (number % 10))  # at no particular moment of anybody's round
        times.append(measure(world))
    return times


def _death(world: GossipWorld) -> float:
    victim = world.hosts[world.seed % POOL]
    world.kill(victim)
    return world.run_until(lambda: world.all_hold(victim.name, State.DEAD), LIMIT_S)


def _quarter_dies(world: GossipWorld) -> float:
    victims = world.hosts[::4]
    for victim in victims:
        world.kill(victim)
    return world.run_until(lambda: all(world.all_hold(v.name, State.DEAD) for v in victims), LIMIT_S)


def _join(world: GossipWorld) -> float:
    newcomer = world.add_host()
    world.boot(newcomer, join=tuple(host.addr for host in world.hosts[:3]))
    core = newcomer.core
    return world.run_until(
        lambda: world.all_hold(newcomer.name, State.ALIVE) and core is not None and core.members.up == POOL + 1,
        LIMIT_S,
    )


def _leave(world: GossipWorld) -> float:
    goer = world.hosts[world.seed % POOL]
    world.leave(goer)
    known = world.run_until(lambda: world.all_hold(goer.name, State.LEFT), LIMIT_S)
    return math.inf if world.failures else known


def _cold_start(world: GossipWorld) -> float:
    for host in world.hosts:
        world.boot(host, join=tuple(other.addr for other in world.hosts[:3]))
    return world.run_until(
        lambda: all(host.core is not None and host.core.members.up == POOL for host in world.hosts), LIMIT_S
    )


def _false_deaths(seed: int, minutes: float) -> tuple[float, dict[str, Any]]:
    """Deaths declared by anybody of a member that was up all the time, each once however many believed it."""
    world = GossipWorld(seed, LOSSY_POOL, net=NetOptions(loss=LOSS))
    world.run(minutes * 60)
    declared = sum(host.core.counters["deaths_declared"] for host in world.running() if host.core is not None)
    suspected = sum(host.core.counters["probes_failed"] for host in world.running() if host.core is not None)
    member_minutes = LOSSY_POOL * minutes
    row = {
        "pool": LOSSY_POOL,
        "loss": LOSS,
        "member_minutes": member_minutes,
        "failed_probes": suspected,
        "false_deaths": declared,
    }
    return declared * 1e5 / member_minutes, row


def _cost(seed: int, count: int) -> dict[str, Any]:
    """An idle pool; streams count with their bytes."""
    before = time.process_time()
    world = GossipWorld(seed, count)
    world.run(COST_S)
    counts = world.counts
    return {
        "idle_pool": count,
        "datagrams_per_s": round(counts["packets"] / count / COST_S, 4),
        "bytes_per_s": round((counts["bytes"] + counts["stream_bytes"]) / count / COST_S, 2),
        "streams_per_s": round(counts["streams"] / count / COST_S, 4),
        "cpu_s": round(time.process_time() - before, 2),
    }


def _row(what: str, how: str, times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "known_by_all": what,
        "profile": how,
        "runs": len(times),
        "median_s": round(ordered[len(ordered) // 2], 2),
        "worst_s": _worst(times),
    }


def _worst(times: list[float]) -> float:
    """A time that never came is written as the limit: JSON knows no infinity."""
    return round(min(LIMIT_S, max(times)), 2)
