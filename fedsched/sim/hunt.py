"""Lets one planted bug loose on the scenarios and the seeds until it is caught: `python -m fedsched.sim.hunt NAME`.

A process of its own per bug, because the bug must be in place before the core is imported.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from fedsched.sim.mutant_list import BY_NAME
from fedsched.sim.mutants import Mutant, plant

if TYPE_CHECKING:
    from fedsched.sim.runner import Result

SCENARIO_SEEDS = 6


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """How a bug was caught; without an invariant it got away."""

    name: str
    invariant: str = ""
    what: str = ""
    where: str = ""
    runs: int = 0
    events: int = 0
    seconds: float = 0.0


def hunt(mutant: Mutant, seeds_max: int) -> Catch:
    """Run scenarios, then seeds of the mutant's theme. The bug must be planted already."""
    # Imported here and not above: these imports are what the planted bug gets into.
    from fedsched.sim.options import draw_options
    from fedsched.sim.runner import Run
    from fedsched.sim.scenarios import SCENARIOS

    runs = events = 0
    seconds = 0.0

    def caught(result: Result, where: str) -> Catch | None:
        nonlocal runs, events, seconds
        runs, events, seconds = runs + 1, events + result.events, seconds + result.seconds
        if result.failure is None:
            return None
        return Catch(
            name=mutant.name,
            invariant=result.failure.invariant,
            what=result.failure.what,
            where=where,
            runs=runs,
            events=events,
            seconds=seconds,
        )

    for scenario in SCENARIOS:
        for seed in range(SCENARIO_SEEDS):
            found = caught(Run(seed, scenario.options, scenario.schedule).go(), f"{scenario.name} {seed}")
            if found is not None:
                return found
    seed = -1
    for _ in range(seeds_max):
        seed += 1
        while mutant.theme and draw_options(seed).theme != mutant.theme:
            seed += 1
        found = caught(Run(seed).go(), f"seed {seed}")
        if found is not None:
            return found
    return Catch(name=mutant.name, runs=runs, events=events, seconds=seconds)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedsched.sim.hunt", description=__doc__)
    parser.add_argument("name", choices=sorted(BY_NAME))
    parser.add_argument("--seeds", type=int, default=600)
    arguments = parser.parse_args(argv)
    mutant = BY_NAME[arguments.name]
    plant(mutant)
    catch = hunt(mutant, arguments.seeds)
    print(msgspec.json.encode(catch).decode())
    return 0 if catch.invariant else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
