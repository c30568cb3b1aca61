"""Runs regions from seeds: scheduling under faults, then rest, then the questions that only rest can answer.

    python -m fedsched.sim.fleet_run --seeds 100 --first 0 [--trace] [--counts]

A run is determined by its seed: trio's order, time, chance and ids all follow from it.
"""

from __future__ import annotations

import argparse
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from fedsched.scheduler.fleet import Fleet as FleetColumns
from fedsched.sim import trio_seed
from fedsched.sim.fleet_faults import Faults, Fleet, People
from fedsched.sim.fleet_world import FleetWorld
from fedsched.sim.provenance import provenance
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken

REST_S: Final = 60.0
"""After healing, everything has to be settled by then."""
GRACE_S: Final = 10.0
"""For what begins by itself near the end of that time: a deployment that fails, a task that is started again."""
EVENTS_SHOWN: Final = 200
COLUMNS: Final = (
    "occupied_cpu",
    "occupied_memory",
    "occupied_disk",
    "occupied_allocs",
    "held_cpu",
    "held_memory",
    "held_disk",
    "held_allocs",
    "ready",
)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What came of one seed."""

    seed: int
    broken: Broken | None
    trace_hash: str
    events: int
    virtual_s: float
    counts: Counter[str]
    last: list[str]


class _Run:
    def __init__(self, seed: int, trace: Trace) -> None:
        self.seed = seed
        self.trace = trace
        self.world: FleetWorld | None = None
        self.ended_at = 0.0

    async def main(self) -> None:
        async with trio.open_nursery() as nursery:
            world = self.world = FleetWorld(self.seed, nursery, self.trace)
            world.start()
            await trio.sleep(0.1)
            await world.elect()
            fleet = Fleet(world)
            people = People(world, fleet)
            async with trio.open_nursery() as chaos:
                chaos.start_soon(people.run)
                await Faults(world, fleet).run()
                chaos.cancel_scope.cancel()
            await self._rest(world, fleet, people)
            self.ended_at = trio.current_time()
            nursery.cancel_scope.cancel()

    async def _rest(self, world: FleetWorld, fleet: Fleet, people: People) -> None:
        world.note("", "heal", "no more faults")
        if world.leader is None:
            await world.elect()
        world.loss, world.checks.failure_rate, world.lag_s = 0.0, 0.0, 0.05
        fleet.heal()
        await people.stop_launching()
        await trio.sleep(REST_S)
        checks, leader = world.checks, world.leader
        assert leader is not None
        looks: tuple[tuple[str, Callable[[], list[str]]], ...] = (
            ("R-20 evaluations end", lambda: checks.restless(leader.store, world.wall_ns)),
            ("R-24 blocked rightly", lambda: checks.wrongly_blocked(leader.store)),
            ("R-26 deployments end", lambda: checks.overdue_deployments(leader.store, world.wall_ns)),
        )
        for invariant, look in looks:
            if not await world.becomes(_none(look), GRACE_S):
                raise Broken(invariant, "; ".join(look()[:5]), leader.name)
        world.counts.update(plans := checks.plans(world.lives))
        if refusals := plans["plan.refused_at_same_index"]:
            raise Broken("R-22 refused for a reason", f"{refusals} plans refused at the index they were made at")
        if not await world.becomes(lambda: not _difference(world), GRACE_S):
            raise Broken("all agree", _difference(world))


def _none(look: Callable[[], list[str]]) -> Callable[[], bool]:
    return lambda: not look()


def _difference(world: FleetWorld) -> str:
    """Whether the servers' states are one, and each fleet is what its state says."""
    digests = {server.machine.digest() for server in world.servers.values()}
    if len(digests) > 1:
        return "the servers' states differ"
    for server in world.servers.values():
        fresh = FleetColumns.of(server.store)
        for name in COLUMNS:
            kept, wanted = getattr(server.feed.fleet, name), getattr(fresh, name)
            size = min(len(kept), len(wanted))
            if not np.array_equal(kept[:size], wanted[:size]):
                return (
                    f"{server.name}: column {name} is {kept[:size].tolist()}, the state says {wanted[:size].tolist()}"
                )
    return ""


def run_seed(seed: int, *, echo: Callable[[str], None] | None = None) -> FleetReport:
    """Live through the run with this seed."""
    trace = Trace(echo)
    run = _Run(seed, trace)
    broken: Broken | None = None
    try:
        trio_seed.run(seed, run.main)
    except BaseException as error:
        broken = _broken(error)
    counts = run.world.counts if run.world is not None else Counter()
    return FleetReport(
        seed, broken, trace.hash(), trace.number, run.ended_at, counts, trace.last(frozenset(), EVENTS_SHOWN)
    )


def _broken(error: BaseException) -> Broken:
    """The violation in what a run raised; anything else is one too."""
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup):
        inner = found.split(Broken)[0] or found
        found = inner.exceptions[0]
    if isinstance(found, KeyboardInterrupt):
        raise found
    if isinstance(found, Broken):
        return found
    return Broken("nothing crashes", f"{found!r}\n{''.join(traceback.format_exception(found))}")


def story(report: FleetReport) -> str:
    """What somebody needs to know about a broken run."""
    return "\n".join(
        [
            *report.last,
            f"seed {report.seed} breaks {report.broken}",
            f"version: {provenance()}",
            f"replay: python -m fedsched.sim.fleet_run --first {report.seed} --trace",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run some seeds; the first that breaks is told in full."""
    parser = argparse.ArgumentParser(
        prog="python -m fedsched.sim.fleet_run", description="simulate a region's scheduling"
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--counts", action="store_true", help="print how often what happened")
    parser.add_argument("--keep-going", action="store_true", help="name every seed that breaks, in one line each")
    given = parser.parse_args(arguments)
    totals: Counter[str] = Counter()
    provenance()  # before anything runs: files may change while it does
    broken = 0
    for seed in range(given.first, given.first + given.seeds):
        report = run_seed(seed, echo=print if given.trace else None)
        totals.update(report.counts)
        if report.broken is None:
            print(f"seed {seed} {report.trace_hash} {report.events} events in {report.virtual_s:.1f} virtual seconds")
            continue
        broken += 1
        if not given.keep_going:
            print(story(report))
            return 1
        print(f"seed {seed} breaks {str(report.broken)[:400]}")
    if given.counts:
        print(*(f"{count:>8} {name}" for name, count in sorted(totals.items())), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
