"""Frames in binary websocket messages, for client agents, commands, shell, SDK and browsers.

A message holds one or more frames, each behind its length: everything pending leaves in one message, which makes a call
among many three times as cheap. The greeting comes in a message of its own, because a peer that is not yet admitted is
only let in with a small one.

The library's own defaults would cost: 4 KiB reads give a sixth of the throughput, so both ends read 256 KiB at a time;
compression is never offered; message size, handshakes in progress and the time for one are bounded here. What the
library raises on hostile bytes ends that connection and nothing else.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import trio
import trio_websocket

from fedsched.model.errors import Busy, Unavailable
from fedsched.telemetry.log import get_logger
from fedsched.wire.address import Address
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import Failure, ProtocolViolation, RemoteError
from fedsched.wire.frames import Parts
from fedsched.wire.gate import GateStream
from fedsched.wire.limits import DEFAULT_LIMITS, LinkLimits
from fedsched.wire.packing import LENGTH_BYTES, batches, unpack
from fedsched.wire.stream import first_reason

RPC_PATH: Final = "/v1/rpc"
RECEIVE_BUFFER_BYTES: Final = 262_144
MESSAGE_BYTES: Final = 256 * 1024
"""Frames are gathered into messages up to this size; a larger frame travels alone."""
QUEUE_MESSAGES: Final = 16
HANDSHAKE_S: Final = 5.0
"""For the whole handshake, not per read."""
HANDSHAKES_MAX: Final = 512
_HANDSHAKE_BYTES: Final = 16 * 1024
_CLOSE_S: Final = 1.0

_log = get_logger("wire")

CheckOrigin = Callable[[str | None], bool]
"""Whether a browser page of this origin (None: not a browser) may connect."""


def no_browsers(origin: str | None) -> bool:
    """The default: pages of other sites must not reach an agent through somebody's browser."""
    return origin is None


