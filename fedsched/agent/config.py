"""The settings of an agent. Names are those operators know; each field says what it is for.

How they are gathered from files, environment and flags is in `config_load`; what must hold between them is in
`config_check`. `docs/reference/config.md` is written from this module (`python -m fedsched.agent.config_reference`).
"""

# ruff: noqa: RUF009  (`setting` returns a dataclass field, and sections are frozen: no default is shared by accident)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsched.agent.config_client import ClientSection
from fedsched.agent.settings import setting

LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "off")
PORT_MAX = 65535
NO_TEXTS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Ports:
    """The three ports of an agent. 0 lets the system choose a free one."""

    http: int = setting(4646, "HTTP API and websocket, on every agent", flag="http-port", low=0, high=PORT_MAX)
    rpc: int = setting(4647, "servers among themselves, and clients to servers", flag="rpc-port", low=0, high=PORT_MAX)
    serf: int = setting(4648, "gossip, UDP and TCP", flag="serf-port", low=0, high=PORT_MAX)


@dataclass(frozen=True)
class Addresses:
    """Where to listen, per service, when it is not the same address for all."""

    http: str = setting("", "listen address of the HTTP API; empty means bind_addr")
    rpc: str = setting("", "listen address of the server port; empty means bind_addr")
    serf: str = setting("", "listen address of gossip; empty means bind_addr")


@dataclass(frozen=True)
class Advertise:
    """What others are told to dial, when it differs from the listen address: host, or host:port."""

    http: str = setting("", "address of the HTTP API as others reach it")
    rpc: str = setting("", "address of the server port as others reach it")
    serf: str = setting("", "address of gossip as others reach it")


@dataclass(frozen=True)
class ServerJoin:
    """Which servers to look for at the start, and how patiently."""

    retry_join: tuple[str, ...] = setting(
        (), "servers of the region, host or host:port of their server or gossip port", flag="retry-join"
    )
    retry_join_wan: tuple[str, ...] = setting(
        (), "gossip addresses, host or host:port, of servers of any region; the others are learned from them"
    )
    retry_interval_s: float = setting(30.0, "pause between attempts", low=0.05)
    retry_max: int = setting(0, "attempts before giving up; 0 means never", low=0)


@dataclass(frozen=True)
class PlanRejectionTracker:
    """Takes nodes out of scheduling that refuse plan after plan: something about them is not as they say."""

    enabled: bool = setting(False, "whether such nodes are made ineligible")
    node_threshold: int = setting(100, "refusals of one node before it is made ineligible", low=1)
    node_window_s: float = setting(300.0, "the time within which they are counted", low=1)


@dataclass(frozen=True)
class ServerSettings:
    """A server takes part in its region's consensus and schedules its jobs."""

    enabled: bool = setting(False, "whether this agent is a server", flag="server")
    bootstrap_expect: int = setting(
        0, "how many servers form the region when it starts for the first time", flag="bootstrap-expect", low=0, high=9
    )
    server_join: ServerJoin = setting(ServerJoin(), "finding the other servers")
    encrypt: str = setting(
        "", "gossip key, base64 of 16, 24 or 32 bytes; needed off loopback; a gossip.keyring on disk wins"
    )
    raft_multiplier: float = setting(1.0, "stretches all consensus timeouts, for slow disks or links", low=0.1, high=10)
    raft_snapshot_threshold: int = setting(8192, "entries applied before the log may be compacted", low=16)
    raft_snapshot_size_bytes: int = setting(
        16 * 1024 * 1024, "bytes of entries applied before the log may be compacted", low=1024
    )
    raft_trailing_logs: int = setting(10240, "entries kept behind a snapshot, for servers that catch up", low=0)
    num_schedulers: int = setting(
        8, "evaluations that this server works on at once; 0 leaves them to the other servers", low=0, high=256
    )
    enabled_schedulers: tuple[str, ...] = setting(
        (), "job types that this server's workers take, also of installed packages; empty means all that come with it"
    )
    plan_rejection_tracker: PlanRejectionTracker = setting(
        PlanRejectionTracker(), "nodes on which plans are refused again and again"
    )
    ballast_size_bytes: int = setting(
        64 * 1024 * 1024, "space held back on the data disk, freed in an emergency", low=0
    )
    peer_address_overrides: Mapping[str, str] = setting(
        NO_TEXTS, 'addresses to dial for single servers by name, where a relay stands between: eu-2 = "127.0.0.1:9000"'
    )
    disk_soft_limit_bytes: int = setting(
        1024 * 1024 * 1024, "free space below which new client writes are refused; 0 turns the check off", low=0
    )


