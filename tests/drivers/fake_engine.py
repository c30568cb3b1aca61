"""An engine that does what a test's script says, spoken to over memory or a unix socket.

It knows the calls of the driver and keeps containers as plain records; any call can be given another answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11
import trio
import trio.testing

from fedsched.drivers.docker.transport import Endpoint

IMAGE_ID = "sha256:" + "1" * 64
VERSION = {"Version": "27.1.0", "ApiVersion": "1.46", "MinAPIVersion": "1.24", "Os": "linux"}
INFO = {"OSType": "linux", "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}, "NCPU": 4, "PidsLimit": True}


@dataclass
class FakeContainer:
    id: str
    name: str
    body: dict[str, Any]
    status: str = "created"
    exit_code: int = 0
    is_oom: bool = False
    ended: trio.Event = field(default_factory=trio.Event)
    log: list[bytes] = field(default_factory=list)
    """Frames, as the engine sends them."""
    grown: trio.Event = field(default_factory=trio.Event)
    kills: list[str] = field(default_factory=list)
    log_path: str = ""

    def end(self, code: int = 0, *, is_oom: bool = False) -> None:
        self.status, self.exit_code, self.is_oom = "exited", code, is_oom
        self.ended.set()
        self.write_frames()

    def write_frames(self, *frames: bytes) -> None:
        self.log.extend(frames)
        self.grown.set()
        self.grown = trio.Event()


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    stream: trio.abc.Stream
    connection: h11.Connection

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def reply(self, status: int, body: Any = None) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        await self.stream.send_all(head.encode() + data)

    async def start_chunks(self, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await self.stream.send_all(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.stream.send_all(b"%x\r\n%s\r\n" % (len(data), data))


Handler = Callable[[Request], Awaitable[None]]


class FakeEngine:
    """Containers and images of nobody's host."""

    def __init__(self) -> None:
        self.version: dict[str, Any] = dict(VERSION)
        self.images: dict[str, str] = {"app:1": IMAGE_ID}
        self.removed_images: list[str] = []
        self.containers: dict[str, FakeContainer] = {}
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        self.is_down = False
        self._scripts: list[tuple[re.Pattern[str], Handler]] = []
        self._numbers = 0

    def script(self, pattern: str, handler: Handler, *, times: int = 1_000_000) -> None:
        """Answer calls such as `POST /containers/.*/start` otherwise, so many times."""
        left = times

        async def counted(request: Request) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._scripts.remove(entry)
            await handler(request)

        entry = (re.compile(pattern), counted)
        self._scripts.insert(0, entry)

    def script_reply(self, pattern: str, status: int, body: Any = None, *, times: int = 1_000_000) -> None:
        async def reply(request: Request) -> None:
            await request.reply(status, body)

        self.script(pattern, reply, times=times)

    def count(self, pattern: str) -> int:
        return sum(re.match(pattern, call) is not None for call in self.calls)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One connection: one request and its answer."""
        connection = h11.Connection(h11.SERVER)
        try:
            async with stream:
                request = await self._read(connection, stream)
                call = f"{request.method} {request.path}"
                self.calls.append(call)
                handler = next((one for pattern, one in self._scripts if pattern.match(call)), self._answer)
                await handler(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return

    async def _read(self, connection: h11.Connection, stream: trio.abc.Stream) -> Request:
        head: h11.Request | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise trio.BrokenResourceError
        assert head is not None
        parts = urlsplit(head.target.decode())
        path = re.sub(r"^/v1\.\d+", "", unquote(parts.path))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        headers = {name.decode(): value.decode() for name, value in head.headers}
        return Request(head.method.decode(), path, query, headers, body, stream, connection)

    async def _answer(self, request: Request) -> None:
        words = request.path.strip("/").split("/")
        match [request.method, *words]:
            case ["GET", "version"]:
                await request.reply(200, self.version)
            case ["GET", "info"]:
                await request.reply(200, INFO)
            case ["GET", "networks", "bridge"]:
                await request.reply(200, {"IPAM": {"Config": [{"Gateway": "172.17.0.1"}]}})
            case ["GET", "images", *name, "json"]:
                await self._image(request, "/".join(name))
            case ["POST", "images", "create"]:
                self.images[f"{request.query['fromImage']}:{request.query['tag']}"] = IMAGE_ID
                await request.reply(200, b'{"status":"Pull complete","id":"a"}\n')
            case ["DELETE", "images", *name]:
                self.removed_images.append("/".join(name))
                await request.reply(200, [])
            case ["POST", "containers", "create"]:
                await self._create(request)
            case ["GET", "containers", "json"]:
                await self._list(request)
            case [_, "containers", name, *rest]:
                await self._container(request, name, rest)
            case _:
                await request.reply(404, {"message": f"no such call {request.method} {request.path}"})

    async def _image(self, request: Request, name: str) -> None:
        found = self.images.get(name)
        await request.reply(*((200, {"Id": found}) if found else (404, {"message": f"no such image: {name}"})))

    async def _create(self, request: Request) -> None:
        name = request.query["name"]
        if any(one.name == name for one in self.containers.values()):
            await request.reply(409, {"message": f"the name {name} is already in use"})
            return
        self._numbers += 1
        made = FakeContainer(f"{self._numbers:064x}", name, request.json)
        self.containers[made.id] = made
        self.bodies.append(request.json)
        await request.reply(201, {"Id": made.id})

    async def _list(self, request: Request) -> None:
        wanted = json.loads(request.query["filters"])["label"]
        found = []
        for one in self.containers.values():
            labels = one.body.get("Labels", {})
            pairs = [*labels, *(f"{name}={value}" for name, value in labels.items())]
            if all(label in pairs for label in wanted):
                found.append({"Id": one.id, "Created": 1, "State": one.status, "Labels": labels})
        await request.reply(200, found)

    async def _container(self, request: Request, name: str, rest: list[str]) -> None:
        one = self.containers.get(name) or next((one for one in self.containers.values() if one.name == name), None)
        if one is None:
            await request.reply(404, {"message": f"no such container: {name}"})
            return
        match [request.method, *rest]:
            case ["GET", "json"]:
                await request.reply(200, details(one))
            case ["POST", "start"]:
                one.status = "running"
                await request.reply(204)
            case ["POST", "wait"]:
                await request.start_chunks()
                await one.ended.wait()
                await request.chunk(b'{"StatusCode":0}')
                await request.chunk(b"")
            case ["POST", "stop"]:
                one.kills.append(f"stop {request.query['t']}")
                if one.status == "running":
                    one.end(143 if int(request.query["t"]) else 137)
                await request.reply(204)
            case ["POST", "kill"]:
                one.kills.append(request.query["signal"])
                await request.reply(204)
            case ["GET", "logs"]:
                await self._logs(request, one)
            case ["DELETE"]:
                del self.containers[one.id]
                one.ended.set()
                await request.reply(204)
            case _:
                await request.reply(404, {"message": "page not found"})

    async def _logs(self, request: Request, one: FakeContainer) -> None:
        await request.start_chunks("application/vnd.docker.multiplexed-stream")
        at = 0
        while True:
            while at < len(one.log):
                await request.chunk(one.log[at])
                at += 1
            if request.query["follow"] == "0" or one.status == "exited":
                break
            await one.grown.wait()
        await request.chunk(b"")


def details(one: FakeContainer) -> dict[str, Any]:
    has_started = one.status != "created"
    return {
        "Id": one.id,
        "Name": f"/{one.name}",
        "Image": one.body.get("Image", ""),
        "LogPath": one.log_path,
        "Config": {"Labels": one.body.get("Labels", {}), "Tty": False},
        "State": {
            "Status": one.status,
            "Running": one.status == "running",
            "OOMKilled": one.is_oom,
            "Pid": 0,
            "ExitCode": one.exit_code,
            "StartedAt": "2026-01-01T00:00:00.5Z" if has_started else "0001-01-01T00:00:00Z",
            "FinishedAt": "2026-01-01T00:00:09Z" if one.status == "exited" else "0001-01-01T00:00:00Z",
        },
        "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.5"}}},
    }


def frame(stream: int, time: str, data: bytes) -> bytes:
    """A log entry as an engine sends it."""
    payload = time.encode() + b" " + data
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


class MemoryEndpoint(Endpoint):
    """Connects to a fake engine without a socket, so that a virtual clock sees when everybody waits."""

    def __init__(self, engine: FakeEngine, nursery: trio.Nursery) -> None:
        super().__init__("memory://engine")
        self._fake = engine
        self._nursery = nursery

    async def _connect(self) -> trio.abc.Stream:
        if self._fake.is_down:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._fake.serve, theirs)
        return ours


@asynccontextmanager
async def served(place: Path, handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[Endpoint]:
    """Whatever `handle` does with a connection, behind a unix socket."""
    path = place / "engine.sock"
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(8)

    async def safely(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await handle(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, safely, [trio.SocketListener(listener)])
        yield Endpoint(f"unix://{path}")
        nursery.cancel_scope.cancel()
