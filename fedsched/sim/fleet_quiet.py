"""What must hold once a simulated region has come to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsched.scheduler.fleet import Fleet as FleetColumns
from fedsched.sim.fleet_truth import UNKNOWN
from fedsched.sim.fleet_watch import overdue, ready_nodes
from fedsched.state.store import State
from fedsched.state.tables.nodes import NodeRow

if TYPE_CHECKING:
    from fedsched.sim.fleet_server import FleetServer
    from fedsched.sim.fleet_world import FleetWorld

PER_NODE: Final = ("system", "sysbatch")
DRAIN_NS: Final = 10_000_000_000
"""How much later than its deadline a drain may end: what it forces has to be confirmed by clients."""
COLUMNS: Final = (
    "occupied_cpu",
    "occupied_memory",
    "occupied_disk",
    "occupied_allocs",
    "held_cpu",
    "held_memory",
    "held_disk",
    "held_allocs",
    "ready",
)


class Quiet:
    """Questions to the leader's state when nothing should be going on any more."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._truth = world.checks.truth

    def restless(self, state: State) -> list[str]:
        """R-20: evaluations that should have ended by now."""
        now_ns = self._world.wall_ns
        return [
            f"{row.id} of {row.job_id}: {row.status}, {row.triggered_by}"
            for row in state.evaluations.with_status("pending")
            if row.wait_until_ns <= now_ns
        ]

    def is_anything_to_come(self, state: State, within_s: float) -> bool:
        """Whether something is still on its way in that time, so that it is too early to judge."""
        now_ns = self._world.wall_ns
        until_ns = now_ns + round(within_s * 1e9)
        nodes = list(state.nodes.rows.scan())
        return (
            any(row.wait_until_ns < until_ns for row in state.evaluations.with_status("pending"))
            or any(now_ns < due_ns < until_ns for due_ns in self._dues(state, nodes))
            or any(row.status != "ready" and not self._is_gone(row.id) for row in nodes)
            or any(node.has_news(state) for node in self._world.checks.nodes.values())
        )

    def _dues(self, state: State, nodes: list[NodeRow]) -> Iterator[int]:
        """Deadlines of deployments and drains. Whoever has none may wait for ever: for room, or for a person."""
        for row in state.deployments.active():
            if row.status == "running":
                yield from (one.require_progress_by_ns for one in row.progress().values())
        for node in nodes:
            strategy = self._truth.node(node).drain_strategy if node.draining else None
            yield strategy.force_deadline_ns if strategy is not None else 0

    def _is_gone(self, node_id: str) -> bool:
        node = self._world.checks.nodes.get(node_id)
        return node is None or node.is_gone

    def wrongly_blocked(self, state: State) -> list[str]:
        """R-24: blocked although there is room, or more than one for a job."""
        found: list[str] = []
        owners: Counter[tuple[str, str]] = Counter()
        for row in state.evaluations.with_status("blocked"):
            owners[(row.job_id, row.node_id if row.type in PER_NODE else "")] += 1
            job = self._truth.current(state, row.namespace, row.job_id)
            if job is None or job.stop:
                found.append(f"{row.id}: its job {row.job_id} is gone")
            else:
                found += [f"{row.id} of {row.job_id}: {where}" for where in self._world.watch.would_fit(state, row)]
        found += [f"{count} blocked evaluations of {owner}" for owner, count in owners.items() if count > 1]
        return found

    def overdue_deployments(self, state: State) -> list[str]:
        """R-26: past their deadline, or of a version that is gone."""
        left = []
        for row in state.deployments.active():
            job = state.jobs.row(row.namespace, row.job_id)
            if job is None or job.stop or (job.create_index, job.version) != (row.job_create_index, row.job_version):
                left.append(f"{row.id} of {row.job_id}, version {row.job_version}: {row.status}")
        return overdue(state, self._world.wall_ns) + left

    def missing(self, state: State) -> list[str]:
        """R-20: a service that nobody says anything bad about has as many allocations as it wants, and no doubles."""
        found = []
        waiting = {row.job_id for status in ("pending", "blocked") for row in state.evaluations.with_status(status)}
        moving = {row.job_id for row in state.deployments.active()}
        for row in state.jobs.scan("default"):
            job = self._truth.current(state, row.namespace, row.id)
            if job is None or job.stop or job.type != "service" or row.id in waiting | moving:
                continue
            if (row.id, job.create_index, job.version) in self._world.checks.failed_versions:
                continue  # it stays as it is until somebody does something about it
            held = [one for one in self._truth.of_job(state, row.namespace, row.id) if one.is_live]
            names = Counter(one.name_index for one in held)
            wanted = sum(group.count for group in job.task_groups)
            if len(held) != wanted or any(count > 1 for count in names.values()):
                found.append(f"{row.id} wants {wanted}, has {sorted(one.name for one in held)}")
        return found

    def unknown(self, state: State) -> list[str]:
        """What is said to be cut off although its node is there."""
        return [
            f"{held.name} on {node.name}"
            for node in ready_nodes(state)
            for held in self._truth.on_node(state, node.slot)
            if held.client == UNKNOWN and held.desired == 1
        ]

    def draining(self, state: State) -> list[str]:
        """R-27: drains past their deadline, or with nothing left to see off. Others may have to wait for room."""
        found = []
        for row in state.nodes.rows.scan():
            if not row.draining or row.status != "ready":
                continue
            strategy = self._truth.node(row).drain_strategy
            due_ns = strategy.force_deadline_ns if strategy is not None else 0
            is_late = due_ns > 0 and due_ns < self._world.wall_ns - DRAIN_NS
            left = [held for held in self._truth.on_node(state, row.slot) if held.occupies]
            jobs = [self._truth.job(state, held.version_key) for held in left]
            is_empty = all(job is not None and job.type == "system" for job in jobs)
            if is_late or (is_empty and strategy is not None and (strategy.ignore_system_jobs or not left)):
                found.append(f"{row.name} with {sorted(held.name for held in left)}")
        return found

    def plans(self, servers: Iterable[FleetServer]) -> Counter[str]:
        """What appliers say about the plans they saw; R-22 is that none is refused at the index it was made at."""
        found: Counter[str] = Counter()
        for server in servers:
            for family in server.metrics.families():
                if family.spec.name in ("plan.checked", "plan.refused_at_same_index"):
                    for labels, series in family.series.items():
                        found[" ".join((family.spec.name, *labels))] += int(series.value)
        return found

    def difference(self) -> str:
        """Whether the servers' states are one, and each fleet is what its state says."""
        servers = self._world.servers.values()
        if len({server.machine.digest() for server in servers}) > 1:
            return "the servers' states differ"
        for server in servers:
            fresh = FleetColumns.of(server.store)
            for name in COLUMNS:
                kept, wanted = getattr(server.feed.fleet, name), getattr(fresh, name)
                size = min(len(kept), len(wanted))
                if not np.array_equal(kept[:size], wanted[:size]):
                    return f"{server.name}: column {name} is {kept[:size].tolist()}, not {wanted[:size].tolist()}"
        return ""
