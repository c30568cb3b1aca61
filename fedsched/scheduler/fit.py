"""What one node can hold: the one definition, for workers that propose and for the plan applier that checks.

A `NodeRoom` is a node and what is on it: four sums (CPU, memory, disk, number of allocations) and the few allocations
that hold something special. Who counts as being on the node is the caller's affair, and the only difference between the
two views: a worker counts every allocation that its client has not ended, the applier those that are not terminal at
all. Whatever a room offers, the same room with the offer on it passes `overcommitted`: a test holds them together.

Most asks and most nodes are plain numbers, and then a whole fleet is compared at once: see `dimensions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.model.node import Node
from fedsched.scheduler.ask import NOTHING_SPECIAL, Ask, Offer
from fedsched.scheduler.cores import Cores, core_speeds, node_mhz, numa_nodes, take_cores
from fedsched.scheduler.devices import DeviceOffer, free_instances, offer_devices, oversubscribed
from fedsched.scheduler.ports import BadPorts, PortIndex, PortOffer
from fedsched.scheduler.special import HeldPort, HeldVolume, Special, written_volumes
from fedsched.scheduler.volumes import MISSING_VOLUMES, FindVolume, no_volumes, offers_volumes, writers_conflict

MAX_ALLOCS: Final = "max allocation exceeded"
CPU: Final = "cpu"
CORES: Final = "cores"
NUMA_CORES: Final = "numa-cores"
"""Enough cores are free, but not on one memory node."""
MEMORY: Final = "memory"
DISK: Final = "disk"
PLAIN_DIMENSIONS: Final = ("", MAX_ALLOCS, CPU, MEMORY, DISK)
"""By the codes that `dimensions` gives; 0 is "fits"."""
COLLIDING: Final = "network: port collision"
BAD_NODE_PORTS: Final = "network: invalid node"
OVERSUBSCRIBED: Final = "devices: device oversubscribed"
SHARED_VOLUME: Final = "conflicting claims for host volume with single-writer"

Numbers = NDArray[np.number[Any]]


class Capacity(NamedTuple):
    """What a node has for allocations: its resources less what is kept for the host."""

    cpu: int
    memory_mb: int
    disk_mb: int
    max_allocs: int
    """0 is no limit."""

    @staticmethod
    def of(node: Node) -> Capacity:
        have, kept = node.node_resources, node.reserved_resources
        return Capacity(
            cpu=node_mhz(node) - kept.cpu.cpu_shares,
            memory_mb=have.memory.memory_mb - kept.memory.memory_mb,
            disk_mb=have.disk.disk_mb - kept.disk.disk_mb,
            max_allocs=node.node_max_allocs,
        )


class Sums(NamedTuple):
    """What is on a node, in plain numbers."""

    cpu: int = 0
    memory_mb: int = 0
    disk_mb: int = 0
    allocs: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.cpu + other.cpu,
            self.memory_mb + other.memory_mb,
            self.disk_mb + other.disk_mb,
            self.allocs + other.allocs,
        )

    def minus(self, other: Sums) -> Sums:
        return Sums(
            self.cpu - other.cpu,
            self.memory_mb - other.memory_mb,
            self.disk_mb - other.disk_mb,
            self.allocs - other.allocs,
        )


EMPTY: Final = Sums()


class Exhausted(NamedTuple):
    """Why an ask does not fit: the dimension under which the node is counted."""

    dimension: str


class NodeRoom:
    """A node and what is on it. Never changes; `with_` and `without` give another one."""

    __slots__ = ("_find", "_holders", "_ports", "capacity", "node", "specials", "used")

    def __init__(
        self,
        node: Node,
        used: Sums = EMPTY,
        specials: Iterable[Special] = (),
        capacity: Capacity | None = None,
        find_volume: FindVolume = no_volumes,
        port_holders: Callable[[int], Iterable[HeldPort]] | None = None,
    ) -> None:
        """With `port_holders` it is a room for asks that want nothing special but ports; see `PortIndex`."""
        self.node = node
        self.capacity = Capacity.of(node) if capacity is None else capacity
        self.used = used
        self.specials = tuple(specials)
        self._find = find_volume
        self._holders = port_holders
        self._ports: PortIndex | str | None = None

    def with_(self, sums: Sums, special: Special | None = None) -> NodeRoom:
        """The room with something more on it."""
        specials = (*self.specials, special) if special is not None else self.specials
        other = NodeRoom(self.node, self.used.plus(sums), specials, self.capacity, self._find, self._holders)
        if isinstance(self._ports, PortIndex):
            other._ports = self._ports.with_(special.ports) if special is not None and special.ports else self._ports
        return other

    def without(self, sums: Sums, special: Special | None = None) -> NodeRoom:
        """The room with something taken off it; the special must be one that is on it."""
        kept = list(self.specials)
        if special is not None:
            kept.remove(special)
        return NodeRoom(self.node, self.used.minus(sums), kept, self.capacity, self._find, self._holders)

    def offer(self, ask: Ask, seed: int = 0, name_index: int = 0) -> Offer | Exhausted:
        """Give what the ask gets here, or the first dimension that does not fit."""
        given = self.special_offer(ask, seed, name_index) if ask.needs_special else NOTHING_SPECIAL
        if isinstance(given, Exhausted):
            return given
        short = self.short_of(sums_of(ask, given))
        return Exhausted(short) if short is not None else given

    def why_not(self, ask: Ask, seed: int = 0, name_index: int = 0) -> str | None:
        """Give the dimension that does not fit, None if the ask does."""
        given = self.offer(ask, seed, name_index)
        return given.dimension if isinstance(given, Exhausted) else None

    def short_of(self, more: Sums) -> str | None:
        """Give the plain dimension in which the node cannot take so much more."""
        used, have = self.used, self.capacity
        if have.max_allocs and used.allocs + more.allocs > have.max_allocs:
            return MAX_ALLOCS
        if used.cpu + more.cpu > have.cpu:
            return CPU
        if used.memory_mb + more.memory_mb > have.memory_mb:
            return MEMORY
        return DISK if used.disk_mb + more.disk_mb > have.disk_mb else None

    def lacks(self, more: Sums) -> Sums:
        """How much less of each the ask would have to be to fit in plain numbers; zeros where it does."""
        used, have = self.used, self.capacity
        return Sums(
            max(0, used.cpu + more.cpu - have.cpu),
            max(0, used.memory_mb + more.memory_mb - have.memory_mb),
            max(0, used.disk_mb + more.disk_mb - have.disk_mb),
            max(0, used.allocs + more.allocs - have.max_allocs) if have.max_allocs else 0,
        )

    def overcommitted(self) -> str | None:
        """Say what is promised twice or beyond what there is; None if all that is on the node fits.

        This is the plan applier's question, put to the room with the plan's allocations on it.
        """
        return self.short_of(EMPTY) or self.special_conflict()

    def special_conflict(self) -> str | None:
        """The part of `overcommitted` that is not about sums."""
        return NodeRoom(self.node, find_volume=self._find).conflict_with(self.specials)

    def conflict_with(self, new: Sequence[Special]) -> str | None:
        """Say what the new ones are given that is not theirs to have; None if all of it is free.

        Only the new ones are judged. What is on the node may hold a core or a device that has gone ill or away since:
        that must not keep others from what is still good.
        """
        cores = [core for special in new for core in special.cores]
        if cores and not self._can_give_cores(cores):
            return CORES
        ports = [port for special in new for port in special.ports]
        index = self.ports() if ports else ""
        if isinstance(index, str):
            if index:
                return index
        elif index.would_collide(ports):
            return COLLIDING
        devices = [part for special in new for part in special.devices]
        if devices and oversubscribed(self.node, devices, (part for held in self.specials for part in held.devices)):
            return OVERSUBSCRIBED
        volumes = [held for special in new for held in special.volumes]
        return SHARED_VOLUME if volumes and self._share_writers(volumes) else None

    def _can_give_cores(self, cores: Sequence[int]) -> bool:
        free = core_speeds(self.node).keys() - {core for special in self.specials for core in special.cores}
        return len(set(cores)) == len(cores) and free.issuperset(cores)

    def _share_writers(self, new: Sequence[HeldVolume]) -> bool:
        dynamic = {name for name, volume in self.node.host_volumes.items() if volume.id}
        names = {held.name for held in new} & dynamic
        there = (held for special in self.specials for held in special.volumes)
        return writers_conflict(held for held in (*there, *new) if held.name in names)

    def ports(self) -> PortIndex | str:
        """What is taken on the node's networks; a text if the node's own list of kept ports cannot be read."""
        if self._ports is None:
            try:
                held = (port for special in self.specials for port in special.ports)
                self._ports = PortIndex(self.node, held, holders=self._holders)
            except BadPorts:
                self._ports = BAD_NODE_PORTS
        return self._ports

    def special_offer(self, ask: Ask, seed: int = 0, name_index: int = 0) -> Offer | Exhausted:
        """Choose ports, devices and cores, in this order, and see to volumes; sums are not looked at."""
        if ask.volumes and not self._has_volumes(ask, name_index):
            return Exhausted(MISSING_VOLUMES)
        ports = self._port_offers(ask, seed)
        if isinstance(ports, Exhausted):
            return ports
        devices = self._device_offer(ask)
        if isinstance(devices, Exhausted):
            return devices
        cores = self._core_offers(ask)
        if isinstance(cores, Exhausted):
            return cores
        return Offer(
            ports=ports[0],
            task_ports=ports[1],
            cores=cores,
            devices=tuple(given.device for given in devices.given) if devices is not None else (),
            volumes=tuple(written_volumes(ask.volumes, name_index)),
            device_affinity=devices.affinity if devices is not None else None,
        )

    def _port_offers(
        self, ask: Ask, seed: int
    ) -> tuple[PortOffer | None, tuple[tuple[PortOffer, ...], ...]] | Exhausted:
        """Serve the group's network, then the legacy networks of its tasks, none with a port of another."""
        if ask.network is None and not any(task.networks for task in ask.tasks):
            return None, ()
        index = self.ports()
        if isinstance(index, str):
            return Exhausted(index)
        if index.collides:
            return Exhausted(COLLIDING)
        group = index.offer(ask.network, seed) if ask.network is not None else None
        if isinstance(group, str):
            return Exhausted(f"network: {group}")
        if not any(task.networks for task in ask.tasks):
            return group, ()
        return self._task_port_offers(ask, seed, group, index.with_(group.held if group else ()))

    def _task_port_offers(
        self, ask: Ask, seed: int, group: PortOffer | None, index: PortIndex
    ) -> tuple[PortOffer | None, tuple[tuple[PortOffer, ...], ...]] | Exhausted:
        given: list[tuple[PortOffer, ...]] = []
        for task in ask.tasks:
            parts = []
            for network in task.networks:
                seed += 1
                part = index.offer(network, seed)
                if isinstance(part, str):
                    return Exhausted(f"network: {part}")
                for port in part.held:
                    index.take(port)
                parts.append(part)
            given.append(tuple(parts))
        return group, tuple(given)

    def _has_volumes(self, ask: Ask, name_index: int) -> bool:
        """Feasibility asked for them before; since then an allocation of the same plan may write one alone."""
        written = [held for special in self.specials for held in special.volumes]
        return offers_volumes(self.node, ask.volumes, name_index=name_index, find=self._find, written=written)

    def _device_offer(self, ask: Ask) -> DeviceOffer | Exhausted | None:
        if not ask.devices:
            return None
        held = (part for special in self.specials for part in special.devices)
        given = offer_devices(self.node, ask.devices, free_instances(self.node, held))
        return Exhausted(f"devices: {given}") if isinstance(given, str) else given

    def _core_offers(self, ask: Ask) -> tuple[Cores | None, ...] | Exhausted:
        if not ask.cores:
            return ()
        taken = {core for special in self.specials for core in special.cores}
        speeds, memory_nodes = core_speeds(self.node), numa_nodes(self.node)
        given: list[Cores | None] = []
        for task in ask.tasks:
            if not task.cores:
                given.append(None)
                continue
            cores = take_cores(speeds, taken, task.cores, affinity=task.numa, memory_nodes=memory_nodes)
            if cores is None:
                return Exhausted(CORES if len(speeds.keys() - taken) < task.cores else NUMA_CORES)
            taken.update(cores.ids)
            given.append(cores)
        return tuple(given)


