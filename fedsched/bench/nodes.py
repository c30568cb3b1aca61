"""`fedsched bench nodes`: a fleet of simulated nodes against a region that runs, for whoever wants to try one.

    fedsched bench nodes -count 500                         (for ten minutes; region from FEDSCHED_ADDR, several
                                                             addresses by comma)
    fedsched bench nodes -count 500 -fail 10% -every 30s    (a tenth of them falls silent every half minute, and those
                                                             that fell silent before return)

It registers the nodes over real links, answers for every allocation by the script of its job (see `simulated_scripts`),
gives signs of life, and ends by itself.

`python -m fedsched.bench.nodes OPTIONS` is the same for other programs: it prints its tally as JSON whenever that has
moved, and obeys lines of JSON on its standard input, `{"fail": [0, 3]}`, `{"fail": "10%"}`, `{"return": "all"}`, until
that ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, Final

import trio

from fedsched.agent.collecting import pause_briefly
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.bench.simulated_nodes import Shape, SimulatedFleet, make_nodes
from fedsched.bench.simulated_scripts import BATCH_S
from fedsched.model.errors import BadRequest

COUNT: Final = 100
SECONDS: Final = 600.0
DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
TELL_S: Final = 0.25
NICE: Final = 5
"""Clients have hosts of their own; where they have to share one with servers, those come first."""
EVERY_S: Final = 30.0
LINE_MAX: Final = 1 << 20


def run(options: BenchOptions) -> BenchResult:
    """Be a fleet for a while, and say what came of it."""
    addresses = (os.environ.get("FEDSCHED_ADDR") or DEFAULT_ADDRESS).split(",")
    shape = Shape(count=options.count or COUNT, seed=options.seed)
    fleet = SimulatedFleet(make_nodes(shape), addresses, seed=options.seed)

    async def main() -> None:
        with trio.move_on_after(options.duration_s or SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fleet.run)
                await fleet.all_registered.wait()
                options.say(f"{shape.count} nodes are registered")
                if options.fail:
                    await take_turns(fleet, options.fail, options.every_s or EVERY_S, options.say)

    trio.run(main)
    tally = fleet.tally
    figures = {
        name: getattr(tally, name) for name in ("registered", "received", "running", "complete", "failed", "stopped")
    }
    notes = (f"last error: {tally.last_error}",) if tally.last_error else ()
    return BenchResult({**figures, "errors": tally.errors}, notes=notes)


async def take_turns(fleet: SimulatedFleet, which: str, every_s: float, say: Callable[[str], None]) -> None:
    """Let some nodes fail every so often, and those return that failed before; until cancelled."""
    while True:
        await trio.sleep(every_s)
        back = fleet.bring_back("all")
        failed = fleet.fail(which)
        say(f"{len(failed)} nodes fail, {len(back)} return")


async def tell(options: dict[str, Any]) -> None:
    """Be a fleet until standard input ends, with a line of JSON whenever the tally has moved."""
    fleet = SimulatedFleet(
        make_nodes(Shape(**options["shape"])),
        options["addresses"],
        batch_s=options.get("batch_s", BATCH_S),
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
        async for line in lines_of(stdin):
            try:
                fleet.obey(line)
            except BadRequest as error:
                sys.stderr.write(f"{error}\n")
        nursery.cancel_scope.cancel()


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """The lines that come in; one that is too long is as good as the end."""
    rest = b""
    while len(rest) <= LINE_MAX:
        data = await stream.receive_some()
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace")


if __name__ == "__main__":
    pause_briefly()
    os.nice(NICE)
    trio.run(tell, json.loads(sys.argv[1]))
