"""Where a service of an allocation is reached: which address and port its registration and its checks use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fedsched.drivers.driver import DriverNetwork
from fedsched.model.alloc import Allocation
from fedsched.model.errors import BadRequest
from fedsched.model.network import NetworkResource, PortMapping
from fedsched.model.node import Node


class Place(NamedTuple):
    """An address and a port; 0 for none."""

    address: str = ""
    port: int = 0


class NoAddress(BadRequest):
    """A service asks for an address that its allocation does not have."""

    code = "no_address"


def service_place(
    alloc: Allocation,
    node: Node,
    *,
    mode: str,
    label: str,
    address: str = "",
    task: str = "",
    network: DriverNetwork | None = None,
) -> Place:
    """Resolve one service or check; raises `NoAddress` with the reason.

    `auto` is the driver's address if the driver wants it advertised, else the host's.
    """
    if mode in ("", "auto"):
        if address:
            return Place(address, _host(alloc, node, label, task).port if label else 0)
        mode = "driver" if network is not None and network.auto_advertise else "host"
    match mode:
        case "host":
            return _host(alloc, node, label, task)
        case "driver":
            return _driver(network, label)
        case "alloc" | "alloc_ipv6":
            return _alloc(alloc, label, is_v6=mode == "alloc_ipv6")
    raise NoAddress(f"address_mode {mode!r} is not known", hint="auto, host, alloc or driver")


def _host(alloc: Allocation, node: Node, label: str, task: str) -> Place:
    if not label:
        return Place(_node_address(node), 0)
    found = _mapping(alloc, label, task)
    if found is not None:
        return Place(found.host_ip or _node_address(node), found.value)
    if label.isdecimal():
        return Place(_node_address(node), _number(label))
    raise NoAddress(f"there is no port {label!r}", hint=_known(alloc, task))


def _driver(network: DriverNetwork | None, label: str) -> Place:
    if network is None or not network.ip:
        raise NoAddress("address_mode is driver, and the driver gives the task no address of its own")
    if not label:
        return Place(network.ip, 0)
    if label in network.port_map:
        return Place(network.ip, network.port_map[label])
    if label.isdecimal():
        return Place(network.ip, _number(label))
    raise NoAddress(f"the driver has no port {label!r}", hint=f"it has {', '.join(sorted(network.port_map)) or 'none'}")


def _alloc(alloc: Allocation, label: str, *, is_v6: bool) -> Place:
    status = alloc.network_status
    address = (status.address_ipv6 if is_v6 else status.address) if status is not None else ""
    if not address:
        raise NoAddress("address_mode is alloc, and the allocation has no network of its own")
    if not label:
        return Place(address, 0)
    found = _mapping(alloc, label, "")
    if found is not None:
        return Place(address, found.to if found.to > 0 else found.value)
    if label.isdecimal():
        return Place(address, _number(label))
    raise NoAddress(f"there is no port {label!r}", hint=_known(alloc, ""))


def _mapping(alloc: Allocation, label: str, task: str) -> PortMapping | None:
    return next((one for one in _mappings(alloc, task) if one.label == label), None)


def _mappings(alloc: Allocation, task: str) -> Iterator[PortMapping]:
    given = alloc.allocated_resources
    if given is None:
        return
    yield from given.shared.ports
    for network in given.shared.networks:
        yield from _of_network(network)
    if task in given.tasks:
        for network in given.tasks[task].networks:
            yield from _of_network(network)


def _of_network(network: NetworkResource) -> Iterator[PortMapping]:
    for port in (*network.reserved_ports, *network.dynamic_ports):
        yield PortMapping(label=port.label, value=port.value, to=port.to, host_ip=network.ip)


def _node_address(node: Node) -> str:
    return node.attributes.get("unique.network.ip-address", "")


def _number(label: str) -> int:
    if len(label) > 5 or not 1 <= int(label) <= 65_535:
        raise NoAddress(f"port {label[:20]!r} is outside 1 to 65535")
    return int(label)


def _known(alloc: Allocation, task: str) -> str:
    return f"there are {', '.join(sorted({one.label for one in _mappings(alloc, task)})) or 'none'}"
