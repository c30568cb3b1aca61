"""Bugs planted on purpose: if the simulated region does not notice them, it would not notice real ones either.

    python -m fedsched.sim.fleet_mutants [--seeds 60] [NAME ...]

Every promise of scheduling has at least one bug that breaks it. Each is looked for from seed 0 on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs

from fedsched.scheduler import evict, fit, preempt
from fedsched.scheduler.cores import take_cores
from fedsched.scheduler.devices import free_instances
from fedsched.scheduler.dry_run import dry_run_in_pieces
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_plans import Reservation
from fedsched.scheduler.reconcile import group as reconcile_group
from fedsched.scheduler.reconcile.names import Places
from fedsched.server import dry_runs
from fedsched.server.leader import broker as broker_runner
from fedsched.server.leader import periodic_core, plan_apply, plan_check
from fedsched.server.leader.blocked_core import BlockedCore
from fedsched.server.leader.broker import BrokerService
from fedsched.server.leader.broker_core import BrokerCore
from fedsched.server.leader.deployments_core import DeploymentsCore
from fedsched.server.leader.drain_core import DrainCore
from fedsched.server.leader.periodic_core import PeriodicCore
from fedsched.server.leader.plan_check import Verdict
from fedsched.sim.fleet_run import run_seed

SEEDS_MAX: Final = 60
NS: Final = 1_000_000_000


class Patch(NamedTuple):
    """What is put in whose place."""

    where: Any
    attribute: str
    instead: Any


class Mutant(NamedTuple):
    """One bug, and which promise has to notice."""

    name: str
    patches: tuple[Patch, ...]
    broken: tuple[str, ...]
    """How the names of the invariants begin that may be the first to break."""
    is_quick: bool = False
    """It is noticed within the first few seeds, so that every change can be tried with it."""


def _one(
    name: str, where: Any, attribute: str, instead: Any, broken: tuple[str, ...], *, quick: bool = False
) -> Mutant:
    return Mutant(name, (Patch(where, attribute, instead),), broken, quick)


# --- what is put in place ---------------------------------------------------------------------------------------------


def _hold_no_slot(self: BrokerCore, ticket: Any) -> None:
    self._make_ready(ticket, ticket.type)


_FILL: Final = BrokerService._fill


def _fill_without_pending(self: BrokerService) -> None:
    enqueue = BrokerService._enqueue_row
    BrokerService._enqueue_row = lambda *_: None  # type: ignore[method-assign]
    try:
        _FILL(self)
    finally:
        BrokerService._enqueue_row = enqueue  # type: ignore[method-assign]


def _names_from_zero(taken: Any, count: int, wanted: int) -> Any:
    return np.arange(max(0, wanted), dtype=np.int32)


def _keep_own(self: Places, own: int) -> int:
    self.used.add(own)
    return own


def _always_whole(plan: Any, **_: Any) -> Verdict:
    return Verdict(plan, {})


def _take_any_cores(speeds: Any, taken: Any, count: int, **options: Any) -> Any:
    return take_cores(speeds, set(), count, **options)


def _stricter(have: Any, used: Any, more: Any) -> Any:
    return fit.dimensions(have, used._replace(cpu=np.multiply(used.cpu, 1.5)), more)


_LATE: Final = DeploymentsCore._late_groups


def _late_too_early(self: Any, row: Any, known: Any, own: Any, now_ns: int) -> Any:
    return _LATE(self, row, known, own, now_ns + 14 * NS)


_CATCH_UP: Final = PeriodicCore._note_job


def _track_late(self: Any, state: Any, row: Any, now_ns: int) -> None:
    _CATCH_UP(self, state, row, now_ns + 90 * NS)


def _dry_run_of_less(state: Any, fleet: Any, job: Any, *rest: Any, **options: Any) -> Any:
    groups = tuple(structs.replace(group, count=group.count // 2) for group in job.task_groups)
    return dry_run_in_pieces(state, fleet, structs.replace(job, task_groups=groups), *rest, **options)


_LOOK: Final = DrainCore._look


def _done_at_once(self: DrainCore, state: Any) -> Any:
    _, moves = _LOOK(self, state)
    return self.draining(), moves


MUTANTS: Final = (
    # R-20 evaluations end
    _one(
        "pending ones are lost with their leader", BrokerService, "_fill", _fill_without_pending, ("R-20",), quick=True
    ),
    _one("dead workers keep what they have", BrokerCore, "wake_at", lambda self: float("inf"), ("R-20",)),
    _one("delays do not follow the clock", BrokerCore, "clock_moved", lambda *_: None, ("R-20",)),
    _one("a job's slot is not held", BrokerCore, "_enqueue_now", _hold_no_slot, ("R-23", "nothing", "R-20", "R-24")),
    # R-21 no over-commit
    _one("plans in flight do not count", Fleet, "reserve", lambda *_: Reservation(), ("R-21",)),
    _one("plans are not checked", plan_apply, "check_plan", _always_whole, ("R-21",)),
    Mutant(
        "cores are given twice",
        (
            Patch(fit, "take_cores", _take_any_cores),
            Patch(fit.NodeRoom, "_can_give_cores", lambda *_: True),
        ),
        ("R-21",),
    ),
    Mutant(
        "devices are given twice",
        (
            Patch(fit, "free_instances", lambda node, held: free_instances(node, ())),
            Patch(fit, "oversubscribed", lambda *_: False),
        ),
        ("R-21",),
        is_quick=True,
    ),
    # R-22 refused for a reason
    _one("the applier counts otherwise", plan_check, "dimensions", _stricter, ("R-22",), quick=True),
    # R-23 names
    _one("names are given twice", reconcile_group, "fresh_names", _names_from_zero, ("R-23",), quick=True),
    _one("places beyond the count are kept", Places, "take", _keep_own, ("R-23",)),
    # R-24 blocked evaluations
    _one("no evaluation is unblocked by news", broker_runner, "news_of", lambda *_, **__: [], ("R-24",), quick=True),
    _one("missed news are forgotten", BlockedCore, "_missed_news", lambda *_: False, ("R-24",)),
    _one("blocked ones are lost with their leader", BlockedCore, "restore", lambda *_: None, ("R-24",)),
    # R-25 periodic launches
    _one("launches overlap", periodic_core, "has_running_child", lambda *_: False, ("R-25",)),
    _one("launches are tracked too late", PeriodicCore, "_note_job", _track_late, ("R-25",)),
    # R-26 deployments end
    _one("nobody is late", DeploymentsCore, "_late_groups", lambda *_: [], ("R-26",)),
    _one("everybody is late early", DeploymentsCore, "_late_groups", _late_too_early, ("R-26",)),
    # R-27 drains
    _one("drains end before they are done", DrainCore, "_look", _done_at_once, ("R-27",), quick=True),
    _one("deadlines of drains pass unnoticed", DrainCore, "_pass_deadlines", lambda *_: None, ("R-27",)),
    # R-28 preemption
    Mutant(
        "equals are evicted",
        (Patch(preempt, "MIN_DIFFERENCE", 0), Patch(evict, "MIN_DIFFERENCE", 0)),
        ("R-28",),
        is_quick=True,
    ),
    _one("nobody who was picked is spared", preempt, "_needed", lambda room, picked, more: tuple(picked), ("R-28",)),
    # R-29 dry runs
    _one("dry runs count otherwise", dry_runs, "dry_run_in_pieces", _dry_run_of_less, ("R-29",), quick=True),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is there inside, and gone afterwards."""
    with ExitStack() as stack:
        for patch in mutant.patches:
            before = getattr(patch.where, patch.attribute)
            stack.callback(setattr, patch.where, patch.attribute, before)
            setattr(patch.where, patch.attribute, patch.instead)
        yield


