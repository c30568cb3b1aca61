"""The names under which people see the parts of a node's score, and how the parts make the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIT: Final = "binpack"
ANTI_AFFINITY: Final = "job-anti-affinity"
RESCHEDULE_PENALTY: Final = "node-reschedule-penalty"
AFFINITY: Final = "node-affinity"
DEVICES: Final = "devices"
SPREAD: Final = "allocation-spread"
PREEMPTION: Final = "preemption"
FINAL: Final = "final"
"""The whole: not a part, and not listed among them."""

ALWAYS_LISTED: Final = (FIT, ANTI_AFFINITY, RESCHEDULE_PENALTY)
"""Shown even where they came to nothing."""
ORDER: Final = (*ALWAYS_LISTED, AFFINITY, DEVICES, SPREAD, PREEMPTION)
COUNT_AT_ZERO: Final = frozenset({FIT, AFFINITY, DEVICES, PREEMPTION})
"""Parts that count wherever they exist; the others count only where they are not 0."""


def mean_of(scores: Mapping[str, float]) -> float:
    """The score of a node whose parts are these: the mean of those that count."""
    counted = [value for name, value in scores.items() if value or name in COUNT_AT_ZERO]
    return sum(counted) / len(counted) if counted else 0.0
