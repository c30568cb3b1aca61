"""Runs many seeds, in this process or in others, and hands the results back as they come.

Other processes are started with a `PYTHONHASHSEED` of one's choice and answer with one line of JSON per seed: that is
how the same seeds are run twice and compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from queue import Queue
from typing import TextIO

import msgspec

from fedsched.sim.options import Options
from fedsched.sim.runner import Result, run_seed


def run_here(seeds: Sequence[int], options: Options | None = None) -> Iterator[Result]:
    for seed in seeds:
        yield run_seed(seed, options)


def run_elsewhere(
    seeds: Sequence[int], *, jobs: int, hash_seed: int | None = None, options_file: str | None = None
) -> Iterator[Result]:
    """Spread the seeds over `jobs` processes; results come in any order. A process that dies raises `WorkerDied`."""
    results: Queue[Result | WorkerDied | None] = Queue()
    workers = [
        threading.Thread(target=_feed, args=(seeds[number::jobs], hash_seed, options_file, results))
        for number in range(jobs)
    ]
    for worker in workers:
        worker.start()
    running = len(workers)
    while running:
        result = results.get()
        if isinstance(result, WorkerDied):
            raise result
        if result is None:
            running -= 1
        else:
            yield result
    for worker in workers:
        worker.join()


class WorkerDied(Exception):
    """A process that ran seeds ended without having answered for all of them."""


def _feed(
    seeds: Sequence[int], hash_seed: int | None, options_file: str | None, results: Queue[Result | WorkerDied | None]
) -> None:
    environment = dict(os.environ)
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = str(hash_seed)
    command = [sys.executable, "-m", "fedsched.sim", "worker"]
    if options_file is not None:
        command += ["--options", options_file]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdin.write("".join(f"{seed}\n" for seed in seeds))
        process.stdin.close()
        answered = 0
        for line in process.stdout:
            results.put(msgspec.json.decode(line, type=Result))
            answered += 1
        if answered != len(seeds):
            results.put(WorkerDied(f"{answered} of {len(seeds)} seeds answered: {process.stderr.read()[-2000:]}"))
    results.put(None)


def work(seeds: Iterable[str], out: TextIO, options: Options | None) -> None:
    """The other end: seeds come in, one per line, and results leave, one line of JSON each."""
    for line in seeds:
        result = run_seed(int(line), options)
        out.write(msgspec.json.encode(result).decode() + "\n")
        out.flush()
