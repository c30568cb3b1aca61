"""The client half of an agent: its settings out of the agent's, and what its HTTP port answers when it is all there is.

An agent that is only a client passes every call on to its servers, so that commands work against any agent; only what
is asked of the agent itself is answered here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from fedsched import __version__
from fedsched.agent.config import AgentConfig
from fedsched.client.client import Client
from fedsched.client.dialling import ClientTls, make_dial
from fedsched.client.settings import (
    ArtifactLimits,
    ClientSettings,
    DrainOnShutdown,
    HostNetwork,
    HostVolume,
    Reserved,
    TemplateSettings,
)
from fedsched.env.env import Env
from fedsched.model.errors import BadRequest, FedschedError, Unavailable
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.method import Empty, Method, RunsAt
from fedsched.rpc.methods import agent as methods
from fedsched.rpc.relay import relay
from fedsched.rpc.server_side import CallContext, CallServer, Handler, ServeHere
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry
from fedsched.telemetry.metrics_text import json_summary, prometheus_text

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
"""In dev mode artifacts may come from the machine itself; nobody else's files are there."""
PATIENCE_S: Final = 5.0
"""How long a call waits for a server to be reached."""
SERVER_ONLY: Final = "server"
POOL_ONLY: Final = "pool"


class NotForAgents(FedschedError):
    """Only servers ask each other this."""

    code = "not_for_agents"
    http_status = 403


def client_settings(
    config: AgentConfig, *, servers: tuple[str, ...] = (), http_address: str = "", is_dev: bool = False
) -> ClientSettings:
    """The client's settings out of the agent's; `servers` are known beside those that it names."""
    client = config.client
    data_dir = Path(config.data_dir)
    drain = client.drain_on_shutdown
    return ClientSettings(
        state_dir=Path(client.state_dir or data_dir / "client"),
        alloc_dir=Path(client.alloc_dir or data_dir / "alloc"),
        name=config.name,
        region=config.region,
        datacenter=config.datacenter,
        node_class=client.node_class,
        node_pool=client.node_pool,
        servers=(*servers, *client.all_servers),
        http_address=config.advertise.http or http_address,
        meta=client.meta,
        options=client.options,
        reserved=Reserved(
            cpu=client.reserved.cpu,
            cores=client.reserved.cores,
            memory_mb=client.reserved.memory,
            disk_mb=client.reserved.disk,
            reserved_ports=client.reserved.reserved_ports,
        ),
        cpu_total_compute=client.cpu_total_compute,
        memory_total_mb=client.memory_total_mb,
        disk_total_mb=client.disk_total_mb,
        network_interface=client.network_interface,
        network_speed=client.network_speed,
        bridge_network_name=client.bridge_network_name,
        bridge_network_subnet=client.bridge_network_subnet,
        bridge_network_hairpin_mode=client.bridge_network_hairpin_mode,
        host_networks={
            name: HostNetwork(cidr=one.cidr, interface=one.interface, reserved_ports=one.reserved_ports)
            for name, one in client.host_network.items()
        },
        host_volumes={name: HostVolume(one.path, one.read_only) for name, one in client.host_volume.items()},
        min_dynamic_port=client.min_dynamic_port,
        max_dynamic_port=client.max_dynamic_port,
        gc_interval_s=client.gc_interval_s,
        gc_disk_usage_threshold=client.gc_disk_usage_threshold,
        gc_inode_usage_threshold=client.gc_inode_usage_threshold,
        gc_max_allocs=client.gc_max_allocs,
        gc_parallel_destroys=client.gc_parallel_destroys,
        max_kill_timeout_s=client.max_kill_timeout_s,
        no_host_uuid=client.no_host_uuid,
        disable_remote_exec=client.disable_remote_exec,
        enforce_disk=client.enforce_disk,
        cgroup_parent=client.cgroup_parent,
        node_max_allocs=client.node_max_allocs,
        artifact=ArtifactLimits(
            schemes=(*client.artifact.schemes, *(("http",) if is_dev else ())),
            allowed_networks=(*client.artifact.allowed_networks, *(LOOPBACK if is_dev else ())),
            http_read_timeout_s=client.artifact.http_read_timeout_s,
            http_max_bytes=client.artifact.http_max_size_bytes,
            decompression_file_count_limit=client.artifact.decompression_file_count_limit,
            decompression_size_limit_bytes=client.artifact.decompression_size_limit_bytes,
            set_environment_variables=client.artifact.set_environment_variables,
            disable_filesystem_isolation=client.artifact.disable_filesystem_isolation,
            disable_artifact_inspection=client.artifact.disable_artifact_inspection,
        ),
        template=TemplateSettings(
            function_denylist=client.template.function_denylist,
            disable_file_sandbox=client.template.disable_file_sandbox,
            block_query_wait_s=client.template.block_query_wait_s,
            wait_min_s=client.template.wait_min_s,
            wait_max_s=client.template.wait_max_s,
        ),
        drain_on_shutdown=DrainOnShutdown(drain.deadline_s, drain.force, drain.ignore_system_jobs)
        if drain.enabled
        else None,
        drivers=client.plugin,
        driver_allowlist=client.driver.allowlist,
        driver_denylist=client.driver.denylist,
        fingerprint_allowlist=client.fingerprint.allowlist,
        fingerprint_denylist=client.fingerprint.denylist,
        user_denylist=client.user.denylist,
        user_checked_drivers=client.user.checked_drivers,
        dynamic_user_min=client.users.dynamic_user_min,
        dynamic_user_max=client.users.dynamic_user_max,
        env_denylist=client.env.denylist,
        chroot_env=client.chroot_env,
        collection_interval_s=config.telemetry.collection_interval_s,
        publish_allocation_metrics=config.telemetry.publish_allocation_metrics,
        publish_node_metrics=config.telemetry.publish_node_metrics,
        is_dev=is_dev,
    )


