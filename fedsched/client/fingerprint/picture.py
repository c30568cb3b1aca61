"""Puts what was found together into one node record, and decides when servers hear of it.

The first record waits until everything has answered once, or 50 seconds: a node that registers bit by bit would be
given work it turns out to be unable to do. From then on changes gather for up to five seconds, and only a record that
really differs from the last one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from fedsched.client.fingerprint.found import Found, numbers_in
from fedsched.client.fingerprint.network import legacy_networks
from fedsched.client.identity import NodeIdentity
from fedsched.client.node_meta import Change, merged
from fedsched.client.settings import ClientSettings
from fedsched.drivers.driver import DriverFingerprint, Health
from fedsched.model.node import DriverInfo, Node, NodeStatus
from fedsched.model.node_resources import (
    NodeCPU,
    NodeDisk,
    NodeMemory,
    NodeReservedResources,
    NodeResources,
    Processors,
    ReservedCPU,
    ReservedNetworks,
)

FIRST_S: Final = 50.0
BATCH_S: Final = 5.0
NO_META: Final[Change] = MappingProxyType({})


class Picture:
    """All that is known about this host."""

    def __init__(
        self,
        settings: ClientSettings,
        identity: NodeIdentity,
        *,
        sources: Iterable[str],
        drivers: Iterable[str],
        now: float,
        dynamic_meta: Change = NO_META,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._meta: Change = dict(dynamic_meta)
        self._order = list(sources)
        self._found: dict[str, Found] = {}
        self._drivers: dict[str, DriverInfo] = {}
        self._awaited = {*self._order, *(f"driver:{name}" for name in drivers)}
        self._at = now + FIRST_S
        self._is_first = True
        self.node = self._build()
        """As it was told last; before that, what is known without looking."""
        self._latest: Node | None = None
        self._told_at = -math.inf

    def wake_at(self) -> float:
        """When `take` may have something to say."""
        return self._at

    @property
    def is_complete(self) -> bool:
        """Everything has answered at least once."""
        return not self._awaited

    @property
    def has_looked(self) -> bool:
        """All looks at the host are done once; drivers may take longer."""
        return not any(name in self._awaited for name in self._order)

    def latest(self) -> Node:
        """The record as it is now, whether or not servers know of it."""
        if self._latest is None:
            self._latest = self._build()
        return self._latest

    def found(self, name: str, found: Found | None, now: float) -> None:
        """A look at the host is done; None if it failed."""
        self._awaited.discard(name)
        if found is not None:
            self._found[name] = found
        self._changed(now)

    def driver(self, name: str, found: DriverFingerprint, now: float, now_ns: int) -> None:
        """A driver says how it is."""
        self._awaited.discard(f"driver:{name}")
        before = self._drivers.get(name)
        info = DriverInfo(
            attributes=dict(found.attributes),
            detected=found.health is not Health.UNDETECTED,
            healthy=found.health is Health.HEALTHY,
            health_description=found.description,
            update_time_ns=now_ns,
        )
        if before is not None and structs.replace(info, update_time_ns=before.update_time_ns) == before:
            info = before
        self._drivers[name] = info
        self._changed(now)

    @property
    def dynamic_meta(self) -> Change:
        """Metadata that was set at run time."""
        return self._meta

    def set_meta(self, dynamic: Change, now: float) -> None:
        """Somebody has changed the node's metadata, and waits for what comes of it: servers hear of it soon."""
        self._meta = dict(dynamic)
        self._changed(now)
        self._soon(now)

    def set_settings(self, settings: ClientSettings, now: float) -> None:
        """The operator's settings are other ones now."""
        self._settings = settings
        self._changed(now)
        self._soon(now)

    def _soon(self, now: float) -> None:
        """At once, unless the last change was told less than a batch ago."""
        if not self._is_first:
            self._at = min(self._at, max(now, self._told_at + BATCH_S))

    def take(self, now: float) -> Node | None:
        """The record that servers should have, if it is another one than the last and its time has come."""
        if now < self._at and not (self._is_first and self.is_complete):
            return None
        self._at = math.inf
        node = self.latest()
        if not self._is_first and node == self.node:
            return None
        self._is_first = False
        self._told_at = now
        self.node = node
        return node

    def _changed(self, now: float) -> None:
        self._latest = None
        if self._is_first:
            if self.is_complete:
                self._at = now
        else:
            self._at = min(self._at, now + BATCH_S)

    def _build(self) -> Node:
        settings = self._settings
        found = [self._found[name] for name in self._order if name in self._found]
        attributes: dict[str, str] = {}
        links: dict[str, str] = {}
        for one in found:
            attributes |= one.attributes
            links |= one.links
        for name, info in sorted(self._drivers.items()):
            if info.detected:
                attributes[f"driver.{name}"] = "1"
                attributes |= info.attributes
        return Node(
            id=self._identity.node_id,
            secret_id=self._identity.secret_id,
            name=settings.name,
            datacenter=settings.datacenter,
            node_class=settings.node_class,
            node_pool=settings.node_pool,
            http_addr=settings.http_address,
            attributes=dict(sorted(attributes.items())),
            links=links,
            meta=merged(settings.meta, self._meta),
            cgroup_parent=settings.cgroup_parent,
            status=NodeStatus.INITIALIZING,
            drivers=dict(sorted(self._drivers.items())),
            host_volumes=dict(_last(found, "host_volumes") or {}),
            host_networks=dict(_last(found, "host_networks") or {}),
            node_max_allocs=settings.node_max_allocs,
            node_resources=_resources(settings, found),
            reserved_resources=_reserved(settings, found),
        )


def _resources(settings: ClientSettings, found: list[Found]) -> NodeResources:
    networks = _last(found, "networks") or ()
    return NodeResources(
        cpu=_last(found, "cpu") or NodeCPU(cpu_shares=settings.cpu_total_compute),
        processors=_last(found, "processors") or Processors(),
        memory=_last(found, "memory") or NodeMemory(memory_mb=settings.memory_total_mb),
        disk=_last(found, "disk") or NodeDisk(disk_mb=settings.disk_total_mb),
        node_networks=(*networks, *(_last(found, "group_networks") or ())),
        networks=legacy_networks(networks),
        min_dynamic_port=settings.min_dynamic_port,
        max_dynamic_port=settings.max_dynamic_port,
    )


def _reserved(settings: ClientSettings, found: list[Found]) -> NodeReservedResources:
    """What is kept for the host: what is asked for in MHz, and the share of the cores that are set aside."""
    cpu: NodeCPU = _last(found, "cpu") or NodeCPU()
    kept = settings.reserved
    cores = numbers_in(kept.cores)
    held = cpu.total_cpu_cores - len(cpu.reservable_cpu_cores)
    per_core = cpu.cpu_shares // cpu.total_cpu_cores if cpu.total_cpu_cores else 0
    return NodeReservedResources(
        cpu=ReservedCPU(cpu_shares=kept.cpu + held * per_core, reserved_cpu_cores=cores),
        memory=NodeMemory(memory_mb=kept.memory_mb),
        disk=NodeDisk(disk_mb=kept.disk_mb),
        networks=ReservedNetworks(reserved_host_ports=kept.reserved_ports),
    )


def _last(found: list[Found], name: str) -> Any:
    """The last word on one part of the record: later looks may know better than earlier ones."""
    return next((value for one in reversed(found) if (value := getattr(one, name)) is not None), None)
