"""What allocations hold beyond plain numbers, node by node, and who holds the same.

Whoever checks a plan asks of each node only about the few ports, cores, devices and volumes that the plan gives away
there. So it is kept who holds each of them: that answer does not depend on how many others are on the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fedsched.scheduler.special import Special

PORT: Final = "port"
Thing = tuple[str, object]
"""Something that one allocation has and another might want."""


class Specials(dict[int, dict[int, Special]]):
    """Per node slot and key of an allocation; changed only by `put` and `drop`."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[int, dict[Thing, set[int]]] = {}
        self._crowded: dict[int, int] = {}
        """Per node: how many ports have more than one holder."""

    def put(self, node_slot: int, key: int, special: Special) -> None:
        """Lay what an allocation holds beside the others of its node."""
        self.drop(node_slot, key)
        self.setdefault(node_slot, {})[key] = special
        holders = self._holders.setdefault(node_slot, {})
        for thing in {*_things(special)}:
            keys = holders.setdefault(thing, set())
            keys.add(key)
            if len(keys) == 2 and thing[0] == PORT:
                self._crowded[node_slot] = self._crowded.get(node_slot, 0) + 1

    def drop(self, node_slot: int, key: int) -> None:
        """Take it away; nothing happens if it is not there."""
        known = self.get(node_slot)
        special = known.pop(key, None) if known is not None else None
        if special is None:
            return
        holders = self._holders[node_slot]
        for thing in {*_things(special)}:
            keys = holders[thing]
            keys.discard(key)
            if not keys:
                del holders[thing]
            elif len(keys) == 1 and thing[0] == PORT:
                self._crowded[node_slot] -= 1
        if not known:
            del self[node_slot], self._holders[node_slot]
            self._crowded.pop(node_slot, None)

    def sharing(self, node_slot: int, wanted: Iterable[Special]) -> list[int]:
        """Keys of those on a node that hold anything of what is wanted there: only with these can it conflict."""
        holders = self._holders.get(node_slot)
        if holders is None:
            return []
        found = {key for special in wanted for thing in _things(special) for key in holders.get(thing, ())}
        return sorted(found)

    def with_port(self, node_slot: int, value: int) -> Iterable[int]:
        """Keys of those on a node that hold a port of this number."""
        return self._holders.get(node_slot, {}).get((PORT, value), ())

    def is_crowded(self, node_slot: int) -> bool:
        """Whether any port of the node has more than one holder, so that it may be a conflict already."""
        return self._crowded.get(node_slot, 0) > 0

    def duplicate(self) -> Specials:
        """One that goes on from here by itself."""
        other = Specials()
        other.update((slot, dict(held)) for slot, held in self.items())
        other._holders = {
            slot: {thing: set(keys) for thing, keys in holders.items()} for slot, holders in self._holders.items()
        }
        other._crowded = dict(self._crowded)
        return other


def _things(special: Special) -> Iterator[Thing]:
    for port in special.ports:
        yield PORT, port.value
    for core in special.cores:
        yield "core", core
    for held in special.devices:
        for instance in held.instances:
            yield "device", (held.device, instance)
    for volume in special.volumes:
        yield "volume", volume.name
