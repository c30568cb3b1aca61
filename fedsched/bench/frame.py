"""The frame around every measurement: options, machine facts, time spent, one way to print.

A bench is a module with `run(options) -> BenchResult`; it is imported only when asked for. It keeps within a minute
unless told otherwise, takes all its chance from the seed, writes only below `options.directory`, and measures its own
baseline in the same run, because a ratio survives a change of machine and a bare figure does not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

from fedsched.bench.machine import Machine, Spent, load_average, look_at_machine, measured
from fedsched.model.errors import BadRequest, NotFound

Number = float | int | bool

BENCHES: Final[Mapping[str, tuple[str, str]]] = {
    "codec": ("fedsched.bench.codec", "records to bytes and back: time and size, against plain containers"),
    "fanout": ("fedsched.bench.fanout", "5,000 client connections to one server: memory of each, news to all"),
    "federation": ("fedsched.bench.federation", "requests to another region while servers there are killed"),
    "gossip": ("fedsched.bench.gossip", "a simulated pool: how soon all know, how often they err, what it costs"),
    "kernel": ("fedsched.bench.kernel", "placement: rate, exactness, growth, against sampling"),
    "quality": ("fedsched.bench.quality", "how well fleets are filled, against sampling"),
    "nodes": ("fedsched.bench.nodes", "a fleet of simulated nodes for a region that runs (FEDSCHED_ADDR)"),
    "raft": ("fedsched.bench.raft", "three servers on loopback: commits per second, latency, failover"),
    "region": ("fedsched.bench.region", "three servers and 5,000 simulated nodes: jobs from submission to reports"),
    "spawn": ("fedsched.bench.spawn", "tasks launched and completed, memory of a supervisor, against a bare loop"),
    "store": ("fedsched.bench.store", "a million allocations applied, looked up, saved and restored"),
}
"""Name of the bench -> module that has it, what it measures."""
FLEETS: Final = frozenset({"nodes", "region"})
"""Those whose count is one of nodes, and says nothing about when to stop."""


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What a bench is told."""

    directory: Path
    """A fresh directory on the disk to be measured; gone after the run."""
    seed: int = 0
    duration_s: float | None = None
    count: int | None = None
    say: Callable[[str], None] = _silent
    """For progress: a line for a person who waits, never part of the result."""
    fail: str = ""
    """Which simulated nodes fail now and then, such as "10%"; nobody if empty."""
    every_s: float | None = None
    """How often."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Figures have stable names that scripts watch; rows are free for detail, one flat mapping each."""

    figures: Mapping[str, Number]
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def run_bench(
    name: str,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    count: int | None = None,
    as_json: bool = False,
    directory: str | None = None,
    fail: str = "",
    every_s: float | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run one bench and print it. `directory` chooses the disk; the system's temporary directory otherwise."""
    out, err = out or sys.stdout, err or sys.stderr
    run = _find(name)
    if duration_s is not None and count is not None and name not in FLEETS:
        raise BadRequest("-duration and -count were both given", hint="give one: a time to stop at or an amount to do")

    def say(line: str) -> None:
        err.write(f"{line}\n")
        err.flush()

    with tempfile.TemporaryDirectory(prefix="fedsched-bench-", dir=directory) as scratch:
        machine = look_at_machine(Path(scratch))
        if machine.is_busy:
            say(
                f"warning: load {machine.load_before:.2f} on {machine.cores} cores before the start:"
                " figures will be lower than this machine can do; trust the ratios"
            )
        with measured() as spent:
            result = run(BenchOptions(Path(scratch), seed, duration_s, count, say, fail, every_s))
    after = load_average()
    if as_json:
        json.dump(_as_object(name, seed, machine, spent, after, result), out)
        out.write("\n")
    else:
        out.write(_as_text(name, seed, machine, spent, after, result))
    return 0


def _find(name: str) -> Callable[[BenchOptions], BenchResult]:
    found = BENCHES.get(name)
    if found is None:
        raise NotFound(f"no bench {name!r}", hint=f"there are {', '.join(sorted(BENCHES))}")
    run: Callable[[BenchOptions], BenchResult] = import_module(found[0]).run
    return run


def _as_object(
    name: str, seed: int, machine: Machine, spent: Spent, after: float, result: BenchResult
) -> dict[str, Any]:
    facts = asdict(machine) | {"load_after": after, "wall_s": round(spent.wall_s, 3), "cpu_s": round(spent.cpu_s, 3)}
    return {
        "bench": name,
        "seed": seed,
        "machine": facts,
        "figures": dict(result.figures),
        "rows": [dict(row) for row in result.rows],
    }


def _as_text(name: str, seed: int, machine: Machine, spent: Spent, after: float, result: BenchResult) -> str:
    lines = [
        f"bench {name}, seed {seed}",
        f"machine: {machine.cores} cores ({machine.processor}), Python {machine.python}, {machine.system}",
        f"speed:   {machine.loop_ns:.1f} ns per calibration round, {machine.fdatasync_per_s:,.0f} fdatasync/s",
        f"load:    {machine.load_before:.2f} before, {after:.2f} after",
        f"spent:   {spent.wall_s:.1f} s, of which {spent.cpu_s:.1f} s of CPU",
        "",
        *_figures(result.figures),
        *_tables(result.rows),
        *(f"note: {note}" for note in result.notes),
    ]
    return "\n".join(lines) + "\n"


def _figures(figures: Mapping[str, Number]) -> list[str]:
    width = max(map(len, figures), default=0)
    return [f"{key:{width}}  {_cell(value)}" for key, value in figures.items()]


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print rows with the same names as one table, in the order they came."""
    lines: list[str] = []
    heads: tuple[str, ...] = ()
    table: list[list[str]] = []
    for row in [*rows, {}]:
        if tuple(row) != heads or not row:
            lines += _aligned(table)
            heads = tuple(row)
            table = [list(heads)]
        if row:
            table.append([_cell(value) for value in row.values()])
    return lines


def _aligned(table: list[list[str]]) -> list[str]:
    if len(table) < 2:
        return []
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return ["", *("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table), ""]


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