def make_client(settings: ClientSettings, *, tls: ClientTls | None, env: Env, log: Logger, metrics: Registry) -> Client:
    return Client(settings, env=env, log=log, metrics=metrics, dial=make_dial(tls))


class ClientCalls:
    """What the HTTP port of an agent answers that is only a client."""

    def __init__(self, client: Client, config: Mapping[str, Any], *, metrics: Registry, env: Env) -> None:
        self._client = client
        self._config = config
        self._metrics = metrics
        self._env = env
        self.calls = CallServer(self._handlers(), policy=self._pass_on, metrics=metrics)

    def _handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.AGENT_SELF: self.itself,
            methods.AGENT_HEALTH: self.health,
            methods.AGENT_METRICS: self.metrics,
        }

    async def _pass_on(self, context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
        method = context.method
        if method.needs in (SERVER_ONLY, POOL_ONLY):
            raise NotForAgents(f"{method.name} is for servers only", hint="it is asked on the server port")
        if method.runs_at is RunsAt.THIS_AGENT and method in self._handlers():
            return await serve_here(context, request)
        caller = None
        with trio.move_on_after(PATIENCE_S):
            caller = await self._client.uplink.caller()
        if caller is None:
            known = ", ".join(self._client.uplink.servers.known) or "none"
            raise Unavailable(f"this client has no link to a server (it knows {known})", hint="are they up?")
        return await relay(context, request, caller, me="")

    async def itself(self, request: Empty, context: CallContext) -> methods.AgentSelfReply:
        settings, uplink = self._client.settings, self._client.uplink
        return methods.AgentSelfReply(
            name=settings.name,
            region=settings.region,
            datacenter=settings.datacenter,
            version=__version__,
            config=dict(self._config),
            stats={
                "client": client_stats(self._client),
                "fedsched": {"server": "false", "known_servers": str(len(uplink.servers.known))},
            },
        )

    async def health(self, request: Empty, context: CallContext) -> methods.AgentHealthReply:
        is_connected = self._client.uplink.is_connected
        message = "ok" if is_connected else "this client has no link to a server"
        return methods.AgentHealthReply(ok=is_connected, client_ok=is_connected, message=message)

    async def metrics(self, request: methods.AgentMetricsRequest, context: CallContext) -> methods.AgentMetricsReply:
        match request.format:
            case "prometheus":
                body = prometheus_text(self._metrics).encode()
                return methods.AgentMetricsReply(content_type="text/plain; version=0.0.4", body=body)
            case "json":
                body = json.dumps(json_summary(self._metrics, self._env.wall())).encode()
                return methods.AgentMetricsReply(content_type="application/json", body=body)
        raise BadRequest(f"metrics have no format {request.format!r}", hint="json or prometheus")


def client_stats(client: Client) -> dict[str, str]:
    """What an agent tells about its client half."""
    return {
        "node_id": client.identity.node_id,
        "server": client.uplink.servers.current if client.uplink.is_connected else "",
        "num_allocations": str(len(client.runners)),
        "heartbeat_age_s": f"{max(0.0, client.parts.env.now() - client.uplink.last_contact):.1f}",
    }
