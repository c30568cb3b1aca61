"""What is really on the nodes of a simulated region, counted anew from whole records. Slow and simple on purpose.

Plain sums and sets: nothing here shares code with the scheduler, its fleet or the applier. Records are decoded once and
kept, since they are asked for at every commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np

from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.model.resources import AllocatedResources
from fedsched.state.columns import Slots
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import id_of
from fedsched.state.tables.job_rows import JobVersionRow
from fedsched.state.tables.nodes import NodeRow

RUN: Final = 1
ENDED: Final = (3, 4, 5)
UNKNOWN: Final = 6
CANARY: Final = 1
NO_RESOURCES: Final = AllocatedResources()
SINGLE_WRITER: Final = "single-node-single-writer"
KEPT_MAX: Final = 20_000


class Held(NamedTuple):
    """An allocation, as far as the checks care."""

    id: str
    slot: int
    name_index: int
    desired: int
    client: int
    flags: int
    group: str
    version_key: tuple[Any, ...]
    deployment_id: str
    create_index: int
    health: int

    @property
    def occupies(self) -> bool:
        """Its client has not said that it ended: a worker leaves its place alone."""
        return self.client not in ENDED

    @property
    def is_live(self) -> bool:
        """Servers want it, and it has not ended: the applier counts it."""
        return self.desired == RUN and self.client not in ENDED

    @property
    def is_canary(self) -> bool:
        return bool(self.flags & CANARY)

    @property
    def job_id(self) -> str:
        return str(self.version_key[1])

    @property
    def name(self) -> str:
        return f"{self.job_id}.{self.group}[{self.name_index}]"


class Need(NamedTuple):
    """What one allocation takes of a node."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    cores: int = 0
    devices: int = 0
    ports: frozenset[int] = frozenset()
    has_network: bool = False