class Handshakes:
    """Counts handshakes in progress; one over the limit is turned away at once."""

    def __init__(self, limit: int = HANDSHAKES_MAX) -> None:
        self._limit = limit
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place for one handshake, or raise `Busy`."""
        if self._count >= self._limit:
            raise Busy(f"{self._count} connections are being set up, that is the limit", hint="try again in a moment")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


@dataclass(frozen=True, slots=True)
class WebSocketDoor:
    """What a listener asks of those who come in."""

    path: str = RPC_PATH
    check_origin: CheckOrigin = no_browsers
    limits: LinkLimits = DEFAULT_LIMITS
    handshake_s: float = HANDSHAKE_S
    handshakes: Handshakes = field(default_factory=Handshakes)
    """Shared by all connections that come through this door."""


ANY_DOOR: Final = WebSocketDoor()


class WebSocketCarrier:
    """Whole frames, one or more in each binary message."""

    def __init__(self, connection: Any, gate: GateStream, reader: _Reader, peer: str) -> None:
        self.peer = peer
        self._connection = connection
        self._gate = gate
        self._reader = reader
        self._is_torn = False
        self._has_greeted = False

    async def send(self, frames: list[Parts]) -> None:
        if self._is_torn:
            raise CarrierClosed("an earlier write was given up half way")
        self._is_torn = True
        try:
            self._gate.cork()
            for message in self._messages(frames):
                await self._connection.send_message(message)
            await self._gate.uncork()
        except (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed(self._reason(error)) from error
        self._is_torn = False

    async def receive(self, bytes_max: int) -> list[bytes]:
        self._gate.allow(_allowance(bytes_max))
        try:
            message = await self._connection.get_message()
        except trio_websocket.ConnectionClosed as error:
            raise CarrierClosed(self._reason(error)) from error
        self._gate.delivered()
        if not isinstance(message, bytes):
            raise ProtocolViolation("a text message; frames are binary")
        messages, size = unpack(message, bytes_max)
        if size != len(message) or not messages:
            raise ProtocolViolation(f"a message of {len(message)} bytes that is no row of frames")
        return messages

    async def aclose(self) -> None:
        with trio.move_on_after(_CLOSE_S) as closing, self._reader.needed_for(closing):
            await self._connection.aclose()
        await trio.aclose_forcefully(self._gate)

    def _messages(self, frames: list[Parts]) -> list[bytes]:
        if self._has_greeted:
            return batches(frames, MESSAGE_BYTES)
        self._has_greeted = True
        return [*batches(frames[:1], MESSAGE_BYTES), *batches(frames[1:], MESSAGE_BYTES)]

    def _reason(self, error: Exception) -> str:
        closed = self._connection.closed
        if closed is None:
            return f"the connection broke: {error}"
        return f"websocket closed ({closed.code}{f', {closed.reason}' if closed.reason else ''})"


async def accept_websocket(
    nursery: trio.Nursery, stream: trio.abc.Stream, peer: str, door: WebSocketDoor = ANY_DOOR
) -> WebSocketCarrier:
    """Shake hands with whoever connected. The reader runs in `nursery` until the carrier is closed, and never raises.

    Raises `CarrierClosed` when nothing came of it: the peer has been answered and the stream closed, the text is for
    the log.
    """
    gate = GateStream(stream, _HANDSHAKE_BYTES)
    reader = _Reader(nursery, gate, peer)
    try:
        with door.handshakes.one(), reader.handshake(door.handshake_s):
            request = await trio_websocket.wrap_server_stream(reader.as_nursery(), gate, **_settings(door.limits))
            refusal = _refusal(request, door)
            if refusal is None:
                return WebSocketCarrier(await request.accept(), gate, reader, peer)
            status, reason = refusal
            await request.reject(status, body=f"{reason}\n".encode())
    except (Busy, trio_websocket.ConnectionClosed) as error:
        reason = str(error)
    except CarrierClosed as error:
        reason = str(error)
    await _hang_up(gate)
    raise CarrierClosed(f"websocket handshake: {reason}")


async def connect_websocket(
    nursery: trio.Nursery,
    address: Address,
    *,
    limits: LinkLimits = DEFAULT_LIMITS,
    ssl_context: ssl.SSLContext | None = None,
    path: str = RPC_PATH,
    server_name: str = "",
) -> WebSocketCarrier:
    """Dial an agent. The caller sets the deadline. The reader runs in `nursery` until the carrier is closed.

    `server_name` is what its certificate has to say, if that is not the host that is dialled. Raises `Unavailable` if
    nobody answers, `RemoteError` with the status of an agent that does not let us in.
    """
    gate = GateStream(await _dial(address, ssl_context, server_name), _HANDSHAKE_BYTES)
    reader = _Reader(nursery, gate, str(address))
    try:
        with reader.handshake(HANDSHAKE_S):
            connection = await trio_websocket.wrap_client_stream(
                reader.as_nursery(), cast(Any, gate), address.host_header, path, **_settings(limits)
            )
            return WebSocketCarrier(connection, gate, reader, str(address))
    except CarrierClosed as error:
        await _hang_up(gate)
        rejection = reader.error
        if isinstance(rejection, trio_websocket.ConnectionRejected):
            raise RemoteError(_rejection(address, rejection)) from error
        raise Unavailable(f"{address} does not speak with us: {error}", hint="is this a fedsched agent?") from error
    except BaseException:
        await _hang_up(gate)
        raise


class _Reader:
    """Runs the library's reader so that nothing it meets can harm the nursery it lives in."""

    def __init__(self, nursery: trio.Nursery, gate: GateStream, peer: str) -> None:
        self._nursery = nursery
        self._gate = gate
        self._peer = peer
        self._handshake: trio.CancelScope | None = None
        self._closing: trio.CancelScope | None = None
        self._is_over = False
        self.error: Exception | None = None

    def as_nursery(self) -> trio.Nursery:
        """What the library starts its reader in: it calls `start_soon` and nothing else."""
        return cast(trio.Nursery, self)

    def start_soon(self, reader: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._run, reader)

    @contextmanager
    def handshake(self, limit_s: float) -> Iterator[None]:
        """Ends with `CarrierClosed` if the time is up or the reader is gone before the block is done."""
        with trio.move_on_after(limit_s) as self._handshake:
            yield
        was_cut = self._handshake.cancelled_caught
        self._handshake = None
        if was_cut:
            raise CarrierClosed(f"{self.error or f'not done within {limit_s:g} s'}")

    @contextmanager
    def needed_for(self, closing: trio.CancelScope) -> Iterator[None]:
        """While closing waits for the other end's word: without a reader nobody hears it, so it is not waited for.

        Our own word is said in either case.
        """
        if self._is_over:
            self._gate.on_sent = closing.cancel
        else:
            self._closing = closing
        yield

    async def _run(self, reader: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._read(reader)
        finally:
            self._is_over = True
            if self._closing is not None:
                self._closing.cancel("reader gone")

    async def _read(self, reader: Callable[[], Awaitable[None]]) -> None:
        try:
            await reader()
        except Exception as error:  # a library error on hostile bytes is the end of this connection, not of ours
            self.error = error
            _log.debug("websocket_failed", peer=self._peer, error=repr(error))
        if self._handshake is not None:
            self.error = self.error or ConnectionError("the other end hung up or sent no valid handshake")
            self._handshake.cancel("reader gone")
        await _hang_up(self._gate)


def _settings(limits: LinkLimits) -> dict[str, Any]:
    return {
        "message_queue_size": QUEUE_MESSAGES,
        "max_message_size": max(limits.frame_bytes_max + LENGTH_BYTES, MESSAGE_BYTES),
        "receive_buffer_size": RECEIVE_BUFFER_BYTES,
    }


def _allowance(bytes_max: int) -> int:
    """Bytes let through between two messages: one frame, fragment heads, pings, and the start of the next."""
    return 2 * bytes_max + _HANDSHAKE_BYTES


def _refusal(request: Any, door: WebSocketDoor) -> tuple[int, str] | None:
    path = str(request.path).partition("?")[0]
    if path != door.path:
        return 404, f"no websocket at {path[:64]!r}, frames are spoken at {door.path}"
    origin = next((value.decode("latin-1") for name, value in request.headers if name.lower() == b"origin"), None)
    if not door.check_origin(origin):
        return 403, f"pages of {str(origin)[:64]!r} may not connect to this agent"
    return None


def _rejection(address: Address, rejection: Any) -> Failure:
    text = (rejection.body or b"").decode("utf-8", "replace").strip()[:200]
    status = int(rejection.status_code)
    return Failure("rejected", f"{address} answered {status}: {text or 'no reason given'}", http_status=status)


async def _dial(address: Address, ssl_context: ssl.SSLContext | None, server_name: str) -> trio.abc.Stream:
    try:
        if address.socket_path:
            return await trio.open_unix_socket(address.socket_path)
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise Unavailable(f"cannot reach {address}: {first_reason(error)}", hint="is the agent running?") from error
    if not address.is_tls:
        return stream
    context = ssl_context or ssl.create_default_context()
    return trio.SSLStream(stream, context, server_hostname=server_name or address.host, https_compatible=True)


async def _hang_up(gate: GateStream) -> None:
    with trio.CancelScope(shield=True):  # closing by force does not wait
        await trio.aclose_forcefully(gate)
