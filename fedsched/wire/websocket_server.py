"""The server's end of a client agent's websocket, by hand: thousands of these are held at once.

The library that dials and serves everybody else keeps a child, a channel and two parsers per connection, about 14 KB of
memory that do nothing while a connection is idle. This end needs one buffer, which is empty most of the time. It speaks
what RFC 6455 asks of a server (masks, fragments, pings, close), offers no extensions, and lets nobody make it hold more
than one message.
"""

from __future__ import annotations

import binascii
from contextlib import suppress
from hashlib import sha1
from typing import Final

import trio

from fedsched.model.errors import Busy
from fedsched.wire.blocking_websocket import masked
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import Parts
from fedsched.wire.packing import LENGTH_BYTES, batches, unpack
from fedsched.wire.websocket import ANY_DOOR, MESSAGE_BYTES, WebSocketDoor

HEAD_BYTES_MAX: Final = 16 * 1024
READ_BYTES: Final = 16 * 1024
READ_BYTES_BUSY: Final = 256 * 1024
"""An idle client says little; one that filled a small read is read in larger pieces."""
FRAGMENTS_MAX: Final = 256
"""Of one message."""
UNSENT_BYTES_MAX: Final = 64 * 1024
"""Answers to pings that gather behind a write under way; whoever sends that many is cut off."""
CLOSE_S: Final = 1.0
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_REASONS: Final = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 426: "Upgrade Required"}


