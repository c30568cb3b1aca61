"""Which namespaces, links, addresses and ports this host should have. Pure: records in, names and commands out.

A group with mode `none` gets a namespace in which only the loopback is up. With mode `bridge` it gets one that a pair
of virtual links ties to the agent's bridge:

    tasks - eth0 == fs<hash of the allocation's id> - bridge (the gateway) - the host's own routes, masqueraded

Every name follows from the allocation's id, so that an agent that was killed anywhere finds what it began; and all
commands may be given again. Rules of the packet filter are made anew as a whole each time: see `filter_rules`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from fedsched.drivers.driver import Mount
from fedsched.model.alloc import Allocation
from fedsched.model.errors import BadRequest
from fedsched.model.ids import is_uuid
from fedsched.model.network import AllocNetworkStatus, DNSConfig

NAMESPACES: Final = Path("/var/run/netns")
"""Where `ip netns` keeps them: people find ours there too."""
INSIDE: Final = "eth0"
"""What tasks call their end of the link."""
PREFIX: Final = "fedsched-"
LINK_PREFIX: Final = "fs"
BRIDGE: Final = "bridge"
NONE: Final = "none"
OWN_MODES: Final = (NONE, BRIDGE)


class NetworkRefused(BadRequest):
    """The network that a group asks for cannot be had here."""

    code = "network_refused"


@dataclass(frozen=True, slots=True)
class Bridge:
    """The agent's bridge, as its operator wants it."""

    name: str
    subnet: ipaddress.IPv4Network
    hairpin: bool = False

    @property
    def gateway(self) -> str:
        """The bridge's own address: the first of its subnet."""
        return str(self.subnet.network_address + 1)


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of the host that leads into a namespace, for TCP and UDP."""

    host_ip: str
    """Empty: any address of the host."""
    host_port: int
    port: int


@dataclass(frozen=True, slots=True)
class Attached:
    """One allocation on the bridge."""

    alloc_id: str
    address: str
    forwards: tuple[Forward, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a group says about its network."""

    mode: str = ""
    """Empty for the host's own."""
    hostname: str = ""
    dns: DNSConfig | None = None

    @property
    def has_namespace(self) -> bool:
        return self.mode in OWN_MODES


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """What the tasks of an allocation are started with."""

    namespace: Path | None = None
    hostname: str = ""
    files: tuple[Mount, ...] = ()
    """Resolver and hosts file, for tasks that see a file system of their own."""


NO_NETWORK: Final = GroupNetwork()


@dataclass(frozen=True, slots=True)
class Opened:
    """A network that is ready for tasks, and what servers are told of it."""

    network: GroupNetwork = NO_NETWORK
    status: AllocNetworkStatus | None = None


@dataclass(slots=True)
class AddressBook:
    """Who has which address of the subnet. Addresses go round: one that was given back rests as long as possible, so
    that no connection of its last owner reaches the next."""

    subnet: ipaddress.IPv4Network
    taken: dict[str, str] = field(default_factory=dict)
    """Address by allocation id."""
    last: str = ""

    def keep(self, alloc_id: str, address: str) -> bool:
        """Give an allocation the address that it had; False if that is not possible any more."""
        if self.taken.get(alloc_id) == address:
            return True
        if not self.is_usable(address) or address in self.taken.values():
            return False
        self.taken[alloc_id] = self.last = address
        return True

    def give(self, alloc_id: str) -> str:
        """An address for an allocation: the one it has, else the next that is free. Raises `NetworkRefused`."""
        if alloc_id not in self.taken:
            found = next_address(self.subnet, set(self.taken.values()), self.last)
            if not found:
                raise NetworkRefused(
                    f"all {len(self.taken)} addresses of {self.subnet} are taken",
                    hint="set client.bridge_network_subnet to a larger one",
                )
            self.taken[alloc_id] = self.last = found
        return self.taken[alloc_id]

    def free(self, alloc_id: str) -> None:
        self.taken.pop(alloc_id, None)

    def is_usable(self, address: str) -> bool:
        """Whether allocations may have it: in the subnet, and neither its ends nor the gateway."""
        try:
            number = int(ipaddress.IPv4Address(address))
        except ValueError:
            return False
        return int(self.subnet.network_address) + 1 < number < int(self.subnet.broadcast_address)


def next_address(subnet: ipaddress.IPv4Network, taken: Collection[str], last: str) -> str:
    """The first free address after `last`, round the subnet; empty if there is none."""
    first, end = int(subnet.network_address) + 2, int(subnet.broadcast_address)
    count = end - first
    start = int(ipaddress.IPv4Address(last)) + 1 - first if last else 0
    for step in range(count):
        address = str(ipaddress.IPv4Address(first + (start + step) % count))
        if address not in taken:
            return address
    return ""


