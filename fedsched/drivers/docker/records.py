"""The parts of an engine's answers that the driver reads. Everything is optional: engines leave out and write null."""

from __future__ import annotations

from typing import Any

import msgspec

from fedsched.drivers.docker.streams import time_ns


class _Answered(msgspec.Struct, frozen=True, rename="pascal"):
    pass


class EngineVersion(_Answered, frozen=True):
    version: str = ""
    api_version: str = "1.24"
    min_api_version: str = msgspec.field(name="MinAPIVersion", default="1.24")
    os: str = ""
    components: list[dict[str, Any]] | None = None

    @property
    def is_podman(self) -> bool:
        return any("podman" in str(one.get("Name", "")).lower() for one in self.components or ())


class EngineInfo(_Answered, frozen=True):
    os_type: str = msgspec.field(name="OSType", default="")
    runtimes: dict[str, Any] | None = None
    default_runtime: str = ""
    cgroup_version: str = ""
    pids_limit: bool = False
    ncpu: int = msgspec.field(name="NCPU", default=0)


class _IpamConfig(_Answered, frozen=True):
    gateway: str = ""


class _Ipam(_Answered, frozen=True):
    config: list[_IpamConfig] | None = None


class NetworkDetails(_Answered, frozen=True):
    ipam: _Ipam | None = msgspec.field(name="IPAM", default=None)

    @property
    def gateway(self) -> str:
        configs = (self.ipam.config if self.ipam else None) or []
        return next((config.gateway for config in configs if config.gateway), "")


class ImageDetails(_Answered, frozen=True):
    id: str = ""
    repo_tags: list[str] | None = None


class ContainerState(_Answered, frozen=True):
    status: str = ""
    running: bool = False
    oom_killed: bool = msgspec.field(name="OOMKilled", default=False)
    pid: int = 0
    exit_code: int = 0
    error: str | None = None
    started_at: str = ""
    finished_at: str = ""

    @property
    def started_at_ns(self) -> int:
        return time_ns(self.started_at)

    @property
    def finished_at_ns(self) -> int:
        return time_ns(self.finished_at)

    @property
    def was_started(self) -> bool:
        return self.started_at_ns > 0

    @property
    def has_ended(self) -> bool:
        """Is its exit code true? While podman stops a container it calls it not running, with exit code 0."""
        return not self.running and self.status in ("exited", "dead", "removing", "stopped")


class ContainerConfig(_Answered, frozen=True):
    labels: dict[str, str] | None = None
    tty: bool = False


class EndpointDetails(_Answered, frozen=True):
    ip_address: str = msgspec.field(name="IPAddress", default="")
    global_ipv6_address: str = msgspec.field(name="GlobalIPv6Address", default="")


class NetworkSettings(_Answered, frozen=True):
    networks: dict[str, EndpointDetails | None] | None = None


class ContainerDetails(_Answered, frozen=True):
    id: str = ""
    name: str = ""
    image: str = ""
    log_path: str = ""
    state: ContainerState = ContainerState()
    config: ContainerConfig = ContainerConfig()
    network_settings: NetworkSettings | None = None

    @property
    def labels(self) -> dict[str, str]:
        return self.config.labels or {}


class ContainerListed(_Answered, frozen=True):
    id: str = ""
    created: int = 0
    state: str = ""
    labels: dict[str, str] | None = None


class ExecDetails(_Answered, frozen=True):
    running: bool = False
    exit_code: int | None = None
    pid: int = 0


class RegistryAuth(msgspec.Struct, frozen=True):
    """Who pulls. Named as engines want to read it."""

    username: str = ""
    password: str = ""
    email: str = ""
    serveraddress: str = ""
    identitytoken: str = ""

    def __repr__(self) -> str:
        return f"RegistryAuth(username={self.username!r}, serveraddress={self.serveraddress!r})"


class MemoryStats(msgspec.Struct, frozen=True):
    usage: int = 0
    max_usage: int = 0
    stats: dict[str, int] | None = None


class CpuUsage(msgspec.Struct, frozen=True):
    total_usage: int = 0
    usage_in_kernelmode: int = 0
    usage_in_usermode: int = 0


class Throttling(msgspec.Struct, frozen=True):
    throttled_periods: int = 0
    throttled_time: int = 0


class CpuStats(msgspec.Struct, frozen=True):
    cpu_usage: CpuUsage = CpuUsage()
    throttling_data: Throttling | None = None


class StatsSample(msgspec.Struct, frozen=True):
    read: str = ""
    memory_stats: MemoryStats = MemoryStats()
    cpu_stats: CpuStats = CpuStats()