class UplinkCarrier:
    """Whole frames, one or more in each binary message."""

    __slots__ = (
        "_buffer",
        "_fragments",
        "_is_sending",
        "_is_torn",
        "_read_bytes",
        "_sent",
        "_stream",
        "_unsent",
        "peer",
    )

    def __init__(self, stream: trio.abc.Stream, peer: str, first: bytes) -> None:
        self.peer = peer
        self._stream = stream
        self._buffer = bytearray(first)
        self._fragments: list[bytes] = []
        self._unsent = b""
        self._is_sending = False
        self._is_torn = False
        self._sent: trio.Event | None = None
        self._read_bytes = READ_BYTES

    async def send(self, frames: list[Parts]) -> None:
        while self._is_sending:  # an answer to a ping is on its way
            self._sent = self._sent or trio.Event()
            await self._sent.wait()
        if self._is_torn:
            raise CarrierClosed("an earlier write was given up half way")
        await self._write(b"".join([_frame(_BINARY, message) for message in batches(frames, MESSAGE_BYTES)]))

    async def receive(self, bytes_max: int) -> list[bytes]:
        while True:
            message = await self._message(bytes_max + LENGTH_BYTES)
            if message is not None:
                frames, size = unpack(message, bytes_max)
                if size != len(message) or not frames:
                    raise ProtocolViolation(f"a message of {len(message)} bytes that is no row of frames")
                return frames
            self._buffer += await self._read()

    async def aclose(self) -> None:
        with trio.move_on_after(CLOSE_S):
            if not (self._is_torn or self._is_sending):
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the other end may be faster
                    await self._stream.send_all(_frame(_CLOSE, b"\x03\xe8"))
        await trio.aclose_forcefully(self._stream)

    # ---- reading --------------------------------------------------------------------------------------------

    async def _message(self, bytes_max: int) -> bytes | None:
        """The next whole message, if it is here; what else is here is dealt with."""
        while True:
            frame = self._frame(bytes_max)
            if frame is None:
                return None
            opcode, is_last, payload = frame
            if opcode == _PING:
                await self._answer(payload)
            elif opcode == _CLOSE:
                code = int.from_bytes(payload[:2], "big")
                raise CarrierClosed(f"websocket closed ({code or 'no code'})")
            elif opcode in (_BINARY, _CONTINUATION):
                self._take(opcode, payload, bytes_max)
                if is_last:
                    message, self._fragments = b"".join(self._fragments), []
                    return message
            elif opcode != _PONG:
                raise ProtocolViolation(f"websocket frame of kind {opcode}; frames are binary")

    def _frame(self, bytes_max: int) -> tuple[int, bool, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70 or not second & 0x80:
            raise ProtocolViolation("websocket frame with extensions or without a mask, from a client")
        length, start = second & 0x7F, 2
        if length > 125:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start], "big")
        if length > bytes_max or (first & 0x08 and (length > 125 or not first & 0x80)):
            raise ProtocolViolation(f"websocket frame of {length} bytes, at most {bytes_max} are taken here")
        end = start + 4 + length
        if len(buffer) < end:
            return None
        mask = bytes(buffer[start : start + 4])
        payload = bytes(buffer[start + 4 : end])
        if end == len(buffer):
            self._buffer = bytearray()  # a buffer that was large once stays large
        else:
            del buffer[:end]
        return first & 0x0F, bool(first & 0x80), masked(payload, mask) if any(mask) else payload

    def _take(self, opcode: int, payload: bytes, bytes_max: int) -> None:
        if (opcode == _CONTINUATION) != bool(self._fragments):
            raise ProtocolViolation("websocket fragments out of order")
        self._fragments.append(payload)
        if len(self._fragments) > FRAGMENTS_MAX or sum(map(len, self._fragments)) > bytes_max:
            raise ProtocolViolation(f"a message of more than {FRAGMENTS_MAX} fragments or {bytes_max} bytes")

    async def _read(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(self._read_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed(f"read failed: {error.__cause__ or error}") from error
        if not data:
            where = " in the middle of a message" if self._buffer or self._fragments else ""
            raise CarrierClosed(f"the other end closed{where}")
        self._read_bytes = READ_BYTES_BUSY if len(data) == self._read_bytes else READ_BYTES
        return data

    # ---- writing --------------------------------------------------------------------------------------------

    async def _answer(self, payload: bytes) -> None:
        if self._is_sending:
            self._unsent += _frame(_PONG, payload)
            if len(self._unsent) > UNSENT_BYTES_MAX:
                raise ProtocolViolation("pings faster than their answers are read")
            return
        await self._write(_frame(_PONG, payload))

    async def _write(self, data: bytes) -> None:
        self._is_sending = self._is_torn = True
        try:
            await self._stream.send_all(data)
            while self._unsent:
                data, self._unsent = self._unsent, b""
                await self._stream.send_all(data)
            self._is_torn = False
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed(f"write failed: {error.__cause__ or error}") from error
        finally:
            self._is_sending = False
            if self._sent is not None:
                self._sent.set()
                self._sent = None


async def accept_uplink(
    stream: trio.abc.Stream, peer: str, door: WebSocketDoor = ANY_DOOR, *, first: bytes = b""
) -> UplinkCarrier:
    """Shake hands with whoever connected; `first` are bytes of it that were read already.

    Raises `CarrierClosed` when nothing came of it: the peer has been answered, the text is for the log.
    """
    try:
        with door.handshakes.one(), trio.fail_after(door.handshake_s):
            head, rest = await _read_head(stream, first)
            refusal, key = _judge(head, door)
            if refusal is None:
                digest = sha1(key + _MAGIC, usedforsecurity=False).digest()
                accept = binascii.b2a_base64(digest, newline=False)
                await stream.send_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept
                )
                return UplinkCarrier(stream, peer, rest)
            status, reason = refusal
            body = f"{reason}\n".encode()
            await stream.send_all(
                b"HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (status, _REASONS[status].encode(), len(body), body)
            )
    except Busy as error:
        reason = str(error)
    except trio.TooSlowError:
        reason = f"not done within {door.handshake_s:g} s"
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        reason = f"the other end hung up: {error.__cause__ or error}"
    raise CarrierClosed(f"websocket handshake: {reason}")


async def _read_head(stream: trio.abc.Stream, first: bytes) -> tuple[bytes, bytes]:
    data = bytearray(first)
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > HEAD_BYTES_MAX:
            raise CarrierClosed("websocket handshake: endless headers")
        more = await stream.receive_some(4096)
        if not more:
            raise CarrierClosed("websocket handshake: the other end hung up")
        data += more
    return bytes(data[:end]), bytes(data[end + 4 :])


def _judge(head: bytes, door: WebSocketDoor) -> tuple[tuple[int, str] | None, bytes]:
    """Why the caller is turned away, if it is; and its key."""
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET" or words[2] != b"HTTP/1.1":
        return (400, "not an HTTP/1.1 request for a websocket"), b""
    headers: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            return (400, "a header that is none"), b""
        headers[name.lower()] = value.strip()
    path = words[1].partition(b"?")[0].decode("latin-1")
    if path != door.path:
        return (404, f"no websocket at {path[:64]!r}, frames are spoken at {door.path}"), b""
    is_upgrade = b"upgrade" in [one.strip() for one in headers.get(b"connection", b"").lower().split(b",")]
    if not is_upgrade or headers.get(b"upgrade", b"").lower() != b"websocket":
        return (426, "this port speaks websockets only"), b""
    key = headers.get(b"sec-websocket-key", b"")
    if headers.get(b"sec-websocket-version") != b"13" or not _is_key(key):
        return (400, "a websocket of another version, or without a key"), b""
    origin = headers.get(b"origin")
    if not door.check_origin(origin.decode("latin-1") if origin is not None else None):
        return (403, f"pages of {str(origin)[:64]!r} may not connect to this agent"), b""
    return None, key


def _is_key(key: bytes) -> bool:
    try:
        return len(binascii.a2b_base64(key, strict_mode=True)) == 16
    except binascii.Error:
        return False


def _frame(opcode: int, payload: bytes) -> bytes:
    """One whole frame, as servers send them: without a mask."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 65536:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big") + payload
