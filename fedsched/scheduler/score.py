"""How good a node is for one more allocation: the formulas, and the exact arithmetic in which scores are compared.

A node's score is the mean of the entries that apply to it. Two machines, or two ways to compute the same thing, may
differ in the last bit of a power; so every entry is rounded to a whole number of *units* before it is added up, and
means are compared as whole numbers too. Nodes that are equally good then really tie, and `Ties` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedsched.model import score_names

Algorithm = Literal["binpack", "spread", "balanced"]

UNIT: Final = 1 << 28
"""How many units make a score of 1."""
ENTRIES_MULTIPLE: Final = 60
"""Divisible by every number of entries a node may have (1 to 6), so that means stay whole."""
FIT_MAX: Final = 18.0
BALANCE_WEIGHT: Final = 0.5
ANTI_AFFINITY_MIN: Final = -256.0
"""With hundreds of times the group's count on one node, a further one makes no difference."""
SLOT_BITS_MAX: Final = 20
"""A million nodes: a mean and a tie rank share 64 bits."""
PENALTY: Final = -1.0
MISSING: Final = -1.0
"""What a spread block says to a node without the attribute, or with a value that it does not want."""

FIT: Final = score_names.FIT
ANTI_AFFINITY: Final = score_names.ANTI_AFFINITY
RESCHEDULE_PENALTY: Final = score_names.RESCHEDULE_PENALTY
AFFINITY: Final = score_names.AFFINITY
DEVICES: Final = score_names.DEVICES
SPREAD: Final = score_names.SPREAD
PREEMPTION: Final = score_names.PREEMPTION
FINAL: Final = score_names.FINAL


def free_share(used: float, available: float) -> float:
    """The part of a node's resource that is left; amounts are whole, so nothing at all counts as one."""
    return 1.0 - used / max(available, 1.0)


def fit_score(free_cpu: float, free_memory: float, algorithm: Algorithm = "binpack") -> float:
    """From 0 to 18: how well a node is filled (or, for `spread`, how empty it is) after the placement."""
    total: float = 10.0**free_cpu + 10.0**free_memory
    value = total - 2.0 if algorithm == "spread" else 20.0 - total
    return min(max(value, 0.0), FIT_MAX)


def fit_entry(free_cpu: float, free_memory: float, algorithm: Algorithm = "binpack") -> float:
    """The entry `binpack`: the fit score from 0 to 1; `balanced` takes off what is left over unevenly."""
    value = fit_score(free_cpu, free_memory, algorithm) / FIT_MAX
    return value - BALANCE_WEIGHT * abs(free_cpu - free_memory) if algorithm == "balanced" else value


def anti_affinity(collisions: int, count: int) -> float:
    """Against putting more of one group on a node; `collisions` are there already, `count` is the group's."""
    return max(-(collisions + 1) / max(count, 1), ANTI_AFFINITY_MIN)


def anti_units(collisions: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The same in units, for many nodes."""
    entry = np.maximum(-(collisions + 1) / max(count, 1), ANTI_AFFINITY_MIN)
    units: NDArray[np.int64] = np.rint(entry * UNIT).astype(np.int64)
    return units


def target_boost(desired: float, used: int, weight_share: float) -> float:
    """How far a value of a spread block is from its target, with the next allocation counted."""
    return (desired - (used + 1)) / desired * weight_share


def even_boost(here: int, least: int, most: int) -> float:
    """For a spread block without targets; `least` and `most` are taken over the values in use (0: none is)."""
    if not most:
        return 0.0
    if here != least:
        return (least - here) / least
    return -1.0 if least == most else (most - least) / least


def desired_counts(targets: Mapping[int, float], count: int) -> tuple[dict[int, float], float]:
    """What each target of a spread block comes to, and what is left for all other values."""
    desired = {value: percent / 100.0 * count for value, percent in targets.items()}
    return desired, max(0.0, 100.0 - sum(targets.values())) / 100.0 * count


def affinity_entry(matched: Iterable[float], weights: Iterable[float]) -> float:
    """The weights of the matching affinities over the sum of all weights, signs left aside."""
    total = sum(abs(weight) for weight in weights)
    return sum(matched) / total if total else 0.0


def in_units(value: float) -> int:
    """An entry as a whole number of units."""
    return round(value * UNIT)


def mean_key(units: int, entries: int) -> int:
    """What is compared: the mean of so many entries, times a constant."""
    return units * (ENTRIES_MULTIPLE // entries)


def final_score(units: int, entries: int) -> float:
    """The mean of the entries, for people."""
    return units / entries / UNIT


def tie_seed(evaluation_id: str, index: int = 0) -> int:
    """A number to break ties with: another one for every evaluation, and for a retry on a newer state."""
    return int.from_bytes(blake2b(f"{evaluation_id}/{index}".encode(), digest_size=8).digest(), "big")


class Ties:
    """The order among equally good nodes: a permutation of all slots that is cheap to compute in both directions."""

    def __init__(self, seed: int, size: int) -> None:
        self.bits = max(1, (size - 1).bit_length())
        assert self.bits <= SLOT_BITS_MAX, f"{size} node slots do not fit beside a score in 64 bits"
        self._last = (1 << self.bits) - 1
        self._times = ((seed >> 32) & self._last) | 1
        self._plus = seed & self._last
        self._back = pow(self._times, -1, 1 << self.bits)

    def rank(self, slot: int) -> int:
        return (slot * self._times + self._plus) & self._last

    def ranks(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return (slots * self._times + self._plus) & self._last

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """The slots of these ranks; numbers beyond the fleet are among them."""
        ranks = np.arange(start, min(stop, self._last + 1), dtype=np.int64)
        return ((ranks - self._plus) * self._back) & self._last

    @property
    def count(self) -> int:
        return self._last + 1
