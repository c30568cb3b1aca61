"""The simulator's commands.

python -m fedsched.sim run --seeds 1000            seeds 0..999; stops at the first failure
python -m fedsched.sim run --trace 4711            one seed, every event shown
python -m fedsched.sim twice --seeds 300           each seed in two processes with different hash seeds
python -m fedsched.sim mutants                     every planted bug must be caught
python -m fedsched.sim shrink 4711                 make a failure small and keep it as a regression test
python -m fedsched.sim options 4711                what a seed means; `run --options FILE` uses a saved record
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fedsched.sim import batch
from fedsched.sim.hunt import SCENARIO_SEEDS, Catch
from fedsched.sim.mutant_list import MUTANTS
from fedsched.sim.options import Options, draw_options, load, save
from fedsched.sim.provenance import provenance
from fedsched.sim.report import Tally, failure_text
from fedsched.sim.runner import Result, Run
from fedsched.sim.scenarios import BY_NAME as SCENARIOS_BY_NAME
from fedsched.sim.scenarios import SCENARIOS
from fedsched.sim.shrink import save as save_case
from fedsched.sim.shrink import shrink

PROGRESS_EVERY_S = 2.0
REGRESS = Path("tests/regress/sim")


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    handler: Callable[[argparse.Namespace], int] = arguments.handler
    return handler(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedsched.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="run seeds")
    _seed_arguments(run)
    run.add_argument("--until", type=int, metavar="EVENT", help="stop after this event")
    run.add_argument("--trace", action="store_true", help="show every event")
    run.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    run.add_argument("--options", metavar="FILE", help="use this option record instead of drawing one")
    run.set_defaults(handler=_run)

    twice = commands.add_parser("twice", help="run seeds twice and compare")
    _seed_arguments(twice)
    twice.set_defaults(handler=_twice)

    scenarios = commands.add_parser("scenarios", help="run the hand-written schedules")
    scenarios.add_argument("names", nargs="*", help="only these")
    scenarios.add_argument("--trace", action="store_true", help="show every event")
    scenarios.set_defaults(handler=_scenarios)

    mutants = commands.add_parser("mutants", help="plant every known bug and catch it")
    mutants.add_argument("names", nargs="*", help="only these")
    mutants.add_argument("--seeds", type=int, default=600, help="budget for each")
    mutants.add_argument("--jobs", type=int, default=1)
    mutants.set_defaults(handler=_mutants)

    smaller = commands.add_parser("shrink", help="make a failing seed small")
    smaller.add_argument("seed", type=int)
    smaller.add_argument("--options", metavar="FILE")
    smaller.add_argument("--into", type=Path, default=REGRESS, metavar="DIRECTORY")
    smaller.set_defaults(handler=_shrink)

    options = commands.add_parser("options", help="show or save the option record of a seed")
    options.add_argument("seed", type=int)
    options.add_argument("file", nargs="?", type=Path)
    options.set_defaults(handler=_options)

    worker = commands.add_parser("worker", help="run the seeds given on standard input; for the commands above")
    worker.add_argument("--options", metavar="FILE")
    worker.set_defaults(handler=_worker)
    return parser


def _seed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("seed", nargs="*", type=int, help="these seeds")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="so many seeds")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="beginning here")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")


def _seeds(arguments: argparse.Namespace) -> list[int]:
    return arguments.seed or list(range(arguments.first, arguments.first + (arguments.seeds or 100)))


def _loaded(file: str | None) -> Options | None:
    return None if file is None else load(Path(file).read_bytes())


# --- commands ---------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    provenance()  # before anything runs: files may change while it does
    seeds, options = _seeds(arguments), _loaded(arguments.options)
    if arguments.trace or arguments.until is not None:
        return _run_watched(seeds, options, arguments)
    results: Iterable[Result]
    if arguments.jobs > 1:
        results = batch.run_elsewhere(seeds, jobs=arguments.jobs, options_file=arguments.options)
    else:
        results = batch.run_here(seeds, options)
    tally = Tally()
    for result in _with_progress(results, len(seeds)):
        tally.add(result)
        if result.failure is not None:
            print(_story(result, options, arguments.options))
            if not arguments.keep_going:
                break
    print(tally.text())
    return 1 if tally.failed else 0


def _run_watched(seeds: list[int], options: Options | None, arguments: argparse.Namespace) -> int:
    """One seed after the other, each event as it happens."""
    status = 0
    for seed in seeds:
        result = Run(seed, options, echo=print if arguments.trace else None).go(arguments.until)
        if result.failure is not None:
            print(_story(result, options, arguments.options))
            status = 1
        print(f"seed {seed}: {result.events} events, trace {result.trace}")
    return status


def _story(result: Result, options: Options | None, options_file: str | None) -> str:
    assert result.failure is not None
    extra = f" --options {options_file}" if options_file else ""
    replay = f"python -m fedsched.sim run --trace --until {result.failure.event}{extra} {result.seed}"
    return failure_text(result, options or draw_options(result.seed), replay)


def _twice(arguments: argparse.Namespace) -> int:
    """The same seeds in processes with different hash seeds; every trace must be the same."""
    provenance()
    seeds = _seeds(arguments)
    traces: dict[int, str] = {}
    tally = Tally()
    for hash_seed in (1, 2):
        results = batch.run_elsewhere(seeds, jobs=arguments.jobs, hash_seed=hash_seed)
        for result in _with_progress(results, len(seeds)):
            tally.add(result)
            if result.failure is not None:
                print(_story(result, None, None))
            if traces.setdefault(result.seed, result.trace) != result.trace:
                print(f"NOT THE SAME: seed {result.seed} gave {traces[result.seed]} and then {result.trace}")
                return 1
    print(tally.text())
    print(f"{len(seeds)} seeds gave the same trace twice")
    return 1 if tally.failed else 0


def _scenarios(arguments: argparse.Namespace) -> int:
    provenance()
    tally = Tally()
    for name in arguments.names or [scenario.name for scenario in SCENARIOS]:
        scenario = SCENARIOS_BY_NAME[name]
        for seed in range(SCENARIO_SEEDS):
            run = Run(seed, scenario.options, scenario.schedule, echo=print if arguments.trace else None)
            result = run.go()
            tally.add(result)
            if result.failure is not None:
                print(failure_text(result, scenario.options, f"python -m fedsched.sim scenarios --trace {name}"))
    print(tally.text())
    return 1 if tally.failed else 0


def _mutants(arguments: argparse.Namespace) -> int:
    names = arguments.names or [mutant.name for mutant in MUTANTS]
    survivors = []
    total_s = 0.0
    print(f"{'planted bug':<36} {'caught in':<34} {'runs':>5} {'events':>9} {'CPU s':>6}  by")
    for catch in _hunts(names, arguments.seeds, arguments.jobs):
        total_s += catch.seconds
        where = catch.where or "NOT CAUGHT"
        print(
            f"{catch.name:<36} {where:<34} {catch.runs:>5} {catch.events:>9} {catch.seconds:>6.1f}"
            f"  {catch.invariant}: {catch.what[:80]}"
        )
        if not catch.invariant:
            survivors.append(catch.name)
    print(f"{len(names) - len(survivors)} of {len(names)} planted bugs caught, {total_s:.0f} s of CPU")
    if survivors:
        print(f"SURVIVED: {', '.join(survivors)}")
    return 1 if survivors else 0


def _hunts(names: list[str], seeds_max: int, jobs: int) -> Iterator[Catch]:
    """One process per bug, `jobs` of them at a time, answers in the order of `names`."""
    running: list[tuple[str, subprocess.Popen[str]]] = []
    waiting = list(names)
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            command = [sys.executable, "-m", "fedsched.sim.hunt", name, "--seeds", str(seeds_max)]
            running.append((name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
        name, process = running.pop(0)
        out, err = process.communicate()
        if not out:
            raise batch.WorkerDied(f"hunting {name}: {err[-2000:]}")
        yield msgspec.json.decode(out, type=Catch)


def _shrink(arguments: argparse.Namespace) -> int:
    case = shrink(arguments.seed, _loaded(arguments.options) or draw_options(arguments.seed))
    if case is None:
        print(f"seed {arguments.seed} does not fail")
        return 1
    path = save_case(case, arguments.into)
    print(f"{case.invariant}: {case.what}\n{len(case.schedule)} actions left, kept in {path}")
    return 0


def _options(arguments: argparse.Namespace) -> int:
    text = save(draw_options(arguments.seed))
    if arguments.file is None:
        print(text)
    else:
        arguments.file.write_text(text + "\n")
        print(f"written to {arguments.file}; use it with: run --options {arguments.file} {arguments.seed}")
    return 0


def _worker(arguments: argparse.Namespace) -> int:
    batch.work(sys.stdin, sys.stdout, _loaded(arguments.options))
    return 0


def _with_progress(results: Iterable[Result], total: int) -> Iterator[Result]:
    """Say how far it got, now and then, on standard error."""
    started = last = time.monotonic()
    for done, result in enumerate(results, start=1):
        now = time.monotonic()
        if now - last >= PROGRESS_EVERY_S:
            last = now
            left_s = (now - started) / done * (total - done)
            print(f"{done}/{total} seeds, about {left_s:.0f} s to go", file=sys.stderr, flush=True)
        yield result
