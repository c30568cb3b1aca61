"""What a group asks of a node, flattened to what fitting compares, and what an allocation is given for it.

Tasks of one group do not all run at once: init tasks end before the main ones start, clean-up tasks start after they
ended. So the group asks for the largest of its phases, not for the sum of its tasks. Whole cores are the exception:
they stay with their task as long as the allocation lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
    RequestedDevice,
    TaskLifecycle,
)
from fedsched.model.task import LifecycleHook, Task
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.cores import NONE, Cores
from fedsched.scheduler.ports import PortOffer
from fedsched.scheduler.special import HOST_VOLUME, HeldDevices, HeldPort, HeldVolume, Special

NO_LIMIT: Final = -1


class TaskAsk(NamedTuple):
    """What one task asks for."""

    name: str
    cpu: int
    """MHz; 0 for a task with whole cores, whose speed depends on the node."""
    cores: int
    memory_mb: int
    """With its secrets directory."""
    memory_max_mb: int
    """0 if there is no bound of its own, -1 for no bound at all; never counts for fit."""
    numa: str
    """Where its cores should sit: `none`, `prefer` or `require` one memory node."""
    lifecycle: TaskLifecycle | None
    devices: tuple[RequestedDevice, ...]
    networks: tuple[NetworkResource, ...]


class Ask(NamedTuple):
    """What one allocation of a group asks for."""

    cpu: int
    """MHz, without those of whole cores."""
    memory_mb: int
    disk_mb: int
    cores: int
    tasks: tuple[TaskAsk, ...]
    network: NetworkResource | None
    """The group's first; others are not placed."""
    devices: tuple[RequestedDevice, ...]
    """Of all tasks, in their order."""
    volumes: tuple[VolumeRequest, ...]
    """The host volumes."""
    needs_special: bool
    """Whether fit depends on more than sums: ports, cores, devices, host volumes."""

    @staticmethod
    def of(job: Job, group: TaskGroup, *, oversubscription: bool = False) -> Ask:
        """Flatten a group. Without oversubscription no task may use more memory than it asks for."""
        tasks = tuple(_task_ask(task, oversubscription) for task in group.tasks)
        network = group.networks[0] if group.networks else None
        volumes = tuple(request for request in group.volumes.values() if request.type == HOST_VOLUME)
        devices = tuple(request for task in tasks for request in task.devices)
        cores = sum(task.cores for task in tasks)
        has_ports = _has_ports((network,) if network else ()) or any(_has_ports(task.networks) for task in tasks)
        return Ask(
            cpu=largest_phase((task.lifecycle, task.cpu) for task in tasks),
            memory_mb=largest_phase((task.lifecycle, task.memory_mb) for task in tasks),
            disk_mb=group.ephemeral_disk.size_mb,
            cores=cores,
            tasks=tasks,
            network=network,
            devices=devices,
            volumes=volumes,
            needs_special=bool(cores or devices or volumes or has_ports),
        )


class Offer(NamedTuple):
    """What a node gives for an ask beyond plain numbers."""

    ports: PortOffer | None = None
    task_ports: tuple[tuple[PortOffer, ...], ...] = ()
    """Per task: its legacy networks."""
    cores: tuple[Cores | None, ...] = ()
    """Per task."""
    devices: tuple[AllocatedDevice, ...] = ()
    """Per request, in the order of the ask."""
    volumes: tuple[HeldVolume, ...] = ()
    device_affinity: float | None = None
    """The `devices` score; None if no request has affinities."""

    @property
    def cpu(self) -> int:
        """MHz of the whole cores."""
        return sum(given.mhz for given in self.cores if given is not None)

    def special(self) -> Special | None:
        """What the allocation will hold."""
        cores = tuple(core for given in self.cores if given is not None for core in given.ids)
        devices = tuple(HeldDevices(f"{it.vendor}/{it.type}/{it.name}", it.device_ids) for it in self.devices)
        ports = self.held_ports()
        if not (cores or devices or ports or self.volumes):
            return None
        return Special(ports, cores, devices, self.volumes)

    def held_ports(self) -> tuple[HeldPort, ...]:
        group = self.ports.held if self.ports is not None else ()
        return (*group, *(held for task in self.task_ports for part in task for held in part.held))


NOTHING_SPECIAL: Final = Offer()


def largest_phase(parts: Iterable[tuple[TaskLifecycle | None, int]]) -> int:
    """Give the largest of the phases: before, during and after the main tasks."""
    prestart = main = stop = 0
    for lifecycle, amount in parts:
        hook = lifecycle.hook if lifecycle is not None else ""
        if hook == LifecycleHook.PRESTART:
            prestart += amount
            main += amount if lifecycle is not None and lifecycle.sidecar else 0
        elif hook == LifecycleHook.POSTSTOP:
            stop += amount
        else:
            main += amount
    return max(prestart, main, stop)


def allocated_resources(ask: Ask, offer: Offer = NOTHING_SPECIAL) -> AllocatedResources:
    """Give the record that is stored with the allocation."""
    devices = iter(offer.devices)
    tasks: dict[str, AllocatedTaskResources] = {}
    for number, task in enumerate(ask.tasks):
        cores = offer.cores[number] if offer.cores else None
        networks = offer.task_ports[number] if offer.task_ports else ()
        tasks[task.name] = AllocatedTaskResources(
            cpu=AllocatedCPU(
                cpu_shares=cores.mhz if cores is not None else task.cpu,
                reserved_cores=cores.ids if cores is not None else (),
            ),
            memory=AllocatedMemory(memory_mb=task.memory_mb, memory_max_mb=task.memory_max_mb),
            networks=tuple(part.network for part in networks),
            devices=tuple(next(devices) for _ in task.devices),
        )
    network = offer.ports.network if offer.ports is not None else ask.network
    return AllocatedResources(
        tasks=tasks,
        task_lifecycles={task.name: task.lifecycle for task in ask.tasks},
        shared=AllocatedSharedResources(
            networks=(network,) if network is not None else (),
            disk_mb=ask.disk_mb,
            ports=offer.ports.mappings if offer.ports is not None else (),
        ),
    )


def _task_ask(task: Task, oversubscription: bool) -> TaskAsk:
    wanted = task.resources
    return TaskAsk(
        name=task.name,
        cpu=0 if wanted.cores else wanted.cpu,
        cores=wanted.cores,
        memory_mb=wanted.memory_mb + wanted.secrets_mb,
        memory_max_mb=_memory_max(wanted.memory_max_mb, wanted.secrets_mb) if oversubscription else 0,
        numa=wanted.numa.affinity if wanted.numa is not None else NONE,
        lifecycle=task.lifecycle,
        devices=wanted.devices,
        networks=wanted.networks,
    )


def _memory_max(memory_max_mb: int, secrets_mb: int) -> int:
    return memory_max_mb + secrets_mb if memory_max_mb > 0 else memory_max_mb


def _has_ports(networks: Iterable[NetworkResource]) -> bool:
    return any(network.reserved_ports or network.dynamic_ports for network in networks)
