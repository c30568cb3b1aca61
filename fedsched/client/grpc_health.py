"""Asks `grpc.health.v1.Health/Check` with as little of HTTP/2 as that takes.

One request on one stream of a fresh connection; header fields are sent as plain literals, so that no compression state
is needed, and those that come back are not read at all: a service that serves answers with a message that says so, and
anything else (another message, a reset, trailers alone) means that it does not.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Final

import trio

FRAME_HEAD: Final = Struct(">BHBBI")
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
STREAM: Final = 1
FRAME_BYTES_MAX: Final = 16_384
READ_BYTES_MAX: Final = 64 * 1024
"""All that is read of an answer."""
SERVING: Final = 1
NAMES: Final = {0: "unknown", 1: "serving", 2: "not serving", 3: "service unknown"}


async def ask_health(stream: trio.abc.Stream, authority: str, service: str, *, is_tls: bool) -> str:
    """Why the service does not serve; empty if it does."""
    await stream.send_all(_question(authority, service, is_tls))
    reader = _Reader(stream)
    while True:
        frame = await reader.frame()
        if frame is None:
            return "the connection ended without an answer"
        kind, flags, number, payload = frame
        if kind == SETTINGS and not flags & ACK:
            await _acknowledge(stream, _frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            await _acknowledge(stream, _frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            return "the service goes away"
        elif number == STREAM and kind == RST_STREAM:
            return "the service refused the question"
        elif number == STREAM and kind == DATA:
            return _verdict(_unpadded(payload, flags))
        elif number == STREAM and kind == HEADERS and flags & END_STREAM:
            return "the service knows no health, or not of this name"


async def _acknowledge(stream: trio.abc.Stream, frame: bytes) -> None:
    """A service that hears no more may have answered all the same."""
    with suppress(trio.BrokenResourceError):
        await stream.send_all(frame)


class _Reader:
    """Frames out of a byte stream, bounded in all."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._data = bytearray()
        self._left = READ_BYTES_MAX

    async def frame(self) -> tuple[int, int, int, bytes] | None:
        if not await self._fill(FRAME_HEAD.size):
            return None
        high, low, kind, flags, number = FRAME_HEAD.unpack_from(self._data)
        length = high << 16 | low
        if length > FRAME_BYTES_MAX or not await self._fill(FRAME_HEAD.size + length):
            return None
        payload = bytes(self._data[FRAME_HEAD.size : FRAME_HEAD.size + length])
        del self._data[: FRAME_HEAD.size + length]
        return kind, flags, number & 0x7FFFFFFF, payload

    async def _fill(self, size: int) -> bool:
        while len(self._data) < size and self._left > 0:
            more = await self._stream.receive_some(4096)
            if not more:
                return False
            self._left -= len(more)
            self._data += more
        return len(self._data) >= size


def _question(authority: str, service: str, is_tls: bool) -> bytes:
    name = service.encode()[:255]
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    fields = [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "fedsched-check/1"),
    ]
    head = b"".join(_literal(name, value) for name, value in fields)
    return (
        PREFACE
        + _frame(SETTINGS, 0, 0, b"")
        + _frame(HEADERS, END_HEADERS, STREAM, head)
        + _frame(DATA, END_STREAM, STREAM, body)
    )


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    length = len(payload)
    return FRAME_HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, number) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field without indexing and without Huffman coding (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + _varint(len(data) - 127) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED or not payload:
        return payload
    return payload[1 : len(payload) - payload[0]]


def _verdict(message: bytes) -> str:
    """Read the one field that matters: status, an enum with number 1."""
    if len(message) < 5 or message[0] != 0:
        return "an answer that is no plain gRPC message"
    body = message[5:]
    status = body[1] if len(body) >= 2 and body[0] == 0x08 else 0
    return "" if status == SERVING else f"it is {NAMES.get(status, f'in state {status}')}"
