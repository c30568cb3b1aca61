"""What a run found, for people as a table and for programs as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.checks import percentile
from tests.chaos.nemesis import Outcome


@dataclass(kw_only=True)
class Report:
    """Everything worth keeping of one run."""

    seed: int
    minutes: float
    seconds: float
    commit: str
    links: str
    outcomes: Sequence[Outcome]
    counts: Counter[str]
    keys: int
    violations: list[str] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=dict)
    """Each check by name, with how many violations it found."""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        return not self.violations

    def to_json(self) -> str:
        kinds: dict[str, Any] = {}
        for name, outcomes in sorted(_by_kind(self.outcomes).items()):
            kinds[name] = _resumed(outcomes)
        return json.dumps(
            {
                "passed": self.has_passed,
                "seed": self.seed,
                "minutes": self.minutes,
                "seconds": round(self.seconds, 1),
                "commit": self.commit,
                "links": self.links,
                "leader_kills_or_pauses": self.leader_hits,
                "faults": len(self.outcomes),
                "resumed_s": _resumed([o for o in self.outcomes if o.has_quorum]),
                "by_fault": kinds,
                "operations": dict(sorted(self.counts.items())),
                "keys": self.keys,
                "checks": self.checks,
                "figures": self.figures,
                "violations": self.violations,
                "outcomes": [asdict(outcome) for outcome in self.outcomes],
            },
            indent=1,
        )

    @property
    def leader_hits(self) -> int:
        return sum(outcome.step.hits_leader_process for outcome in self.outcomes)

    def table(self) -> str:
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, links: {self.links}",
            "",
            f"{'fault':20} {'times':>5} {'changes':>8} {'p50 s':>7} {'p99 s':>7} {'max s':>7}   writes resumed after",
        ]
        rows = [*sorted(_by_kind(self.outcomes).items())]
        rows.append(("all with a majority", [o for o in self.outcomes if o.has_quorum]))
        for name, outcomes in rows:
            figures = _resumed(outcomes)
            changes = sum(o.leader_changes for o in outcomes)
            seconds = " ".join(f"{figures[figure]:7.2f}" for figure in ("p50", "p99", "max"))
            lines.append(f"{name:20} {len(outcomes):5} {changes:8} {seconds}")
        lines += ["", f"{self.leader_hits} leader kills or pauses; {self.keys} keys; operations: {self._counted()}"]
        lines += [f"{name:34} {'ok' if not found else f'{found} VIOLATIONS'}" for name, found in self.checks.items()]
        lines += [f"{name:34} {value}" for name, value in self.figures.items()]
        lines += ["", *(f"VIOLATION: {violation}" for violation in self.violations)]
        lines.append("PASSED" if self.has_passed else "FAILED")
        return "\n".join(lines)

    def _counted(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in sorted(self.counts.items()))


def _by_kind(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    kinds: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(f"{outcome.step.kind} {outcome.step.target}", []).append(outcome)
    return kinds


def _resumed(outcomes: Sequence[Outcome]) -> dict[str, float]:
    times = [outcome.resumed_s for outcome in outcomes if outcome.resumed_s is not None]
    if not times:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "max": max(times)}
