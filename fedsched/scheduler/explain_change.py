"""What stands between a group and each node, and the smallest change that would let one more allocation be placed.

A node is judged by everything at once, not only by the first thing that rules it out: if all obstacles of a node were
gone, the group would fit there, all else as it is. The node with the least in its way gives the smallest change. Large
fleets are sorted by columns first, and only the promising nodes of each sort are looked at closely.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedsched.model.network import NetworkResource
from fedsched.model.node import Node, NodeStatus
from fedsched.model.task_problems import MIN_CPU_MHZ, MIN_MEMORY_MB
from fedsched.model.why import Change, Obstacle
from fedsched.scheduler.ask import Ask
from fedsched.scheduler.attributes import lookup
from fedsched.scheduler.choose import Chooser
from fedsched.scheduler.constraints import as_bool, reason_of, test_of
from fedsched.scheduler.devices import MISSING_DEVICES
from fedsched.scheduler.distinct import HOSTS_REASON, Scope
from fedsched.scheduler.feasible import ALL_POOLS, MISSING_DRIVERS, MISSING_NETWORK, check_node, in_datacenters
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.fit import Exhausted, NodeRoom, Sums, sums_of
from fedsched.scheduler.fleet import NODE_STATUSES
from fedsched.scheduler.reconcile.held import Roster
from fedsched.state.store import State

CHANGES_MAX: Final = 5
PER_SORT: Final = 16
"""Nodes looked at closely of those that look alike by columns."""
SORTS_MAX: Final = 48
PER_SORT_OF_SINGLES: Final = 256
"""The same if the group asks about single nodes, which columns know little of."""
CLOSE_MAX: Final = 1_000
MIN_DISK_MB: Final = 10
EACH_FURTHER: Final = 10.0
"""Cost of a further obstacle: one large change is better than two small ones."""

CPU, MEMORY, DISK = "cpu", "memory", "disk"
ALREADY_THERE: Final = "there"
_UNITS: Final = {CPU: "MHz", MEMORY: "MB", DISK: "MB"}
_READY: Final = NODE_STATUSES.index(NodeStatus.READY)

Slots = NDArray[np.int64]


def roster_of(state: State, namespace: str, job_id: str) -> Roster:
    """The job's allocations as they are."""
    slots = state.allocations.slots_of_job(namespace, job_id)
    rows = state.allocations.columns.read(slots)
    origins = {}
    for ref in sorted(set(rows["origin"].tolist())):
        origin = state.allocations.origins.get(ref)
        assert origin is not None
        origins[ref] = origin
    return Roster(slots, rows, origins, state.allocations.records)


