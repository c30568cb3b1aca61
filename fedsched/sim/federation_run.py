"""Runs federations from seeds: regions under faults of the WAN and of their own, then peace, then the questions.

    python -m fedsched.sim.federation_run --seeds 100 --first 0 [--jobs 2] [--trace] [--counts]

With every seed go a few rollouts (`rollout_world`), a pool that is cut apart for long (`long_cuts`) and, with every
tenth, a pool in every kind of trouble (`gossip_run`).

Every seed is lived through twice, the second time by those regions alone in which nothing went wrong: they must have
done the same both times.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from fedsched.gossip.core import GossipCore
from fedsched.sim import gossip_run, long_cuts, trio_seed
from fedsched.sim.federation_checks import (
    HEALS_S,
    SETTLES_S,
    check_hints,
    check_left_alone,
    check_membership,
    check_versions,
    check_ways,
    check_writes,
)
from fedsched.sim.federation_people import People
from fedsched.sim.federation_plan import Plan, Wish, draw_plan
from fedsched.sim.federation_rollouts import Owners
from fedsched.sim.federation_server import ABROAD
from fedsched.sim.federation_world import START_S, Federation
from fedsched.sim.fleet_quiet import Quiet
from fedsched.sim.gossip_world import MakeCore
from fedsched.sim.many_seeds import Echo, Kind, Line, run_many
from fedsched.sim.provenance import provenance
from fedsched.sim.rollout_world import World
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken, broken_in

EVENTS_SHOWN: Final = 200
ROLLOUTS: Final = 5
"""With each seed."""
POOL_EVERY: Final = 10
LOOKS_S: Final = 6.0
GRACE_S: Final = 10.0
"""For servers that are a little behind."""


@dataclass(frozen=True, slots=True)
class FederationReport:
    """What came of one seed."""

    seed: int
    broken: Broken | None
    trace_hash: str
    events: int
    virtual_s: float
    counts: Counter[str]
    last: list[str]


class _Run:
    """One life of one federation."""

    def __init__(self, seed: int, plan: Plan, trace: Trace, make_core: MakeCore) -> None:
        self.seed = seed
        self.plan = plan
        self.trace = trace
        self.people: dict[str, People] = {}
        self.federation: Federation | None = None
        self.ended_at = 0.0
        self._make_core = make_core

    async def main(self) -> None:
        async with trio.open_nursery() as nursery:
            federation = self.federation = Federation(
                self.seed, self.plan, nursery, self.trace, make_core=self._make_core
            )
            await federation.start()
            for name, region in federation.regions.items():
                people = self.people[name] = People(federation, region)
                trio_seed.GROUP.set(name)
                nursery.start_soon(people.live)
                trio_seed.GROUP.set(ABROAD)
                nursery.start_soon(people.travel)
            owners = self.owners = Owners(federation)
            if self.plan.wishes:
                nursery.start_soon(owners.live, nursery, START_S)
            await federation.troubles()
            if self.plan.troubles:
                await self._judge(federation)
            self.ended_at = trio.current_time()
            nursery.cancel_scope.cancel()

    async def _judge(self, federation: Federation) -> None:
        healed_at = trio.current_time()
        await self._heals(federation, healed_at + HEALS_S)
        for people in self.people.values():
            people.stops = True
        await trio.sleep(SETTLES_S)
        await self.owners.until_resting()
        await self.owners.settle()
        check_writes(federation, self.people)
        check_versions(federation)
        await check_hints(federation)
        await self.owners.until_over()
        for region in federation.alive:
            quiet = Quiet(region)
            if not await region.becomes(partial(_agree, quiet), GRACE_S):
                raise Broken("all agree", quiet.difference(), region.region)

    async def _heals(self, federation: Federation, stop_at: float) -> None:
        """R-64, which may take its time, but need not."""
        while True:
            await trio.sleep(LOOKS_S)
            try:
                check_membership(federation)
                return await check_ways(federation, self.people)
            except Broken:
                if trio.current_time() > stop_at - LOOKS_S:
                    raise


def _agree(quiet: Quiet) -> bool:
    return not quiet.difference()


def run_seed(
    seed: int, *, echo: Callable[[str], None] | None = None, make_core: MakeCore = GossipCore
) -> FederationReport:
    """Live through the federation with this seed, and not through what goes with it."""
    plan, trace = draw_plan(seed), Trace(echo)
    run = _Run(seed, plan, trace, make_core)
    broken: Broken | None = None
    try:
        with trio_seed.grouped():
            trio_seed.run(seed, run.main)
            if plan.troubles and plan.left_alone:
                calm = _Run(seed, plan.undisturbed(), Trace(), make_core)
                trio_seed.run(seed, calm.main)
                assert run.federation is not None
                assert calm.federation is not None
                check_left_alone(run.federation, calm.federation, run.people, calm.people)
    except BaseException as error:
        broken = broken_in(error)
    counts = run.federation.counts if run.federation is not None else Counter()
    return FederationReport(
        seed, broken, trace.hash(), trace.number, run.ended_at, counts, trace.last(frozenset(), EVENTS_SHOWN)
    )


def run_company(seed: int) -> Broken | None:
    """What goes with a seed: rollouts and pools of their own."""
    try:
        long_cuts.run_seed(seed)
        for number in range(seed * ROLLOUTS, (seed + 1) * ROLLOUTS):
            try:
                World(number).run()
            except Broken as broken:
                broken.add_note(f"rollout {number}")
                raise
        if seed % POOL_EVERY == 0:
            gossip_run.run_seed(seed)
    except BaseException as error:
        return broken_in(error)
    return None


def story(report: FederationReport) -> str:
    """What somebody needs to know about a broken run."""
    plan = draw_plan(report.seed)
    return "\n".join(
        [
            *report.last,
            f"seed {report.seed} breaks {report.broken}",
            *(getattr(report.broken, "__notes__", ())),
            f"regions: {', '.join(plan.regions)}; left alone: {', '.join(plan.left_alone)}",
            *(f"  {one.at_s:5.1f} s {one.kind} {one.region} {one.other} {one.length_s:.1f} s" for one in plan.troubles),
            *(f"  {one.at_s:5.1f} s {_wish(one)}" for one in plan.wishes),
            f"version: {provenance()}",
            f"replay: python -m fedsched.sim.federation_run --first {report.seed} --trace",
        ]
    )


def _wish(wish: Wish) -> str:
    words = f"{wish.kind} {wish.job_id} through {wish.through}: {', '.join(wish.regions) or 'all'}"
    if wish.kind != "submit":
        return words
    unwell = f", unwell in {', '.join(wish.unwell)}" if wish.unwell else ""
    return (
        f"{words}; {wish.max_parallel} at once, on_failure {wish.on_failure!r}, on_unreachable"
        f" {wish.on_unreachable!r}{unwell}"
    )


def _live(seed: int, echo: Echo) -> Line:
    gc.disable()  # a seed is over before its garbage matters
    report = run_seed(seed, echo=echo)
    gc.enable()
    if report.broken is None:
        report = replace(report, broken=run_company(seed))
    if report.broken is not None:
        return Line(seed, True, f"seed {seed} breaks {str(report.broken)[:400]}", story(report), dict(report.counts))
    short = f"seed {seed} {report.trace_hash} {report.events} events in {report.virtual_s:.1f} virtual seconds"
    return Line(seed, False, short, "", dict(report.counts))


KIND: Final = Kind("fedsched.sim.federation_run", "federations", "simulate regions and what is between them", _live)


def main(arguments: list[str] | None = None) -> int:
    """Run some seeds; the first that breaks is told in full."""
    return run_many(KIND, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