@dataclass(frozen=True)
class TlsSettings:
    """Who may talk to this agent. With files set, every port speaks TLS and asks the other side for a certificate."""

    ca_file: str = setting("", "PEM file of the authority that signed everybody's certificates", flag="tls-ca-file")
    cert_file: str = setting("", "PEM file of this agent's certificate chain", flag="tls-cert-file")
    key_file: str = setting("", "PEM file of this agent's private key", flag="tls-key-file")
    verify_server_hostname: bool = setting(True, "whether a server's certificate must carry its role and region")


@dataclass(frozen=True)
class TelemetrySettings:
    """What is measured and offered."""

    collection_interval_s: float = setting(10.0, "length of the intervals that /v1/metrics reports on", low=0.1)
    publish_allocation_metrics: bool = setting(
        False, "offer what every task on this client uses, as metrics with its job, group, task and allocation"
    )
    publish_node_metrics: bool = setting(False, "offer what this client's host uses, as metrics")
    cpu_shares: bool = setting(False, "count which part of the agent uses the processor (process.cpu_samples)")


@dataclass(frozen=True)
class Limits:
    """Ceilings on what others may ask of this agent."""

    http_max_conns_per_client: int = setting(100, "open HTTP and websocket connections from one address", low=1)
    rpc_max_conns_per_client: int = setting(100, "open server-port connections from one address", low=1)
    handshake_timeout_s: float = setting(5.0, "time for a whole TLS or link handshake", low=0.1)
    half_open_max: int = setting(512, "connections that have not finished their handshake", low=1)
    message_max_bytes: int = setting(16 * 1024 * 1024, "one message on a link", low=512 * 1024)


@dataclass(frozen=True)
class AutopilotSettings:
    """How the leader looks after the set of servers when a region starts; changed later through the operator API."""

    cleanup_dead_servers: bool = setting(True, "remove servers that are gone for good, if the rest is healthy")
    last_contact_threshold_s: float = setting(0.2, "silence after which a server is unhealthy", low=0.01)
    max_trailing_logs: int = setting(250, "entries behind the leader after which a server is unhealthy", low=1)
    server_stabilization_time_s: float = setting(10.0, "how long a new server must be healthy before it votes", low=0)
    min_quorum: int = setting(0, "never clean up below this many servers", low=0)


@dataclass(frozen=True)
class AgentConfig:
    """Everything one agent needs to know."""

    name: str = setting("", "unique name of this agent in its region; the host's name if empty", flag="node")
    region: str = setting("global", "region this agent belongs to", flag="region")
    datacenter: str = setting("dc1", "datacenter label of this agent", flag="dc")
    data_dir: str = setting("", "where this agent keeps what it must not forget", flag="data-dir")
    bind_addr: str = setting("127.0.0.1", "address to listen on; anything but loopback needs tls", flag="bind")
    addresses: Addresses = setting(Addresses(), "listen addresses per service")
    ports: Ports = setting(Ports(), "ports to listen on")
    advertise: Advertise = setting(Advertise(), "addresses that others are told to dial")
    log_level: str = setting("info", "least important events to log", flag="log-level", choices=LOG_LEVELS)
    log_levels: Mapping[str, str] = setting(NO_TEXTS, 'levels of single areas, such as raft = "debug"')
    log_json: bool = setting(False, "log JSON lines instead of text", flag="log-json")
    log_file: str = setting("", "log to this file instead of stderr", flag="log-file")
    log_rotate_bytes: int = setting(64 * 1024 * 1024, "size at which the log file is rotated", low=4096)
    log_rotate_max_files: int = setting(4, "rotated log files kept", low=0, high=1000)
    leave_on_terminate: bool = setting(False, "leave the region for good on SIGTERM, instead of just stopping")
    leave_on_interrupt: bool = setting(False, "leave the region for good on SIGINT, instead of just stopping")
    shutdown_grace_s: float = setting(5.0, "time for an orderly stop, handing leadership over", low=0)
    server: ServerSettings = setting(ServerSettings(), "the server half")
    client: ClientSection = setting(ClientSection(), "the client half")
    tls: TlsSettings = setting(TlsSettings(), "certificates")
    telemetry: TelemetrySettings = setting(TelemetrySettings(), "measurements")
    limits: Limits = setting(Limits(), "protection against overload")
    autopilot: AutopilotSettings = setting(AutopilotSettings(), "care for the set of servers")

    @property
    def has_tls(self) -> bool:
        return bool(self.tls.cert_file)

    def listen_host(self, service: str) -> str:
        """Give the address to bind for "http", "rpc" or "serf"."""
        return getattr(self.addresses, service) or self.bind_addr
