"""Ports of one node: which are taken, and which a group's network gets.

A *host network* is a name for some of a node's addresses. A port that is taken on a host network is taken on all of its
addresses, so a static port fits once per host network, and host networks that share an address share its ports. What
the node keeps for itself is taken from the start. Chance comes in as a seed: the same seed draws the same ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import structs

from fedsched.model.network import NetworkResource, Port, PortMapping
from fedsched.model.node import Node
from fedsched.scheduler.attributes import lookup
from fedsched.scheduler.special import DEFAULT_HOST_NETWORK, HeldPort

MAX_PORT: Final = 65535
DRAWS: Final = 20
"""Random tries for a dynamic port before all free ones are looked at, as Nomad has it."""
COLLISION: Final = "port collision"
MASK64: Final = (1 << 64) - 1

Ranges = tuple[tuple[int, int], ...]


class BadPorts(ValueError):
    """A text that does not list ports."""


class PortOffer(NamedTuple):
    """Ports for one network block."""

    network: NetworkResource
    """The block with its values, address and device filled in."""
    mappings: tuple[PortMapping, ...]
    held: tuple[HeldPort, ...]


@lru_cache(maxsize=4096)
def parse_ports(text: str) -> Ranges:
    """Read a list such as `80,100-200` into ranges, in order and without overlap."""
    found = []
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        low, dash, high = part.partition("-")
        first = _port(low.strip(), text)
        last = _port(high.strip(), text) if dash else first
        if last < first:
            raise BadPorts(f"invalid range in {text[:200]!r}: {part!r} ends before it starts")
        found.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


class PortIndex:
    """What is taken on one node, by address.

    Those who hold ports there are given one by one, or asked for by the number of a port when it is looked at: that
    costs the same however many they are. They must not be in conflict with each other then.
    """

    def __init__(
        self, node: Node, held: Iterable[HeldPort] = (), *, holders: Callable[[int], Iterable[HeldPort]] | None = None
    ) -> None:
        self._holders = holders
        self._networks = host_networks(node)
        self._device, self._address = _default_place(node)
        self._kept = _kept_ports(node)
        self._low = node.node_resources.min_dynamic_port or 20000
        self._high = node.node_resources.max_dynamic_port or 32000
        self._taken: dict[str, dict[int, bool]] = {}
        """Per address: port, and whether its holder does not mind others."""
        self._resolve: Callable[[str], str | None] = lambda name: lookup(name, node)
        self.collides = False
        """Two holders have a port that at least both want for themselves."""
        for port in held:
            self.take(port)

    def with_(self, held: Iterable[HeldPort]) -> PortIndex:
        """Another index with more taken; much cheaper than a new one."""
        other = copy(self)
        other._taken = {address: dict(taken) for address, taken in self._taken.items()}
        for port in held:
            other.take(port)
        return other

    def would_collide(self, new: Iterable[HeldPort]) -> bool:
        """Whether any of these ports is kept by the node, or held by someone (else) who minds."""
        new = tuple(new)
        before = self.with_(held for value in {port.value for port in new} for held in self._held(value))
        before.collides = False
        for port in new:
            before.take(port)
            if not port.may_collide and self.is_kept(port.host_network, port.value):
                return True
        return before.collides

    def take(self, port: HeldPort) -> None:
        """Note a port as taken; `collides` tells if it was."""
        for address in {port.address, *self._networks.get(port.host_network, ())}:
            taken = self._taken.setdefault(address, {})
            before = taken.get(port.value)
            if before is False and not port.may_collide:
                self.collides = True
            taken[port.value] = port.may_collide and before is not False

    def is_free(self, host_network: str, value: int) -> bool:
        """Whether nobody has the port on any address of the host network."""
        return all(self._is_free_at(address, value) for address in self._networks.get(host_network, ()))

    def is_kept(self, host_network: str, value: int) -> bool:
        """Whether the node keeps the port for itself."""
        return any(_within(self._kept[address], value) for address in self._networks.get(host_network, ()))

    def addresses(self, host_network: str) -> tuple[str, ...]:
        return self._networks.get(host_network, ())

    def host_network(self, port: Port) -> str | None:
        """Give the alias that a port names (itself, or by reference to an attribute); None if it names nothing."""
        return self._resolve(port.host_network) if port.host_network else DEFAULT_HOST_NETWORK

    def offer(self, ask: NetworkResource, seed: int = 0) -> PortOffer | str:
        """Choose a port for each one asked for, or say why that cannot be. Takes nothing yet: see `take`."""
        chosen: list[HeldPort] = []
        for port in ask.reserved_ports:
            held = self._static(port, chosen, ignores_collision(ask, port))
            if isinstance(held, str):
                return held
            chosen.append(held)
        draws = _Draws(seed)
        for port in ask.dynamic_ports:
            held = self._dynamic(port, {part.value for part in chosen}, draws)
            if isinstance(held, str):
                return held
            chosen.append(held)
        return self._filled(ask, chosen)

    def _static(self, port: Port, chosen: Iterable[HeldPort], may_collide: bool) -> HeldPort | str:
        alias = self.host_network(port)
        addresses = self._networks.get(alias, ()) if alias is not None else ()
        if not 0 <= port.value <= MAX_PORT:
            return f"invalid port {port.value} (out of range)"
        if alias is None or not addresses:
            return f"no addresses available for {alias or port.host_network} network"
        if not may_collide:
            alike = (part for part in chosen if part.value == port.value)
            mine = {address for part in alike for address in self.addresses(part.host_network)}
            if not self.is_free(alias, port.value) or not mine.isdisjoint(addresses):
                return f"reserved port collision {port.label}={port.value}"
        return HeldPort(alias, addresses[0], port.value, may_collide)

    def _dynamic(self, port: Port, in_offer: set[int], draws: _Draws) -> HeldPort | str:
        alias = self.host_network(port)
        addresses = self._networks.get(alias, ()) if alias is not None else ()
        if alias is None or not addresses:
            return f"no addresses available for {alias or port.host_network} network"
        width = self._high - self._low
        for _ in range(DRAWS if width > 0 else 0):
            value = self._low + draws.below(width)
            if value not in in_offer and self.is_free(alias, value):
                return HeldPort(alias, addresses[0], value)
        free = [
            value for value in range(self._low, self._high + 1) if value not in in_offer and self.is_free(alias, value)
        ]
        if not free:
            return "dynamic port selection failed"
        return HeldPort(alias, addresses[0], free[draws.below(len(free))])

    def _filled(self, ask: NetworkResource, chosen: list[HeldPort]) -> PortOffer:
        filled = tuple(_filled_port(port, held) for port, held in zip(ports_of(ask), chosen, strict=True))
        count = len(ask.reserved_ports)
        network = structs.replace(
            ask, device=self._device, ip=self._address, reserved_ports=filled[:count], dynamic_ports=filled[count:]
        )
        mappings = tuple(
            PortMapping(
                label=port.label,
                value=port.value,
                to=port.to,
                host_ip=held.address,
                ignore_collision=held.may_collide,
            )
            for port, held in zip(filled, chosen, strict=True)
        )
        return PortOffer(network, mappings, tuple(chosen))

    def _is_free_at(self, address: str, value: int) -> bool:
        if value in self._taken.get(address, ()) or _within(self._kept[address], value):
            return False
        return not any(
            address == held.address or address in self._networks.get(held.host_network, ())
            for held in self._held(value)
        )

    def _held(self, value: int) -> Iterable[HeldPort]:
        return self._holders(value) if self._holders is not None else ()


def host_networks(node: Node) -> dict[str, tuple[str, ...]]:
    """Give the addresses of each host network of a node, in the node's order."""
    found: dict[str, list[str]] = {}
    for network in node.node_resources.node_networks:
        for address in network.addresses:
            if address.address not in found.setdefault(address.alias or DEFAULT_HOST_NETWORK, []):
                found[address.alias or DEFAULT_HOST_NETWORK].append(address.address)
    return {alias: tuple(addresses) for alias, addresses in found.items()}


