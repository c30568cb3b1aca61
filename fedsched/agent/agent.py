"""One agent: the root of everything that runs for it, started in order and stopped in reverse.

Its HTTP port speaks the websocket at `/v1/rpc`; commands, shells and programs connect there, to any agent, and are
answered by the server half through the same method table that servers use among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import trio

from fedsched.agent.config import AgentConfig
from fedsched.agent.cpu_shares import CpuShares
from fedsched.env.env import Env
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.datadir import SpaceLimits
from fedsched.server.endpoints.agent import AgentFacts
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.server.server import Server
from fedsched.server.settings import ServerOptions
from fedsched.server.tls import TlsContexts, TlsFiles, load_contexts
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry
from fedsched.telemetry.process import ProcessMetrics
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.effects import Closed
from fedsched.wire.limits import LinkLimits
from fedsched.wire.link import Link
from fedsched.wire.offenders import Offenders, is_violation
from fedsched.wire.websocket import Handshakes, WebSocketDoor, accept_websocket


class Agent:
    """What one process (or one of several, in `fedsched dev`) runs."""

    def __init__(self, config: AgentConfig, *, env: Env, log: Logger) -> None:
        if not config.server.enabled:
            raise BadRequest("this agent has nothing to do", hint="set server.enabled = true, or start it with -dev")
        self.config = config
        self.metrics = Registry()
        self._env = env
        self._log = log
        self._tls = _tls(config)
        self.server = Server(
            server_options(config, self._tls), env=env, log=log, metrics=self.metrics, facts=_facts(config)
        )
        self.http_address = ""
        self._handshakes = Handshakes(config.limits.half_open_max)
        self._is_stopping = trio.Event()
        self._has_stopped = trio.Event()
        self._connections: dict[str, int] = {}
        self._offenders = Offenders("http", metrics=self.metrics, log=log)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` is called or something fails for good; `started` when the agent answers."""
        try:
            await self._run(task_status)
        finally:
            self._has_stopped.set()

    async def wait_stopped(self) -> None:
        await self._has_stopped.wait()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        listeners = await _listen(self.config.listen_host("http"), self.config.ports.http)
        host, port = listeners[0].socket.getsockname()[:2]
        self.http_address = f"{'https' if self._tls else 'http'}://{host}:{port}"
        try:
            with ProcessMetrics(self.metrics), self._cpu_shares():
                await self._serve(listeners, task_status)
        finally:
            for listener in listeners:
                await trio.aclose_forcefully(listener)

    async def _serve(self, listeners: list[trio.SocketListener], task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.run)
            nursery.start_soon(trio.serve_listeners, self._serve_http, listeners)
            nursery.start_soon(self._roll_metrics)
            self._log.info("agent_started", agent=self.config.name, region=self.config.region, http=self.http_address)
            task_status.started()
            await self._is_stopping.wait()
            nursery.cancel_scope.cancel("stopped")

    async def stop(self, *, leave: bool = False) -> None:
        """Stop in order: leave the region for good if asked, hand leadership over, then end everything."""
        with trio.move_on_after(self.config.shutdown_grace_s):
            if leave:
                await self.server.leave()
            await self.server.stop()
        self._log.info("agent_stopping", agent=self.config.name)
        self._is_stopping.set()

    def _cpu_shares(self) -> AbstractContextManager[None]:
        return CpuShares(self.metrics).sampling() if self.config.telemetry.cpu_shares else nullcontext()

    async def _roll_metrics(self) -> None:
        while True:
            await trio.sleep(self.config.telemetry.collection_interval_s)
            self.metrics.roll(self._env.now())

    async def _serve_http(self, stream: trio.SocketStream) -> None:
        """One connection to the HTTP port, from accept to close. What it sends can only end itself."""
        try:
            host, port = stream.socket.getpeername()[:2]
            peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        except OSError:
            host = peer = "gone"
        count = self._connections.get(host, 0)
        if count >= self.config.limits.http_max_conns_per_client:
            self._offenders.note(f"too many connections: {count} from there", host=host, peer=peer)
            await trio.aclose_forcefully(stream)
            return
        self._connections[host] = count + 1
        try:
            closed = await self._serve_link(stream, peer)
            if is_violation(closed):
                self._offenders.note(closed.message, host=host, peer=peer)
        except* (CarrierClosed, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as why:
            self._log.debug("http_connection_closed", peer=peer, why=str(why.exceptions[0]))
        finally:
            self._connections[host] -= 1
            if not self._connections[host]:
                del self._connections[host]
            await trio.aclose_forcefully(stream)

    async def _serve_link(self, socket_stream: trio.SocketStream, peer: str) -> Closed:
        stream: trio.abc.Stream = socket_stream
        if self._tls is not None:
            stream = trio.SSLStream(socket_stream, self._tls.listening, server_side=True, https_compatible=True)
        limits = LinkLimits(frame_bytes_max=self.config.limits.message_max_bytes)
        door = WebSocketDoor(
            limits=limits, handshake_s=self.config.limits.handshake_timeout_s, handshakes=self._handshakes
        )
        async with trio.open_nursery() as nursery:
            carrier = await accept_websocket(nursery, stream, peer, door)
            calls, budget = self.server.calls, self.server.budget
            closed = await Link(carrier, is_opener=False, handler=calls, limits=limits, budget=budget).run()
            nursery.cancel_scope.cancel("link closed")
        return closed


def server_options(config: AgentConfig, tls: TlsContexts | None) -> ServerOptions:
    """The server half's settings out of the agent's."""
    server, autopilot = config.server, config.autopilot
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
        join=server.server_join.retry_join,
        join_interval_s=server.server_join.retry_interval_s,
        join_attempts_max=server.server_join.retry_max,
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
        connections_per_host_max=config.limits.rpc_max_conns_per_client,
        handshake_s=config.limits.handshake_timeout_s,
    )


def _tls(config: AgentConfig) -> TlsContexts | None:
    if not config.has_tls:
        return None
    files = TlsFiles(config.tls.ca_file, config.tls.cert_file, config.tls.key_file)
    return load_contexts(files, config.region, verify_server_name=config.tls.verify_server_hostname)


def _facts(config: AgentConfig) -> AgentFacts:
    return AgentFacts(config.name, config.region, config.datacenter, _plain(config))


def _plain(value: Any) -> Any:
    """Settings as plain values, for showing."""
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port} (HTTP port): {error.strerror or error}",
            hint="is another agent running here? choose another port with ports.http",
        ) from error
