"""The networks of this host's allocations: opened before their tasks, closed after them, found again by the next agent.

What is wanted is kept here and told to the host as a whole, by one caller at a time: allocations that come together
cost the packet filter one change. Addresses are on disk with the allocation's status before any of its tasks starts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import rmtree
from typing import Final, TypeVar

import trio

from fedsched.client.fingerprint.network import host_addresses
from fedsched.client.journal_records import StoredAlloc
from fedsched.client.network import on_host, plan
from fedsched.client.network.etc_files import (
    SYSTEMD_SERVERS,
    checked_hostname,
    host_resolver_text,
    hosts_text,
    resolver_text,
)
from fedsched.client.network.offer import Claim, Offer, find_offer, trials_of_the_dead
from fedsched.client.network.plan import (
    BRIDGE,
    INSIDE,
    NAMESPACES,
    AddressBook,
    Attached,
    Bridge,
    GroupNetwork,
    NetworkRefused,
    Opened,
    Wish,
)
from fedsched.client.network.tools import ToolFailed
from fedsched.client.settings import ClientSettings
from fedsched.drivers.driver import Mount
from fedsched.model.alloc import Allocation
from fedsched.model.network import AllocNetworkStatus
from fedsched.telemetry.log import Logger

T = TypeVar("T")

RESOLVER: Final = "/etc/resolv.conf"
HOSTS: Final = "/etc/hosts"
_THREADS: Final = trio.CapacityLimiter(4)


class Networks:
    """All of them, of one client."""

    def __init__(self, settings: ClientSettings, node_id: str, log: Logger) -> None:
        self.bridge = Bridge(
            settings.bridge_network_name,
            ipaddress.IPv4Network(settings.bridge_network_subnet, strict=False),
            settings.bridge_network_hairpin_mode,
        )
        self._node_id = node_id
        self._log = log
        self._files = settings.state_dir / "networks"
        self._claim = Claim(self.bridge)
        self._addresses = AddressBook(self.bridge.subnet)
        self._attached: dict[str, Attached] = {}
        self._changes = 0
        self._settled = 0
        self._settling = trio.Lock()

    def offer(self) -> Offer:
        """What groups can have here. Blocks: call it in a thread."""
        own = ((one.interface, one.address) for one in host_addresses())
        return find_offer(self.bridge, self._claim, own)

    # ---- life -----------------------------------------------------------------------------------------------

    async def start(self, stored: Iterable[StoredAlloc]) -> None:
        """Remember what an earlier run of this agent had built, and remove what belongs to nobody any more.

        Its failures are logged: they concern allocations that are no more.
        """
        live = {one.alloc.id: one for one in stored if not one.local.is_over}
        for one in live.values():
            self._remember(one)
        try:
            if self._attached and not self._claim.is_held:
                await _in_thread(self.offer)
            await _in_thread(self._sweep, set(live))
            if self._claim.is_held and (self._attached or await _in_thread(on_host.has_link, self.bridge.name)):
                self._changes += 1  # what an earlier agent left is made right, or goes
                await self._settle()
        except (ToolFailed, OSError) as error:
            self._log.warn("networks_not_swept", reason=str(error))

    def close_claim(self) -> None:
        """Let another agent have the bridge."""
        self._claim.drop()

    async def open(self, alloc: Allocation, wish: Wish) -> Opened:
        """Have the network of an allocation, as it was or anew. Raises `NetworkRefused` or `ToolFailed`."""
        checked_hostname(wish.hostname)
        match wish.mode:
            case plan.BRIDGE:
                return await self._open_bridged(alloc, wish)
            case plan.NONE:
                name = plan.namespace_name(self._node_id, alloc.id)
                await _in_thread(on_host.make_namespace, name)
                return Opened(await self._network(alloc.id, wish, NAMESPACES / name, ""))
            case _:
                return Opened(await self._network(alloc.id, wish, None, ""))

    async def close(self, alloc_id: str) -> None:
        """Take the network of an allocation away, if it has one. Raises `ToolFailed`; its address stays taken then."""
        await _in_thread(self._remove, alloc_id)
        self._addresses.free(alloc_id)
        if self._attached.pop(alloc_id, None) is not None:
            self._changes += 1
            await self._settle()

    # ---- how ------------------------------------------------------------------------------------------------

    def _remember(self, stored: StoredAlloc) -> None:
        status = stored.local.network_status
        if status is None or not status.address:
            return
        if not self._addresses.keep(stored.alloc.id, status.address):
            self._log.warn("network_address_not_kept", alloc_id=stored.alloc.id, address=status.address)
            return
        try:
            forwards = plan.forwards_of(stored.alloc)
        except NetworkRefused as error:
            self._log.warn("network_ports_not_kept", alloc_id=stored.alloc.id, reason=str(error))
            return
        self._attach(Attached(stored.alloc.id, status.address, forwards))

    def _attach(self, one: Attached) -> None:
        if self._attached.get(one.alloc_id) != one:
            self._attached[one.alloc_id] = one
            self._changes += 1

    async def _open_bridged(self, alloc: Allocation, wish: Wish) -> Opened:
        if not self._claim.is_held:
            offer = await _in_thread(self.offer)
            if BRIDGE not in offer.modes:
                raise NetworkRefused(f"mode bridge is not to be had on this host: {offer.reason}")
        forwards = plan.forwards_of(alloc)
        had = alloc.network_status.address if alloc.network_status is not None else ""
        is_kept = bool(had) and self._addresses.keep(alloc.id, had)
        address = self._addresses.give(alloc.id)
        self._attach(Attached(alloc.id, address, forwards))
        await self._settle()
        name = plan.namespace_name(self._node_id, alloc.id)
        await _in_thread(lambda: on_host.attach(self.bridge, alloc.id, name, address, is_kept=is_kept))
        network = await self._network(alloc.id, wish, NAMESPACES / name, address)
        return Opened(network, AllocNetworkStatus(interface_name=INSIDE, address=address, dns=wish.dns))

    async def _settle(self) -> None:
        """Return when the host has all changes up to now; of those who wait, one tells it for all."""
        wanted = self._changes
        async with self._settling:
            while self._settled < wanted:
                changes, attached = self._changes, tuple(self._attached.values())
                await _in_thread(on_host.settle, self.bridge, attached)
                self._settled = changes

    async def _network(self, alloc_id: str, wish: Wish, namespace: Path | None, address: str) -> GroupNetwork:
        texts = {}
        if wish.dns is not None:
            texts[RESOLVER] = resolver_text(wish.dns)
        elif wish.mode == BRIDGE:
            own, behind = await _in_thread(_text, RESOLVER), await _in_thread(_text, SYSTEMD_SERVERS)
            texts[RESOLVER] = host_resolver_text(own, behind)
        if wish.has_namespace:
            texts[HOSTS] = hosts_text(address, wish.hostname)
        files = await _in_thread(_write_files, self._files / alloc_id, texts) if texts else ()
        return GroupNetwork(namespace, wish.hostname, files)

    def _remove(self, alloc_id: str) -> None:
        on_host.remove_link(plan.link_name(alloc_id))
        on_host.remove_namespace(plan.namespace_name(self._node_id, alloc_id))
        rmtree(self._files / alloc_id, ignore_errors=True)

    def _sweep(self, live: set[str]) -> None:
        known = dict.fromkeys(live)
        for name in trials_of_the_dead(on_host.namespaces()):
            on_host.remove_namespace(name)
        for name in plan.strays(on_host.namespaces(), known, self._node_id):
            self._log.warn("network_stray_removed", namespace=name)
            self._remove(plan.alloc_of(name, self._node_id))
        if self._claim.is_held:
            for link in plan.stray_links(on_host.links_of(self.bridge), live):
                self._log.warn("network_stray_removed", link=link)
                on_host.remove_link(link)
        if self._files.is_dir():
            for place in self._files.iterdir():
                if place.name not in live:
                    rmtree(place, ignore_errors=True)


def _write_files(place: Path, texts: dict[str, str]) -> tuple[Mount, ...]:
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    files = []
    for target, text in texts.items():
        path = place / Path(target).name
        path.write_text(text)  # in place: a task that runs has this very file mounted
        path.chmod(0o644)
        files.append(Mount(path, target, is_read_only=True))
    return tuple(files)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")[:65_536]
    except OSError:
        return ""


async def _in_thread(call: Callable[..., T], *args: object) -> T:
    return await trio.to_thread.run_sync(lambda: call(*args), limiter=_THREADS)