class Judge:
    """Judges nodes for one more allocation of a group."""

    def __init__(self, chooser: Chooser, group: GroupField, roster: Roster, *, one_per_node: bool = False) -> None:
        self._chooser = chooser
        self._group = group
        self._field = group.field
        self._roster = roster
        self._here = self._where(group.group.name)
        hosts = group.needs.distinct_hosts
        self._taken: set[int] = set()
        if hosts is not None:
            self._taken = set((self._here if hosts is Scope.GROUP else self._where(None)).tolist())
        self._busy = set(self._here.tolist()) if one_per_node else set()

    def here(self, slot: int) -> int:
        """How many allocations of the group are on a node."""
        return int((self._here == slot).sum())

    def obstacles(self, slot: int) -> tuple[Obstacle, ...]:
        """Everything that keeps one more allocation off a node; nothing if it fits."""
        node = self._field.fleet.node(self._field.state, slot)
        if node is None:
            return (Obstacle(kind="missing", words="there is no such node"),)
        needs = tuple(self._needs(node))
        told = {kind for one in needs for part, kind in _TOLD_BY.items() if part in (one.kind, one.subject)}
        told |= {"port", "ports"} if any("network" in one.subject for one in needs if one.kind == "missing") else set()
        room = (one for one in self._room(slot, node) if one.kind not in told)
        found = (*self._scope(slot, node), *needs, *self._distinct(slot, node), *room)
        return tuple({(one.kind, one.subject): one for one in found}.values())

    def changes(self) -> tuple[Change, ...]:
        """The smallest changes, each of another kind; nothing if it fits somewhere or nothing would help."""
        found = []
        for slot in self._promising():
            obstacles = self.obstacles(slot)
            if not obstacles:
                return ()
            if all(one.change for one in obstacles):
                found.append((_cost(obstacles), slot, obstacles))
        found.sort(key=lambda entry: entry[:2])
        kinds: dict[tuple[Any, ...], Change] = {}
        for _, slot, obstacles in found:
            kind = tuple(sorted((one.kind, "" if one.kind in _OF_A_NODE else one.subject) for one in obstacles))
            known = kinds.get(kind)
            if known is not None:
                kinds[kind] = replace(known, nodes=known.nodes + 1)
            elif len(kinds) < CHANGES_MAX:
                kinds[kind] = self._change(slot, obstacles)
        return tuple(kinds.values())

    def _change(self, slot: int, obstacles: tuple[Obstacle, ...]) -> Change:
        node = self._field.fleet.node(self._field.state, slot)
        assert node is not None
        words = "fits if " + " and ".join(one.change for one in obstacles)
        return Change(words=words, node_id=node.id, node_name=name_of(node), obstacles=obstacles)

    # -------------------------------------------------------------- sorting by columns

    def _promising(self) -> list[int]:
        """Node slots worth a closer look: of each sort those that lack least."""
        fleet = self._field.fleet
        slots = np.flatnonzero(fleet.present)
        if not len(slots):
            return []
        sorts, worth = self._sorts(slots)
        order = np.lexsort((slots, worth, sorts))
        _, starts = np.unique(sorts[order], return_index=True)
        per_sort = PER_SORT if self._group.needs.is_by_kind else PER_SORT_OF_SINGLES
        runs = [order[start : start + per_sort] for start in starts.tolist()]
        bounds = [*starts.tolist()[1:], len(order)]
        runs = [run[: bound - start] for run, start, bound in zip(runs, starts.tolist(), bounds, strict=True)]
        runs.sort(key=lambda run: float(worth[run[0]]))
        return [int(slot) for run in runs[:SORTS_MAX] for slot in slots[run].tolist()][:CLOSE_MAX]

    def _sorts(self, slots: Slots) -> tuple[Slots, NDArray[np.float64]]:
        """Per slot a number for the set of its obstacles, and roughly how large they are."""
        field, fleet, usage = self._field, self._field.fleet, self._group.usage
        sorts = np.zeros(len(slots), dtype=np.int64)
        worth = np.zeros(len(slots))
        kinds: dict[int, int] = {}
        if self._group.needs.is_by_kind:
            kinds = {kind: len(tuple(self._needs(node))) for kind, node in fleet.kinds.representatives()}
        table = np.zeros(int(fleet.kind.max(initial=0)) + 1)
        for kind, count in kinds.items():
            if kind < len(table):
                table[kind] = count
        bits = (
            ~field.in_pool[slots],
            field.in_pool[slots] & ~field.in_scope[slots],
            fleet.status[slots] != _READY,
            ~fleet.eligible[slots],
            fleet.draining[slots],
            np.isin(slots, list(self._taken | self._busy)),
            (fleet.max_allocs[slots] > 0) & (fleet.occupied_allocs[slots] >= fleet.max_allocs[slots]),
            field.ready[slots] & ~self._group.mask[slots] & (not self._group.needs.is_by_kind),
        )
        for at, bit in enumerate(bits):
            sorts += bit.astype(np.int64) << at
            worth += bit * EACH_FURTHER
        at = len(bits)
        for ask, used, have in (
            (usage.cpu, fleet.occupied_cpu, fleet.cap_cpu),
            (usage.memory, fleet.occupied_memory, fleet.cap_memory),
            (usage.disk, fleet.occupied_disk, fleet.cap_disk),
        ):
            lack = np.maximum(0.0, used[slots] + ask - have[slots])
            sorts += (lack > 0).astype(np.int64) << at
            worth += (lack > 0) * EACH_FURTHER + np.minimum(lack / max(ask, 1), 100.0) / 100.0
            at += 1
        per_kind = table[fleet.kind[slots]]
        sorts += np.where(per_kind > 0, fleet.kind[slots].astype(np.int64) + 1, 0) << at
        return sorts, worth + per_kind * EACH_FURTHER

    # ---------------------------------------------------------------- single obstacles

    def _scope(self, slot: int, node: Node) -> Iterator[Obstacle]:
        job, name = self._field.job, name_of(node)
        if slot in self._busy:
            yield _obstacle(ALREADY_THERE, "", 0, 0.0, f"the group is on {name} already", "")
        if job.node_pool not in (ALL_POOLS, node.node_pool):
            words = f'{name} is in node pool "{node.node_pool}", the job in "{job.node_pool}"'
            yield _obstacle("node-pool", node.node_pool, 0, 1.0, words, f'the job is in node pool "{node.node_pool}"')
        if not in_datacenters(job.datacenters, node.datacenter):
            words = f'{name} is in datacenter "{node.datacenter}", which the job does not name'
            change = f'datacenters include "{node.datacenter}"'
            yield _obstacle("datacenter", node.datacenter, 0, 0.9, words, change)
        fleet = self._field.fleet
        status = NODE_STATUSES[int(fleet.status[slot])]
        if status is not NodeStatus.READY:
            yield _obstacle("status", name, 0, 0.7, f"{name} is {status.value}", f"node {name} is ready")
        if fleet.draining[slot]:
            yield _obstacle("draining", name, 0, 0.6, f"{name} is draining", f"node {name} is not draining")
        if not fleet.eligible[slot]:
            yield _obstacle("ineligible", name, 0, 0.1, f"{name} is not eligible", f"node {name} is eligible")

    def _needs(self, node: Node) -> Iterator[Obstacle]:
        """What the node is, as opposed to what is on it."""
        needs, name = self._group.needs, name_of(node)
        texts = {MISSING_DRIVERS}
        for constraint in needs.constraints:
            text = reason_of(constraint).strip()
            texts.add(reason_of(constraint))
            if not test_of(constraint)(node):
                yield _obstacle(
                    "constraint",
                    text,
                    0,
                    0.8,
                    f'{name} is ruled out by constraint "{text}"',
                    f'constraint "{text}" is dropped',
                )
        for driver in needs.drivers:
            info = node.drivers.get(driver)
            if info is not None and info.detected and not info.healthy:
                words = f"{name} has driver {driver}, but it is unhealthy"
                yield _obstacle("driver-health", driver, 0, 0.3, words, f"driver {driver} is healthy on {name}")
            elif not info.detected if info is not None else not as_bool(node.attributes.get(f"driver.{driver}", "")):
                yield _obstacle(
                    "driver", driver, 0, 1.4, f"{name} has no driver {driver}", f"{name} has driver {driver}"
                )
        for check in (*needs.kind_checks, *needs.node_checks):
            reason = check(node)
            if reason is not None and reason.text not in texts:
                change = f"{name} has {self._lacking(reason.text)}"
                yield _obstacle("missing", reason.text, 0, 1.6, f"{name}: {reason.text}", change)
        if needs.volumes:
            short = check_node(needs._replace(node_checks=()), node)
            if short is not None:
                wanted = ", ".join(sorted({request.source for request in needs.volumes}))
                words = f"{name} does not offer the host volumes ({wanted})"
                yield _obstacle("volumes", wanted, 0, 1.6, words, f"{name} offers the host volumes ({wanted})")

    def _lacking(self, text: str) -> str:
        """What the node would need to have, for a reason that it is filtered for."""
        if text == MISSING_NETWORK:
            return f'a network of mode "{self._group.group.networks[0].mode or "host"}"'
        if text == MISSING_DEVICES:
            wanted = ", ".join(f"{device.count} x {device.name}" for device in self._group.ask.devices)
            return f"the devices, well and as asked for ({wanted})"
        return text.removeprefix("missing ") if text.startswith("missing ") else f'no cause for "{text}"'

    def _distinct(self, slot: int, node: Node) -> Iterator[Obstacle]:
        name = name_of(node)
        if slot in self._taken and slot not in self._busy:
            words = f"{name} has an allocation already, and hosts must be distinct"
            yield _obstacle(HOSTS_REASON, "", 0, 0.8, words, f"constraint {HOSTS_REASON} is dropped")
        for limit in self._group.needs.property_limits:
            values = self._field.values(limit.attribute)
            value = lookup(limit.attribute, node)
            if value is None:
                yield _obstacle(
                    "property",
                    limit.attribute,
                    0,
                    1.5,
                    f"{name} has no {limit.attribute}",
                    f"{name} has {limit.attribute}",
                )
                continue
            mine = self._here if limit.scope is Scope.GROUP else self._where(None)
            used = values.used(mine).get(values.ids.get(value, -1), 0)
            if used >= limit.limit:
                words = f"{used} allocations have {limit.attribute} = {value}, {limit.limit} may"
                change = f"distinct_property {limit.attribute} allows {used + 1}"
                yield _obstacle("distinct_property", limit.attribute, used + 1 - limit.limit, 0.8, words, change)

    def _room(self, slot: int, node: Node) -> Iterator[Obstacle]:
        room, ask = self._chooser.room(slot), self._group.ask
        if room is None:
            return
        name = name_of(node)
        yield from _special_obstacles(room, ask, name)
        given = room.special_offer(_reduced_to_fit(room, ask)) if ask.cores else None
        more = sums_of(ask) if given is None or isinstance(given, Exhausted) else sums_of(ask, given)
        lacks = room.lacks(more)
        if lacks.allocs:
            words = f"{name} holds all the {room.capacity.max_allocs} allocations it may"
            yield _obstacle("allocs", name, lacks.allocs, 1.2, words, f"{name} holds {lacks.allocs} allocations fewer")
        yield from _plain_obstacles(lacks, more, ask, name)

    def _where(self, group: str | None) -> Slots:
        roster = self._roster
        if not len(roster):
            return np.empty(0, dtype=np.int64)
        stays = ~roster.client_terminal()
        if group is not None:
            stays &= np.array([origin.group == group for origin in roster.origins], dtype=np.bool_)[roster.which]
        found: Slots = roster.rows["node"][stays].astype(np.int64)
        return found


