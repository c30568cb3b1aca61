"""A state with its fleet, plans for it, and the applier's verdict on them; every commit is checked by `overcommit`."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from fedsched.scheduler.fleet import Fleet
from fedsched.server.leader.plan_check import Verdict, check_plan
from fedsched.state.apply import ApplyResult
from fedsched.state.fields import Command, pack
from fedsched.state.tables.alloc_columns import stored_fields
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlacedGroup, PlanApply, StoppedBatch
from tests.builders import a_job, a_node, an_alloc, an_id
from tests.overcommit import overcommitted
from tests.state.worlds import World, column, ids, placed_group

STOP, EVICT, RUN = 2, 3, 1
LOST, UNKNOWN, RUNNING, COMPLETE = 5, 6, 2, 3


class Site(World):
    """Nodes, one job `web`, and the fleet that follows them."""

    def __init__(self, *nodes: Node, job: Job | None = None) -> None:
        super().__init__()
        self.fleet = Fleet.of(self.store)
        for node in nodes or (a_node(1),):
            self.put_node(node)
        self.register(job or a_job())

    def send(self, data: bytes) -> ApplyResult:
        outcome = super().send(data)
        self.fleet.note(self.store, outcome.changes)
        return outcome

    def put_node(self, node: Node) -> int:
        slot: int = self.do(node_upsert(node)).result.value["slot"]
        return slot

    def check(self, plan: PlanApply, **options: Any) -> Verdict:
        return check_plan(plan, store=self.store, fleet=self.fleet, **options)

    def submit(self, plan: PlanApply, **options: Any) -> Verdict:
        """Check a plan and commit what holds of it."""
        verdict = self.check(plan, **options)
        self.commit(verdict.command)
        return verdict

    def commit(self, command: Command) -> ApplyResult:
        outcome = self.do(command)
        touched = {int(slot) for change in outcome.changes.allocs for slot in change.node_slots}
        assert overcommitted(self.store, touched) == []
        return outcome

    def a_plan(self, job_id: str = "web", **fields: Any) -> PlanApply:
        row = self.store.jobs.row("default", job_id)
        assert row is not None
        fields.setdefault("snapshot_index", self.index)
        return PlanApply(
            namespace="default",
            job_id=job_id,
            job_create_index=row.create_index,
            job_version=row.version,
            evaluation_id=an_id(0xE),
            **fields,
        )

    def report(self, numbers: list[int], status: int) -> ApplyResult:
        return self.do(AllocStatusUpdate(ids=ids(numbers), statuses=bytes([status] * len(numbers))))

    def live(self) -> set[int]:
        """Numbers of the allocations that are meant to run."""
        slots = self.store.allocations.columns.in_use(0, self.store.allocations.columns.high)
        return {
            int(record.id[-12:], 16)
            for record in self.store.allocations.records(slots)
            if record.desired_status == "run" and not record.client_status.is_terminal
        }


def shared(*, cpu: int = 500, memory_mb: int = 256, disk_mb: int = 300, **task: Any) -> bytes:
    """The encoded fields of placements that are given so much."""
    given = AllocatedResources(
        tasks={
            "web": AllocatedTaskResources(
                cpu=AllocatedCPU(cpu_shares=cpu, reserved_cores=tuple(task.pop("cores", ()))),
                memory=AllocatedMemory(memory_mb=memory_mb),
                **task,
            )
        },
        shared=AllocatedSharedResources(disk_mb=disk_mb),
    )
    return given_fields(given)


def given_fields(given: AllocatedResources) -> bytes:
    return stored_fields(an_alloc(allocated_resources=given), "allocated_resources")


def placing(numbers: list[int], nodes: list[int], **fields: Any) -> PlacedGroup:
    """Placements of these numbers on these node slots; `own` maps a position to its encoded fields."""
    own = fields.pop("own", {})
    amounts = {key: fields.pop(key) for key in ("cpu", "memory_mb", "disk_mb", "cores", "devices") if key in fields}
    fields.setdefault("shared", shared(**amounts))
    if own:
        data, sizes = pack(list(own.values()))
        fields |= {"own_at": column(list(own)), "own": data, "own_sizes": sizes}
    return placed_group(numbers, nodes, **fields)


def stopping(numbers: list[int], **fields: Any) -> StoppedBatch:
    return StoppedBatch(ids=ids(numbers), **{"desired": STOP, **fields})


def changed(node: Node, **fields: Any) -> Node:
    return structs.replace(node, **fields)