def ports_of(network: NetworkResource) -> Iterator[Port]:
    """Give all ports of a network block, static ones first."""
    yield from network.reserved_ports
    yield from network.dynamic_ports


def ignores_collision(network: NetworkResource, port: Port) -> bool:
    """Whether a port may be one that others have: only where the task sees the host's own network."""
    return port.ignore_collision and network.mode in ("", "host")


class _Draws:
    """Numbers that look random and follow from the seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK64

    def below(self, bound: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK64
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK64
        return (mixed ^ (mixed >> 31)) % bound


def _filled_port(port: Port, held: HeldPort) -> Port:
    to = held.value if port.to == -1 else port.to
    return structs.replace(port, value=held.value, to=to, host_network=held.host_network)


def _default_place(node: Node) -> tuple[str, str]:
    """Give the device and address that a network block as a whole is said to be on."""
    networks = node.node_resources.node_networks
    for alias in (DEFAULT_HOST_NETWORK, None):
        for network in networks:
            for address in network.addresses:
                if alias in (None, address.alias or DEFAULT_HOST_NETWORK):
                    return network.device, address.address
    return "", ""


def _kept_ports(node: Node) -> dict[str, Ranges]:
    everywhere = node.reserved_resources.networks.reserved_host_ports
    texts: dict[str, list[str]] = {}
    for network in node.node_resources.node_networks:
        for address in network.addresses:
            named = node.host_networks.get(address.alias)
            own = texts.setdefault(address.address, [everywhere])
            own += [address.reserved_ports, named.reserved_ports if named else ""]
    return {address: parse_ports(",".join(filter(None, own))) for address, own in texts.items()}


def _within(ranges: Ranges, value: int) -> bool:
    return any(first <= value <= last for first, last in ranges)


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > MAX_PORT:
        raise BadPorts(f"{text[:40]!r} in {whole[:200]!r} is not a port: 0 to {MAX_PORT} are")
    return int(text)