def forwards_of(alloc: Allocation) -> tuple[Forward, ...]:
    """The ports of the host that lead into an allocation's namespace. Raises `NetworkRefused`."""
    given = alloc.allocated_resources
    found = []
    for port in given.shared.ports if given is not None else ():
        if not 0 < port.value < 65_536:
            continue
        found.append(Forward(_host_ip(port.label, port.host_ip), port.value, port.to if port.to > 0 else port.value))
    return tuple(found)


def _host_ip(label: str, written: str) -> str:
    if not written:
        return ""
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        raise NetworkRefused(f"port {label!r}: {written[:64]!r} is no address") from None
    if address.version != 4:
        raise NetworkRefused(
            f"port {label!r} is on {written}: networks of groups have IPv4 only",
            hint="ask for the port on a host network with an IPv4 address",
        )
    return "" if address.is_unspecified else str(address)


# Names


def namespace_name(node_id: str, alloc_id: str) -> str:
    """The name of an allocation's namespace; the node's part tells agents that share a host apart."""
    return f"{PREFIX}{node_id[:8]}-{alloc_id}"


def alloc_of(name: str, node_id: str) -> str:
    """The allocation whose namespace it is; empty if it is not one of this node's."""
    alloc_id = name.removeprefix(f"{PREFIX}{node_id[:8]}-")
    return alloc_id if alloc_id != name and is_uuid(alloc_id) else ""


def link_name(alloc_id: str) -> str:
    """The host's end of an allocation's link. The kernel takes 15 characters, so the id does not fit."""
    return LINK_PREFIX + blake2b(alloc_id.encode(), digest_size=6).hexdigest()


def is_link(name: str) -> bool:
    return name.startswith(LINK_PREFIX) and len(name) == len(LINK_PREFIX) + 12


def mac_of(address: str) -> str:
    """A hardware address that follows from the other one: neighbours never hold an outdated pair."""
    return ":".join(f"{part:02x}" for part in (0x02, 0xFE, *ipaddress.IPv4Address(address).packed))


# Commands of `ip`


def bridge_commands(bridge: Bridge, *, exists: bool) -> list[str]:
    """What makes the bridge, or makes one that is there right."""
    add = [] if exists else [f"link add {bridge.name} address {mac_of(bridge.gateway)} type bridge"]
    return [
        *add,
        f"address replace {bridge.gateway}/{bridge.subnet.prefixlen} dev {bridge.name}",
        f"link set {bridge.name} up",
    ]


def link_commands(bridge: Bridge, alloc_id: str, namespace: str, address: str, *, exists: bool) -> list[str]:
    """What ties a namespace to the bridge. The link's two ends are made at once, each in its place."""
    link = link_name(alloc_id)
    peer = f"peer name {INSIDE} address {mac_of(address)} netns {namespace}"
    return [
        *([] if exists else [f"link add {link} type veth {peer}"]),
        f"link set {link} master {bridge.name}",
        f"link set {link} type bridge_slave hairpin {'on' if bridge.hairpin else 'off'}",
        f"link set {link} up",
    ]


def inside_commands(bridge: Bridge | None, address: str = "", *, is_kept: bool = False) -> list[str]:
    """What is to be so inside a namespace: the loopback, and with a bridge an address and the way out.

    An address that was kept is left alone: connections live on.
    """
    commands = ["link set lo up"]
    if bridge is not None:
        commands += [] if is_kept else [f"address flush dev {INSIDE} scope global"]
        commands += [
            f"address replace {address}/{bridge.subnet.prefixlen} dev {INSIDE}",
            f"link set {INSIDE} up",
            f"route replace default via {bridge.gateway}",
        ]
    return commands


def needs_local_routes(attached: Iterable[Attached]) -> bool:
    """Whether a port on a loopback address leads to the bridge: the kernel then has to let such packets out."""
    return any(one.host_ip.startswith("127.") for each in attached for one in each.forwards)


def strays(found: Iterable[str], known: Mapping[str, object], node_id: str) -> list[str]:
    """Namespaces of this node whose allocations nobody knows."""
    return sorted(name for name in found if (alloc_id := alloc_of(name, node_id)) and alloc_id not in known)


def stray_links(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """Links on the agent's bridge whose allocations nobody knows."""
    ours = {link_name(alloc_id) for alloc_id in known}
    return sorted(name for name in found if is_link(name) and name not in ours)
