"""Networks and ports, as a group asks for them and as an allocation gets them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedsched.model.record import EMPTY, InDiff, Named, Record, StringMap, UpdateClass, field

DESTRUCTIVE = UpdateClass.DESTRUCTIVE


class Port(Record):
    """A port by its label: asked for, or handed out."""

    sparse: ClassVar[bool] = True

    label: Annotated[str, DESTRUCTIVE] = ""
    value: Annotated[int, DESTRUCTIVE, InDiff.UNLESS_ZERO, "The port on the host; 0 lets the scheduler pick one."] = 0
    to: Annotated[int, DESTRUCTIVE, "The port inside the network namespace; -1 is the host's, 0 is unset."] = 0
    host_network: Annotated[str, DESTRUCTIVE] = ""
    ignore_collision: Annotated[bool, InDiff.NEVER] = False


class DNSConfig(Record):
    """The resolver settings inside a network namespace."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class CNIConfig(Record):
    """Arguments for the CNI plugins."""

    args: StringMap = EMPTY


class NetworkResource(Record):
    """A network block of a group, or the network that an allocation was given."""

    sparse: ClassVar[bool] = True

    mode: Annotated[str, DESTRUCTIVE, "`host` (default), `bridge`, `none` or `cni/<name>`."] = ""
    device: Annotated[str, InDiff.NEVER] = ""
    cidr: Annotated[str, InDiff.NEVER] = ""
    ip: Annotated[str, InDiff.NEVER] = ""
    hostname: Annotated[str, DESTRUCTIVE] = ""
    mbits: Annotated[int, InDiff.NEVER] = 0
    dns: Annotated[DNSConfig | None, DESTRUCTIVE] = None
    reserved_ports: Annotated[tuple[Port, ...], DESTRUCTIVE, Named("Static Port")] = ()
    dynamic_ports: Annotated[tuple[Port, ...], DESTRUCTIVE, Named("Dynamic Port")] = ()
    cni: Annotated[CNIConfig | None, DESTRUCTIVE] = None


class PortMapping(Record):
    """Where a labelled port of an allocation can be reached."""

    sparse: ClassVar[bool] = True

    label: str = ""
    value: int = 0
    to: int = 0
    host_ip: str = ""
    ignore_collision: bool = False


class AllocNetworkStatus(Record):
    """The network namespace of an allocation, as its client built it."""

    interface_name: str = ""
    address: str = ""
    address_ipv6: str = field(default="", name="AddressIPv6")
    dns: DNSConfig | None = None
