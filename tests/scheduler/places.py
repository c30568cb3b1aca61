"""Builders for nodes with networks, devices and cores, and for groups that ask for them."""

from __future__ import annotations

from typing import Any

from fedsched.model.group import TaskGroup
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node
from fedsched.model.node_resources import (
    CPUCore,
    CPUTopology,
    NodeCPU,
    NodeDevice,
    NodeDeviceGroup,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeNetworkAddress,
    NodeReservedResources,
    NodeResources,
    Processors,
    ReservedCPU,
    ReservedNetworks,
)
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.scheduler.ask import Ask
from tests.builders import a_group, a_job, a_node, a_task


def an_address(address: str = "10.0.0.1", alias: str = "default", reserved: str = "") -> NodeNetworkAddress:
    return NodeNetworkAddress(family="ipv4", alias=alias, address=address, reserved_ports=reserved)


def a_place(
    *,
    cpu: int = 4000,
    memory_mb: int = 8192,
    disk_mb: int = 100_000,
    addresses: tuple[NodeNetworkAddress, ...] | None = None,
    modes: tuple[str, ...] = ("host",),
    devices: tuple[NodeDeviceGroup, ...] = (),
    cores: tuple[int, ...] = (0, 1, 2, 3),
    topology: CPUTopology | None = None,
    dynamic: tuple[int, int] = (20000, 32000),
    reserved_ports: str = "",
    reserved_cores: tuple[int, ...] = (),
    reserved_cpu: int = 0,
    reserved_memory_mb: int = 0,
    **fields: Any,
) -> Node:
    """Build a node with one network device and, unless said otherwise, one address on the default host network."""
    known = (an_address(),) if addresses is None else addresses
    return a_node(
        node_resources=NodeResources(
            cpu=NodeCPU(cpu_shares=cpu, total_cpu_cores=len(cores), reservable_cpu_cores=cores),
            processors=Processors(topology=topology),
            memory=NodeMemory(memory_mb=memory_mb),
            disk=NodeDisk(disk_mb=disk_mb),
            devices=devices,
            node_networks=tuple(
                NodeNetwork(mode=mode, device="eth0" if not place else "", addresses=known if not place else ())
                for place, mode in enumerate(modes)
            ),
            min_dynamic_port=dynamic[0],
            max_dynamic_port=dynamic[1],
        ),
        reserved_resources=NodeReservedResources(
            cpu=ReservedCPU(cpu_shares=reserved_cpu, reserved_cpu_cores=reserved_cores),
            memory=NodeMemory(memory_mb=reserved_memory_mb),
            networks=ReservedNetworks(reserved_host_ports=reserved_ports),
        ),
        **fields,
    )


def a_topology(speeds: tuple[int, ...], *, disabled: tuple[int, ...] = (), total: int = 0) -> CPUTopology:
    cores = tuple(CPUCore(id=n, base_speed=mhz, disable=n in disabled) for n, mhz in enumerate(speeds))
    return CPUTopology(cores=cores, override_total_compute=total)


def a_device(
    name: str = "nvidia/gpu/1080ti", ids: tuple[str, ...] = ("a", "b"), ill: tuple[str, ...] = (), **attributes: Any
) -> NodeDeviceGroup:
    vendor, kind, model = name.split("/")
    instances = tuple(NodeDevice(id=one, healthy=one not in ill) for one in ids)
    return NodeDeviceGroup(vendor=vendor, type=kind, name=model, instances=instances, attributes=attributes)


def static(label: str = "http", value: int = 8080, **fields: Any) -> Port:
    return Port(label=label, value=value, **fields)


def dynamic(label: str = "rpc", **fields: Any) -> Port:
    return Port(label=label, **fields)


def a_network(*ports: Port, mode: str = "") -> NetworkResource:
    return NetworkResource(
        mode=mode,
        reserved_ports=tuple(port for port in ports if port.value),
        dynamic_ports=tuple(port for port in ports if not port.value),
    )


def a_special_group(
    *ports: Port,
    cpu: int = 100,
    memory_mb: int = 300,
    cores: int = 0,
    devices: tuple[RequestedDevice, ...] = (),
    **fields: Any,
) -> TaskGroup:
    wanted = Resources(cpu=0 if cores else cpu, cores=cores, memory_mb=memory_mb, devices=devices)
    if ports:
        fields.setdefault("networks", (a_network(*ports),))
    return a_group(tasks=[a_task(resources=wanted)], **fields)


def an_ask(*ports: Port, **fields: Any) -> Ask:
    group = a_special_group(*ports, **fields)
    return Ask.of(a_job(groups=[group]), group)