class Truth:
    """Reads states. One for all servers of a world: the same command makes the same records everywhere."""

    def __init__(self) -> None:
        self._given: dict[tuple[int, ...], AllocatedResources] = {}
        self._jobs: dict[JobVersionRow, Job] = {}
        self._nodes: dict[NodeRow, Node] = {}

    # ------------------------------------------------------------------ records

    def job(self, state: State, version_key: Sequence[Any]) -> Job | None:
        """The version of its job that an allocation belongs to."""
        row = state.jobs.version_rows.get(*version_key)
        if row is None:
            return None
        if row not in self._jobs:
            self._jobs[row] = row.job()
        return self._jobs[row]

    def current(self, state: State, namespace: str, job_id: str) -> Job | None:
        row = state.jobs.row(namespace, job_id)
        return self.job(state, row.version_key) if row is not None else None

    def node(self, row: NodeRow) -> Node:
        if row not in self._nodes:
            self._nodes[row] = row.node()
        return self._nodes[row]

    def on_node(self, state: State, node_slot: int) -> list[Held]:
        return self._held(state, state.allocations.slots_of_node(node_slot))

    def of_job(self, state: State, namespace: str, job_id: str) -> list[Held]:
        return self._held(state, state.allocations.slots_of_job(namespace, job_id))

    def of_ids(self, state: State, ids: Iterable[str]) -> list[Held]:
        slots = np.array([state.allocations.slot_of(one) for one in ids], dtype=np.int64)
        return self._held(state, slots[slots >= 0])

    def _held(self, state: State, slots: Slots) -> list[Held]:
        found = []
        for slot, row in zip(slots.tolist(), state.allocations.columns.read(slots), strict=True):
            origin = state.allocations.origins.get(int(row["origin"]))
            assert origin is not None
            found.append(
                Held(
                    id=id_of(row),
                    slot=slot,
                    name_index=int(row["name_index"]),
                    desired=int(row["desired"]),
                    client=int(row["client_status"]),
                    flags=int(row["flags"]),
                    group=origin.group,
                    version_key=origin.version_key,
                    deployment_id=origin.deployment_id,
                    create_index=int(row["create_index"]),
                    health=int(row["health"]),
                )
            )
        return found

    def given(self, state: State, held: Held) -> AllocatedResources:
        """What the plan gave it."""
        row = state.allocations.columns.one(held.slot)
        key = (int(row["id"][0]), int(row["id"][1]), int(row["origin"]), int(row["plan_crc"]))
        if key not in self._given:
            if len(self._given) > KEPT_MAX:
                self._given.clear()
            record = state.allocations.records(np.array([held.slot], dtype=np.int64))[0]
            self._given[key] = record.allocated_resources or NO_RESOURCES
        return self._given[key]

    # ------------------------------------------------------------------ what is too much

    def overcommitted(self, state: State, row: NodeRow) -> list[str]:
        """What is promised on a node beyond what it has."""
        node = self.node(row)
        live = [held for held in self.on_node(state, row.slot) if held.is_live]
        given = [self.given(state, held) for held in live]
        have, kept = node.node_resources, node.reserved_resources
        sums = (
            ("cpu", sum(map(_cpu, given)), have.cpu.cpu_shares - kept.cpu.cpu_shares),
            ("memory", sum(map(_memory, given)), have.memory.memory_mb - kept.memory.memory_mb),
            ("disk", sum(one.shared.disk_mb for one in given), have.disk.disk_mb - kept.disk.disk_mb),
        )
        problems = [f"{what}: {used} of {there}" for what, used, there in sums if used > there]
        problems += _beyond("core", _cores(given), have.cpu.reservable_cpu_cores)
        known = [f"{one.id}/{part.id}" for one in have.devices for part in one.instances]
        problems += _beyond("device", _devices(given), known)
        problems += _beyond("port", (port for one in given for port in _ports(one)), None)
        problems += self._writers(state, node, live)
        problems += self._bursts(state, live)
        return problems

    def _writers(self, state: State, node: Node, live: list[Held]) -> list[str]:
        """Volumes that servers made, and that somebody has to write alone."""
        writers: Counter[str] = Counter()
        alone: set[str] = set()
        for held in live:
            job = self.job(state, held.version_key)
            group = job.group(held.group) if job is not None else None
            for volume in group.volumes.values() if group is not None else ():
                there = node.host_volumes.get(volume.source)
                if there is not None and there.id and not volume.read_only:
                    writers[volume.source] += 1
                    alone |= {volume.source} if volume.access_mode == SINGLE_WRITER else set()
        return [f"volume {name} has {writers[name]} writers" for name in sorted(alone) if writers[name] > 1]

    def _bursts(self, state: State, live: list[Held]) -> list[str]:
        """Memory beyond what is reserved is no promise to anybody else; but nobody may use more than was asked for."""
        problems = []
        for held in live:
            job = self.job(state, held.version_key)
            group = job.group(held.group) if job is not None else None
            for task in group.tasks if group is not None else ():
                part = self.given(state, held).tasks.get(task.name)
                most = max(task.resources.memory_mb, task.resources.memory_max_mb)
                if part is not None and max(part.memory.memory_mb, part.memory.memory_max_mb) > most:
                    problems.append(f"{held.name} may use {part.memory.memory_max_mb} MB, asked for {most}")
        return problems

    # ------------------------------------------------------------------ what would fit

    def could_place(self, state: State, job: Job, group: TaskGroup, row: NodeRow) -> bool:
        """Whether one more of a group would fit on a node as it is: the plain rules that the jobs of a run use."""
        node = self.node(row)
        if node.node_pool != job.node_pool or not _meets(node, job, group):
            return False
        there = [self.given(state, held) for held in self.on_node(state, row.slot) if held.occupies]
        return self.fits(node, there, [need_of(group, node)])

    def fits(self, node: Node, there: Sequence[AllocatedResources], needs: Sequence[Need]) -> bool:
        have = node.node_resources
        held = [port for one in there for _, port in _ports(one)]
        if any(need.has_network for need in needs) and len(set(held)) < len(held):
            return False  # somebody who stops still has a port of somebody who begins: until then it is nobody's turn
        ports = held + [port for need in needs for port in need.ports]
        wanted_ports = {port for need in needs for port in need.ports}
        cores = len(set(_cores(there))) + sum(need.cores for need in needs)
        devices = len(set(_devices(there))) + sum(need.devices for need in needs)
        wants_devices = any(need.devices for need in needs)
        return (
            sum(map(_cpu, there)) + sum(need.cpu for need in needs) <= have.cpu.cpu_shares
            and sum(map(_memory, there)) + sum(need.memory for need in needs) <= have.memory.memory_mb
            and sum(one.shared.disk_mb for one in there) + sum(need.disk for need in needs) <= have.disk.disk_mb
            and all(ports.count(port) <= 1 for port in wanted_ports)
            and (not any(need.cores for need in needs) or cores <= len(have.cpu.reservable_cpu_cores))
            and (not wants_devices or devices <= sum(len(one.instances) for one in have.devices))
        )

    def fewest(self, state: State, row: NodeRow, gone: set[str], victims: Sequence[Held], needs: list[Need]) -> int:
        """How many of the victims have to go so that the needs fit; one more than there are if all do not suffice."""
        node = self.node(row)
        names = {victim.id for victim in victims}
        stay = [
            self.given(state, held)
            for held in self.on_node(state, row.slot)
            if held.occupies and held.id not in gone and held.id not in names
        ]
        given = {victim.id: self.given(state, victim) for victim in victims}
        for count in range(len(victims) + 1):
            for leaving in combinations(sorted(names), count):
                kept = [given[one] for one in sorted(names) if one not in leaving]
                if self.fits(node, [*stay, *kept], needs):
                    return count
        return len(victims) + 1


