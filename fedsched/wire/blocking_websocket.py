"""A websocket client on a plain socket, for one-shot commands.

By hand, because of what imports cost a command that lives for a tenth of a second: the usual library takes 44 ms of CPU
to import, this 3. It speaks what RFC 6455 asks of a client (masking, fragments, pings, close) and offers no extensions.
"""

from __future__ import annotations

import binascii
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from fedsched.model.errors import DeadlineExceeded, Unavailable
from fedsched.wire.address import Address
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import Failure, ProtocolViolation, RemoteError
from fedsched.wire.tls import TlsOptions

try:
    from _sha1 import sha1  # type: ignore[import-not-found]  # hashlib would load OpenSSL, 3 ms for one digest
except ImportError:  # a Python built without it
    from hashlib import sha1

HANDSHAKE_BYTES_MAX: Final = 16 * 1024
READ_BYTES: Final = 262_144
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Lets go of the socket if the block does not come to its end."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def dial(address: Address, tls: TlsOptions, timeout_s: float) -> socket.socket:
    """A connected socket, with TLS if the address asks for it; `Unavailable` if nobody is there."""
    try:
        if address.socket_path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with closed_on_error(connection):
                connection.settimeout(timeout_s)
                connection.connect(address.socket_path)
            return connection
        host = address.host.encode() if address.host.isascii() else address.host  # bytes spare us 5 ms for name rules
        connection = socket.create_connection((cast(str, host), address.port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.is_tls:
            with closed_on_error(connection):
                return tls.context().wrap_socket(connection, server_hostname=tls.server_name or address.host)
    except OSError as error:
        raise Unavailable(
            f"cannot reach {address}: {error}",
            hint="is the agent running, and is this its address (-address, FEDSCHED_ADDR)?",
        ) from error
    return connection


class BlockingWebSocket:
    """The client's end, after the handshake. Times out with `DeadlineExceeded`, ends with `CarrierClosed`."""

    def __init__(self, connection: socket.socket, address: Address, *, path: str, message_bytes_max: int) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._message_bytes_max = message_bytes_max
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._shake_hands(address, path)

    def fileno(self) -> int:
        """For `select`: readable when more of a message may be there."""
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether a whole frame lies here already, so that waiting for the socket would be in vain."""
        buffer = self._buffer
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted and nobody has read
        if pending is not None and pending():
            return True
        if len(buffer) < 2:
            return False
        length, start = buffer[1] & 0x7F, 2
        if length > 125:
            start = 4 if length == 126 else 10
            length = int.from_bytes(buffer[2:start], "big")
        return len(buffer) >= start + length

    def set_timeout(self, timeout_s: float | None) -> None:
        """For the next reads and writes; None waits for ever."""
        self._socket.settimeout(timeout_s)

    def send(self, message: bytes) -> None:
        """Send one binary message."""
        self._write(_frame(_BINARY, message))

    def receive(self) -> bytes:
        """Wait for the next binary message. After `DeadlineExceeded` it goes on where it stopped."""
        while True:
            opcode, is_last, payload = self._read_frame()
            if opcode == _PING:
                self._write(_frame(_PONG, payload))
            elif opcode == _CLOSE:
                raise CarrierClosed(_close_reason(payload))
            elif opcode in (_BINARY, _CONTINUATION):
                self._take_part(opcode, payload)
                if is_last:
                    message = b"".join(self._parts)
                    self._parts, self._parts_bytes = [], 0
                    return message
            elif opcode != _PONG:
                raise ProtocolViolation(f"websocket frame of kind {opcode}; frames are binary")

    def close(self) -> None:
        """Say goodbye without waiting for an answer."""
        try:
            self._socket.settimeout(0.2)
            self._socket.sendall(_frame(_CLOSE, b"\x03\xe8"))
        except OSError:
            pass  # it is gone already, which is what we want
        self._socket.close()

    def _shake_hands(self, address: Address, path: str) -> None:
        key = binascii.b2a_base64(os.urandom(16), newline=False)
        request = (
            b"GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n"
            % (path.encode(), address.host_header.encode(), key)
        )
        try:
            self._write(request)
            status, headers = self._read_response(address)
        except CarrierClosed as error:
            raise Unavailable(f"{address} closed the connection: {error}", hint="is this a fedsched agent?") from error
        if status != 101:
            raise RemoteError(_rejection(address, status, self._read_body(headers)))
        expected = binascii.b2a_base64(sha1(key + _MAGIC, usedforsecurity=False).digest(), newline=False)
        if headers.get(b"sec-websocket-accept") != expected:
            raise Unavailable(f"{address} answered our key with a wrong one", hint="is a proxy in between?")

    def _read_response(self, address: Address) -> tuple[int, dict[bytes, bytes]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HANDSHAKE_BYTES_MAX:
                raise Unavailable(f"{address} answers with endless headers", hint="is this a fedsched agent?")
            self._read_more()
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        words = lines[0].split(b" ", 2)
        if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise Unavailable(f"{address} does not speak HTTP: {lines[0][:60]!r}", hint="is this a fedsched agent?")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        return int(words[1]), headers

    def _read_body(self, headers: dict[bytes, bytes]) -> str:
        """The start of a refusal's text: it usually says why."""
        length = headers.get(b"content-length", b"0")
        wanted = min(int(length) if length.isdigit() else 0, 1024)
        try:
            while len(self._buffer) < wanted:
                self._read_more()
        except (CarrierClosed, DeadlineExceeded):
            pass  # what is here will do
        return bytes(self._buffer[:wanted]).decode("utf-8", "replace").strip()

    def _take_part(self, opcode: int, payload: bytes) -> None:
        if (opcode == _CONTINUATION) != bool(self._parts):
            raise ProtocolViolation("websocket fragments out of order")
        self._parts_bytes += len(payload)
        if self._parts_bytes > self._message_bytes_max:
            raise ProtocolViolation(f"a message of more than {self._message_bytes_max} bytes")
        self._parts.append(payload)

    def _read_frame(self) -> tuple[int, bool, bytes]:
        """The next whole frame; nothing is taken from the buffer before all of it is there."""
        self._wait_for(2)
        first, second = self._buffer[0], self._buffer[1]
        if first & 0x70 or second & 0x80:
            raise ProtocolViolation("websocket frame with extensions or a mask, from a server")
        length, start = second & 0x7F, 2
        if length > 125:
            start = 4 if length == 126 else 10
            self._wait_for(start)
            length = int.from_bytes(self._buffer[2:start], "big")
        if length > self._message_bytes_max or (first & 0x08 and length > 125):
            raise ProtocolViolation(f"websocket frame of {length} bytes, at most {self._message_bytes_max} are taken")
        self._wait_for(start + length)
        payload = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return first & 0x0F, bool(first & 0x80), payload

    def _wait_for(self, size: int) -> None:
        while len(self._buffer) < size:
            self._read_more()

    def _read_more(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise DeadlineExceeded("no answer in time") from None
        except OSError as error:
            raise CarrierClosed(f"read failed: {error}") from error
        if not data:
            raise CarrierClosed("the other end closed")
        self._buffer += data

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise DeadlineExceeded("the agent does not take what we send") from None
        except OSError as error:
            raise CarrierClosed(f"write failed: {error}") from error


def _frame(opcode: int, payload: bytes) -> bytes:
    """One whole masked frame."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65536:
        head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    return head + mask + masked(payload, mask)


def masked(payload: bytes, mask: bytes) -> bytes:
    """Each byte xored with the mask, by way of one big number: a loop over bytes would take a second for a job file."""
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def _close_reason(payload: bytes) -> str:
    code = int.from_bytes(payload[:2], "big")
    text = payload[2:].decode("utf-8", "replace")
    return f"websocket closed ({code or 'no code'}{f', {text}' if text else ''})"


def _rejection(address: Address, status: int, text: str) -> Failure:
    return Failure("rejected", f"{address} answered {status}: {text or 'no reason given'}", http_status=status)
