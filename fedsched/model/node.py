"""A node: a host's record, as its client reports it and servers see it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from fedsched.model.node_resources import NodeReservedResources, NodeResources
from fedsched.model.record import (
    EMPTY,
    FreeForm,
    Index,
    InJson,
    Record,
    Seconds,
    StringMap,
    TimeS,
    TimeText,
)
from fedsched.model.states import Moves

KEEP_EMPTY = InJson.KEEP_EMPTY

MAX_NODE_EVENTS = 10
"""A node keeps its latest events; older ones are dropped, as Nomad does."""


class NodeStatus(StrEnum):
    INITIALIZING = "initializing"
    READY = "ready"
    DOWN = "down"
    DISCONNECTED = "disconnected"

    @property
    def is_terminal(self) -> bool:
        return self is NodeStatus.DOWN


NODE_MOVES = Moves(
    NodeStatus,
    {
        NodeStatus.INITIALIZING: {NodeStatus.READY, NodeStatus.DOWN, NodeStatus.DISCONNECTED},
        NodeStatus.READY: {NodeStatus.INITIALIZING, NodeStatus.DOWN, NodeStatus.DISCONNECTED},
        NodeStatus.DISCONNECTED: {NodeStatus.INITIALIZING, NodeStatus.DOWN},
        NodeStatus.DOWN: {NodeStatus.INITIALIZING, NodeStatus.READY},
    },
)


class Eligibility(StrEnum):
    ELIGIBLE = "eligible"
    INELIGIBLE = "ineligible"


class DriverInfo(Record):
    """What a client found out about one driver."""

    attributes: Annotated[StringMap, KEEP_EMPTY] = EMPTY
    detected: bool = False
    healthy: bool = False
    health_description: str = ""
    update_time_ns: TimeText = 0


class HostVolumeInfo(Record):
    """A host volume as its node offers it."""

    name: str = ""
    path: str = ""
    read_only: bool = False
    id: Annotated[str, "Set for volumes that servers created."] = ""


class HostNetworkInfo(Record):
    """A named host network of a node."""

    name: str = ""
    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""


class NodeEvent(Record):
    """Something that happened to a node."""

    message: str = ""
    subsystem: str = ""
    details: StringMap = EMPTY
    timestamp_ns: TimeText = 0
    create_index: Index = 0


class DrainStrategy(Record):
    """How a node is emptied."""

    deadline_s: Annotated[Seconds, "0 is no deadline, below 0 is now."] = 0.0
    ignore_system_jobs: bool = False
    force_deadline_ns: TimeText = 0
    started_at_ns: TimeText = 0


class DrainStatus(StrEnum):
    DRAINING = "draining"
    COMPLETE = "complete"
    CANCELLED = "canceled"


class DrainMetadata(Record):
    """The latest drain of a node: when, how it went, who asked."""

    started_at_ns: TimeText = 0
    updated_at_ns: TimeText = 0
    status: DrainStatus = DrainStatus.DRAINING
    accessor_id: str = ""
    meta: StringMap = EMPTY


class NodeListStub(Record):
    """A node as lists show it."""

    address: str = ""
    id: str
    attributes: StringMap = EMPTY
    datacenter: str = ""
    name: str = ""
    node_pool: str = ""
    node_class: str = ""
    version: str = ""
    drain: bool = False
    scheduling_eligibility: Eligibility = Eligibility.ELIGIBLE
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    drivers: dict[str, DriverInfo] = EMPTY
    host_volumes: Annotated[dict[str, HostVolumeInfo], KEEP_EMPTY] = EMPTY
    node_resources: NodeResources | None = None
    reserved_resources: NodeReservedResources | None = None
    last_drain: DrainMetadata | None = None
    create_index: Index = 0
    modify_index: Index = 0


class Node(Record):
    """A host that allocations can run on. The CSI plugin maps are kept as plain data."""

    derived: ClassVar[tuple[str, ...]] = ("drain",)

    id: str
    secret_id: Annotated[str, InJson.REDACTED, "What the client proves itself with; never shown."] = ""
    datacenter: str = "dc1"
    name: str = ""
    http_addr: str = ""
    tls_enabled: bool = False
    attributes: StringMap = EMPTY
    node_resources: NodeResources = NodeResources()
    reserved_resources: NodeReservedResources = NodeReservedResources()
    links: Annotated[StringMap, KEEP_EMPTY] = EMPTY
    meta: StringMap = EMPTY
    node_class: str = ""
    node_pool: str = "default"
    computed_class: Annotated[str, "Digest of what placement can see; alike nodes share it."] = ""
    cgroup_parent: str = ""
    drain_strategy: DrainStrategy | None = None
    scheduling_eligibility: Eligibility = Eligibility.ELIGIBLE
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    status_updated_at_s: TimeS = 0
    events: tuple[NodeEvent, ...] = ()
    drivers: dict[str, DriverInfo] = EMPTY
    csi_controller_plugins: Annotated[FreeForm, KEEP_EMPTY] = EMPTY
    csi_node_plugins: Annotated[FreeForm, KEEP_EMPTY] = EMPTY
    host_volumes: Annotated[dict[str, HostVolumeInfo], KEEP_EMPTY] = EMPTY
    gc_volumes_on_node_gc: bool = False
    host_networks: dict[str, HostNetworkInfo] = EMPTY
    last_drain: DrainMetadata | None = None
    last_missed_heartbeat_index: int = 0
    last_alloc_update_index: int = 0
    identity_signing_key_id: str = ""
    node_max_allocs: Annotated[int, "0 is no limit."] = 0
    create_index: Index = 0
    modify_index: Index = 0

    @property
    def drain(self) -> bool:
        return self.drain_strategy is not None

    @property
    def is_ready(self) -> bool:
        """Whether something new may be placed on it."""
        return (
            self.status is NodeStatus.READY
            and self.drain_strategy is None
            and self.scheduling_eligibility is Eligibility.ELIGIBLE
        )

    def stub(self, *, resources: bool = False, os: bool = False) -> NodeListStub:
        """Give the form for lists; what is large comes only when asked for."""
        return NodeListStub(
            **{name: getattr(self, name) for name in _STUB_FIELDS},
            address=self.http_addr.rpartition(":")[0].strip("[]"),
            version=self.attributes.get("nomad.version", ""),
            attributes={"os.name": self.attributes.get("os.name", "")} if os else {},
            node_resources=self.node_resources if resources else None,
            reserved_resources=self.reserved_resources if resources else None,
        )


_STUB_FIELDS = tuple(
    name
    for name in NodeListStub.__struct_fields__
    if name not in ("address", "version", "attributes", "node_resources", "reserved_resources")
)
