"""What a task asks for, and what an allocation was given."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.constraint import Affinity, Constraint
from fedsched.model.network import NetworkResource, PortMapping
from fedsched.model.record import EMPTY, Named, Record, UpdateClass, field

DESTRUCTIVE = UpdateClass.DESTRUCTIVE


class RequestedDevice(Record):
    """A request for devices of one kind."""

    name: Annotated[str, DESTRUCTIVE, "`type`, `vendor/type` or `vendor/type/model`."] = ""
    count: Annotated[int, DESTRUCTIVE] = 1
    constraints: Annotated[tuple[Constraint, ...], DESTRUCTIVE] = ()
    affinities: Annotated[tuple[Affinity, ...], DESTRUCTIVE] = ()


class NUMAResource(Record):
    """How cores should sit relative to one another and to devices."""

    affinity: Annotated[str, DESTRUCTIVE, "`none`, `prefer` or `require`."] = "none"
    devices: Annotated[tuple[str, ...], DESTRUCTIVE] = ()


class Resources(Record):
    """What one task asks for."""

    cpu: Annotated[int, DESTRUCTIVE, "MHz; 0 when whole cores are asked for."] = 100
    cores: Annotated[int, DESTRUCTIVE, "Whole cores for this task alone."] = 0
    memory_mb: Annotated[int, DESTRUCTIVE] = 300
    memory_max_mb: Annotated[int, DESTRUCTIVE, "Upper bound with oversubscription; -1 is no bound."] = 0
    disk_mb: Annotated[int, DESTRUCTIVE, "Legacy, without effect."] = 0
    iops: Annotated[int, "Legacy, without effect."] = 0
    networks: Annotated[
        tuple[NetworkResource, ...], DESTRUCTIVE, Named("Network"), "Legacy; groups have networks."
    ] = ()
    devices: Annotated[tuple[RequestedDevice, ...], DESTRUCTIVE, Named("Device")] = ()
    numa: Annotated[NUMAResource | None, DESTRUCTIVE] = None
    secrets_mb: Annotated[int, DESTRUCTIVE, "Memory-backed secrets directory, counted on top of the memory."] = 0


NO_RESOURCES = Resources(cpu=0, memory_mb=0)
"""All zero: the start of a sum, and what Nomad shows where nothing is asked."""


class AllocatedCPU(Record):
    """CPU given to a task."""

    cpu_shares: int = field(default=0, name="CpuShares")
    reserved_cores: tuple[int, ...] = ()


class AllocatedMemory(Record):
    """Memory given to a task."""

    memory_mb: int = 0
    memory_max_mb: int = 0


class AllocatedDevice(Record):
    """Devices given to a task."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    device_ids: tuple[str, ...] = ()


class AllocatedTaskResources(Record):
    """What one task of an allocation was given."""

    cpu: AllocatedCPU = field(default=AllocatedCPU(), name="Cpu")
    memory: AllocatedMemory = AllocatedMemory()
    networks: tuple[NetworkResource, ...] = ()
    devices: tuple[AllocatedDevice, ...] = ()


class AllocatedSharedResources(Record):
    """What all tasks of an allocation share."""

    networks: tuple[NetworkResource, ...] = ()
    disk_mb: int = 0
    ports: tuple[PortMapping, ...] = ()


class TaskLifecycle(Record):
    """When a task runs relative to the main ones."""

    hook: Annotated[str, "`prestart`, `poststart` or `poststop`."] = ""
    sidecar: Annotated[bool, "Whether it runs beside the main tasks to their end."] = False


class AllocatedResources(Record):
    """What an allocation was given: per task, and shared."""

    tasks: dict[str, AllocatedTaskResources] = EMPTY
    task_lifecycles: dict[str, TaskLifecycle | None] = EMPTY
    shared: AllocatedSharedResources = AllocatedSharedResources()


class ComparableResources(Record):
    """An allocation's resources flattened to one sum, as fitting and preemption compare them."""

    cpu_shares: int = 0
    reserved_cores: tuple[int, ...] = ()
    memory_mb: int = 0
    memory_max_mb: int = 0
    disk_mb: int = 0
    ports: tuple[PortMapping, ...] = ()
