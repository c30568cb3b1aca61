"""What an allocation holds beyond plain numbers: ports, cores, device instances, host volumes that it writes.

Most allocations hold nothing of the kind, so whoever keeps sums per node (CPU, memory, disk) keeps these few beside the
sums. A worker and the plan applier build the same picture of a node from both (see `fit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fedsched.model.network import NetworkResource
from fedsched.model.resources import AllocatedResources
from fedsched.model.volume import VolumeRequest

DEFAULT_HOST_NETWORK = "default"
HOST_VOLUME = "host"
SINGLE_WRITER = "single-node-single-writer"


class HeldPort(NamedTuple):
    """A port on one of the node's host networks."""

    host_network: str
    address: str
    value: int
    may_collide: bool = False
    """The job said that it does not mind others on the port (`ignore_collision`)."""


class HeldDevices(NamedTuple):
    """Instances of one device of the node."""

    device: str
    """`vendor/type/name`."""
    instances: tuple[str, ...]


class HeldVolume(NamedTuple):
    """A host volume that the allocation writes to."""

    name: str
    is_exclusive: bool
    """It asked to be the only writer."""


class Special(NamedTuple):
    """Everything of the kind that one allocation holds."""

    ports: tuple[HeldPort, ...] = ()
    cores: tuple[int, ...] = ()
    devices: tuple[HeldDevices, ...] = ()
    volumes: tuple[HeldVolume, ...] = ()

    @staticmethod
    def of(
        allocated: AllocatedResources, volumes: Mapping[str, VolumeRequest] | None = None, name_index: int = 0
    ) -> Special | None:
        """Read it from what an allocation was given and its group's volumes; None if it holds only plain numbers.

        `name_index` is the allocation's place in its group: volumes of one allocation each are named by it.
        """
        cores = tuple(core for task in allocated.tasks.values() for core in task.cpu.reserved_cores)
        ports = tuple(_ports(allocated))
        devices = tuple(
            HeldDevices(f"{given.vendor}/{given.type}/{given.name}", given.device_ids)
            for task in allocated.tasks.values()
            for given in task.devices
        )
        written = tuple(written_volumes(volumes.values(), name_index)) if volumes else ()
        if not (cores or ports or devices or written):
            return None
        return Special(ports, cores, devices, written)


def volume_name(request: VolumeRequest, name_index: int) -> str:
    """Give the name under which the node offers the volume."""
    return f"{request.source}[{name_index}]" if request.per_alloc else request.source


def written_volumes(requests: Iterable[VolumeRequest], name_index: int) -> Iterator[HeldVolume]:
    """Give the host volumes among the requests that are written to."""
    for request in requests:
        if request.type == HOST_VOLUME and not request.read_only:
            yield HeldVolume(volume_name(request, name_index), request.access_mode == SINGLE_WRITER)


def _ports(allocated: AllocatedResources) -> Iterator[HeldPort]:
    shared = allocated.shared
    if shared.ports:
        network_of = {
            port.label: port.host_network or DEFAULT_HOST_NETWORK
            for network in shared.networks
            for port in (*network.reserved_ports, *network.dynamic_ports)
        }
        for given in shared.ports:
            host_network = network_of.get(given.label, DEFAULT_HOST_NETWORK)
            yield HeldPort(host_network, given.host_ip, given.value, given.ignore_collision)
    else:  # without mappings the networks themselves say it
        yield from _network_ports(shared.networks)
    for task in allocated.tasks.values():
        yield from _network_ports(task.networks)


def _network_ports(networks: Iterable[NetworkResource]) -> Iterator[HeldPort]:
    for network in networks:
        for port in (*network.reserved_ports, *network.dynamic_ports):
            host_network = port.host_network or DEFAULT_HOST_NETWORK
            yield HeldPort(host_network, network.ip, port.value, port.ignore_collision)
