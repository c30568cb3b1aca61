"""The server port: one listener for Raft, for calls between servers, and for whoever else connects by mistake.

What arrives is nobody's friend until it has said which protocol it speaks. Everything before that is bounded in time,
bytes and number; what goes wrong on one connection ends that connection and is counted, nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.rpc.server_side import CallServer
from fedsched.server.identity import SERVER, Identity, NotAllowed, identify
from fedsched.server.peers import SERVER_LIMITS
from fedsched.server.tls import TlsContexts
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter, gauge
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import Hello
from fedsched.wire.limits import ByteBudget
from fedsched.wire.link import Link
from fedsched.wire.stream import Preamble, StreamCarrier, read_preamble

REFUSED: Final = counter("server.connections_refused", "connections closed for what they sent, or for being too many")
OPEN: Final = gauge("server.connections", "open connections on the server port")
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class ServerDoor:
    """Serves the connections of one server port."""

    def __init__(
        self,
        *,
        calls: CallServer,
        raft: Callable[[trio.abc.Stream], Awaitable[None]],
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
        self._tls = tls
        self._connections_max = connections_max
        self._per_host_max = connections_per_host_max
        self._handshake_s = handshake_s
        self._budget = budget
        self._open: Counter[str] = Counter()
        """Connections by the host they come from."""
        self._refused = metrics.counter(REFUSED)
        self._gauge = metrics.gauge(OPEN)
        self._log = log

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, from accept to close. Never raises for anything the other side does."""
        host = _name(stream).rpartition(":")[0]
        if self._open.total() >= self._connections_max or self._open[host] >= self._per_host_max:
            self._refused.add()
            await trio.aclose_forcefully(stream)
            return
        self._count(host, 1)
        try:
            await self._serve(stream)
        except (FedschedError, CarrierClosed, trio.TooSlowError) as refusal:
            self._refused.add()
            self._log.debug("connection_closed", peer=_name(stream), why=str(refusal) or "too slow")
        except _BROKEN as weather:
            self._log.debug("connection_lost", peer=_name(stream), why=repr(weather))
        finally:
            self._count(host, -1)
            await trio.aclose_forcefully(stream)

    def _count(self, host: str, by: int) -> None:
        self._open[host] += by
        if not self._open[host]:
            del self._open[host]
        self._gauge.set(self._open.total())

    async def _serve(self, socket_stream: trio.SocketStream) -> None:
        peer = _name(socket_stream)
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

        async def admit(hello: Hello) -> Identity:
            return identity

        match preamble:
            case Preamble.RAFT:
                if identity != SERVER:
                    raise NotAllowed(f"{peer} shows no server's certificate and may not speak Raft")
                await self._raft(stream)
            case Preamble.CALLS:
                carrier = StreamCarrier(stream, peer)
                link = Link(
                    carrier,
                    is_opener=False,
                    handler=self._calls,
                    authenticate=admit,
                    limits=SERVER_LIMITS,
                    budget=self._budget,
                )
                closed = await link.run()
                if closed.code == ProtocolViolation.code:
                    self._refused.add()


def _name(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "gone"
    return f"{host}:{port}"
