"""One agent: the root of everything that runs for it, started in order and stopped in reverse.

It is a server of its region, a client that runs tasks, or both. Its HTTP port speaks the websocket at `/v1/rpc`;
commands, shells and programs connect there, to any agent, and are answered by the server half through the same method
table that servers use among themselves. An agent that is only a client passes what it is asked on to its servers.

Neither half is imported by an agent that does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from fedsched.agent.config import AgentConfig
from fedsched.agent.cpu_shares import CpuShares
from fedsched.agent.reload import Reload, reload
from fedsched.env.env import Env
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.rpc.server_side import CallServer
from fedsched.server.tls import TlsContexts, TlsFiles, load_contexts
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry
from fedsched.telemetry.process import ProcessMetrics
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.effects import Closed
from fedsched.wire.limits import ByteBudget, LinkLimits
from fedsched.wire.link import Link
from fedsched.wire.offenders import Offenders, is_violation
from fedsched.wire.websocket import Handshakes, WebSocketDoor, accept_websocket

if TYPE_CHECKING:
    from fedsched.client.client import Client
    from fedsched.server.server import Server


class Agent:
    """What one process (or one of several, in `fedsched dev`) runs."""

    def __init__(self, config: AgentConfig, *, env: Env, log: Logger, is_dev: bool = False) -> None:
        if not (config.server.enabled or config.client.enabled):
            raise BadRequest(
                "this agent has nothing to do",
                hint="set server.enabled or client.enabled = true, or start it with -dev",
            )
        self.config = config
        self._is_dev = is_dev
        self.metrics = Registry()
        self._env = env
        self._log = log
        self._shown: dict[str, Any] = _plain(config)
        self._tls = _tls(config)
        self._server = self._make_server() if config.server.enabled else None
        self.client: Client | None = None
        """The client half, once it was started."""
        self._calls: CallServer
        self._budget = ByteBudget()
        self.http_address = ""
        self._handshakes = Handshakes(config.limits.half_open_max)
        self._is_stopping = trio.Event()
        self._has_stopped = trio.Event()
        self._connections: dict[str, int] = {}
        self._offenders = Offenders("http", metrics=self.metrics, log=log)

    @property
    def server(self) -> Server:
        """The server half, of an agent that has one."""
        assert self._server is not None, "this agent is no server"
        return self._server

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
            if self._server is not None:
                await nursery.start(self._server.run)
                self._calls, self._budget = self._server.calls, self._server.budget
            if self.config.client.enabled:
                await self._start_client(nursery)
            nursery.start_soon(trio.serve_listeners, self._serve_http, listeners)
            nursery.start_soon(self._roll_metrics)
            self._log.info("agent_started", agent=self.config.name, region=self.config.region, http=self.http_address)
            task_status.started()
            await self._is_stopping.wait()
            nursery.cancel_scope.cancel("stopped")

    def _make_server(self) -> Server:
        from fedsched.agent.server_half import make_server

        return make_server(
            self.config,
            self._tls,
            shown=self._shown,
            client_stats=self._client_stats,
            env=self._env,
            log=self._log,
            metrics=self.metrics,
        )

    async def _start_client(self, nursery: trio.Nursery) -> None:
        from fedsched.agent.client_half import ClientCalls, client_settings, make_client
        from fedsched.client.dialling import ClientTls

        own = (self._server.me.address,) if self._server is not None else ()
        http_address = self.http_address.partition("://")[2]
        settings = client_settings(self.config, servers=own, http_address=http_address, is_dev=self._is_dev)
        tls = ClientTls(self._tls.dialling, self._tls.server_name) if self._tls else None
        client = make_client(settings, tls=tls, env=self._env, log=self._log, metrics=self.metrics)
        await nursery.start(client.run)
        self.client = client
        if self._server is None:
            calls = ClientCalls(client, self._shown, metrics=self.metrics, env=self._env)
            self._calls = calls.calls

    def _client_stats(self) -> Mapping[str, str]:
        if self.client is None:
            return {}
        from fedsched.agent.client_half import client_stats

        return client_stats(self.client)

    async def stop(self, *, leave: bool = False) -> None:
        """Stop in order: the client, which may have to drain; then leave the region if asked, hand leadership over."""
        if self.client is not None:
            await self.client.stop(leave=leave)
        if self._server is not None:
            with trio.move_on_after(self.config.shutdown_grace_s):
                if leave:
                    await self._server.leave()
                await self._server.stop()
        self._log.info("agent_stopping", agent=self.config.name)
        self._is_stopping.set()

    def reload(self, config: AgentConfig) -> Reload:
        """Take over what can change under a running agent, and say what cannot. Safe to call when nothing differs."""
        done = reload(self.config, config)
        self.config = done.config
        self._shown.update(_plain(done.config))
        if self.client is not None:
            from fedsched.agent.client_half import client_settings

            self.client.reload(client_settings(done.config, is_dev=self._is_dev))
        self._log.info("settings_reloaded", changed=",".join(done.changed) or "nothing")
        if done.waiting:
            self._log.warn("settings_need_a_restart", settings=",".join(done.waiting))
        return done

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
            link = Link(carrier, is_opener=False, handler=self._calls, limits=limits, budget=self._budget)
            closed = await link.run()
            nursery.cancel_scope.cancel("link closed")
        return closed


def _tls(config: AgentConfig) -> TlsContexts | None:
    if not config.has_tls:
        return None
    files = TlsFiles(config.tls.ca_file, config.tls.cert_file, config.tls.key_file)
    return load_contexts(files, config.region, verify_server_name=config.tls.verify_server_hostname)


SECRETS: Final = frozenset({"encrypt"})
"""Settings that nobody is shown: whoever has the gossip key can speak for any server."""


def _shown(name: str, value: Any) -> Any:
    return "<hidden>" if name in SECRETS and value else _plain(value)


def _plain(value: Any) -> Any:
    """Settings as plain values, for showing."""
    if is_dataclass(value):
        return {one.name: _shown(one.name, getattr(value, one.name)) for one in fields(value)}
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
