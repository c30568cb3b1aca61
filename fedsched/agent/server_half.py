"""The server half of an agent: its settings out of the agent's. Imported only by agents that are servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_check import split_host_port
from fedsched.env.env import Env
from fedsched.gossip.keyring import read_key
from fedsched.gossip.sockets import GOSSIP_PORT
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.datadir import SpaceLimits
from fedsched.server.dialling import RPC_PORT
from fedsched.server.endpoints.agent import AgentFacts
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.server.server import Server
from fedsched.server.settings import GossipOptions, ServerOptions
from fedsched.server.tls import TlsContexts
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry


def make_server(
    config: AgentConfig,
    tls: TlsContexts | None,
    *,
    shown: Mapping[str, Any],
    client_stats: Callable[[], Mapping[str, str]],
    env: Env,
    log: Logger,
    metrics: Registry,
) -> Server:
    """`shown` are the settings as plain values, `client_stats` what the client half (if any) says of itself."""
    facts = AgentFacts(config.name, config.region, config.datacenter, shown, client_stats)
    return Server(server_options(config, tls), env=env, log=log, metrics=metrics, facts=facts)


def server_options(config: AgentConfig, tls: TlsContexts | None) -> ServerOptions:
    """The server half's settings out of the agent's."""
    server, autopilot, ports = config.server, config.autopilot, config.ports
    join = server.server_join
    soft = server.disk_soft_limit_bytes
    return ServerOptions(
        name=config.name,
        region=config.region,
        datacenter=config.datacenter,
        data_dir=Path(config.data_dir) / "server",
        rpc_host=config.listen_host("rpc"),
        rpc_port=config.ports.rpc,
        advertise=config.advertise.rpc,
        bootstrap_expect=server.bootstrap_expect,
        join=_but_on(join.retry_join, {GOSSIP_PORT, ports.serf} - {ports.rpc}),
        join_interval_s=join.retry_interval_s,
        join_attempts_max=join.retry_max,
        peer_address_overrides=server.peer_address_overrides,
        raft_multiplier=server.raft_multiplier,
        num_schedulers=server.num_schedulers,
        enabled_schedulers=server.enabled_schedulers,
        rejections=RejectionSettings(
            is_enabled=server.plan_rejection_tracker.enabled,
            threshold=server.plan_rejection_tracker.node_threshold,
            window_s=server.plan_rejection_tracker.node_window_s,
        ),
        compaction=CompactionSettings(
            snapshot_entries=server.raft_snapshot_threshold,
            snapshot_bytes=server.raft_snapshot_size_bytes,
            trailing_entries=server.raft_trailing_logs,
        ),
        autopilot=AutopilotSettings(
            cleanup_dead_servers=autopilot.cleanup_dead_servers,
            last_contact_threshold_s=autopilot.last_contact_threshold_s,
            max_trailing_logs=autopilot.max_trailing_logs,
            server_stabilization_time_s=autopilot.server_stabilization_time_s,
            min_quorum=autopilot.min_quorum,
        ),
        ballast_bytes=server.ballast_size_bytes,
        space_limits=SpaceLimits(soft_bytes=soft, hard_bytes=soft // 4) if soft else SpaceLimits(0, 0, 0, 0),
        tls=tls,
        gossip=GossipOptions(
            host=config.listen_host("serf"),
            port=config.ports.serf,
            advertise=config.advertise.serf.rpartition(":")[0] or config.advertise.serf,
            join=join.retry_join_wan,
            maybe=() if join.retry_join_wan else _but_on(join.retry_join, {RPC_PORT, ports.rpc} - {ports.serf}),
            retry_max=join.retry_max,
            keys=(read_key(server.encrypt),) if server.encrypt else (),
        ),
        connections_per_host_max=config.limits.rpc_max_conns_per_client,
        handshake_s=config.limits.handshake_timeout_s,
    )


def _but_on(places: Iterable[str], ports: set[int]) -> tuple[str, ...]:
    """The places where something else may be than on these ports.

    People name a server by its server port or by its gossip port. A place without a port stands for both, one with an
    unusual port may be either; only for the usual ones it is clear who is not there.
    """
    return tuple(place for place in places if split_host_port(place, 0)[1] not in ports - {0})
