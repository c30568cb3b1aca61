"""Depth two of the simulation: whole Raft daemons under virtual time, in one trio run that follows a seed.

What depth one leaves out runs here for real: the runner, the applier, the snapshotter, restores, the transport and its
frames, cancellation, the leader's office. Links, disks and threads are virtual and misbehave by plan. Faults come
first; then they stop, and the region has to find a leader, agree, and end every call it took.

    python -m fedsched.sim.daemons --seeds 50 --first 0
    python -m fedsched.sim.daemons --first 17 --trace
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from fedsched.sim import trio_seed
from fedsched.sim.daemon_book import Book
from fedsched.sim.daemon_clients import Client, Crowd
from fedsched.sim.daemon_faults import Faults
from fedsched.sim.daemon_host import Daemon, Region
from fedsched.sim.daemon_plan import DaemonOptions, draw
from fedsched.sim.provenance import provenance
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken

LEADER_S = 15.0
"""After the last fault: dead links are noticed after 5 s, an election or two take 2 s each."""
AGREED_S = 15.0
END_S = 20.0
LOOK_S = 0.05
READS_MAX = 5
STEPS_MAX = 400_000
"""Turns without any progress of time: somebody spins."""
EVENTS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Report:
    """How a run went."""

    options: DaemonOptions
    broken: Broken | None
    trace_hash: str
    events: int
    virtual_s: float
    counts: Counter[str]
    last: list[str]
    """The last events of the servers concerned."""


def run_seed(seed: int, *, echo: Callable[[str], None] | None = None) -> Report:
    """Live through the run with this seed."""
    return run_options(draw(seed), echo=echo)


def run_options(options: DaemonOptions, *, echo: Callable[[str], None] | None = None) -> Report:
    book = Book(Trace(echo))
    run = _Run(options, book)
    broken: Broken | None = None
    try:
        trio_seed.run(options.seed, run.main, instruments=[run])
    except BaseException as error:
        broken = _broken(error)
    counts = book.counts
    for host in run.region.hosts.values() if run.region else ():
        counts.update(host.disk.counts)
    concerned = broken.servers if broken else frozenset()
    last = book.trace.last(concerned, EVENTS_SHOWN)
    return Report(options, broken, book.trace.hash(), book.trace.number, run.ended_at, counts, last)


def story(report: Report) -> str:
    """What somebody needs to know about a broken run."""
    seed = report.options.seed
    return "\n".join(
        [
            *report.last,
            f"seed {seed} breaks {report.broken}",
            f"version: {provenance()}",
            f"replay: python -m fedsched.sim.daemons --first {seed} --trace",
        ]
    )


class _Run(trio.abc.Instrument):
    """One run, watching its own pace."""

    def __init__(self, options: DaemonOptions, book: Book) -> None:
        self.options = options
        self.book = book
        self.region: Region | None = None
        self.ended_at = 0.0
        self._scope = trio.CancelScope()
        self._last_look = (0, -1.0)
        self._spins = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        book = self.book
        book.steps += 1
        if not book.steps % 4_096:
            steps, at = self._last_look
            now = trio.current_time()
            if now != at:
                self._last_look = (book.steps, now)
            elif book.steps - steps > STEPS_MAX:
                self._spins = True
                self._scope.cancel()

    async def main(self) -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        with self._scope:
            await self._live()
        self.ended_at = trio.current_time()
        if self._spins:
            raise Broken("time passes", f"{STEPS_MAX} turns went by at {self.ended_at} s: somebody spins")
        left = trio.lowlevel.current_statistics().tasks_living - before
        if left:
            raise Broken("no child left", f"{left} children outlived everything")

    async def _live(self) -> None:
        enough = trio.Event()
        async with trio.open_nursery() as nursery:
            region = self.region = Region(self.options, self.book, nursery)
            for host in region.hosts.values():
                host.start()
            clients = [Client(f"c{number}", region) for number in range(self.options.clients)]
            async with trio.open_nursery() as users:
                for client in clients:
                    users.start_soon(client.run, enough)
                users.start_soon(Crowd(region).run, enough)
                await Faults(region).run()
                await self._has_leader(region)
                enough.set()
                if not await _becomes(lambda: not users.child_tasks, END_S):
                    raise Broken("calls end", f"{len(users.child_tasks)} clients still wait {END_S} s after the faults")
            await self._agrees(region)
            await self._serves(region, clients[0])
            await self._stop(region, nursery)
        self.book.close()

    async def _has_leader(self, region: Region) -> None:
        """Faults have ended: before long somebody is in office."""

        def is_led() -> bool:
            for host in region.hosts.values():
                host.start()
            leader = region.leader()
            return leader is not None and leader.running.runner.is_established

        if not await _becomes(is_led, LEADER_S):
            raise Broken("a leader is found", f"nobody is in office {LEADER_S} s after the last fault")

    async def _agrees(self, region: Region) -> None:
        """Nobody asks for anything any more: all members reach one state, and nothing is left open."""
        if not await _becomes(lambda: not self._difference(region), AGREED_S):
            raise Broken("all agree", f"{AGREED_S} s after the last request: {self._difference(region)}")

    def _difference(self, region: Region) -> str:
        leader = region.leader()
        if leader is None:
            return "there is no leader"
        model = leader.running
        for info in model.runner.core.config.servers:
            daemon = region.hosts[info.id].daemon
            if daemon is None:
                region.hosts[info.id].start()
                return f"{info.id} is down"
            if problem := _differs(daemon, model):
                return f"{info.id} {problem}"
        return ""

    async def _serves(self, region: Region, client: Client) -> None:
        """One write and one read everywhere."""
        leader = region.leader()
        if leader is None or not await client.write("put", "k0"):
            raise Broken("region serves", "a write failed after all had agreed")
        for info in leader.running.runner.core.config.servers:
            for _ in range(READS_MAX):
                if await client.read("k0", info.id):
                    break
                await trio.sleep(1.0)
            else:
                raise Broken("region serves", f"{info.id} answers no read after all had agreed", info.id)

    async def _stop(self, region: Region, nursery: trio.Nursery) -> None:
        for host in region.hosts.values():
            await host.stop()
        if not await _becomes(lambda: not nursery.child_tasks, END_S):
            names = sorted(task.name for task in nursery.child_tasks)
            raise Broken("no child left", f"after everybody was stopped: {', '.join(names)}")


async def _becomes(is_so: Callable[[], bool], within_s: float) -> bool:
    """Whether it becomes so in this much virtual time. Nobody announces it, so we look often."""
    stop_at = trio.current_time() + within_s
    while not is_so():
        if trio.current_time() > stop_at:
            return False
        await trio.sleep(LOOK_S)
    return True


def _differs(daemon: Daemon, model: Daemon) -> str:
    runner, leading = daemon.runner, model.runner
    if runner.role.leader != model.name:
        return f"follows {runner.role.leader}, not {model.name}"
    if runner.applier.applied != leading.applier.applied or runner.applier.applied != leading.core.log.last:
        return f"has applied {runner.applier.applied} of {leading.core.log.last}"
    if daemon.machine.digest() != model.machine.digest():
        return "has another state"
    if daemon is not model and runner.open_proposals:
        return f"has {runner.open_proposals} proposals open"
    heard = daemon.connections
    if heard >= len(daemon.region.hosts):
        return f"hears {heard} connections from {len(daemon.region.hosts) - 1} others"
    if runner.open_reads:
        return f"has {runner.open_reads} reads open"
    return ""


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
    where = "".join(traceback.format_exception(found))
    return Broken("nothing crashes", f"{found!r}\n{where}")


def main(arguments: list[str] | None = None) -> int:
    """Run some seeds; the first that breaks is told in full."""
    parser = argparse.ArgumentParser(prog="python -m fedsched.sim.daemons", description="simulate whole Raft daemons")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--counts", action="store_true", help="print how often what happened")
    given = parser.parse_args(arguments)
    totals: Counter[str] = Counter()
    provenance()  # before anything runs: files may change while it does
    for seed in range(given.first, given.first + given.seeds):
        report = run_seed(seed, echo=print if given.trace else None)
        totals.update(report.counts)
        if report.broken is not None:
            print(story(report))
            return 1
        print(f"seed {seed} {report.trace_hash} {report.events} events in {report.virtual_s:.1f} virtual seconds")
    if given.counts:
        print(*(f"{count:>8} {name}" for name, count in sorted(totals.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
