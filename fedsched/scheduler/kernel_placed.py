"""The answer of the placement kernel: where everything goes, how it scored, and why the rest found no room.

The node slots are there at once; everything else is worked out when it is asked for, from the same fleet: ask before
anything is written to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fits import Units, entry_units
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_boosts import make_boosts, make_groups
from fedsched.scheduler.kernel_candidates import Places
from fedsched.scheduler.kernel_request import Exhaustion, NodeScore, PlaceRequest
from fedsched.scheduler.score import ANTI_AFFINITY, FINAL, FIT, PENALTY, RESCHEDULE_PENALTY, SPREAD, UNIT, anti_units

BEST: Final = 5
"""How many of the best nodes people are shown: those for the first placement."""


class Placed:
    """What came of a request."""

    def __init__(
        self,
        request: PlaceRequest,
        node_slots: Slots,
        find_best: Callable[[], tuple[Slots, Units | None]],
        *,
        boosts: Units | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.request = request
        self.node_slots = node_slots
        """One per placement, in order."""
        self.unplaced = request.count - len(node_slots)
        self._boosts = boosts
        self._find_best = find_best
        self._mask = mask
        self._touched = request.fleet.touched

    def scores(self) -> dict[str, NDArray[np.float64]]:
        """Per entry a column with one value per placement; `final` is their mean where they count."""
        slots = self.node_slots
        marks = self._avoided(slots, self.request.penalties[: len(slots)])
        return self._columns(slots, occurrences(slots), self._boosts, marks)

    def best(self) -> list[NodeScore]:
        """The best nodes for the first placement and how each scored."""
        self._still()
        best, boosts = self._find_best()
        marks = self._avoided(best, self.request.penalties[:1] * len(best))
        columns = self._columns(best, np.zeros(len(best), dtype=np.int64), boosts, marks)
        final = columns.pop(FINAL)
        return [
            NodeScore(slot, {name: float(column[at]) for name, column in columns.items()}, float(final[at]))
            for at, slot in enumerate(best.tolist())
        ]

    def exhaustion(self) -> Exhaustion:
        """Why nothing more fits, seen after the last placement."""
        request, fleet = self.request, self.request.fleet
        self._still()
        more = np.bincount(self.node_slots, minlength=fleet.size)[: fleet.size]
        slots = np.flatnonzero(request.mask)
        more = more[slots]
        reason = np.full(len(slots), -1, dtype=np.int64)
        ask = request.ask
        names = ("cpu", "memory", "disk", "max allocation exceeded")
        limit = fleet.max_allocs[slots]
        lacking = (
            fleet.occupied_cpu[slots] + ask.cpu * (more + 1) > fleet.cap_cpu[slots],
            fleet.occupied_memory[slots] + ask.memory * (more + 1) > fleet.cap_memory[slots],
            fleet.occupied_disk[slots] + ask.disk * (more + 1) > fleet.cap_disk[slots],
            (limit > 0) & (fleet.occupied_allocs[slots] + more >= limit),
        )
        for number in reversed(range(len(names))):
            reason[lacking[number]] = number
        distinct = self._ruled_out(slots, more)
        short = (reason >= 0) & ~distinct
        counts = np.bincount(reason[short], minlength=len(names))
        classes = np.bincount(fleet.node_class[slots[short]], minlength=1)
        return Exhaustion(
            nodes=int(short.sum()),
            by_dimension={name: int(n) for name, n in zip(names, counts.tolist(), strict=True) if n},
            by_class={fleet.classes.names[at]: n for at, n in enumerate(classes.tolist()) if n and at},
            distinct=int(distinct.sum()),
        )

    def refused(self) -> Slots:
        """Slots that a closer look ruled out for good."""
        if self._mask is None:
            return np.empty(0, dtype=np.int64)
        refused = np.flatnonzero(self.request.candidates() & ~self._mask)
        return np.setdiff1d(refused, self.node_slots)

    def _ruled_out(self, slots: Slots, more: Places) -> NDArray[np.bool_]:
        request = self.request
        out = ~request.candidates()[slots]
        if request.distinct_hosts:
            out |= more > 0
        for limit in request.limits:
            used: dict[int, int] = dict(limit.used)
            for value in limit.values[self.node_slots].tolist():
                used[value] = used.get(value, 0) + 1
            full = [value for value, count in used.items() if count >= limit.limit]
            out |= np.isin(limit.values[slots], full)
        return out

    def _columns(
        self, slots: Slots, more: Places, boosts: Units | None, marks: NDArray[np.int64] | None
    ) -> dict[str, NDArray[np.float64]]:
        """Per entry what it came to on each of these slots with so many new allocations there before; `marks` says
        where the penalty counts."""
        self._still()
        request, fleet = self.request, self.request.fleet
        ask, steps = request.ask, more + 1
        fit = entry_units(
            fleet.occupied_cpu[slots] + ask.cpu * steps,
            fleet.cap_cpu[slots],
            fleet.occupied_memory[slots] + ask.memory * steps,
            fleet.cap_memory[slots],
            request.algorithm,
        )
        there = more
        if request.collisions is not None and len(request.collisions):
            there = more + np.bincount(request.collisions, minlength=fleet.size)[slots]
        collide = there > 0
        anti = np.where(collide, anti_units(there, request.group_count), 0)
        units, entries = fit + anti, collide + 1
        columns: dict[str, Any] = {FIT: fit / UNIT, ANTI_AFFINITY: anti / UNIT}
        if marks is None:
            columns[RESCHEDULE_PENALTY] = np.zeros(len(slots))
        else:
            columns[RESCHEDULE_PENALTY] = marks * PENALTY + 0.0
            units, entries = units + marks * int(PENALTY * UNIT), entries + marks
        for name, values in request.bonuses.items():
            bonus = np.rint(values[slots] * UNIT).astype(np.int64)
            columns[name] = bonus / UNIT
            units, entries = units + bonus, entries + 1
        if boosts is not None:
            columns[SPREAD] = boosts / UNIT
            units, entries = units + boosts, entries + (boosts != 0)
        columns[FINAL] = units / entries / UNIT
        return columns

    def _avoided(self, slots: Slots, penalties: Sequence[Slots]) -> NDArray[np.int64] | None:
        """Which of these the placements with these penalties would rather not have had."""
        if self.request.penalties:
            found = [int(slot in penalty) for slot, penalty in zip(slots.tolist(), penalties, strict=True)]
            return np.array(found, dtype=np.int64)
        penalty = self.request.penalty
        if penalty is None or not len(penalty):
            return None
        return np.isin(slots, penalty).astype(np.int64)

    def _still(self) -> None:
        assert self._touched == self.request.fleet.touched, "the fleet has changed since the placement"


def beside_fit(request: PlaceRequest, slots: Slots) -> dict[str, NDArray[np.float64]]:
    """What one more allocation would score on each of these nodes now, but for fit: there need not be room."""
    there = np.zeros(len(slots), dtype=np.int64)
    if request.collisions is not None and len(request.collisions):
        there = np.bincount(request.collisions, minlength=request.fleet.size)[slots]
    columns = {ANTI_AFFINITY: np.where(there > 0, anti_units(there, request.group_count) / UNIT, 0.0)}
    if request.penalty is not None:
        columns[RESCHEDULE_PENALTY] = np.isin(slots, request.penalty) * PENALTY + 0.0
    columns |= {name: np.rint(values[slots] * UNIT) / UNIT for name, values in request.bonuses.items()}
    if request.spreads and len(slots):
        groups = make_groups(dataclasses.replace(request, limits=()), slots)
        boosts = make_boosts(dataclasses.replace(request, limits=()), groups)
        columns[SPREAD] = np.array(boosts.units, dtype=np.int64)[groups.of] / UNIT
    return columns


def occurrences(slots: Slots) -> Places:
    """How often each element has come before."""
    if len(slots) < 2:
        return np.zeros(len(slots), dtype=np.int64)
    small = slots.astype(np.uint16) if int(slots.max()) < 1 << 16 else slots  # sorted by digits: several times faster
    order = np.argsort(small, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, len(slots)))
    result = np.empty(len(slots), dtype=np.int64)
    result[order] = np.arange(len(slots)) - np.repeat(starts, lengths)
    return result
