"""A world whose fleet follows every command, and short ways to say what allocations are given."""

from __future__ import annotations

from typing import Any

from fedsched.model.alloc import Allocation
from fedsched.model.network import PortMapping
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from fedsched.scheduler.fleet import Fleet
from fedsched.state.fields import pack
from fedsched.state.tables.alloc_columns import CLIENT_CODES, stored_fields
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_job, a_node, an_id
from tests.state.worlds import World, column, ids, placed_group

COLUMNS = [
    "present",
    "ready",
    "status",
    "eligible",
    "draining",
    "cap_cpu",
    "cap_memory",
    "cap_disk",
    "max_allocs",
    "occupied_cpu",
    "occupied_memory",
    "occupied_disk",
    "occupied_allocs",
    "held_cpu",
    "held_memory",
    "held_disk",
    "held_allocs",
]
STATUS = {str(status): code for status, code in CLIENT_CODES.items()}


def given_resources(cpu: int = 100, memory: int = 200, disk: int = 30, **more: Any) -> AllocatedResources:
    ports = tuple(PortMapping(label="http", value=port) for port in more.get("ports", ()))
    task = AllocatedTaskResources(
        cpu=AllocatedCPU(cpu_shares=cpu, reserved_cores=more.get("cores", ())),
        memory=AllocatedMemory(memory_mb=memory),
        devices=more.get("devices", ()),
    )
    return AllocatedResources(tasks={"t": task}, shared=AllocatedSharedResources(disk_mb=disk, ports=ports))


def fields_of(resources: AllocatedResources) -> bytes:
    return stored_fields(Allocation(id=an_id(1), allocated_resources=resources), "allocated_resources")


def own(positions: dict[int, AllocatedResources]) -> dict[str, Any]:
    packed, sizes = pack([fields_of(resources) for resources in positions.values()])
    return {"own_at": column(list(positions)), "own": packed, "own_sizes": sizes}


def picture(fleet: Fleet) -> dict[str, Any]:
    """Everything that can be read of a fleet, with names instead of numbers."""
    here = range(fleet.size)
    return {
        **{name: getattr(fleet, name).tolist() for name in COLUMNS},
        "pool": [fleet.pools.names[fleet.pool[slot]] for slot in here],
        "datacenter": [fleet.datacenters.names[fleet.datacenter[slot]] for slot in here],
        "class": [fleet.classes.names[fleet.node_class[slot]] for slot in here],
        "kind": [fleet.kinds.key_of(slot) for slot in here],
        "ids": [fleet.node_id(slot) for slot in here],
        "special": {slot: dict(sorted(held.items())) for slot, held in sorted(fleet.special.items())},
        "index": fleet.index,
    }


class Followed(World):
    """A world whose fleet follows every command."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet.of(self.store)

    def send(self, data: bytes) -> Any:
        done = super().send(data)
        self.fleet.note(self.store, done.changes)
        return done

    def begin(self, nodes: int = 3, **job: Any) -> None:
        for number in range(1, nodes + 1):
            self.do(node_upsert(a_node(number)))
        self.register(a_job(**job))

    def start(self, numbers: list[int], nodes: list[int], resources: AllocatedResources, **fields: Any) -> Any:
        return self.plan(placed=(placed_group(numbers, nodes, shared=fields_of(resources), **fields),))

    def report(self, numbers: list[int], status: str) -> Any:
        return self.do(AllocStatusUpdate(ids=ids(numbers), statuses=bytes([STATUS[status]] * len(numbers))))

    def check(self) -> None:
        assert picture(self.fleet) == picture(Fleet.of(self.store))


def used(fleet: Fleet, slot: int) -> tuple[float, ...]:
    return tuple(float(getattr(fleet, f"occupied_{name}")[slot]) for name in ("cpu", "memory", "disk", "allocs"))


def held(fleet: Fleet, slot: int) -> tuple[float, ...]:
    return tuple(float(getattr(fleet, f"held_{name}")[slot]) for name in ("cpu", "memory", "disk", "allocs"))


def a_plan(
    world: World, numbers: list[int], nodes: list[int], resources: AllocatedResources, **fields: Any
) -> PlanApply:
    row = world.store.jobs.row("default", "web")
    assert row is not None
    more = {"placed": (placed_group(numbers, nodes, shared=fields_of(resources)),)} if numbers else {}
    return PlanApply(
        namespace="default",
        job_id="web",
        job_create_index=row.create_index,
        job_version=row.version,
        evaluation_id=an_id(0xE),
        snapshot_index=world.index,
        **{**more, **fields},
    )