def _obstacle(kind: str, subject: str, amount: int, cost: float, words: str, change: str) -> Obstacle:
    return Obstacle(kind=kind, subject=subject, amount=amount, cost=round(cost, 4), words=words, change=change)


_OF_A_NODE: Final = frozenset({"status", "draining", "ineligible", "allocs", "cpu-free", "memory-free", "disk-free"})
"""Kinds whose subject is the node: the same change on another node is the same kind of change."""


_TOLD_BY: Final = {MISSING_DEVICES: "devices", "volumes": "volumes"}
"""What a node does not have at all need not be said to be taken as well."""


def name_of(node: Node) -> str:
    """How a node is called in a text."""
    return node.name or node.id[:8]


def _cost(obstacles: tuple[Obstacle, ...]) -> float:
    return sum(one.cost for one in obstacles) + EACH_FURTHER * (len(obstacles) - 1)


def _plain_obstacles(lacks: Sums, more: Sums, ask: Ask, name: str) -> Iterator[Obstacle]:
    least_cpu = MIN_CPU_MHZ * sum(not task.cores for task in ask.tasks)
    floors = (
        (CPU, lacks.cpu, more.cpu, ask.cpu, least_cpu),
        (MEMORY, lacks.memory_mb, more.memory_mb, ask.memory_mb, MIN_MEMORY_MB * len(ask.tasks)),
        (DISK, lacks.disk_mb, more.disk_mb, ask.disk_mb, MIN_DISK_MB),
    )
    for kind, lack, whole, plain, least in floors:
        if not lack:
            continue
        unit = _UNITS[kind]
        words = f"{name} has {whole - lack} {unit} of {kind} free, {whole} {unit} are asked for"
        ratio = lack / max(whole, 1)
        if plain - lack >= least and plain:
            yield _obstacle(kind, "", lack, 0.2 + ratio, words, f"{kind} is {lack} {unit} less")
        else:
            change = f"{lack} {unit} more {kind} is free on {name}"
            yield _obstacle(f"{kind}-free", name, lack, 1.5 + ratio, words, change)


