"""The server port: one listener for Raft, for calls between servers, for client agents, and for anybody by mistake.

What arrives is nobody's friend until it has said which protocol it speaks. Everything before that is bounded in time,
bytes and number; what goes wrong on one connection ends that connection and is counted against whoever it was, nothing
more. Who it was: its address, and the server's name if it greeted as one or speaks Raft from where just one server is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from fedsched.codec.cbor import CodecError, Limits, loads
from fedsched.model.errors import FedschedError
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.server_side import CallServer
from fedsched.server.identity import SERVER, STRANGER, Identity, NotAllowed, identify
from fedsched.server.peers import SERVER_LIMITS
from fedsched.server.tls import TlsContexts
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter, gauge
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.frames import Hello
from fedsched.wire.limits import ByteBudget
from fedsched.wire.link import Link
from fedsched.wire.offenders import Offenders, is_violation
from fedsched.wire.stream import Preamble, StreamCarrier, read_preamble
from fedsched.wire.websocket import Handshakes, WebSocketDoor
from fedsched.wire.websocket_server import accept_uplink

REFUSED: Final = counter("server.connections_refused", "connections closed for what they sent, or for being too many")
OPEN: Final = gauge("server.connections", "open connections on the server port")
CLIENTS: Final = gauge("server.client_connections", "open connections of client agents on the server port")
CLIENTS_MAX: Final = 20_000
"""Connections of client agents, beside those that servers hold among themselves."""
GREETING_LIMITS: Final = Limits(bytes_max=1024, depth_max=2, nodes_max=16)
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@dataclass(slots=True)
class Visitor:
    """Who is at the other end of a connection, as far as that has become clear."""

    peer: str
    """Address and port."""
    host: str
    server: str = ""
    """Its name, if it is a server of this region."""
    is_client: bool = False


class ServerDoor:
    """Serves the connections of one server port."""

    def __init__(
        self,
        *,
        calls: CallServer,
        raft: Callable[[trio.abc.Stream], Awaitable[None]],
        servers: Callable[[], Iterable[ServerInfo]],
        tls: TlsContexts | None,
        connections_max: int,
        connections_per_host_max: int,
        handshake_s: float,
        budget: ByteBudget,
        metrics: Registry,
        log: Logger,
    ) -> None:
        self._calls = calls
        self._raft = raft
        self._servers = servers
        self._tls = tls
        self._connections_max = connections_max
        self._per_host_max = connections_per_host_max
        self._handshake_s = handshake_s
        self._budget = budget
        self._open: Counter[str] = Counter()
        """Connections by the host they come from."""
        self._refused = metrics.counter(REFUSED)
        self._gauge = metrics.gauge(OPEN)
        self._clients = 0
        self._clients_gauge = metrics.gauge(CLIENTS)
        self._websockets = WebSocketDoor(handshake_s=handshake_s, handshakes=Handshakes())
        self._offenders = Offenders("rpc", metrics=metrics, log=log)
        self._log = log

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, from accept to close. Never raises for anything the other side does."""
        visitor = _visitor(stream)
        host, inside = visitor.host, self._open.total() - self._clients
        if inside >= self._connections_max or self._open[host] >= self._per_host_max:
            self._refuse(visitor, f"too many connections: {inside}, {self._open[host]} of them from there")
            await trio.aclose_forcefully(stream)
            return
        self._count(host, 1)
        try:
            link = await self._open_link(stream, visitor)
            if link is not None:
                closed = await link.run()  # here, so that an idle client costs no more calls on the stack than this
                if is_violation(closed):
                    self._refuse(visitor, closed.message)
        except (FedschedError, CarrierClosed, trio.TooSlowError) as refusal:
            self._refuse(visitor, str(refusal) or "too slow")
        except _BROKEN as weather:
            self._log.debug("connection_lost", peer=visitor.peer, server=visitor.server, why=repr(weather))
        finally:
            self._count(host, -1)
            if visitor.is_client:
                self._count_clients(-1)
            await trio.aclose_forcefully(stream)

    def _refuse(self, visitor: Visitor, why: str) -> None:
        self._refused.add()
        self._offenders.note(why, host=visitor.host, peer=visitor.peer, server=visitor.server)

    def _count(self, host: str, by: int) -> None:
        self._open[host] += by
        if not self._open[host]:
            del self._open[host]
        self._gauge.set(self._open.total())

    async def _open_link(self, socket_stream: trio.SocketStream, visitor: Visitor) -> Link | None:
        """A link with whoever came, ready to be run; none if it speaks Raft, which is over then."""
        stream: trio.abc.Stream = socket_stream
        certificate = None
        with trio.fail_after(self._handshake_s):
            if self._tls is not None:
                tls_stream = trio.SSLStream(socket_stream, self._tls.listening, server_side=True)
                try:
                    await tls_stream.do_handshake()
                except trio.BrokenResourceError as error:
                    raise CarrierClosed(f"no TLS with us: {error.__cause__ or error}") from error
                stream = tls_stream
                certificate = tls_stream.getpeercert()
            preamble = await read_preamble(stream)
        identity = identify(certificate, self._tls)
        match preamble:
            case Preamble.RAFT:
                if identity != SERVER:
                    raise NotAllowed(f"{visitor.peer} shows no server's certificate and may not speak Raft")
                visitor.server = self._only_server_at(visitor.host)
                await self._raft(stream)
                return None
            case Preamble.CALLS:
                return self._server_link(stream, visitor, identity)
            case Preamble.WEBSOCKET:
                return await self._client_link(stream, visitor)

    def _server_link(self, stream: trio.abc.Stream, visitor: Visitor, identity: Identity) -> Link:
        async def admit(hello: Hello) -> Identity:
            if identity == SERVER:
                visitor.server = self._greeted_as(hello)
            return identity

        return Link(
            StreamCarrier(stream, visitor.peer),
            is_opener=False,
            handler=self._calls,
            authenticate=admit,
            limits=SERVER_LIMITS,
            budget=self._budget,
        )

    async def _client_link(self, stream: trio.abc.Stream, visitor: Visitor) -> Link:
        """A client agent's. Whatever certificate it has, it is no server: those do not speak like this."""
        if self._clients >= CLIENTS_MAX:
            raise NotAllowed(f"{self._clients} client agents are connected, that is the limit")
        visitor.is_client = True
        self._count_clients(1)
        carrier = await accept_uplink(stream, visitor.peer, self._websockets, first=Preamble.WEBSOCKET.value)
        link = Link(carrier, is_opener=False, handler=self._calls, budget=self._budget)
        link.identity = STRANGER
        return link

    def _count_clients(self, by: int) -> None:
        self._clients += by
        self._clients_gauge.set(self._clients)

    def _greeted_as(self, hello: Hello) -> str:
        """The name of the server that a greeting is from (see `PeerLinks`); empty if we know none of that id."""
        try:
            said = loads(hello.payload, GREETING_LIMITS) if hello.payload else {}
        except CodecError:
            return ""
        server_id = said.get("server") if isinstance(said, dict) else None
        return next((server.name for server in self._servers() if server.id == server_id), "")

    def _only_server_at(self, host: str) -> str:
        names = [server.name for server in self._servers() if server.address.rpartition(":")[0].strip("[]") == host]
        return names[0] if len(names) == 1 else ""


def _visitor(stream: trio.SocketStream) -> Visitor:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return Visitor("gone", "gone")
    return Visitor(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host)
