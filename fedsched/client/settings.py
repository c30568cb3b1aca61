"""What a client is told by its operator. Made by the agent out of its `[client]` section; checked there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

GB: Final = 1_000_000_000
NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})
NO_TABLE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostVolume:
    """A directory of the host that jobs may ask for by name."""

    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """Addresses of the host that ports may be asked for on, by name."""

    cidr: str = ""
    interface: str = ""
    reserved_ports: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is kept for the host itself and never given to tasks."""

    cpu: int = 0
    """MHz."""
    cores: str = ""
    """Such as `0-2,7`."""
    memory_mb: int = 0
    disk_mb: int = 0
    reserved_ports: str = ""
    """Such as `22,8000-8100`."""


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """How much one artifact may take, and what its download may touch."""

    schemes: tuple[str, ...] = ("https", "file")
    """Ways by which artifacts may come: `https`, `http`, `file` (inside the allocation)."""
    allowed_networks: tuple[str, ...] = ()
    """Networks (CIDR) that may be fetched from although they are loopback, link-local, multicast or a cloud's
    metadata service."""
    http_read_timeout_s: float = 1800.0
    http_max_bytes: int = 10 * GB
    decompression_file_count_limit: int = 4096
    decompression_size_limit_bytes: int = 20 * GB
    set_environment_variables: tuple[str, ...] = ()
    """Names of the agent's own variables that downloads see."""
    disable_filesystem_isolation: bool = False
    disable_artifact_inspection: bool = False
    """Symlinks of archives may lead anywhere; the agent itself never follows them out."""


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """How templates are rendered."""

    function_denylist: tuple[str, ...] = ("executeTemplate", "plugin", "writeToFile")
    disable_file_sandbox: bool = False
    block_query_wait_s: float = 300.0
    wait_min_s: float = 5.0
    wait_max_s: float = 240.0
    retry_attempts: int = 12
    retry_first_s: float = 0.25
    retry_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class DrainOnShutdown:
    """What happens to the allocations of a client that leaves for good."""

    deadline_s: float = 3600.0
    force: bool = False
    """No deadline at all is waited for: everything stops at once."""
    ignore_system_jobs: bool = False


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Everything one client needs to know."""

    state_dir: Path
    alloc_dir: Path
    name: str = "client"
    region: str = "global"
    datacenter: str = "dc1"
    node_class: str = ""
    node_pool: str = "default"
    servers: tuple[str, ...] = ()
    """Server ports to dial, host or host:port."""
    http_address: str = ""
    """Where this agent's own HTTP port is, for whoever reads the node record."""
    meta: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    options: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    reserved: Reserved = Reserved()
    cpu_total_compute: int = 0
    """MHz; 0: as found."""
    memory_total_mb: int = 0
    disk_total_mb: int = 0
    network_interface: str = ""
    bridge_network_name: str = "fedsched"
    """The bridge that groups with mode `bridge` are tied to. Every agent of a host needs its own."""
    bridge_network_subnet: str = "172.26.64.0/20"
    bridge_network_hairpin_mode: bool = False
    network_speed: int = 0
    """Mbit/s; 0: as found."""
    host_networks: Mapping[str, HostNetwork] = field(default_factory=dict)
    host_volumes: Mapping[str, HostVolume] = field(default_factory=dict)
    min_dynamic_port: int = 20000
    max_dynamic_port: int = 32000
    gc_interval_s: float = 60.0
    gc_disk_usage_threshold: float = 80.0
    gc_inode_usage_threshold: float = 70.0
    gc_max_allocs: int = 50
    gc_parallel_destroys: int = 2
    max_kill_timeout_s: float = 30.0
    no_host_uuid: bool = True
    disable_remote_exec: bool = False
    enforce_disk: bool = False
    cgroup_parent: str = "fedsched.slice"
    node_max_allocs: int = 0
    """0: no limit."""
    artifact: ArtifactLimits = ArtifactLimits()
    template: TemplateSettings = TemplateSettings()
    drain_on_shutdown: DrainOnShutdown | None = None
    """None: a client that leaves does not drain."""
    drivers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of single drivers by name, `[client.plugin.raw_exec]`."""
    driver_allowlist: tuple[str, ...] = ()
    driver_denylist: tuple[str, ...] = ()
    fingerprint_allowlist: tuple[str, ...] = ()
    fingerprint_denylist: tuple[str, ...] = ()
    user_denylist: tuple[str, ...] = ("root", "Administrator")
    user_checked_drivers: tuple[str, ...] = ("exec", "qemu", "java")
    dynamic_user_min: int = 80_000
    dynamic_user_max: int = 89_999
    env_denylist: tuple[str, ...] = ()
    """Names (with `*`) of the agent's own variables that no task sees, beyond those that never are."""
    chroot_env: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    """Paths of the host and where an `exec` task sees them; empty: the usual ones."""
    collection_interval_s: float = 10.0
    """How often published figures are taken."""
    publish_allocation_metrics: bool = False
    publish_node_metrics: bool = False
    is_dev: bool = False

    def driver_settings(self, name: str) -> Mapping[str, Any]:
        """What the operator says about one driver."""
        return self.drivers.get(name, NO_TABLE)
