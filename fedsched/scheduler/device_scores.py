"""How well the devices that are free on each node match what a group would like.

A node's score for them changes with every allocation that takes one, so it is kept per node and looked at again where
something was placed or freed since. Nodes that are alike and hold no devices for anybody score alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.devices import free_instances, offer_devices
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_columns import Slots
from fedsched.state.store import State


class _Kept:
    __slots__ = ("by_kind", "column", "position")

    def __init__(self, size: int) -> None:
        self.column = np.zeros(size)
        self.by_kind: dict[int, float] = {}
        self.position = -1


class DeviceScores:
    """The entry `devices` of every node, for the groups of one attempt."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        self._state = state
        self._fleet = fleet
        self._kept: dict[tuple[int, str], _Kept] = {}

    @staticmethod
    def matters(group: GroupField) -> bool:
        """Whether the group asks for devices and has a liking among them."""
        return any(affinity.weight for request in group.ask.devices for affinity in request.affinities)

    def column(self, group: GroupField) -> NDArray[np.float64]:
        """Per slot the matched weight by the sum of absolute weights; 0 where the devices would not do."""
        key = (group.job.version, group.group.name)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(self._fleet.size)
        touched = self._fleet.touched_since(kept.position) if kept.position >= 0 else None
        slots: Slots = np.flatnonzero(group.mask)
        if touched is not None:
            slots = np.unique(touched)
            slots = slots[group.mask[slots]]
        for slot in slots.tolist():
            kept.column[slot] = self._score(group, slot, kept.by_kind)
        kept.position = self._fleet.touched
        return kept.column.copy()

    def _score(self, group: GroupField, slot: int, by_kind: dict[int, float]) -> float:
        held = [part for _, special in self._fleet.specials(slot) for part in special.devices]
        kind = int(self._fleet.kind[slot])
        if not held and kind in by_kind:
            return by_kind[kind]
        node = self._fleet.node(self._state, slot)
        if node is None:
            return 0.0
        found = offer_devices(node, group.ask.devices, free_instances(node, held))
        score = 0.0 if isinstance(found, str) else found.affinity or 0.0
        if not held:
            by_kind[kind] = score
        return score