def _special_obstacles(room: NodeRoom, ask: Ask, name: str) -> Iterator[Obstacle]:
    """Ports, devices, cores and volumes, each by itself."""
    if not ask.needs_special:
        return
    bare = [task._replace(cores=0, networks=(), devices=()) for task in ask.tasks]
    nothing = ask._replace(cores=0, tasks=tuple(bare), network=None, devices=(), volumes=())
    if ask.network is not None:
        yield from _port_obstacles(room, nothing, ask.network, name)
    parts = [
        (kind, nothing._replace(**given))
        for kind, given in (
            ("devices", {"devices": ask.devices}),
            ("volumes", {"volumes": ask.volumes}),
            ("ports", {"tasks": tuple(b._replace(networks=t.networks) for b, t in zip(bare, ask.tasks, strict=True))}),
        )
    ]
    for kind, part in parts:
        given = room.special_offer(part)
        if isinstance(given, Exhausted):
            yield _obstacle(kind, name, 0, 1.6, f"{name}: {given.dimension}", f"{kind} asked for are free on {name}")
    yield from _core_obstacles(room, ask, name)


def _port_obstacles(room: NodeRoom, nothing: Ask, network: NetworkResource, name: str) -> Iterator[Obstacle]:
    good = []
    for port in network.reserved_ports:
        alone = replace(network, reserved_ports=(port,), dynamic_ports=())
        if isinstance(room.special_offer(nothing._replace(network=alone)), Exhausted):
            words, change = f"port {port.value} is taken on {name}", f"port {port.value} is free on {name}"
            yield _obstacle("port", str(port.value), port.value, 1.1, words, change)
        else:
            good.append(port)
    rest = room.special_offer(nothing._replace(network=replace(network, reserved_ports=tuple(good))))
    if isinstance(rest, Exhausted):
        yield _obstacle("ports", name, 0, 1.6, f"{name}: {rest.dimension}", f"more ports are free on {name}")


