"""What must hold in a region at every commit, and once everything is quiet. Slow and simple on purpose.

Whole records, plain sums and sets: nothing here shares code with the scheduler or the applier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsched.codec import from_bytes
from fedsched.model.alloc import Allocation
from fedsched.model.ids import uuid_text
from fedsched.model.job import Job
from fedsched.model.node import DrainStrategy, Node
from fedsched.model.resources import AllocatedResources
from fedsched.sim.verdict import Broken
from fedsched.state.columns import Slots
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import DESIRED_CODES
from fedsched.state.tables.launches import PeriodicLaunch
from fedsched.state.tables.node_updates import NodeDrainUpdate
from fedsched.state.tables.plans import PlanApply

if TYPE_CHECKING:
    from fedsched.sim.fleet_clients import SimNode
    from fedsched.sim.fleet_server import FleetServer
    from fedsched.sim.fleet_world import FleetWorld

EVICT: Final = next(code for status, code in DESIRED_CODES.items() if status.value == "evict")
ENDED: Final = ("complete", "failed", "lost")
PREEMPT_POINTS: Final = 10
PER_NODE: Final = ("system", "sysbatch")


def job_of(state: State, slot: int) -> Job | None:
    """The version of its job that an allocation belongs to."""
    return state.jobs.version_by_key(state.allocations.origin_of(slot).version_key)


def with_jobs(state: State, slots: Slots) -> list[tuple[Allocation, Job | None]]:
    jobs = [job_of(state, slot) for slot in slots.tolist()]
    return list(zip(state.allocations.records(slots), jobs, strict=True))


def is_live(alloc: Allocation) -> bool:
    return alloc.desired_status == "run" and alloc.client_status not in ENDED


class FleetChecks:
    """The invariants of a region's scheduling."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self.failure_rate = 0.01
        self.nodes: dict[str, SimNode] = {}
        self._launches: set[tuple[str, str, int]] = set()
        self._most: dict[str, int] = {}
        """The largest count that each job has had, also before it was purged and came again."""
        self._strategies: dict[str, DrainStrategy] = {}
        self._types: dict[str, str] = {}
        """Of every job that was ever planned for: an allocation outlives its purged job."""

    def committed(self, state: State, command: Command, result: Result) -> None:
        """The first server has applied this command."""
        if not result.is_done:
            return
        match command:
            case PlanApply():
                self._plan(state, command)
            case PeriodicLaunch():
                self._launch(state, command, result)
            case NodeDrainUpdate():
                self._drain(state, command)
            case _:
                pass

    # ------------------------------------------------------------------ plans

    def _plan(self, state: State, plan: PlanApply) -> None:
        slots = {slot for group in plan.placed for slot in memoryview(group.node_slots).cast("I").tolist()}
        for slot in sorted(slots):
            row = state.nodes.of_slot(slot)
            if row is None:
                continue
            problems = overcommitted(state, row.node(), slot)
            if problems:
                raise Broken("R-21 no over-commit", f"{row.name}: {'; '.join(problems)} after a plan of {plan.job_id}")
        job = state.jobs.get(plan.namespace, plan.job_id)
        if job is not None:
            self._types[job.id] = job.type
        self._names(state, plan.namespace, plan.job_id)
        self._preempted(state, plan)
        self._world.counts["placed"] += sum(len(group.ids) // 16 for group in plan.placed)

    def _names(self, state: State, namespace: str, job_id: str) -> None:
        """R-23, for one job."""
        taken: Counter[tuple[int, str]] = Counter()
        for alloc, job in with_jobs(state, state.allocations.slots_of_job(namespace, job_id)):
            if not is_live(alloc) or job is None or job.type in PER_NODE or alloc.client_status == "unknown":
                continue
            if alloc.deployment_status is not None and alloc.deployment_status.canary:
                continue
            taken[(job.version, alloc.name)] += 1
            group = job.group(alloc.task_group)
            index = int(alloc.name.rsplit("[", 1)[1][:-1])
            # Who replaces or updates another keeps its place, also one beyond a count that has shrunk since.
            most = self._most[job_id] = max(self._most.get(job_id, 0), group.count if group is not None else 0)
            if not 0 <= index < most:
                raise Broken("R-23 names in range", f"{alloc.name} of version {job.version}, count never beyond {most}")
        twice = [f"{name} of version {version}" for (version, name), count in taken.items() if count > 1]
        if twice:
            raise Broken("R-23 names unique", "; ".join(sorted(twice)))

    def _preempted(self, state: State, plan: PlanApply) -> None:
        """R-28: nobody within ten points is touched."""
        ids = b"".join(batch.ids for batch in plan.stopped if batch.desired == EVICT and not batch.client_status)
        versions = state.jobs.versions(plan.namespace, plan.job_id)
        mine = next((one for one in versions if one.version == plan.job_version), None)
        names = [uuid_text(ids[at : at + 16]) for at in range(0, len(ids), 16)]
        slots = np.array([state.allocations.slot_of(name) for name in names], dtype=np.int64)
        for alloc, job in with_jobs(state, slots[slots >= 0]):
            if job is None or mine is None:
                continue
            self._world.counts["preempted"] += 1
            if job.priority + PREEMPT_POINTS > mine.priority:
                what = f"{mine.id} ({mine.priority}) evicted {alloc.name} ({job.priority})"
                raise Broken("R-28 preemption keeps its distance", what)

    # ------------------------------------------------------------------ launches and drains

    def _launch(self, state: State, command: PeriodicLaunch, result: Result) -> None:
        """R-25: each moment at most once, and no overlap where none is wanted."""
        if not result.value["launched"]:
            return
        parent = state.jobs.get(command.namespace, command.id)
        assert parent is not None
        key = (command.id, str(parent.create_index), command.launch_ns)
        if key in self._launches:
            raise Broken("R-25 each launch once", f"{command.id} was launched twice for {command.launch_ns}")
        self._launches.add(key)
        self._world.counts["periodic launches"] += 1
        if parent.periodic is None or not parent.periodic.prohibit_overlap:
            return
        others = [
            row.id
            for row in state.jobs.scan(command.namespace)
            if row.parent_id == command.id and row.id != result.value["child_id"] and row.status != "dead"
        ]
        if others:
            raise Broken("R-25 no overlap", f"{result.value['child_id']} was launched while {others} had not ended")

    def _drain(self, state: State, command: NodeDrainUpdate) -> None:
        """R-27: a drain ends only when nothing runs there any more that it had to see off."""
        for update in command.updates:
            if update.strategy:
                self._strategies[update.id] = from_bytes(update.strategy, DrainStrategy)
            node = self.nodes.get(update.id)
            if not update.is_complete or node is None:
                continue
            self._world.counts["drains ended"] += 1
            strategy = self._strategies.get(update.id)
            spared = ("system",) if strategy is not None and strategy.ignore_system_jobs else ()
            known = ((alloc_id, state.allocations.get(alloc_id)) for alloc_id in node.running())
            running = [
                alloc.name
                for alloc_id, alloc in known
                if alloc is not None
                and self._types.get(alloc.job_id) not in spared
                and alloc.client_status not in ENDED
            ]
            if running and not node.is_gone:
                raise Broken("R-27 drained means empty", f"{node.name} still runs {running}")

    # ------------------------------------------------------------------ when it is quiet

    def restless(self, state: State, now_ns: int) -> list[str]:
        """R-20: evaluations that should have ended by now. A delayed one is timed when it comes up: a wall clock that
        jumps ahead later does not bring it forward, so that much later is still right.
        """
        due_ns = now_ns - round(self._world.jumped_ahead_s * 1e9)
        return [
            f"{row.id} of {row.job_id}: {row.status}, {row.triggered_by}"
            for row in state.evaluations.rows.scan()
            if row.status == "pending" and row.wait_until_ns <= (due_ns if row.wait_until_ns else now_ns)
        ]

    def wrongly_blocked(self, state: State) -> list[str]:
        """R-24: blocked although there is room, or more than one for a job."""
        found: list[str] = []
        owners: Counter[tuple[str, str]] = Counter()
        for row in state.evaluations.rows.scan():
            if row.status != "blocked":
                continue
            owners[(row.job_id, row.node_id if row.type in PER_NODE else "")] += 1
            job = state.jobs.get(row.namespace, row.job_id)
            if job is None or job.stop:
                found.append(f"{row.id}: its job {row.job_id} is gone")
                continue
            failed = row.evaluation().failed_tg_allocs
            placed = with_jobs(state, state.allocations.slots_of_job(row.namespace, row.job_id))
            versions = {one.version: one for alloc, one in placed if one is not None and is_live(alloc)}
            wanted = [job, *versions.values()]  # while canaries wait, older versions are kept up as well
            for node in _ready(state):
                if row.node_id and row.type in PER_NODE and node.id != row.node_id:
                    continue
                groups = [name for name in sorted(failed) if all(could_place(state, one, name, node) for one in wanted)]
                if groups:
                    found.append(f"{row.id} of {row.job_id}: {groups} would fit on {node.name}")
        found += [f"{count} blocked evaluations of {owner}" for owner, count in owners.items() if count > 1]
        return found

    def overdue_deployments(self, state: State, now_ns: int) -> list[str]:
        """R-26: running past the time by which there had to be progress."""
        late = now_ns - 10_000_000_000
        return [
            f"{row.id} of {row.job_id}: {row.status}, {name} had to move by {one.require_progress_by_ns}"
            for row in state.deployments.active()
            if row.status == "running"
            for name, one in row.progress().items()
            if 0 < one.require_progress_by_ns < late
            and one.healthy < max(one.desired_total, one.desired_canaries)
            and not (one.desired_canaries and not one.promoted and one.healthy >= one.desired_canaries)
        ]

    def plans(self, servers: Iterable[FleetServer]) -> Counter[str]:
        """What appliers say about the plans they saw; R-22 is that none is refused at the index it was made at."""
        found: Counter[str] = Counter()
        for server in servers:
            for family in server.metrics.families():
                if family.spec.name in ("plan.checked", "plan.refused_at_same_index"):
                    for labels, series in family.series.items():
                        found[" ".join((family.spec.name, *labels))] += int(series.value)
        return found


def _ready(state: State) -> list[Node]:
    return [row.node() for row in state.nodes.rows.scan() if row.is_ready]


def could_place(state: State, job: Job, group_name: str, node: Node) -> bool:
    """Whether one more of a group would fit on a node as it is: the plain rules that the jobs of a run use."""
    group = job.group(group_name)
    if group is None or node.node_pool != job.node_pool:
        return False
    for constraint in (
        *job.constraints,
        *group.constraints,
        *(one for task in group.tasks for one in task.constraints),
    ):
        if constraint.l_target == "${meta.rack}" and node.meta.get("rack") != constraint.r_target:
            return False
    row = state.nodes.get(node.id)
    assert row is not None
    held = [
        alloc
        for alloc in state.allocations.records(state.allocations.slots_of_node(row.slot))
        if alloc.client_status not in ENDED
    ]
    given = [alloc.allocated_resources for alloc in held if alloc.allocated_resources is not None]
    have = node.node_resources
    asked_ports = {port.value for network in group.networks for port in network.reserved_ports}
    if asked_ports & {port for one in given for _, port in _ports(one)}:
        return False
    return (
        sum(map(_cpu, given)) + sum(task.resources.cpu for task in group.tasks) <= have.cpu.cpu_shares
        and sum(map(_memory, given)) + sum(task.resources.memory_mb for task in group.tasks) <= have.memory.memory_mb
        and sum(one.shared.disk_mb for one in given) + group.ephemeral_disk.size_mb <= have.disk.disk_mb
    )


def overcommitted(state: State, node: Node, slot: int) -> list[str]:
    """What is promised on a node beyond what it has."""
    live = [alloc for alloc in state.allocations.records(state.allocations.slots_of_node(slot)) if is_live(alloc)]
    given = [alloc.allocated_resources for alloc in live if alloc.allocated_resources is not None]
    have, kept = node.node_resources, node.reserved_resources
    sums = (
        ("cpu", sum(map(_cpu, given)), have.cpu.cpu_shares - kept.cpu.cpu_shares),
        ("memory", sum(map(_memory, given)), have.memory.memory_mb - kept.memory.memory_mb),
        ("disk", sum(one.shared.disk_mb for one in given), have.disk.disk_mb - kept.disk.disk_mb),
    )
    problems = [f"{what}: {used} of {there}" for what, used, there in sums if used > there]
    ports = Counter(port for one in given for port in _ports(one))
    cores = Counter(core for one in given for task in one.tasks.values() for core in task.cpu.reserved_cores)
    problems += [f"port {port} is given to {count}" for port, count in ports.items() if count > 1]
    problems += [f"core {core} is given to {count}" for core, count in cores.items() if count > 1]
    return problems


def _cpu(given: AllocatedResources) -> int:
    return sum(task.cpu.cpu_shares for task in given.tasks.values())


def _memory(given: AllocatedResources) -> int:
    return sum(task.memory.memory_mb for task in given.tasks.values())


def _ports(given: AllocatedResources) -> list[tuple[str, int]]:
    return [(port.host_ip, port.value) for port in given.shared.ports if not port.ignore_collision]
