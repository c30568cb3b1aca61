"""Ports and networks of a container."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.drivers.docker.records import ContainerDetails
from fedsched.drivers.docker.values import Values
from fedsched.drivers.driver import DriverError, DriverNetwork, TaskConfig

_BRIDGES: Final = ("", "default", "bridge", "nat", "podman")
_SHARED: Final = ("host", "none")


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """Where the network's wishes go in a create request."""

    host: dict[str, Any]
    exposed: dict[str, dict[str, str]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    mac_address: str = ""


def network_parts(config: TaskConfig, values: Values, is_podman: bool) -> NetworkParts:
    mode = _mode(config, values, is_podman)
    inside = _ports_inside(config, values)
    is_own = mode not in _SHARED and not mode.startswith(("container:", "ns:"))
    if inside and not is_own and mode != "host" and not mode.startswith("ns:"):
        raise DriverError(f"config.ports cannot be published with network_mode = {mode!r:.80}")
    bindings: dict[str, list[dict[str, str]]] = {}
    if is_own:
        ports = {port.label: port for port in config.ports}
        for label, number in inside.items():
            where = {"HostIp": ports[label].host_ip, "HostPort": str(ports[label].host_port)}
            for protocol in ("tcp", "udp"):
                bindings.setdefault(f"{number}/{protocol}", []).append(where)
    return NetworkParts(
        host={"NetworkMode": mode, "PortBindings": bindings},
        exposed={port: {} for port in bindings},
        config=_endpoint(values, mode, is_own),
        mac_address=values.text("mac_address"),
    )


def driver_network(config: TaskConfig, values: Values, found: ContainerDetails) -> DriverNetwork | None:
    """Where a container that runs is reached; None if it has no address of its own."""
    networks = (found.network_settings.networks if found.network_settings else None) or {}
    mode = values.text("network_mode")
    chosen = networks.get(mode) or next((one for _, one in sorted(networks.items()) if one is not None), None)
    if chosen is None:
        return None
    wants_ipv6 = values.flag("advertise_ipv6_address")
    ip = chosen.global_ipv6_address if wants_ipv6 else chosen.ip_address
    if wants_ipv6 and not ip:
        raise DriverError("config.advertise_ipv6_address cannot be honoured: the container has no IPv6 address")
    if not ip:
        return None
    return DriverNetwork(
        ip=ip, port_map=_ports_inside(config, values), auto_advertise=wants_ipv6 or mode not in _BRIDGES
    )


def _mode(config: TaskConfig, values: Values, is_podman: bool) -> str:
    mode = values.text("network_mode")
    if config.network_namespace is not None and not mode:
        if not is_podman:
            raise DriverError(
                f"Docker cannot join the group's network namespace {config.network_namespace}",
                hint="use the podman driver for groups with a network of their own, or set network_mode",
            )
        return f"ns:{config.network_namespace}"
    if mode.startswith("ns:"):
        raise DriverError("network_mode = 'ns:...' is not for tasks to choose", hint="use the group's network block")
    if mode.startswith("container:") and not mode.endswith(f"-{config.alloc_id}"):
        raise DriverError(
            f"network_mode = {mode!r:.80} names a container outside this allocation",
            hint=f"container:<task>-{config.alloc_id} is another task of the group",
        )
    return mode or "default"


def _ports_inside(config: TaskConfig, values: Values) -> dict[str, int]:
    """Label -> port inside the container, for every port that the task asks for."""
    ports = {port.label: port for port in config.ports}
    asked, mapped = values.texts("ports"), values.table("port_map")
    if asked and mapped:
        raise DriverError("config.ports and config.port_map exclude each other", hint="`ports` is the newer one")
    unknown = sorted(label for label in (*asked, *mapped) if label not in ports)
    if unknown:
        known = ", ".join(sorted(ports)) or "none"
        raise DriverError(f"config.ports: the group has no port {unknown[0]!r:.60}", hint=f"it has: {known}")
    found = {label: ports[label].to or ports[label].host_port for label in asked}
    for label, text in mapped.items():
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise DriverError(f"config.port_map.{label} = {text!r:.40} is not a port")
        found[label] = int(text)
    return found


def _endpoint(values: Values, mode: str, is_own: bool) -> dict[str, Any]:
    """Wishes about the one network the container joins; engines take them only for networks somebody made."""
    wishes: dict[str, Any] = {}
    if values.texts("network_aliases"):
        wishes["Aliases"] = list(values.texts("network_aliases"))
    addresses = {
        name: values.text(setting)
        for name, setting in (("IPv4Address", "ipv4_address"), ("IPv6Address", "ipv6_address"))
        if values.text(setting)
    }
    if addresses:
        wishes["IPAMConfig"] = addresses
    if not wishes:
        return {}
    if not is_own or mode in _BRIDGES:
        raise DriverError(
            "network_aliases, ipv4_address and ipv6_address cannot be honoured on the engine's own networks",
            hint="name a network that was made for it in network_mode",
        )
    return {"EndpointsConfig": {mode: wishes}}
