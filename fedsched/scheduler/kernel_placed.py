"""The answer of the placement kernel: where everything goes, how it scored, and why the rest found no room.

The node slots are there at once; everything else is worked out when it is asked for, from the same fleet: ask before
anything is written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fits import Units
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_candidates import Candidates, Places
from fedsched.scheduler.kernel_request import Exhaustion, NodeScore, PlaceRequest
from fedsched.scheduler.score import ANTI_AFFINITY, FIT, PENALTY, RESCHEDULE_PENALTY, SPREAD, UNIT

BEST: Final = 5
"""How many of the best nodes people are shown: those for the first placement."""
FINAL = "final"


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
        return self._columns(self.node_slots, occurrences(self.node_slots), self._boosts)

    def best(self) -> list[NodeScore]:
        """The best nodes for the first placement and how each scored."""
        self._still()
        best, boosts = self._find_best()
        columns = self._columns(best, np.zeros(len(best), dtype=np.int64), boosts)
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

    def _columns(self, slots: Slots, more: Places, boosts: Units | None) -> dict[str, NDArray[np.float64]]:
        self._still()
        request = self.request
        order = np.unique(slots)
        candidates = Candidates(request, order)
        at = np.searchsorted(order, slots)
        fit = candidates.fit_units(at, more)
        units, entries = candidates.units(at, more, fit)
        columns: dict[str, Any] = {FIT: fit / UNIT}
        there = more if candidates.collisions is None else candidates.collisions[at] + more
        columns[ANTI_AFFINITY] = np.where(there > 0, candidates.anti_units(there) / UNIT, 0.0)
        marks = np.zeros(len(slots)) if candidates.penalty is None else candidates.penalty[at]
        columns[RESCHEDULE_PENALTY] = marks * PENALTY + 0.0
        for name, values in request.bonuses.items():
            columns[name] = np.rint(values[slots] * UNIT) / UNIT
        if boosts is not None:
            columns[SPREAD] = boosts / UNIT
            units, entries = units + boosts, entries + (boosts != 0)
        columns[FINAL] = units / entries / UNIT
        return columns

    def _still(self) -> None:
        assert self._touched == self.request.fleet.touched, "the fleet has changed since the placement"


def occurrences(slots: Slots) -> Places:
    """How often each element has come before."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(slots)), dtype=np.bool_), ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, len(slots)))
    result = np.empty(len(slots), dtype=np.int64)
    result[order] = np.arange(len(slots)) - np.repeat(starts, lengths)
    return result
