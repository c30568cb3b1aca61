"""Volumes: what a group asks for, where a task mounts it, and the host volumes that servers know."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.constraint import Constraint
from fedsched.model.record import EMPTY, FreeForm, Index, Record, StringMap, TimeNs, UpdateClass, field

DESTRUCTIVE = UpdateClass.DESTRUCTIVE


class VolumeRequest(Record):
    """A volume that a group needs. CSI is not ours: `mount_options` is kept as plain data."""

    name: Annotated[str, DESTRUCTIVE] = ""
    type: Annotated[str, DESTRUCTIVE, "`host`; others are kept."] = ""
    source: Annotated[str, DESTRUCTIVE] = ""
    read_only: Annotated[bool, DESTRUCTIVE] = False
    sticky: Annotated[bool, DESTRUCTIVE] = False
    access_mode: Annotated[str, DESTRUCTIVE] = ""
    attachment_mode: Annotated[str, DESTRUCTIVE] = ""
    mount_options: Annotated[FreeForm | None, DESTRUCTIVE] = None
    per_alloc: Annotated[bool, DESTRUCTIVE, "Each allocation's own: its index is appended to the source."] = False


class VolumeMount(Record):
    """Where a task sees one of its group's volumes."""

    volume: Annotated[str, DESTRUCTIVE] = ""
    destination: Annotated[str, DESTRUCTIVE] = ""
    read_only: Annotated[bool, DESTRUCTIVE] = False
    propagation_mode: Annotated[str, DESTRUCTIVE] = ""
    selinux_label: Annotated[str, DESTRUCTIVE] = field(default="", name="SELinuxLabel")


class HostVolumeState(StrEnum):
    PENDING = "pending"
    READY = "ready"
    UNAVAILABLE = "unavailable"


class HostVolumeCapability(Record):
    """One way in which a volume may be used."""

    attachment_mode: str = ""
    access_mode: str = ""


class HostVolume(Record):
    """A directory or device of one node, known to the servers."""

    namespace: str = "default"
    id: str
    name: str = ""
    plugin_id: str = ""
    node_pool: str = ""
    node_id: str = ""
    constraints: tuple[Constraint, ...] = ()
    requested_capacity_min_bytes: int = 0
    requested_capacity_max_bytes: int = 0
    capacity_bytes: int = 0
    requested_capabilities: tuple[HostVolumeCapability, ...] = ()
    parameters: StringMap = EMPTY
    host_path: str = ""
    state: HostVolumeState = HostVolumeState.PENDING
    create_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_index: Index = 0
    modify_time_ns: TimeNs = 0


class HostVolumeStub(Record):
    """A host volume as lists show it."""

    namespace: str = ""
    id: str
    name: str = ""
    plugin_id: str = ""
    node_pool: str = ""
    node_id: str = ""
    capacity_bytes: int = 0
    state: HostVolumeState = HostVolumeState.PENDING
    create_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_index: Index = 0
    modify_time_ns: TimeNs = 0
