"""What was seen while a region was lost and came back, and what of it must not be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.wan.asker import Answer

NEAR, FAR = "near", "far"
SERVERS = 3
HEALED_S = 30.0
FAIL_S = 5.0
P99_RATIO = 1.10
"""How much longer the region's own requests may take while the other one is lost."""
NOISE_MAX = 1.25
"""Halves of windows hold half as much as what is compared, so they differ by somewhat more."""


@dataclass
class Cycle:
    """One loss, in seconds."""

    how: str = ""
    noticed_s: dict[str, float] = field(default_factory=dict)
    """By region: when all its servers had taken all of the other's for failed."""
    healed_s: float = 0.0
    answers_again_s: float = 0.0
    """From healing until somebody in the near region had an answer of the far one."""
    whole: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    """What the near region's own requests took, while all was well and while the other was lost, in order."""


@dataclass
class Outcome:
    cycles: list[Cycle] = field(default_factory=list)
    own: int = 0
    refused: list[Answer] = field(default_factory=list)
    """Requests for the lost region, made while it was lost."""
    problems: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The 99th percentile with the network lost, by that with the network whole."""
        return percentile(self._all("lost")) / percentile(self._all("whole"))

    @property
    def noise(self) -> float:
        """The same between two sets of windows that no cut tells apart: first and second halves, the larger by the
        smaller, for the network whole and lost."""
        found = 1.0
        for name in ("whole", "lost"):
            halves = (
                [one[: len(one) // 2] for one in self._windows(name)],
                [one[len(one) // 2 :] for one in self._windows(name)],
            )
            first, second = (percentile([took for window in half for took in window]) for half in halves)
            found = max(found, first / second, second / first)
        return found

    def _windows(self, name: str) -> list[list[float]]:
        return [getattr(cycle, name) for cycle in self.cycles]

    def _all(self, name: str) -> list[float]:
        return [took for window in self._windows(name) for took in window]

    def violations(self, *, with_latency: bool = True) -> list[str]:
        """Everything that does not hold."""
        found = list(self.problems)
        for number, cycle in enumerate(self.cycles, 1):
            if cycle.healed_s > HEALED_S:
                what = f"loss {number}, {cycle.how}: all know all {cycle.healed_s:.1f} s after healing"
                found.append(f"{what}, {HEALED_S:g} s is the limit")
        for answer in self.refused:
            if answer.took_s > FAIL_S:
                found.append(f"a request for the lost region failed after {answer.took_s:.1f} s: {answer.error}")
            if not any(f"{FAR}-{number}" in answer.error for number in range(1, SERVERS + 1)):
                found.append(f"a request for the lost region does not say who was tried: {answer.error}")
        if with_latency and self.ratio > P99_RATIO and not self.is_too_noisy:
            found.append(
                f"p99 of own requests is {self.ratio:.3f} times what it was, {P99_RATIO:g} is the limit"
                f" (windows without a cut between them differ by {self.noise:.3f})"
            )
        return found

    @property
    def is_too_noisy(self) -> bool:
        """Whether chance alone does more on this machine than a loss may do: then nothing is said of latency, neither
        that it holds nor that it does not."""
        return self.noise > NOISE_MAX

    def text(self) -> str:
        whole, lost = self._all("whole"), self._all("lost")
        noticed = [" / ".join(f"{one:.1f}" for one in cycle.noticed_s.values()) for cycle in self.cycles]
        refused = [answer.took_s for answer in self.refused]
        return "\n".join(
            (
                f"own requests                    {self.own}, {len(whole)} and {len(lost)} of them in the windows",
                f"  all is well                   median {_ms(median(whole))}, p99 {_ms(percentile(whole))}",
                f"  the other region lost         median {_ms(median(lost))}, p99 {_ms(percentile(lost))}",
                f"  median, lost by well          {median(lost) / median(whole):.3f}",
                f"  p99, lost by well             {self.ratio:.3f} (limit {P99_RATIO:g})",
                f"  p99, halves of equal windows  {self.noise:.3f} (what chance does)",
                f"requests for the lost region    {len(refused)}, failed after {_ms(median(refused))},"
                f" the slowest after {max(refused):.2f} s (limit {FAIL_S:g})",
                f"other region seen as failed     {', '.join(noticed)} s after the loss (near / far)",
                f"all know all again              {_s(one.healed_s for one in self.cycles)} s (limit {HEALED_S:g})",
                f"the other region answers again  {_s(one.answers_again_s for one in self.cycles)} s after healing",
            )
        )


def percentile(took: Sequence[float], part: float = 0.99) -> float:
    """The smallest that so large a part does not exceed."""
    return sorted(took)[max(0, math.ceil(part * len(took)) - 1)]


def _ms(took: float) -> str:
    return f"{took * 1000:.1f} ms"


def _s(took: Iterable[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in took)
