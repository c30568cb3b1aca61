"""The `[client]` section: what an agent that runs tasks is told about its host, its drivers and its limits."""

# ruff: noqa: RUF009  (`setting` returns a dataclass field, and sections are frozen: no default is shared by accident)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsched.agent.settings import setting

PORT_MAX = 65535
NO_TEXTS: Mapping[str, str] = {}


@dataclass(frozen=True)
class ClientJoin:
    """Which servers to look for at the start."""

    retry_join: tuple[str, ...] = setting(
        (), "servers to dial, beside those of client.servers; tried until one answers"
    )


@dataclass(frozen=True)
class ReservedSection:
    """What is kept for the host itself and never given to tasks."""

    cpu: int = setting(0, "MHz", low=0)
    cores: str = setting("", 'processor cores, such as "0-2,7"')
    memory: int = setting(0, "MiB", low=0)
    disk: int = setting(0, "MiB", low=0)
    reserved_ports: str = setting("", 'ports that tasks never get, such as "22,8000-8100"')


@dataclass(frozen=True)
class HostVolumeSection:
    """A directory of this host that jobs may ask for by name."""

    path: str = setting("", "absolute path; the volume is offered while it exists")
    read_only: bool = setting(False, "whether tasks may only read it")


@dataclass(frozen=True)
class HostNetworkSection:
    """A named group of this host's addresses that ports may be asked for on."""

    cidr: str = setting("", 'addresses in this range, such as "10.0.0.0/8"')
    interface: str = setting("", "addresses of this interface")
    reserved_ports: str = setting("", "ports that tasks never get on these addresses")


@dataclass(frozen=True)
class ArtifactSection:
    """How much one artifact may take, and what its download may touch."""

    schemes: tuple[str, ...] = setting(("https", "file"), "ways by which artifacts may come: https, http, file")
    allowed_networks: tuple[str, ...] = setting(
        (), "networks that may be fetched from although they are loopback, link-local or a cloud's metadata service"
    )
    http_read_timeout_s: float = setting(1800.0, "for one download", low=1)
    http_max_size_bytes: int = setting(10_000_000_000, "largest download", low=1)
    decompression_file_count_limit: int = setting(4096, "files in one archive", low=1)
    decompression_size_limit_bytes: int = setting(20_000_000_000, "unpacked size of one archive", low=1)
    set_environment_variables: tuple[str, ...] = setting((), "variables of the agent that downloads see")
    disable_filesystem_isolation: bool = setting(False, "let downloads see the whole file system")
    disable_artifact_inspection: bool = setting(False, "do not look for links that lead out of the allocation")


@dataclass(frozen=True)
class TemplateSection:
    """How templates are rendered."""

    function_denylist: tuple[str, ...] = setting(
        ("executeTemplate", "plugin", "writeToFile"), "functions that templates may not use"
    )
    disable_file_sandbox: bool = setting(False, "let templates read and write outside their allocation")
    block_query_wait_s: float = setting(300.0, "how long one question for news waits", low=1)
    wait_min_s: float = setting(5.0, "quiet time after a change before a template is rendered", low=0)
    wait_max_s: float = setting(240.0, "longest wait for quiet", low=0)


@dataclass(frozen=True)
class DrainSection:
    """What a client that leaves for good does about its allocations."""

    enabled: bool = setting(False, "move them elsewhere before the agent ends")
    deadline_s: float = setting(3600.0, "how long that may take; 0 means as long as it takes", low=0)
    force: bool = setting(False, "stop them all at once instead")
    ignore_system_jobs: bool = setting(False, "leave allocations of system jobs alone")


@dataclass(frozen=True)
class DriverLists:
    """Which drivers this client has."""

    allowlist: tuple[str, ...] = setting((), "only these; empty means all")
    denylist: tuple[str, ...] = setting((), "not these")


@dataclass(frozen=True)
class FingerprintLists:
    """Which looks at the host make up the node's record."""

    allowlist: tuple[str, ...] = setting((), "only these; empty means all")
    denylist: tuple[str, ...] = setting((), "not these")


@dataclass(frozen=True)
class UserLists:
    """Which users tasks may not run as."""

    denylist: tuple[str, ...] = setting(("root", "Administrator"), "users that tasks of checked drivers may not have")
    checked_drivers: tuple[str, ...] = setting(("exec", "qemu", "java"), "drivers whose tasks are checked")


@dataclass(frozen=True)
class DynamicUserSection:
    """Users that exist for one task only, for drivers whose tasks need one. Nobody else on this host may use them."""

    dynamic_user_min: int = setting(80_000, "lowest number of such a user", low=1, high=2**32 - 3)
    dynamic_user_max: int = setting(89_999, "highest number of such a user", low=1, high=2**32 - 3)


