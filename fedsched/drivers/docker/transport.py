"""HTTP/1.1 to an engine: one connection per request, every size bounded, every strange byte an error that has a name.

Deadlines belong to the caller. An engine is trusted with the host, yet what stands behind the socket may be something
else, half dead or of another version: nothing it sends may grow memory without end or leave a caller waiting without a
word why.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import h11
import msgspec
import trio

from fedsched.drivers.docker.faults import EngineFault, EngineRefused, Fault

HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 8 << 20
"""Of an answer that is read whole. The largest known one, a list of every container, has about 2 KiB for each."""
ERROR_BYTES_MAX: Final = 16 << 10
RECEIVE_BYTES: Final = 64 << 10

Headers = Sequence[tuple[str, str]]


class Endpoint:
    """Where an engine listens: `unix:///run/docker.sock`, or `tcp://host:2376` with TLS."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls

    async def connect(self) -> trio.abc.Stream:
        try:
            return await self._connect()
        except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
            hint = "is the engine installed and running, and may this agent use its socket?"
            raise EngineFault(Fault.UNREACHABLE, f"{self.address}: {_words(error)}", hint=hint) from error

    async def _connect(self) -> trio.abc.Stream:
        scheme, _, rest = self.address.partition("://")
        if scheme == "unix":
            return await trio.open_unix_socket(str(Path("/") / rest))
        host, _, port = rest.rpartition(":")
        host = host.strip("[]")
        assert self._tls is not None
        plain = await trio.open_tcp_stream(host, int(port))
        try:
            stream = trio.SSLStream(plain, self._tls, server_hostname=host, https_compatible=True)
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(plain)
            raise
        return stream


class Answer:
    """A response whose head has arrived; its body is received piece by piece."""

    def __init__(
        self, connection: h11.Connection, stream: trio.abc.Stream, head: h11.Response | h11.InformationalResponse
    ):
        self._connection = connection
        self._stream = stream
        self.status = head.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._raw_left: bytes | None = None
        if head.status_code == 101:
            self._raw_left = bytes(connection.trailing_data[0])

    async def receive_some(self) -> bytes:
        """The next piece of the body, or of what follows an upgrade; empty at its end."""
        if self._raw_left is not None:
            if self._raw_left:
                left, self._raw_left = self._raw_left, b""
                return left
            return await _received(self._stream)
        while True:
            event = await _next_event(self._connection, self._stream)
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
                continue
            if isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return b""
            raise EngineFault(Fault.GARBLED, f"the engine sent {type(event).__name__} inside an answer")

    async def read(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """The whole body, refused above the limit."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.receive_some():
            size += len(piece)
            if size > bytes_max:
                raise EngineFault(Fault.TOO_LARGE, f"the engine's answer has more than {bytes_max} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def read_start(self, bytes_max: int) -> bytes:
        """The first part of the body: enough of an error to show."""
        found = b""
        while len(found) < bytes_max and (piece := await self.receive_some()):
            found += piece
        return found[:bytes_max]

    async def send(self, data: bytes) -> None:
        """Towards the other side of an upgraded connection."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise EngineFault(Fault.CUT, "the engine has closed the connection") from error

    async def send_eof(self) -> None:
        if not isinstance(self._stream, trio.abc.HalfCloseableStream):
            raise EngineFault(Fault.CUT, "input cannot be ended over TLS without ending the output too")
        try:
            await self._stream.send_eof()
        except trio.BrokenResourceError:
            return


class Transport:
    """Sends requests to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @asynccontextmanager
    async def open_answer(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        upload: AsyncIterable[bytes] | None = None,
        headers: Headers = (),
        what: str = "",
    ) -> AsyncIterator[Answer]:
        """Send a request and hand out its answer, of any status."""
        stream = await self.endpoint.connect()
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            await _send_request(connection, stream, method, target, body, upload, headers)
            what = what or f"{method} {target}"
            if upload is None:
                head = await _head(connection, stream, what)
            else:
                head = await _upload(connection, stream, upload, what)
            yield Answer(connection, stream, head)
        finally:
            await trio.aclose_forcefully(stream)


async def refused(answer: Answer, what: str) -> EngineRefused:
    """The error that an answer stands for, with the engine's own words."""
    found = await answer.read_start(ERROR_BYTES_MAX)
    return EngineRefused(answer.status, error_words(found), what=what)


def error_words(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    message = found.get("message") if isinstance(found, dict) else None
    if isinstance(message, str):
        return message[:1000]
    return body.decode("utf-8", "replace").strip()[:300] or "no reason given"


async def _send_request(
    connection: h11.Connection,
    stream: trio.abc.Stream,
    method: str,
    target: str,
    body: bytes,
    upload: AsyncIterable[bytes] | None,
    headers: Headers,
) -> None:
    framing = ("Transfer-Encoding", "chunked") if upload is not None else ("Content-Length", str(len(body)))
    try:
        request = h11.Request(
            method=method, target=target, headers=[("Host", "engine"), framing, ("User-Agent", "fedsched"), *headers]
        )
        await stream.send_all(connection.send(request) or b"")
        if body:
            await stream.send_all(connection.send(h11.Data(data=body)) or b"")
        if upload is None:
            await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
    except trio.BrokenResourceError:
        return
    except h11.LocalProtocolError as error:
        raise EngineFault(Fault.GARBLED, f"{method} {target!r:.200} cannot be sent: {error}") from error


async def _upload(
    connection: h11.Connection, stream: trio.abc.Stream, upload: AsyncIterable[bytes], what: str
) -> h11.Response | h11.InformationalResponse:
    """Send a long body while listening: an engine that refuses it need not take all of it first."""

    async def send() -> None:
        try:
            async for piece in upload:
                await stream.send_all(connection.send(h11.Data(data=piece)) or b"")
            await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        except trio.BrokenResourceError:
            return  # the answer says why

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        head = await _head(connection, stream, what)
        if head.status_code >= 300:
            nursery.cancel_scope.cancel()
    return head


async def _head(
    connection: h11.Connection, stream: trio.abc.Stream, what: str
) -> h11.Response | h11.InformationalResponse:
    while True:
        event = await _next_event(connection, stream)
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                return event
            continue
        raise EngineFault(Fault.CUT, f"{what}: the engine closed the connection without an answer")


async def _next_event(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Event:
    is_closed = False
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            if is_closed:
                raise EngineFault(Fault.CUT, "the engine closed the connection in the middle of an answer") from error
            raise EngineFault(Fault.GARBLED, f"the engine does not speak HTTP/1.1 properly: {error}") from error
        if event is h11.PAUSED:
            raise EngineFault(Fault.GARBLED, "the engine sent more than one answer")
        if event is not h11.NEED_DATA:
            assert not isinstance(event, type)
            return event
        data = await _received(stream)
        is_closed = not data
        try:
            connection.receive_data(data)
        except RuntimeError as error:  # h11's word for bytes after the end
            raise EngineFault(Fault.CUT, "the engine closed the connection") from error


async def _received(stream: trio.abc.Stream) -> bytes:
    try:
        return bytes(await stream.receive_some(RECEIVE_BYTES))
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise EngineFault(Fault.CUT, "the connection to the engine was cut") from error


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
