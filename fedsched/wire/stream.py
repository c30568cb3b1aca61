"""Frames over a TCP or TLS stream, each behind its length, after a preamble that says which protocol follows.

The server port speaks more than one protocol. Whoever connects sends four bytes first; `read_preamble` reads exactly
those, so the stream can be handed to whoever speaks what they announce.
"""

from __future__ import annotations

import enum
from typing import Final

import trio

from fedsched.model.errors import Unavailable
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import Parts
from fedsched.wire.packing import pack, unpack

READ_BYTES: Final = 64 * 1024
READ_BYTES_BUSY: Final = 256 * 1024
"""Small reads come from the allocator's pool; a stream that filled one is read in larger pieces."""


class Preamble(enum.Enum):
    """The first bytes of a connection."""

    CALLS = b"fsC\x01"
    RAFT = b"fsR\x01"
    WEBSOCKET = b"GET "
    """A client agent: frames in a websocket, whose handshake begins like this."""


async def read_preamble(stream: trio.abc.ReceiveStream) -> Preamble:
    """Which protocol the other side wants to speak; nothing beyond the preamble is read. The caller sets the deadline.

    Raises `ProtocolViolation` for bytes that are none of ours, `CarrierClosed` if they never come.
    """
    data = b""
    try:
        while len(data) < 4:
            chunk = await stream.receive_some(4 - len(data))
            if not chunk:
                raise CarrierClosed(f"closed after {len(data)} bytes of a preamble")
            data += chunk
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise CarrierClosed(f"broke while its preamble was read: {error}") from error
    try:
        return Preamble(data)
    except ValueError:
        raise ProtocolViolation(f"a connection that begins with {data!r} speaks no protocol of this port") from None


async def connect_stream(host: str, port: int, preamble: Preamble) -> trio.SocketStream:
    """Dial a server port and say what will be spoken; `Unavailable` if nobody is there."""
    try:
        stream = await trio.open_tcp_stream(host, port)
        await stream.send_all(preamble.value)
    except OSError as error:
        raise Unavailable(f"cannot reach {host}:{port}: {first_reason(error)}") from error
    return stream


class StreamCarrier:
    """Whole frames over a byte stream. The preamble has been dealt with before."""

    def __init__(self, stream: trio.abc.Stream, peer: str) -> None:
        self.peer = peer
        self._stream = stream
        self._buffer = bytearray()
        self._read_bytes = READ_BYTES
        self._is_torn = False

    async def send(self, frames: list[Parts]) -> None:
        if self._is_torn:
            raise CarrierClosed("an earlier write was given up half way")
        self._is_torn = True
        try:
            await self._stream.send_all(pack(frames))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed(f"write failed: {error.__cause__ or error}") from error
        self._is_torn = False

    async def receive(self, bytes_max: int) -> list[bytes]:
        while True:
            messages, size = unpack(self._buffer, bytes_max)
            if messages:
                del self._buffer[:size]
                return messages
            self._buffer += await self._read()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _read(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(self._read_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed(f"read failed: {error.__cause__ or error}") from error
        if not data:
            where = " in the middle of a frame" if self._buffer else ""
            raise CarrierClosed(f"the other end closed{where}")
        self._read_bytes = READ_BYTES_BUSY if len(data) == self._read_bytes else READ_BYTES
        return data


def first_reason(error: OSError) -> str:
    """trio tries every address of a name and reports a group; one reason is enough for people."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(cause or error)
