"""What a node has, and what of it is kept for the host itself."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.network import NetworkResource
from fedsched.model.record import EMPTY, FreeForm, Record, field


class NodeCPU(Record):
    """A node's CPU."""

    cpu_shares: Annotated[int, "MHz over all cores."] = field(default=0, name="CpuShares")
    total_cpu_cores: int = field(default=0, name="TotalCpuCores")
    reservable_cpu_cores: tuple[int, ...] = field(default=(), name="ReservableCpuCores")


class NodeMemory(Record):
    """A node's memory."""

    memory_mb: int = 0


class NodeDisk(Record):
    """A node's disk."""

    disk_mb: int = 0


class NodeNetworkAddress(Record):
    """One address of a node's network."""

    family: str = ""
    alias: Annotated[str, "The host network that it belongs to."] = ""
    address: str = ""
    reserved_ports: str = ""
    gateway: str = ""


class NodeNetwork(Record):
    """A network that a node can offer."""

    mode: str = ""
    device: str = ""
    mac_address: str = ""
    speed: int = 0
    addresses: tuple[NodeNetworkAddress, ...] = ()


class NodeDevice(Record):
    """One instance of a device."""

    id: str = ""
    healthy: bool = False
    health_description: str = ""
    locality: FreeForm | None = None


class NodeDeviceGroup(Record):
    """Alike devices of a node; attributes are typed values as the device's plugin gave them, kept as plain data."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    instances: tuple[NodeDevice, ...] = ()
    attributes: FreeForm = EMPTY

    @property
    def id(self) -> str:
        return f"{self.vendor}/{self.type}/{self.name}"


class CPUCore(Record):
    """One core of a node's processors."""

    id: int = 0
    node_id: Annotated[int, "The NUMA node."] = 0
    socket_id: int = 0
    grade: Annotated[bool, "True for a performance core."] = True
    disable: bool = False
    base_speed: int = 0
    max_speed: int = 0
    guess_speed: int = 0


class CPUTopology(Record):
    """How a node's cores sit together."""

    cores: tuple[CPUCore, ...] = ()
    distances: tuple[tuple[int, ...], ...] = ()
    nodes: tuple[int, ...] = ()
    override_total_compute: int = 0
    override_withold_compute: Annotated[int, "Spelled as Nomad spells it."] = 0


class Processors(Record):
    """A node's processors."""

    topology: CPUTopology | None = None


class NodeResources(Record):
    """What a node has."""

    cpu: NodeCPU = field(default=NodeCPU(), name="Cpu")
    processors: Processors = Processors()
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    devices: tuple[NodeDeviceGroup, ...] = ()
    node_networks: tuple[NodeNetwork, ...] = ()
    networks: Annotated[tuple[NetworkResource, ...], "Legacy view of the same networks."] = ()
    min_dynamic_port: int = 20000
    max_dynamic_port: int = 32000


class ReservedCPU(Record):
    """CPU kept for the host."""

    cpu_shares: int = field(default=0, name="CpuShares")
    reserved_cpu_cores: tuple[int, ...] = field(default=(), name="ReservedCpuCores")


class ReservedNetworks(Record):
    """Ports kept for the host."""

    reserved_host_ports: Annotated[str, "Such as `22,8000-8100`."] = ""


class NodeReservedResources(Record):
    """What of a node is kept for the host itself."""

    cpu: ReservedCPU = field(default=ReservedCPU(), name="Cpu")
    memory: NodeMemory = NodeMemory()
    disk: NodeDisk = NodeDisk()
    networks: ReservedNetworks = ReservedNetworks()
