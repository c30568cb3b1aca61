"""Runs regions from seeds: scheduling under faults, then rest, then the questions that only rest can answer.

    python -m fedsched.sim.fleet_run --seeds 100 --first 0 [--jobs 2] [--trace] [--counts]

A run is determined by its seed: trio's order, time, chance and ids all follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from fedsched.sim import trio_seed
from fedsched.sim.fleet_dry_runs import DryRunCheck
from fedsched.sim.fleet_faults import Faults, Fleet
from fedsched.sim.fleet_options import FleetOptions, draw_options
from fedsched.sim.fleet_people import People
from fedsched.sim.fleet_quiet import Quiet
from fedsched.sim.fleet_world import FleetWorld
from fedsched.sim.many_seeds import Echo, Kind, Line, run_many
from fedsched.sim.provenance import provenance
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken, broken_in

REST_S: Final = 60.0
"""After healing, everything has to be settled by then."""
LOOK_S: Final = 5.0
"""How often it is looked whether it is already."""
GRACE_S: Final = 10.0
"""For what begins by itself near the end of that time: a deployment that fails, a task that is started again."""
EVENTS_SHOWN: Final = 200


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
    def __init__(self, seed: int, options: FleetOptions, trace: Trace) -> None:
        self.seed = seed
        self.options = options
        self.trace = trace
        self.world: FleetWorld | None = None
        self.ended_at = 0.0

    async def main(self) -> None:
        async with trio.open_nursery() as nursery:
            world = self.world = FleetWorld(self.seed, self.options, nursery, self.trace)
            world.start()
            await trio.sleep(0.1)
            await world.elect()
            fleet = Fleet(world)
            people = People(world, fleet)
            async with trio.open_nursery() as chaos:
                chaos.start_soon(people.run)
                await Faults(world, fleet).run()
                chaos.cancel_scope.cancel()
            await self._heal(world, fleet, people)
            await self._judge(world, Quiet(world))
            await DryRunCheck(world, people).run()
            self.ended_at = trio.current_time()
            nursery.cancel_scope.cancel()

    async def _heal(self, world: FleetWorld, fleet: Fleet, people: People) -> None:
        """No more faults; wait until nothing goes on any more, at most as long as is allowed."""
        world.note("", "heal", "no more faults")
        if world.leader is None:
            await world.elect()
        world.loss, world.failure_rate, world.stuck_rate, world.lag_s = 0.0, 0.0, 0.0, 0.05
        fleet.heal()
        await people.stop_launching()
        quiet, healed_at, calm = Quiet(world), trio.current_time(), 0
        while trio.current_time() < healed_at + REST_S and calm < 2:
            await trio.sleep(LOOK_S)
            assert world.leader is not None
            left_s = healed_at + REST_S - trio.current_time()
            calm = 0 if quiet.is_anything_to_come(world.leader.store, left_s) else calm + 1

    async def _judge(self, world: FleetWorld, quiet: Quiet) -> None:
        leader = world.leader
        assert leader is not None
        looks: tuple[tuple[str, Callable[[], list[str]]], ...] = (
            ("R-20 evaluations end", lambda: quiet.restless(leader.store)),
            ("R-24 blocked rightly", lambda: quiet.wrongly_blocked(leader.store)),
            ("R-26 deployments end", lambda: quiet.overdue_deployments(leader.store)),
            ("R-20 what is wanted runs", lambda: quiet.missing(leader.store)),
            ("R-27 drains end", lambda: quiet.draining(leader.store)),
            ("nobody is cut off", lambda: quiet.unknown(leader.store)),
        )
        for invariant, look in looks:
            if not await world.becomes(_none(look), GRACE_S):
                raise Broken(invariant, "; ".join(look()[:5]), leader.name)
        world.counts.update(plans := quiet.plans(world.lives))
        if refusals := plans["plan.refused_at_same_index"]:
            raise Broken("R-22 refused for a reason", f"{refusals} plans refused at the index they were made at")
        if not await world.becomes(lambda: not quiet.difference(), GRACE_S):
            raise Broken("all agree", quiet.difference())


def _none(look: Callable[[], list[str]]) -> Callable[[], bool]:
    return lambda: not look()


def run_seed(seed: int, *, echo: Callable[[str], None] | None = None) -> FleetReport:
    """Live through the run with this seed."""
    trace = Trace(echo)
    run = _Run(seed, draw_options(seed), trace)
    broken: Broken | None = None
    try:
        trio_seed.run(seed, run.main)
    except BaseException as error:
        broken = broken_in(error)
    counts = run.world.counts if run.world is not None else Counter()
    return FleetReport(
        seed, broken, trace.hash(), trace.number, run.ended_at, counts, trace.last(frozenset(), EVENTS_SHOWN)
    )


def story(report: FleetReport) -> str:
    """What somebody needs to know about a broken run."""
    return "\n".join(
        [
            *report.last,
            f"seed {report.seed} breaks {report.broken}",
            f"features: {', '.join(sorted(draw_options(report.seed).features))}",
            f"version: {provenance()}",
            f"replay: python -m fedsched.sim.fleet_run --first {report.seed} --trace",
        ]
    )


# --- commands ---------------------------------------------------------------------------------------------------------


def _live(seed: int, echo: Echo) -> Line:
    report = run_seed(seed, echo=echo)
    if report.broken is not None:
        return Line(seed, True, f"seed {seed} breaks {str(report.broken)[:400]}", story(report), dict(report.counts))
    short = f"seed {seed} {report.trace_hash} {report.events} events in {report.virtual_s:.1f} virtual seconds"
    return Line(seed, False, short, "", dict(report.counts))


KIND: Final = Kind("fedsched.sim.fleet_run", "regions", "simulate a region's scheduling", _live)


def main(arguments: list[str] | None = None) -> int:
    """Run some seeds; the first that breaks is told in full."""
    return run_many(KIND, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