def sums_of(ask: Ask, offer: Offer = NOTHING_SPECIAL) -> Sums:
    """What an allocation of the ask adds to a node."""
    return Sums(ask.cpu + offer.cpu, ask.memory_mb, ask.disk_mb, 1)


class PlainColumns(NamedTuple):
    """Sums or capacities of many nodes, one line each; `allocs` of a capacity is the limit, 0 for none."""

    cpu: Numbers
    memory: Numbers
    disk: Numbers
    allocs: Numbers


def dimensions(have: PlainColumns, used: PlainColumns, more: Sums) -> NDArray[np.uint8]:
    """Compare all nodes at once: per node 0 if it can take so much more, else the place in PLAIN_DIMENSIONS.

    Says of every node what `NodeRoom.short_of` says of it.
    """
    short = np.zeros(len(have.cpu), dtype=np.uint8)
    short[_exceeds(used.disk, more.disk_mb, have.disk)] = PLAIN_DIMENSIONS.index(DISK)
    short[_exceeds(used.memory, more.memory_mb, have.memory)] = PLAIN_DIMENSIONS.index(MEMORY)
    short[_exceeds(used.cpu, more.cpu, have.cpu)] = PLAIN_DIMENSIONS.index(CPU)
    limited = np.greater(have.allocs, 0)
    short[limited & _exceeds(used.allocs, more.allocs, have.allocs)] = PLAIN_DIMENSIONS.index(MAX_ALLOCS)
    return short


def fits(have: PlainColumns, used: PlainColumns, more: Sums) -> NDArray[np.bool_]:
    """Which nodes can take so much more, in plain numbers."""
    room: NDArray[np.bool_] = dimensions(have, used, more) == 0
    return room


def _exceeds(used: Numbers, more: int, have: Numbers) -> NDArray[np.bool_]:
    over: NDArray[np.bool_] = np.greater(np.add(used, more), have)
    return over
