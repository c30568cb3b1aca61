"""The columns of the fleet and the plain arithmetic on them; what they mean is `fleet`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Column = NDArray[np.float64]

FIRST_SLOTS: Final = 64
LOG_MAX: Final = 1 << 16
"""Touched slots remembered; whoever is further behind looks at all nodes instead."""

_COLUMNS: Final[dict[str, type[np.generic]]] = {
    "present": np.bool_,
    "ready": np.bool_,
    "status": np.uint8,
    "eligible": np.bool_,
    "draining": np.bool_,
    "pool": np.int32,
    "datacenter": np.int32,
    "node_class": np.int32,
    "cap_cpu": np.float64,
    "cap_memory": np.float64,
    "cap_disk": np.float64,
    "max_allocs": np.int64,
    "occupied_cpu": np.float64,
    "occupied_memory": np.float64,
    "occupied_disk": np.float64,
    "occupied_allocs": np.int64,
    "held_cpu": np.float64,
    "held_memory": np.float64,
    "held_disk": np.float64,
    "held_allocs": np.int64,
}
_OF_THE_NODE: Final = tuple(name for name in _COLUMNS if not name.startswith(("occupied_", "held_")))


class Names:
    """Small numbers for names, such as datacenters; 0 is the empty name."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        self._ids: dict[str, int] = {"": 0}

    def id_of(self, name: str) -> int:
        """The number of a name, a new one if it is met for the first time."""
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self.names)
            self.names.append(name)
        return number

    def find(self, name: str) -> int | None:
        """The number of a name that is known."""
        return self._ids.get(name)

    def copy(self) -> Names:
        other = Names()
        other.names, other._ids = list(self.names), dict(self._ids)
        return other


class FleetColumns:
    """Columns by node slot. Amounts are whole numbers kept as floats, so that sums are exact and need no conversion."""

    present: NDArray[np.bool_]
    ready: NDArray[np.bool_]
    status: NDArray[np.uint8]
    eligible: NDArray[np.bool_]
    draining: NDArray[np.bool_]
    pool: NDArray[np.int32]
    datacenter: NDArray[np.int32]
    node_class: NDArray[np.int32]
    cap_cpu: Column
    cap_memory: Column
    cap_disk: Column
    max_allocs: NDArray[np.int64]
    occupied_cpu: Column
    occupied_memory: Column
    occupied_disk: Column
    occupied_allocs: NDArray[np.int64]
    held_cpu: Column
    held_memory: Column
    held_disk: Column
    held_allocs: NDArray[np.int64]

    def __init__(self) -> None:
        self.size = 0
        """Slots there is room for; columns have this length."""
        self.node_version = 0
        """Grows with every change of a node itself, as opposed to what is on it."""
        self.touched = 0
        """How many entries the log of touched slots ever had; grows with every change."""
        self.fit_scores: dict[Any, Any] = {}
        """Belongs to `fits`, which follows the log of touched slots."""
        self._log: Slots = np.zeros(LOG_MAX, dtype=np.int64)
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(0, dtype=kind))

    def copy_columns_to(self, other: FleetColumns) -> None:
        other.size, other.node_version, other.touched = self.size, self.node_version, self.touched
        other._log = self._log.copy()
        for name in _COLUMNS:
            setattr(other, name, getattr(self, name).copy())

    def grow(self, slots: int) -> bool:
        """Make room for slots below `slots`; whether that was needed."""
        if slots <= self.size:
            return False
        size = max(FIRST_SLOTS, self.size)
        while size < slots:
            size *= 2
        for name in _COLUMNS:
            old = getattr(self, name)
            grown = np.zeros(size, dtype=old.dtype)
            grown[: len(old)] = old
            setattr(self, name, grown)
        self.size = size
        self.node_version += 1
        self.fit_scores.clear()
        return True

    def clear_node(self, slot: int) -> None:
        """Forget the node; what its allocations take stays."""
        for name in _OF_THE_NODE:
            getattr(self, name)[slot] = 0
        self.node_version += 1
        self.touch_one(slot)

    def add(self, where: Slots, amounts: Any, allocs: Any, *, occupied: bool = True, held: bool = True) -> None:
        """Add lines of cpu, memory, disk (and allocations) to these slots, which may repeat. Negative takes away."""
        if not len(where):
            return
        for is_wanted, prefix in ((occupied, "occupied_"), (held, "held_")):
            if is_wanted and len(where) == 1:
                self._add_one(prefix, int(where[0]), amounts[0].tolist(), int(allocs))
            elif is_wanted:
                np.add.at(getattr(self, f"{prefix}cpu"), where, amounts[:, 0])
                np.add.at(getattr(self, f"{prefix}memory"), where, amounts[:, 1])
                np.add.at(getattr(self, f"{prefix}disk"), where, amounts[:, 2])
                np.add.at(getattr(self, f"{prefix}allocs"), where, allocs)
        if occupied:
            self.touch(where)

    def _add_one(self, prefix: str, slot: int, amounts: list[float], allocs: int) -> None:
        getattr(self, f"{prefix}cpu")[slot] += amounts[0]
        getattr(self, f"{prefix}memory")[slot] += amounts[1]
        getattr(self, f"{prefix}disk")[slot] += amounts[2]
        getattr(self, f"{prefix}allocs")[slot] += allocs

    def touch(self, slots: Slots) -> None:
        """Say that what is free on these nodes has changed."""
        count = len(slots)
        if count >= LOG_MAX:
            self.fit_scores.clear()
            self.touched += count
            return
        start = self.touched % LOG_MAX
        first = min(count, LOG_MAX - start)
        self._log[start : start + first] = slots[:first]
        self._log[: count - first] = slots[first:]
        self.touched += count

    def touch_one(self, slot: int) -> None:
        self._log[self.touched % LOG_MAX] = slot
        self.touched += 1

    def touched_since(self, position: int) -> Slots | None:
        """The slots touched since the log was this long, possibly repeated; None if it no longer knows."""
        missed = self.touched - position
        if missed > LOG_MAX:
            return None
        start = position % LOG_MAX
        if start + missed <= LOG_MAX:
            return self._log[start : start + missed]
        return np.concatenate((self._log[start:], self._log[: start + missed - LOG_MAX]))
