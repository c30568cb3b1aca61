"""What must hold between the settings of a client."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from fedsched.agent.config import PORT_MAX, AgentConfig
from fedsched.agent.settings import BadSetting
from fedsched.model.ids import is_node_pool_name
from fedsched.model.node_pool import ALL_POOLS


def check_client(config: AgentConfig, sources: Mapping[str, str]) -> None:
    """Refuse what a client could not start with."""
    client = config.client
    source = next((where for path, where in sources.items() if path.startswith("client.")), "")
    _check(
        config.server.enabled or bool(client.all_servers),
        source,
        "this client would wait for ever: it knows no server",
        'name some with client.servers = ["10.0.0.1", "10.0.0.2"]',
    )
    _check(
        client.min_dynamic_port <= client.max_dynamic_port,
        source,
        f"client.min_dynamic_port = {client.min_dynamic_port} is above max_dynamic_port = {client.max_dynamic_port}",
        "the first port comes before the last",
    )
    _check(
        client.users.dynamic_user_min <= client.users.dynamic_user_max,
        source,
        f"client.users.dynamic_user_min = {client.users.dynamic_user_min} is above"
        f" dynamic_user_max = {client.users.dynamic_user_max}",
        "the lowest number comes before the highest",
    )
    _check(
        is_node_pool_name(client.node_pool) and client.node_pool != ALL_POOLS,
        source,
        f'client.node_pool = "{client.node_pool}" is no pool that a node can be in',
        "letters, digits, - and _; `default` always exists",
    )
    _check(
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,14}", client.bridge_network_name) is not None,
        source,
        f'client.bridge_network_name = "{client.bridge_network_name}" is no name of an interface',
        "up to 15 letters, digits, -, _ and dots; a letter first",
    )
    _check(
        _is_subnet(client.bridge_network_subnet),
        source,
        f'client.bridge_network_subnet = "{client.bridge_network_subnet}" is no subnet for allocations',
        'an IPv4 range of 8 to 65536 addresses, such as "172.26.64.0/20"',
    )
    _check_numbers(client.reserved.cores, "client.reserved.cores", 65_536, source)
    _check_numbers(client.reserved.reserved_ports, "client.reserved.reserved_ports", PORT_MAX, source)
    for name, volume in client.host_volume.items():
        _check(
            PurePosixPath(volume.path).is_absolute(),
            source,
            f'client.host_volume.{name}.path = "{volume.path}" is not an absolute path',
            "say where on this host the volume is",
        )
    for name, network in client.host_network.items():
        _check_numbers(network.reserved_ports, f"client.host_network.{name}.reserved_ports", PORT_MAX, source)
        _check(
            _is_range(network.cidr),
            source,
            f'client.host_network.{name}.cidr = "{network.cidr}" is no range of addresses',
            'write it like "10.0.0.0/8"',
        )
    for scheme in client.artifact.schemes:
        _check(
            scheme in ("https", "http", "file"),
            source,
            f'client.artifact.schemes: "{scheme}" is no way by which artifacts come',
            "https, http and file are",
        )
    for text in client.artifact.allowed_networks:
        _check(
            bool(text) and _is_range(text),
            source,
            f'client.artifact.allowed_networks: "{text}" is no range of addresses',
            'write it like "10.0.0.0/8"',
        )


def _check(holds: bool, source: str, message: str, hint: str) -> None:
    if not holds:
        raise BadSetting(f"{source}: {message}" if source else message, hint=hint)


def _check_numbers(text: str, path: str, highest: int, source: str) -> None:
    """Lists such as `22,8000-8100`."""
    for part in filter(None, (one.strip() for one in text.split(","))):
        low, dash, high = part.partition("-")
        is_right = low.isdigit() and (not dash or high.isdigit()) and int(low) <= int(high or low) <= highest
        _check(
            is_right, source, f'{path} = "{text}": {part!r} is no number or range up to {highest}', 'such as "1-3,7"'
        )


def _is_subnet(text: str) -> bool:
    try:
        found = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return False
    return 16 <= found.prefixlen <= 29 and not (found.is_loopback or found.is_multicast or found.is_link_local)


def _is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text or "0.0.0.0/0", strict=False)
    except ValueError:
        return False
    return True
