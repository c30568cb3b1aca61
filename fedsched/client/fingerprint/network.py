"""Networks: which interface tasks are reached at, its addresses, and the named groups of addresses beside it."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedsched.client.fingerprint.found import Fingerprinter, Found, Host
from fedsched.model.network import NetworkResource
from fedsched.model.node import HostNetworkInfo
from fedsched.model.node_resources import NodeNetwork, NodeNetworkAddress

SPEED_UNKNOWN: Final = 1_000
"""Mbit/s, for interfaces that do not say."""
DEFAULT: Final = "default"
LOOPBACK: Final = "lo"
RTM_GETADDR: Final = 22
NLM_F_REQUEST_DUMP: Final = 0x301
NLMSG_DONE, NLMSG_ERROR, RTM_NEWADDR = 3, 2, 20
IFA_ADDRESS, IFA_LOCAL = 1, 2


@dataclass(frozen=True, slots=True)
class HostAddress:
    interface: str
    address: str

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.address)


def host_addresses() -> list[HostAddress]:
    """All addresses of this host's interfaces, as the kernel lists them."""
    found: list[HostAddress] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(2.0)
        link.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            body = struct.pack("=BBBBI", family, 0, 0, 0, 0)
            link.send(struct.pack("=IHHII", 16 + len(body), RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0) + body)
            found += _answers(link)
    return found


def _answers(link: socket.socket) -> list[HostAddress]:
    found: list[HostAddress] = []
    while True:
        data = link.recv(1 << 16)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < 16:
                return found
            if kind == RTM_NEWADDR:
                found += _address(data[16:length])
            data = data[(length + 3) & ~3 :]


def _address(body: bytes) -> list[HostAddress]:
    family, _, _, _, index = struct.unpack_from("=BBBBI", body)
    parts: dict[int, bytes] = {}
    at = 8
    while at + 4 <= len(body):
        size, kind = struct.unpack_from("=HH", body, at)
        if size < 4:
            break
        parts[kind] = body[at + 4 : at + size]
        at += (size + 3) & ~3
    raw = parts.get(IFA_LOCAL) or parts.get(IFA_ADDRESS)
    try:
        return [HostAddress(socket.if_indextoname(index), socket.inet_ntop(family, raw))] if raw else []
    except (OSError, ValueError):
        return []  # gone since it was listed


class Network(Fingerprinter):
    name = "network"
    is_reloadable = True

    def __init__(self, addresses: Callable[[], list[HostAddress]] = host_addresses) -> None:
        self._addresses = addresses

    def find(self, host: Host) -> Found:
        known = self._addresses()
        device = _interface(host, known)
        if not device:
            return Found(networks=())
        mine = _usable([one for one in known if one.interface == device], host)
        if not mine:
            return Found(networks=())
        speed = host.settings.network_speed or _speed(host, device)
        addresses = [_entry(one, DEFAULT, "") for one in mine]
        addresses += self._named(host, known)
        network = NodeNetwork(
            mode="host",
            device=device,
            mac_address=host.text(f"/sys/class/net/{device}/address"),
            speed=speed,
            addresses=tuple(addresses),
        )
        return Found(
            attributes={"unique.network.ip-address": mine[0].address},
            networks=(network,),
            host_networks={
                name: HostNetworkInfo(
                    name=name, cidr=about.cidr, interface=about.interface, reserved_ports=about.reserved_ports
                )
                for name, about in sorted(host.settings.host_networks.items())
            },
        )

    def _named(self, host: Host, known: list[HostAddress]) -> list[NodeNetworkAddress]:
        """Addresses of the groups that the operator has named."""
        found = []
        for name, about in sorted(host.settings.host_networks.items()):
            inside = ipaddress.ip_network(about.cidr, strict=False) if about.cidr else None
            for one in known:
                fits_interface = not about.interface or one.interface == about.interface
                fits_range = inside is None or (one.ip.version == inside.version and one.ip in inside)
                if fits_interface and fits_range and not one.ip.is_link_local:
                    found.append(_entry(one, name, about.reserved_ports))
        return found


def legacy_networks(networks: tuple[NodeNetwork, ...]) -> tuple[NetworkResource, ...]:
    """The same networks as older job features see them: one entry per address."""
    return tuple(
        NetworkResource(mode="host", device=network.device, cidr=_one_address(one.address), ip=one.address, mbits=speed)
        for network in networks
        for speed in (network.speed,)
        for one in network.addresses
        if one.alias == DEFAULT
    )


def _interface(host: Host, known: list[HostAddress]) -> str:
    """The one that is asked for, the one that the default route leaves by, or any that is not the loopback."""
    if host.settings.network_interface:
        return host.settings.network_interface
    if host.settings.is_dev:
        return LOOPBACK
    for line in host.text("/proc/net/route").splitlines()[1:]:
        parts = line.split()
        if len(parts) > 7 and parts[1] == "00000000" and parts[7] == "00000000":
            return parts[0]
    for line in host.text("/proc/net/ipv6_route").splitlines():
        parts = line.split()
        if len(parts) > 9 and set(parts[0]) == {"0"} and parts[1] == "00" and parts[9] != LOOPBACK:
            return parts[9]
    others = sorted({one.interface for one in known if one.interface != LOOPBACK})
    return others[0] if others else LOOPBACK


def _usable(addresses: list[HostAddress], host: Host) -> list[HostAddress]:
    """Addresses that others can reach; link-local ones only if there is nothing else and nobody forbids it."""
    proper = [one for one in addresses if not one.ip.is_link_local]
    if proper:
        return sorted(proper, key=lambda one: (one.ip.version, int(one.ip)))
    forbids = host.settings.options.get("fingerprint.network.disallow_link_local", "").lower() in ("1", "true")
    return [] if forbids else addresses


def _entry(one: HostAddress, alias: str, reserved_ports: str) -> NodeNetworkAddress:
    family = f"ipv{one.ip.version}"
    return NodeNetworkAddress(family=family, alias=alias, address=one.address, reserved_ports=reserved_ports)


def _one_address(address: str) -> str:
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"


def _speed(host: Host, device: str) -> int:
    text = host.text(f"/sys/class/net/{device}/speed")
    return int(text) if text.isdigit() and int(text) > 0 else SPEED_UNKNOWN
