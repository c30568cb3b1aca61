"""The fit entry of every node for one ask, in units, kept and brought up to date instead of computed anew.

Most evaluations of a region ask for the same few amounts. The scores of an ask are kept for all nodes; when they are
asked for again, only nodes touched since then are computed (see `FleetColumns.touched_since`).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fleet_columns import FleetColumns, Slots
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.score import BALANCE_WEIGHT, FIT_MAX, UNIT, Algorithm

KEPT_MAX: Final = 64
"""Asks whose scores are kept; the one used longest ago is forgotten."""
FEW: Final = 8
NO_FIT: Final = -(1 << 40)
"""Stands for a node without room; below anything a score can be."""

Units = NDArray[np.int64]
_LN10: Final = math.log(10.0)
_SMALLEST: Final = np.float64(1.0)


class _Kept:
    __slots__ = ("position", "scores")

    def __init__(self, position: int, scores: Units) -> None:
        self.position = position
        self.scores = scores


def fit_scores(fleet: FleetColumns, ask: Usage, algorithm: Algorithm) -> Units:
    """The fit entry of each slot with one more allocation, `NO_FIT` where there is no room. Not to be written to."""
    kept = fleet.fit_scores
    key = (ask, algorithm)
    known = kept.pop(key, None)
    if known is None:
        known = _Kept(fleet.touched, compute(fleet, ask, algorithm, None))
        if len(kept) >= KEPT_MAX:
            del kept[next(iter(kept))]
    elif known.position != fleet.touched:
        _catch_up(fleet, known, ask, algorithm)
    kept[key] = known
    scores: Units = known.scores
    return scores


def _catch_up(fleet: FleetColumns, known: _Kept, ask: Usage, algorithm: Algorithm) -> None:
    touched = fleet.touched_since(known.position)
    if touched is None or len(touched) * 2 > fleet.size:
        if touched is not None:
            marks = np.zeros(fleet.size, dtype=np.bool_)
            marks[touched] = True
            touched = np.flatnonzero(marks)
        if touched is None or len(touched) * 2 > fleet.size:
            known.scores = compute(fleet, ask, algorithm, None)
            known.position = fleet.touched
            return
    if len(touched) <= FEW:
        for slot in touched.tolist():
            known.scores[slot] = compute_one(fleet, ask, algorithm, slot)
    else:
        known.scores[touched] = compute(fleet, ask, algorithm, touched)
    known.position = fleet.touched


def compute_one(fleet: FleetColumns, ask: Usage, algorithm: Algorithm, slot: int) -> int:
    """The same as `compute` for one slot, bit for bit: columns are slow for a few numbers."""
    cpu, memory = fleet.occupied_cpu.item(slot) + ask.cpu, fleet.occupied_memory.item(slot) + ask.memory
    cap_cpu, cap_memory = fleet.cap_cpu.item(slot), fleet.cap_memory.item(slot)
    limit = fleet.max_allocs.item(slot)
    if (
        cpu > cap_cpu
        or memory > cap_memory
        or fleet.occupied_disk.item(slot) + ask.disk > fleet.cap_disk.item(slot)
        or (limit and fleet.occupied_allocs.item(slot) >= limit)
    ):
        return NO_FIT
    return entry_of_one(cpu, cap_cpu, memory, cap_memory, algorithm)


def entry_of_one(cpu: float, cap_cpu: float, memory: float, cap_memory: float, algorithm: Algorithm) -> int:
    """The same as `entry_units` for one node. numpy's power, because the one of `math` may differ in the last bit."""
    free_cpu, free_memory = 1.0 - cpu / max(cap_cpu, 1.0), 1.0 - memory / max(cap_memory, 1.0)
    total = float(np.exp(free_cpu * _LN10)) + float(np.exp(free_memory * _LN10))
    value = min(max(total - 2.0 if algorithm == "spread" else 20.0 - total, 0.0), FIT_MAX) / FIT_MAX
    if algorithm == "balanced":
        value -= BALANCE_WEIGHT * abs(free_cpu - free_memory)
    return round(value * UNIT)


def compute(fleet: FleetColumns, ask: Usage, algorithm: Algorithm, slots: Slots | None) -> Units:
    """The same without looking at what is kept; of all slots or of these."""

    def of(column: NDArray[Any]) -> NDArray[Any]:
        return column if slots is None else column[slots]

    cpu, memory = of(fleet.occupied_cpu) + ask.cpu, of(fleet.occupied_memory) + ask.memory
    cap_cpu, cap_memory = of(fleet.cap_cpu), of(fleet.cap_memory)
    fits = cpu <= cap_cpu
    fits &= memory <= cap_memory
    fits &= of(fleet.occupied_disk) + ask.disk <= of(fleet.cap_disk)
    limit = of(fleet.max_allocs)
    if limit.any():
        fits &= (limit == 0) | (of(fleet.occupied_allocs) < limit)
    units = entry_units(cpu, cap_cpu, memory, cap_memory, algorithm)
    units[~fits] = NO_FIT
    return units


def entry_units(cpu: Any, cap_cpu: Any, memory: Any, cap_memory: Any, algorithm: Algorithm) -> Units:
    """The fit entry, in units, of nodes with this much used (the first and third are overwritten)."""
    free_cpu = np.divide(cpu, np.maximum(cap_cpu, _SMALLEST), out=cpu)
    np.subtract(1.0, free_cpu, out=free_cpu)
    free_memory = np.divide(memory, np.maximum(cap_memory, _SMALLEST), out=memory)
    np.subtract(1.0, free_memory, out=free_memory)
    uneven = np.abs(free_cpu - free_memory) if algorithm == "balanced" else None
    free_cpu *= _LN10
    free_memory *= _LN10
    total = np.exp(free_cpu, out=free_cpu)
    total += np.exp(free_memory, out=free_memory)
    if algorithm == "spread":
        np.subtract(total, 2.0, out=total)
    else:
        np.subtract(20.0, total, out=total)
    np.clip(total, 0.0, FIT_MAX, out=total)
    total /= FIT_MAX
    if uneven is not None:
        total -= BALANCE_WEIGHT * uneven
    total *= UNIT
    units: Units = np.rint(total, out=total).astype(np.int64)
    return units
