"""Some nodes of the fleet and how each would score with so many more allocations on it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fits import Units, entry_of_one, entry_units
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_request import PlaceRequest
from fedsched.scheduler.score import ANTI_AFFINITY_MIN, ENTRIES_MULTIPLE, PENALTY, UNIT, anti_units

Places = NDArray[np.int64]
"""Positions among the candidates."""

_FACTORS: Final = np.array([0, *(ENTRIES_MULTIPLE // n for n in range(1, 7))], dtype=np.int64)
_ENDLESS: Final = 1 << 40
MANY: Final = 256
"""From here on counting by slot is cheaper than sorting."""


class Candidates:
    """The nodes in `slots`, in columns of their own."""

    def __init__(self, request: PlaceRequest, slots: Slots) -> None:
        self.slots = slots
        self.request = request
        self.entries = 1 + len(request.bonuses)
        self.bonus: Units | None = None
        for values in request.bonuses.values():
            units = np.rint(values[slots] * UNIT).astype(np.int64)
            self.bonus = units if self.bonus is None else self.bonus + units
        self.collisions = _counts(slots, request.collisions, request.fleet.size)
        self.penalty = _marks(slots, request.penalty, request.fleet.size)
        fleet = request.fleet
        self._cpu, self._cap_cpu = fleet.occupied_cpu[slots], fleet.cap_cpu[slots]
        self._memory, self._cap_memory = fleet.occupied_memory[slots], fleet.cap_memory[slots]
        self._known: dict[tuple[float, float, float, float], int] = {}
        """Fit entries already computed one by one; most nodes of a fleet are alike."""

    def fit_units(self, at: Any, more: Any) -> Units:
        """The fit entry of candidates `at` with one allocation beyond `more` new ones."""
        ask = self.request.ask
        steps = more + 1
        return entry_units(
            self._cpu[at] + ask.cpu * steps,
            self._cap_cpu[at],
            self._memory[at] + ask.memory * steps,
            self._cap_memory[at],
            self.request.algorithm,
        )

    def units(self, at: Any, more: Any, fit: Units | None = None) -> tuple[Units, Any]:
        """The sum of the entries of candidates `at` with one allocation beyond `more` new ones, and their number."""
        units = self.fit_units(at, more) if fit is None else fit.copy()
        entries: Any = self.entries
        if self.bonus is not None:
            units += self.bonus[at]
        if self.penalty is not None:
            marks = self.penalty[at]
            units += marks * int(PENALTY * UNIT)
            entries = entries + marks
        there = more if self.collisions is None else self.collisions[at] + more
        if self.collisions is not None or np.ndim(more) or more:
            collide = there > 0
            units += np.where(collide, anti_units(there, self.request.group_count), 0)
            entries = entries + collide
        return units, entries

    def units_of_one(self, at: int, more: int) -> tuple[int, int]:
        """The same for one candidate and at least one new allocation on it: columns are slow for a few numbers."""
        ask, count = self.request.ask, max(self.request.group_count, 1)
        cpu, memory = self._cpu.item(at) + ask.cpu * (more + 1), self._memory.item(at) + ask.memory * (more + 1)
        shape = (cpu, self._cap_cpu.item(at), memory, self._cap_memory.item(at))
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = entry_of_one(*shape, self.request.algorithm)
        units = known
        there = more if self.collisions is None else more + self.collisions.item(at)
        units += round(max(-(there + 1) / count, ANTI_AFFINITY_MIN) * UNIT)
        entries = self.entries + 1
        if self.bonus is not None:
            units += self.bonus.item(at)
        if self.penalty is not None and self.penalty.item(at):
            units += int(PENALTY * UNIT)
            entries += 1
        return units, entries

    def keys(self, at: Any, more: Any, fit: Units | None = None) -> Units:
        """The means, in the form in which they are compared."""
        units, entries = self.units(at, more, fit)
        units *= _FACTORS[entries]
        return units

    def room(self, at: Places) -> Places:
        """How many more allocations fit on each."""
        if self.request.distinct_hosts:
            return np.ones(len(at), dtype=np.int64)
        request, fleet, slots = self.request, self.request.fleet, self.slots[at]
        room = np.full(len(at), _ENDLESS, dtype=np.int64)
        for ask, used, cap in (
            (request.ask.cpu, self._cpu[at], self._cap_cpu[at]),
            (request.ask.memory, self._memory[at], self._cap_memory[at]),
            (request.ask.disk, fleet.occupied_disk[slots], fleet.cap_disk[slots]),
        ):
            if ask > 0:
                np.minimum(room, np.floor((cap - used) / ask).astype(np.int64), out=room)
            else:
                room[used > cap] = 0
        limit = fleet.max_allocs[slots]
        if limit.any():
            left = np.maximum(limit - fleet.occupied_allocs[slots], 0)
            np.minimum(room, np.where(limit > 0, left, _ENDLESS), out=room)
        return room


def _counts(slots: Slots, given: Slots | None, size: int) -> Places | None:
    """How often each of the ascending `slots` is among the given; all of them are below `size`."""
    if given is None or not len(given):
        return None
    if len(given) > MANY:
        return np.bincount(given, minlength=size)[slots]
    where, counts = np.unique(given, return_counts=True)
    found = np.searchsorted(slots, where)
    found[found == len(slots)] = 0
    known = slots[found] == where if len(slots) else np.zeros(len(where), dtype=np.bool_)
    result = np.zeros(len(slots), dtype=np.int64)
    result[found[known]] = counts[known]
    return result


def _marks(slots: Slots, given: Slots | None, size: int) -> Places | None:
    counts = _counts(slots, given, size)
    return None if counts is None else np.minimum(counts, 1)
