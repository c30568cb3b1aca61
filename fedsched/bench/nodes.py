"""`fedsched bench nodes`: a fleet of simulated nodes against a region that runs, for whoever wants to try one.

    fedsched bench nodes --count 500        (for ten minutes; region from FEDSCHED_ADDR, several addresses by comma)

It registers the nodes over real links, reports every allocation that it is given as running, gives signs of life, and
ends by itself. `python -m fedsched.bench.nodes OPTIONS` is the same for other programs: it prints its tally as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, Final

import trio

from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.bench.simulated_nodes import Shape, SimulatedFleet, make_nodes

COUNT: Final = 100
SECONDS: Final = 600.0
DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
TELL_S: Final = 0.25


def run(options: BenchOptions) -> BenchResult:
    """Be a fleet for a while, and say what came of it."""
    addresses = (os.environ.get("FEDSCHED_ADDR") or DEFAULT_ADDRESS).split(",")
    shape = Shape(count=options.count or COUNT, seed=options.seed)
    fleet = SimulatedFleet(make_nodes(shape), addresses)

    async def main() -> None:
        with trio.move_on_after(options.duration_s or SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fleet.run)
                await fleet.all_registered.wait()
                options.say(f"{shape.count} nodes are registered")

    trio.run(main)
    tally = fleet.tally
    figures = {"registered": tally.registered, "received": tally.received, "running": tally.running}
    notes = (f"last error: {tally.last_error}",) if tally.last_error else ()
    return BenchResult({**figures, "errors": tally.errors}, notes=notes)


async def tell(options: dict[str, Any]) -> None:
    """Be a fleet until standard input ends, with a line of JSON whenever the tally has moved."""
    fleet = SimulatedFleet(
        make_nodes(Shape(**options["shape"])),
        options["addresses"],
        complete_after_s=options.get("complete_after_s"),
        reports=options.get("reports", True),
    )

    async def say() -> None:
        last = ""
        while True:
            line = json.dumps(asdict(fleet.tally))
            if line != last:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
                last = line
            await trio.sleep(TELL_S)

    async with trio.open_nursery() as nursery, trio.lowlevel.FdStream(os.dup(0)) as stdin:
        nursery.start_soon(fleet.run)
        nursery.start_soon(say)
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(tell, json.loads(sys.argv[1]))
