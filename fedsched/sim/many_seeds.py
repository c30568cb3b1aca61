"""Runs many seeds of one kind of world, here or spread over processes, and tells what came of them.

A kind of world is a module with a `main` that hands its `Kind` to `run_many`: the same command line for all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from typing import Final

import msgspec

from fedsched.sim.batch import WorkerDied
from fedsched.sim.provenance import provenance

PROGRESS_EVERY_S: Final = 10.0
Echo = Callable[[str], None] | None


class Line(msgspec.Struct):
    """What a process that runs seeds says about one of them."""

    seed: int
    is_broken: bool
    short: str
    story: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of world."""

    module: str
    """Where it is run from, with `python -m`."""
    noun: str
    """What one world is, in the plural."""
    description: str
    live: Callable[[int, Echo], Line]
    """Live through the world with this seed."""


def run_many(kind: Kind, arguments: list[str] | None = None) -> int:
    """Run some seeds; the first that breaks is told in full."""
    given = _parser(kind).parse_args(arguments)
    seeds = range(given.first, given.first + given.seeds * given.step, given.step)
    provenance()  # before anything runs: files may change while it does
    if given.lines:
        return _say_lines(kind, seeds)
    lines = (
        _elsewhere(kind, seeds, given.jobs) if given.jobs > 1 else _here(kind, seeds, print if given.trace else None)
    )
    totals: Counter[str] = Counter()
    broken, done, told_at = 0, 0, time.monotonic()
    for line in lines:
        totals.update(line.counts)
        done += 1
        if line.is_broken:
            broken += 1
            print(line.short if given.keep_going else line.story, flush=True)
            if not given.keep_going:
                return 1
        elif given.jobs == 1:
            print(line.short)
        if given.jobs > 1 and time.monotonic() > told_at + PROGRESS_EVERY_S:
            told_at = time.monotonic()
            print(f"{done}/{len(seeds)} {kind.noun}", file=sys.stderr, flush=True)
    if given.jobs > 1:
        print(f"{done} {kind.noun}, {broken} broken")
    if given.counts:
        print(*(f"{count:>8} {name}" for name, count in sorted(totals.items())), sep="\n")
    return 1 if broken else 0


def _here(kind: Kind, seeds: range, echo: Echo) -> Iterator[Line]:
    for seed in seeds:
        yield kind.live(seed, echo)


def _elsewhere(kind: Kind, seeds: range, jobs: int) -> Iterator[Line]:
    """Spread the seeds over processes, each taking its share; lines come in any order."""
    lines: Queue[Line | WorkerDied | None] = Queue()
    processes = [_start(kind, seeds[number::jobs]) for number in range(jobs)]
    readers = [threading.Thread(target=_read, args=(process, lines)) for process in processes]
    for reader in readers:
        reader.start()
    try:
        running = jobs
        while running:
            line = lines.get()
            if isinstance(line, WorkerDied):
                raise line
            if line is None:
                running -= 1
            else:
                yield line
    finally:
        for process in processes:
            process.kill()
        for reader in readers:
            reader.join()


def _start(kind: Kind, seeds: range) -> subprocess.Popen[bytes]:
    shares = ["--first", str(seeds.start), "--seeds", str(len(seeds)), "--step", str(seeds.step)]
    return subprocess.Popen([sys.executable, "-m", kind.module, *shares, "--lines"], stdout=subprocess.PIPE)


def _read(process: subprocess.Popen[bytes], lines: Queue[Line | WorkerDied | None]) -> None:
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            lines.put(msgspec.json.decode(line, type=Line))
    if process.returncode > 1:
        lines.put(WorkerDied(f"a process that ran seeds ended with {process.returncode}"))
    lines.put(None)


def _say_lines(kind: Kind, seeds: range) -> int:
    for line in _here(kind, seeds, None):
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()
    return 0


def _parser(kind: Kind) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {kind.module}", description=kind.description)
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--step", type=int, default=1, help="only every so manieth")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--counts", action="store_true", help="print how often what happened")
    parser.add_argument("--keep-going", action="store_true", help="name every seed that breaks, in one line each")
    parser.add_argument("--lines", action="store_true", help="one line of JSON per seed, for --jobs")
    return parser