def _core_obstacles(room: NodeRoom, ask: Ask, name: str) -> Iterator[Obstacle]:
    if not ask.cores:
        return
    given = room.special_offer(_only_cores(ask))
    if not isinstance(given, Exhausted):
        return
    fewer = ask.cores - _reduced_to_fit(room, ask).cores
    words = f"{name}: not enough free cores for {ask.cores}"
    if fewer < ask.cores and len(ask.tasks) == 1:
        yield _obstacle("cores", "", fewer, 0.2 + fewer / ask.cores, words, f"cores are {fewer} fewer")
    else:
        yield _obstacle("cores-free", name, 0, 1.6, words, f"{ask.cores} cores are free on {name}")


def _reduced_to_fit(room: NodeRoom, ask: Ask) -> Ask:
    """The cores of the ask alone, with so many as there are; only of a group with one task any are taken away."""
    only = _only_cores(ask)
    while only.cores and len(only.tasks) == 1 and isinstance(room.special_offer(only), Exhausted):
        fewer = only.cores - 1
        only = only._replace(cores=fewer, tasks=(only.tasks[0]._replace(cores=fewer),))
    return only


def _only_cores(ask: Ask) -> Ask:
    tasks = tuple(task._replace(networks=(), devices=()) for task in ask.tasks)
    return ask._replace(network=None, devices=(), volumes=(), tasks=tasks)


def least_node(ask: Ask) -> str:
    """What an empty node would need to have, in words."""
    cores = f", {ask.cores} cores" if ask.cores else ""
    return f"{ask.cpu} MHz, {ask.memory_mb} MB of memory, {ask.disk_mb} MB of disk{cores}"