class Catch(NamedTuple):
    """What became of one bug."""

    name: str
    seed: int
    """-1 if nobody noticed."""
    invariant: str
    what: str
    cpu_s: float

    def is_right(self, mutant: Mutant) -> bool:
        return self.seed >= 0 and self.invariant.startswith(mutant.broken)


def hunt(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> Catch:
    """Plant a bug and run seeds from 0 on until it is noticed."""
    began = time.process_time()
    with planted(mutant):
        for seed in range(seeds_max):
            broken = run_seed(seed).broken
            if broken is not None:
                spent_s = time.process_time() - began
                return Catch(mutant.name, seed, broken.invariant, str(broken)[:120], spent_s)
    return Catch(mutant.name, -1, "", "NOT NOTICED", time.process_time() - began)


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedsched.sim.fleet_mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds each may take")
    given = parser.parse_args(arguments)
    missed = 0
    for mutant in MUTANTS:
        if given.names and mutant.name not in given.names:
            continue
        catch = hunt(mutant, given.seeds)
        missed += not catch.is_right(mutant)
        verdict = "" if catch.is_right(mutant) else "WRONG: "
        say(f"{mutant.name:<42} seed {catch.seed:>3} {catch.cpu_s:>6.1f} s  {verdict}{catch.what}")
    say(f"{missed} not noticed, or by the wrong promise")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
