"""The slow truth about over-commitment: whole records, plain sums and sets, no code shared with scheduler or applier.

`PlanWatch` looks at every plan that becomes part of a state, in whatever test; see `conftest.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from fedsched.model.alloc import Allocation
from fedsched.model.group import TaskGroup
from fedsched.model.ids import uuid_text
from fedsched.model.node import Node
from fedsched.model.resources import AllocatedResources
from fedsched.state.commands import CommandKind
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch
from fedsched.state.transaction import Transaction

ENDED = ("complete", "failed", "lost")


class Resident(NamedTuple):
    """An allocation on a node, with the group it was placed from."""

    alloc: Allocation
    group: TaskGroup | None

    @property
    def given(self) -> AllocatedResources:
        return self.alloc.allocated_resources or AllocatedResources()


class PlanWatch:
    """Stands before the command that commits plans and notes every one that promises too much."""

    def __init__(self, kind: CommandKind) -> None:
        self._kind = kind
        self.seen = 0
        self.problems: list[str] = []

    def watched(self) -> CommandKind:
        return self._kind._replace(apply=self._apply)

    def _apply(self, tx: Transaction, command: Any) -> Result:
        result = self._kind.apply(tx, command)
        if result.is_done:
            self.seen += 1
            found = _found_on(tx.store, placed_on(command), ids_of(command.placed))
            self.problems += [f"plan of {command.job_id} at index {tx.index}: {problem}" for problem in found]
        return result


def _found_on(state: State, node_slots: set[int], new_ids: set[str]) -> list[str]:
    """What is promised on these nodes beyond what they have, or given away although they keep it for themselves."""
    found = []
    for row in state.nodes.rows.scan():
        if row.slot in node_slots:
            there = _residents(state, row.slot)
            problems = _problems(row.node(), [one for one in there if one.alloc.desired_status == "run"])
            problems += _not_to_give(row.node(), [one for one in there if one.alloc.id in new_ids])
            found += [f"{row.name or row.id}: {problem}" for problem in problems]
    return found


def ids_of(parts: Iterable[PlacedGroup | StoppedBatch]) -> set[str]:
    """The allocations in parts of a plan."""
    return {uuid_text(part.ids[at : at + 16]) for part in parts for at in range(0, len(part.ids), 16)}


def placed_on(plan: PlanApply) -> set[int]:
    """The slots of the nodes on which a plan places something."""
    return {slot for group in plan.placed for slot in memoryview(group.node_slots).cast("I").tolist()}


def overcommitted(state: State, node_slots: set[int] | None = None) -> list[str]:
    """What is promised on each of these nodes (all, if not said) beyond what it has; empty if all is well.

    An allocation is there while servers want it and its client has not ended it.
    """
    found = []
    for row in state.nodes.rows.scan():
        if node_slots is None or row.slot in node_slots:
            there = [one for one in _residents(state, row.slot) if one.alloc.desired_status == "run"]
            found += [f"{row.name or row.id}: {problem}" for problem in _problems(row.node(), there)]
    return found


def taken_too_early(state: State, plan: PlanApply) -> list[str]:
    """What a plan gives away before its holder has ended. A worker has to be this strict, an applier not.

    What servers want no more keeps its place until its client says that it ended, but for what the same plan stops.
    """
    leaving, new = ids_of(plan.stopped), ids_of(plan.placed)
    found = []
    for slot in sorted(placed_on(plan)):
        row = state.nodes.of_slot(slot)
        assert row is not None
        there = [one for one in _residents(state, slot) if one.alloc.id not in leaving or one.alloc.id in new]
        before = Counter(_problems(row.node(), [one for one in there if one.alloc.id not in new]))
        added = Counter(_problems(row.node(), there)) - before
        found += [f"{row.name or row.id}: {problem}" for problem in added]
    return found


def _residents(state: State, node_slot: int) -> list[Resident]:
    slots = state.allocations.slots_of_node(node_slot)
    found = []
    for slot, alloc in zip(slots.tolist(), state.allocations.records(slots), strict=True):
        job = state.jobs.version_by_key(state.allocations.origin_of(slot).version_key)
        if alloc.client_status not in ENDED:
            found.append(Resident(alloc, job.group(alloc.task_group) if job else None))
    return found


# ---------------------------------------------------------------------- too much of something


def _problems(node: Node, there: list[Resident]) -> list[str]:
    given = [one.given for one in there]
    have, kept = node.node_resources, node.reserved_resources
    problems = _more("cpu", sum(_cpu(one) for one in given), _mhz(node) - kept.cpu.cpu_shares)
    problems += _more("memory", sum(_memory(one) for one in given), have.memory.memory_mb - kept.memory.memory_mb)
    problems += _more("disk", sum(one.shared.disk_mb for one in given), have.disk.disk_mb - kept.disk.disk_mb)
    if node.node_max_allocs:
        problems += _more("allocations", len(there), node.node_max_allocs)
    problems += _twice("core", (core for one in given for core in _cores(one)))
    problems += _twice("device", (device for one in given for device in _devices(one)))
    problems += _shared_ports(node, given)
    problems += _shared_volumes(node, there)
    problems += [problem for one in there for problem in _bursts(one)]
    return problems


def _mhz(node: Node) -> int:
    topology = node.node_resources.processors.topology
    if topology is None or not topology.cores:
        return node.node_resources.cpu.cpu_shares
    kept = node.reserved_resources.cpu.reserved_cpu_cores
    usable = [core for core in topology.cores if not core.disable and core.id not in kept]
    speeds = (core.base_speed or core.max_speed or core.guess_speed for core in usable)
    return topology.override_total_compute or sum(speeds)


def _cpu(given: AllocatedResources) -> int:
    pinned = sum(task.cpu.cpu_shares for task in given.tasks.values() if task.cpu.reserved_cores)
    loose = {name: task.cpu.cpu_shares for name, task in given.tasks.items() if not task.cpu.reserved_cores}
    return pinned + _largest_phase(given, loose)


def _memory(given: AllocatedResources) -> int:
    return _largest_phase(given, {name: task.memory.memory_mb for name, task in given.tasks.items()})


def _largest_phase(given: AllocatedResources, amounts: dict[str, int]) -> int:
    before = after = during = 0
    for name, amount in amounts.items():
        lifecycle = given.task_lifecycles.get(name)
        hook = lifecycle.hook if lifecycle else ""
        before += amount if hook == "prestart" else 0
        after += amount if hook == "poststop" else 0
        runs_along = hook in ("", "poststart") or (hook == "prestart" and lifecycle is not None and lifecycle.sidecar)
        during += amount if runs_along else 0
    return max(before, during, after)


def _cores(given: AllocatedResources) -> Iterator[int]:
    for task in given.tasks.values():
        yield from task.cpu.reserved_cores


def _devices(given: AllocatedResources) -> Iterator[tuple[str, str]]:
    for task in given.tasks.values():
        for device in task.devices:
            for instance in device.device_ids:
                yield f"{device.vendor}/{device.type}/{device.name}", instance


def _bursts(one: Resident) -> list[str]:
    """Memory that a task may use for a while is no promise, but never more than it asked for."""
    problems = []
    for task in one.group.tasks if one.group else ():
        part = one.given.tasks.get(task.name)
        most = max(task.resources.memory_mb, task.resources.memory_max_mb)
        if part is not None and part.memory.memory_max_mb > most:
            problems.append(f"{one.alloc.name} may use {part.memory.memory_max_mb} MB of memory, asked for {most}")
    return problems


# ---------------------------------------------------------------------- ports and volumes


class _Port(NamedTuple):
    value: int
    addresses: frozenset[str]
    """All on which it is taken."""
    collides: bool


def _ports(node: Node, given: AllocatedResources) -> Iterator[_Port]:
    blocks = given.shared.networks
    alias_of = {
        port.label: port.host_network for block in blocks for port in block.reserved_ports + block.dynamic_ports
    }
    for mapping in given.shared.ports:
        alias = alias_of.get(mapping.label) or "default"
        yield _Port(mapping.value, _addresses(node, alias) | {mapping.host_ip}, not mapping.ignore_collision)
    whole = [block for task in given.tasks.values() for block in task.networks]
    for block in [*whole, *(() if given.shared.ports else blocks)]:
        for port in block.reserved_ports + block.dynamic_ports:
            addresses = _addresses(node, port.host_network or "default") | {block.ip}
            yield _Port(port.value, addresses, not port.ignore_collision)


def _addresses(node: Node, alias: str) -> frozenset[str]:
    networks = node.node_resources.node_networks
    return frozenset(
        part.address for network in networks for part in network.addresses if (part.alias or "default") == alias
    )


def _shared_ports(node: Node, given: list[AllocatedResources]) -> list[str]:
    by_value: dict[int, list[_Port]] = {}
    for one in given:
        for port in _ports(node, one):
            by_value.setdefault(port.value, []).append(port)
    return [
        f"port {value} is given to two on {sorted(left.addresses & right.addresses)}"
        for value, alike in by_value.items()
        for left, right in combinations(alike, 2)
        if left.collides and right.collides and left.addresses & right.addresses
    ]


def _shared_volumes(node: Node, there: list[Resident]) -> list[str]:
    """A volume that servers made, and that somebody has to write alone, has one writer."""
    writers: Counter[str] = Counter()
    alone: set[str] = set()
    for one in there:
        for volume in one.group.volumes.values() if one.group else ():
            if volume.type != "host" or volume.read_only:
                continue
            name = f"{volume.source}[{one.alloc.name.rsplit('[', 1)[1]}" if volume.per_alloc else volume.source
            offered = node.host_volumes.get(name)
            if offered is not None and offered.id:
                writers[name] += 1
                alone |= {name} if volume.access_mode == "single-node-single-writer" else set()
    return [f"volume {name} has {writers[name]} writers" for name in sorted(alone) if writers[name] > 1]


# ---------------------------------------------------------------------- not the node's to give


def _not_to_give(node: Node, new: list[Resident]) -> list[str]:
    problems = []
    topology = node.node_resources.processors.topology
    cores = {core.id for core in topology.cores if not core.disable} if topology and topology.cores else None
    usable = set(node.node_resources.cpu.reservable_cpu_cores) if cores is None else cores
    usable -= set(node.reserved_resources.cpu.reserved_cpu_cores)
    instances = {(kind.id, part.id) for kind in node.node_resources.devices for part in kind.instances if part.healthy}
    for one in new:
        problems += [f"core {core} is not to be had" for core in _cores(one.given) if core not in usable]
        problems += [f"device {device} is not to be had" for device in _devices(one.given) if device not in instances]
        for port in _ports(node, one.given):
            if port.collides and any(port.value in kept for kept in _kept_ports(node, port.addresses)):
                problems.append(f"port {port.value} is kept by the node")
    return problems


def _kept_ports(node: Node, addresses: frozenset[str]) -> Iterator[set[int]]:
    yield _listed(node.reserved_resources.networks.reserved_host_ports)
    for network in node.node_resources.node_networks:
        for part in network.addresses:
            if part.address in addresses:
                yield _listed(part.reserved_ports)


def _listed(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _more(what: str, used: int, have: int) -> list[str]:
    return [f"{what}: {used} of {have}"] if used > have else []


def _twice(what: str, given: Iterable[Any]) -> list[str]:
    return [f"{what} {one} is given to {count}" for one, count in Counter(given).items() if count > 1]
