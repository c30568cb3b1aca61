"""The rack shape: one evaluation of a service job on 5,000 nodes in racks, half of which it may use.

Measured is one whole attempt of the scheduler, from state and evaluation to the plan in columns: reading the job,
reconciling, feasibility, placement, the plan. Nothing is committed, so each round meets the same empty fleet, under an
evaluation of its own.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

from fedsched.bench.frame import BenchOptions
from fedsched.env.ids import uuid_text
from fedsched.model.constraint import Constraint, Spread
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import DriverInfo, Node, NodeStatus
from fedsched.model.node_resources import NodeCPU, NodeDisk, NodeMemory, NodeResources
from fedsched.model.policies import EphemeralDisk
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from fedsched.scheduler.decision import Attempt
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.schedule import scheduler_for
from fedsched.state.apply import apply
from fedsched.state.commands import Envelope
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.jobs import job_register
from fedsched.state.tables.nodes import node_upsert

NODES: Final = 5_000
MEMORY_MB: Final = 32_000
ASK: Final = 6_000
NOW_NS: Final = 1_787_308_401_000_000_000
ROUNDS_MAX: Final = 12


def rack_rows(options: BenchOptions, seconds: float) -> list[dict[str, Any]]:
    """One row per number of racks, count and spread; the best of several rounds each."""
    shapes = [(25, 1200), (25, 300), (50, 1200), (75, 1200)]
    rows = []
    for racks in sorted({racks for racks, _ in shapes}):
        region = Region(racks, options.seed)
        for _, count in (shape for shape in shapes if shape[0] == racks):
            rows += [region.row(count, seconds / (2 * len(shapes)), spread=spread) for spread in (False, True)]
    return rows


class Region:
    """A state with nodes in racks, and its fleet."""

    def __init__(self, racks: int, seed: int) -> None:
        self.racks = racks
        self.store = Store()
        self._chance = random.Random(seed)
        for number in range(NODES):
            self._do(node_upsert(self._node(number)))
        self.fleet = Fleet.of(self.store)

    def row(self, count: int, seconds: float, *, spread: bool) -> dict[str, Any]:
        """Measure evaluations of one job of this count."""
        job = self._job(count, spread=spread)
        best, rounds, start = float("inf"), 0, time.perf_counter()
        while rounds < ROUNDS_MAX and (rounds < 3 or time.perf_counter() - start < seconds):
            evaluation = self._evaluation(job)
            before = time.process_time()
            attempt = scheduler_for(job.type)(evaluation, self._new_id).attempt(self.store, self.fleet, NOW_NS)
            best = min(best, time.process_time() - before)
            rounds += 1
            assert placed_by(attempt) == count, f"{placed_by(attempt)} of {count} placed"
        return {
            "workload": "one whole attempt of the scheduler",
            "racks": self.racks,
            "count": count,
            "spread": spread,
            "placements_per_s": round(count / best),
            "attempt_ms": round(best * 1e3, 2),
        }

    def _do(self, command: Command) -> None:
        apply(self.store, self.store.index + 1, Envelope(command=command, time_ns=NOW_NS))

    def _new_id(self) -> str:
        return uuid_text(self._chance.randbytes(16))

    def _node(self, number: int) -> Node:
        return Node(
            id=self._new_id(),
            name=f"host-{number}",
            meta={"rack": f"r{number % self.racks}"},
            attributes={"kernel.name": "linux", "unique.hostname": f"host-{number}"},
            node_resources=NodeResources(
                cpu=NodeCPU(cpu_shares=MEMORY_MB),
                memory=NodeMemory(memory_mb=MEMORY_MB),
                disk=NodeDisk(disk_mb=100_000),
            ),
            drivers={"exec": DriverInfo(detected=True, healthy=True)},
            status=NodeStatus.READY,
        )

    def _job(self, count: int, *, spread: bool) -> Job:
        allowed = ",".join(f"r{number}" for number in range(12))
        rack = Constraint(l_target="${meta.rack}", r_target=allowed, operand="set_contains_any")
        task = Task(name="server", driver="exec", resources=Resources(cpu=ASK, memory_mb=ASK))
        group = TaskGroup(name="front", count=count, tasks=(task,), ephemeral_disk=EphemeralDisk(size_mb=100))
        return Job(
            id=f"racks-{count}-{'spread' if spread else 'plain'}",
            name="racks",
            datacenters=("*",),
            node_pool="default",
            priority=50,
            constraints=(rack,),
            spreads=(Spread(attribute="${meta.rack}"),) if spread else (),
            task_groups=(group,),
        )

    def _evaluation(self, job: Job) -> Evaluation:
        evaluation = Evaluation(
            id=self._new_id(),
            namespace=job.namespace,
            job_id=job.id,
            type=job.type,
            priority=job.priority,
            triggered_by=Trigger.JOB_REGISTER.value,
            status=EvaluationStatus.PENDING,
        )
        self._do(job_register(job, evaluation=evaluation_write(evaluation)))
        return evaluation


def placed_by(attempt: Attempt) -> int:
    """How many allocations a plan places."""
    return sum(len(group.ids) // 16 for group in attempt.plan.placed) if attempt.plan is not None else 0