@dataclass(frozen=True)
class EnvLists:
    """What of the agent's own environment tasks never see."""

    denylist: tuple[str, ...] = setting((), "names, also with *, beside those that are never passed on")


@dataclass(frozen=True)
class ClientSection:
    """A client runs tasks on its machine."""

    enabled: bool = setting(False, "whether this agent runs tasks", flag="client")
    servers: tuple[str, ...] = setting((), "servers to dial, host or host:port", flag="servers")
    server_join: ClientJoin = setting(ClientJoin(), "finding servers")
    state_dir: str = setting("", "what this client must not forget; data_dir/client if empty")
    alloc_dir: str = setting("", "directories of allocations; data_dir/alloc if empty")
    node_class: str = setting("", "a label that jobs can ask for", flag="node-class")
    node_pool: str = setting("default", "the pool this node is in", flag="node-pool")
    meta: Mapping[str, str] = setting(NO_TEXTS, 'labels that jobs can ask for, such as rack = "r1"', flag="meta")
    options: Mapping[str, str] = setting(NO_TEXTS, "settings of single parts, by name")
    network_interface: str = setting(
        "", "the interface whose addresses tasks get; the default route's if empty", flag="network-interface"
    )
    network_speed: int = setting(0, "Mbit/s; 0 means as the interface says", low=0)
    bridge_network_name: str = setting(
        "fedsched", "bridge of groups with mode bridge; each agent of a host needs its own"
    )
    bridge_network_subnet: str = setting("172.26.64.0/20", "addresses of such groups: a range that nobody else uses")
    bridge_network_hairpin_mode: bool = setting(False, "let allocations reach themselves by their ports of the host")
    cpu_total_compute: int = setting(0, "MHz of all cores together; 0 means as found", low=0)
    memory_total_mb: int = setting(0, "memory to offer; 0 means as found", low=0)
    disk_total_mb: int = setting(0, "disk to offer; 0 means as found", low=0)
    min_dynamic_port: int = setting(20000, "first port given to tasks that ask for any", low=1, high=PORT_MAX)
    max_dynamic_port: int = setting(32000, "last port given to tasks that ask for any", low=1, high=PORT_MAX)
    reserved: ReservedSection = setting(ReservedSection(), "kept for the host")
    host_volume: Mapping[str, HostVolumeSection] = setting({}, "directories of the host, by name")
    host_network: Mapping[str, HostNetworkSection] = setting({}, "groups of addresses, by name")
    gc_interval_s: float = setting(60.0, "how often room is looked at", low=1)
    gc_disk_usage_threshold: float = setting(
        80.0, "percent of the disk in use above which room is made", low=0, high=100
    )
    gc_inode_usage_threshold: float = setting(
        70.0, "percent of the inodes in use above which room is made", low=0, high=100
    )
    gc_max_allocs: int = setting(50, "allocations, finished ones included, above which room is made", low=0)
    gc_parallel_destroys: int = setting(2, "finished allocations removed at once", low=1, high=64)
    max_kill_timeout_s: float = setting(30.0, "longest kill_timeout that a task is granted", low=0)
    no_host_uuid: bool = setting(True, "make the node's id up instead of taking the host's")
    disable_remote_exec: bool = setting(False, "refuse commands inside tasks")
    enforce_disk: bool = setting(False, "kill allocations that outgrow their ephemeral disk")
    cgroup_parent: str = setting("fedsched.slice", "cgroup below which tasks run")
    node_max_allocs: int = setting(0, "allocations placed here at most; 0 means no limit", low=0)
    chroot_env: Mapping[str, str] = setting(
        NO_TEXTS, 'paths that exec tasks see, and where: "/opt" = "/opt"; the usual ones if empty'
    )
    artifact: ArtifactSection = setting(ArtifactSection(), "downloads of tasks")
    template: TemplateSection = setting(TemplateSection(), "rendered files of tasks")
    drain_on_shutdown: DrainSection = setting(DrainSection(), "leaving for good")
    driver: DriverLists = setting(DriverLists(), "choice of drivers")
    fingerprint: FingerprintLists = setting(FingerprintLists(), "choice of fingerprints")
    user: UserLists = setting(UserLists(), "choice of users")
    users: DynamicUserSection = setting(DynamicUserSection(), "users of single tasks")
    env: EnvLists = setting(EnvLists(), "choice of variables")
    plugin: Mapping[str, Mapping[str, Any]] = setting(
        {}, "settings of single drivers: [client.plugin.raw_exec] enabled = true"
    )

    @property
    def all_servers(self) -> tuple[str, ...]:
        """Whom to dial, each once."""
        return tuple(dict.fromkeys([*self.servers, *self.server_join.retry_join]))
