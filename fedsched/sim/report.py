"""What people read: failures with everything needed to replay them, and what a batch of seeds has reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from fedsched.raft import rare
from fedsched.sim.options import Options
from fedsched.sim.provenance import provenance
from fedsched.sim.runner import Result


def failure_text(result: Result, options: Options, replay: str) -> str:
    """The whole story of a failed seed, most important first."""
    failure = result.failure
    assert failure is not None
    lines = [
        f"FAILED seed {result.seed}",
        f"  broken   {failure.invariant}: {failure.what}",
        f"  where    event {failure.event}, {failure.time_us / 1e6:.6f} s of simulated time",
        f"  servers  {', '.join(failure.servers) or 'all'}",
        f"  trace    {result.trace}",
        f"  version  {provenance()}",
        f"  replay   {replay}",
        f"  options  {msgspec.json.encode(options).decode()}",
        f"last {len(failure.last_events)} events:",
        *failure.last_events,
    ]
    return "\n".join(lines)


class Tally:
    """Adds up what a batch of seeds did."""

    def __init__(self) -> None:
        self.seeds = 0
        self.events = 0
        self.seconds = 0.0
        self.operations = 0
        self.undecided = 0
        self.marks: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.seconds += result.seconds
        self.operations += result.operations
        self.undecided += result.undecided
        self.marks.update(result.marks)
        self.fired.update(result.fired)
        if result.failure is not None:
            self.failed.append(result.seed)

    def never(self) -> list[str]:
        """Rare paths of the core that no seed has reached."""
        return sorted(rare.NAMES - self.marks.keys())

    def text(self) -> str:
        pace = int(self.events / self.seconds) if self.seconds else 0
        lines = [
            f"{self.seeds} seeds, {self.events} events, {self.seconds:.1f} s of CPU ({pace} events/s),"
            f" {self.operations} operations, {self.undecided} histories undecided",
            f"faults: {_counts(self.fired.items())}",
            f"marks reached: {_counts(self.marks.items())}",
            f"marks never reached: {', '.join(self.never()) or 'none'}",
        ]
        if self.failed:
            lines.append(f"FAILED seeds: {' '.join(map(str, self.failed))}")
        return "\n".join(lines)


def _counts(items: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(items)) or "none"