def need_of(group: TaskGroup, node: Node) -> Need:
    """What one allocation of a group takes on a node; all tasks of these jobs are main tasks."""
    cpu = node.node_resources.cpu
    cores = sum(task.resources.cores for task in group.tasks)
    mhz = cpu.cpu_shares // max(1, cpu.total_cpu_cores)
    return Need(
        cpu=sum(task.resources.cores * mhz or task.resources.cpu for task in group.tasks),
        memory=sum(task.resources.memory_mb for task in group.tasks),
        disk=group.ephemeral_disk.size_mb,
        cores=cores,
        devices=sum(asked.count for task in group.tasks for asked in task.resources.devices),
        ports=frozenset(port.value for network in group.networks for port in network.reserved_ports),
        has_network=bool(group.networks),
    )


def _meets(node: Node, job: Job, group: TaskGroup) -> bool:
    constraints = (*job.constraints, *group.constraints, *(one for task in group.tasks for one in task.constraints))
    for constraint in constraints:
        if constraint.l_target == "${meta.rack}" and node.meta.get("rack") != constraint.r_target:
            return False
    for volume in group.volumes.values():
        there = node.host_volumes.get(volume.source)
        if there is None or (there.read_only and not volume.read_only):
            return False
    wanted = sum(asked.count for task in group.tasks for asked in task.resources.devices)
    if wanted > sum(len(one.instances) for one in node.node_resources.devices):
        return False
    return not group.networks or bool(node.node_resources.node_networks)


def _cpu(given: AllocatedResources) -> int:
    return sum(task.cpu.cpu_shares for task in given.tasks.values())


def _memory(given: AllocatedResources) -> int:
    return sum(task.memory.memory_mb for task in given.tasks.values())


def _ports(given: AllocatedResources) -> list[tuple[str, int]]:
    return [(port.host_ip, port.value) for port in given.shared.ports if not port.ignore_collision]


def _cores(given: Iterable[AllocatedResources]) -> list[int]:
    return [core for one in given for task in one.tasks.values() for core in task.cpu.reserved_cores]


def _devices(given: Iterable[AllocatedResources]) -> list[str]:
    return [
        f"{device.vendor}/{device.type}/{device.name}/{instance}"
        for one in given
        for task in one.tasks.values()
        for device in task.devices
        for instance in device.device_ids
    ]


def _beyond(what: str, promised: Iterable[Any], there: Iterable[Any] | None) -> list[str]:
    counts = Counter(promised)
    problems = [f"{what} {one} is given to {count}" for one, count in sorted(counts.items()) if count > 1]
    if there is not None:
        problems += [f"there is no {what} {one}" for one in sorted(counts.keys() - set(there))]
    return problems
