"""Thousands of client connections in one cheap process, for `fedsched bench fanout`.

Real sockets, real websockets, real links, each with one node's stream; nothing behind them. One loop over `epoll`
serves them all, because a measurement of a server should not mostly measure its clients. What arrives during a round is
only noted by its time and looked at afterwards.

`python -m fedsched.bench.fanout_clients OPTIONS` obeys lines of JSON on its standard input and answers each with one on
its standard output: `{"do": "open", "count": 100}`, `{"do": "round"}` (until all have received something),
`{"do": "idle", "for_s": 2}`.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import sys
import time
from typing import Any, Final

from fedsched.rpc.body import Body, seal
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.node import NODE_WATCH, NodeWatchRequest
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.frames import Parts
from fedsched.wire.link_core import LinkCore
from fedsched.wire.packing import pack, unpack

AT_ONCE: Final = 64
"""Connections under way."""
ROUND_S: Final = 60.0
ANSWER_S: Final = 5.0
"""How often signs of life are answered while nothing comes in."""
NEWS_BYTES: Final = 96
"""Less than this is a sign of life, not news."""
BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
KEY: Final = base64.b64encode(bytes(16)).decode()


class Connection:
    """One of them. `is_up` once the first frame of its stream is here."""

    __slots__ = ("_buffer", "_call", "_core", "_is_plain", "_is_shaken", "_node", "is_hit", "is_up", "socket", "unread")

    def __init__(self, address: tuple[str, int], node: tuple[str, str], *, is_plain: bool) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_plain = is_plain
        self._node = node
        self._buffer = bytearray()
        self._core: LinkCore | None = None
        self._call: CallState | None = None
        self._is_shaken = False
        self.is_up = is_plain
        self.is_hit = False
        self.unread: list[bytes] = []
        if not is_plain:
            host, port = address
            self.socket.sendall(
                f"GET /v1/rpc HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
            )
        self.socket.setblocking(False)

    def heed(self) -> None:
        """Look at all that has come in, and answer what has to be answered."""
        if self._is_plain:
            self.unread.clear()
            return
        self._buffer += b"".join(self.unread)
        self.unread.clear()
        if not self._is_shaken and not self._shake():
            return
        assert self._core is not None
        now = time.monotonic()
        while (message := self._message()) is not None:
            frames, _ = unpack(message, 1 << 24)
            for frame in frames:
                self._core.receive(frame, now)
                if self._call is None:
                    self._watch(now)
        call = self._call
        while call is not None and call.has_items:
            self._core.read_item(call)
            self.is_up = True
        self._core.wake(now)
        self._flush()

    def _shake(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        if not self._buffer.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(bytes(self._buffer[:200]).decode(errors="replace"))
        del self._buffer[: end + 4]
        self._is_shaken = True
        self._core = LinkCore(is_opener=True, now=time.monotonic())
        self._flush()
        return True

    def _watch(self, now: float) -> None:
        assert self._core is not None
        self._core.admit()
        node_id, secret_id = self._node
        request = NodeWatchRequest(node_id=node_id, secret_id=secret_id)
        payload = seal(CallMeta(stale=True), Body(NodeWatchRequest, record=request))
        self._call = self._core.call(NODE_WATCH.name, payload, flow=Flow.BOTH, deadline=float("inf"), now=now)

    def _message(self) -> bytes | None:
        """The next whole binary message; pings are answered on the way."""
        while True:
            buffer = self._buffer
            if len(buffer) < 2:
                return None
            opcode, length, start = buffer[0] & 0x0F, buffer[1] & 0x7F, 2
            if length > 125:
                start = 4 if length == 126 else 10
                length = int.from_bytes(buffer[2:start], "big")
            if len(buffer) < start + length:
                return None
            payload = bytes(buffer[start : start + length])
            del buffer[: start + length]
            if opcode == PING:
                self._send(PONG, payload)
            elif opcode == CLOSE:
                raise ConnectionError("the server closed a connection")
            elif opcode == BINARY:
                return payload

    def _flush(self) -> None:
        assert self._core is not None
        while self._core.has_output:
            frames: list[Parts] = self._core.take_output()
            for parts in frames:
                self._send(BINARY, pack([parts]))

    def _send(self, opcode: int, payload: bytes) -> None:
        """A frame with a mask of zeros: allowed, and free."""
        size = len(payload)
        if size < 126:
            head = bytes((0x80 | opcode, 0x80 | size))
        else:
            head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
        self.socket.sendall(head + bytes(4) + payload)


class Fleet:
    """All connections of this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._address = (str(options["host"]), int(options["port"]))
        self._nodes = [(str(node_id), str(secret)) for node_id, secret in options["nodes"]]
        self._is_plain = bool(options.get("plain"))
        self._epoll = select.epoll()
        self._by_fd: dict[int, Connection] = {}

    def open(self, count: int) -> dict[str, Any]:
        """Open so many more, and wait until all of them are up."""
        waiting: list[Connection] = []
        began = time.monotonic()
        goal = len(self._by_fd) + count
        while len(self._by_fd) < goal or waiting:
            while len(waiting) < AT_ONCE and len(self._by_fd) < goal:
                one = Connection(self._address, self._nodes[len(self._by_fd)], is_plain=self._is_plain)
                self._by_fd[one.socket.fileno()] = one
                self._epoll.register(one.socket.fileno(), select.EPOLLIN)
                waiting.append(one)
            if not self._is_plain:
                self._take(0.05)
                self._heed_all()
            waiting = [one for one in waiting if not one.is_up]
            if time.monotonic() - began > ROUND_S * 4:
                raise TimeoutError(f"{len(waiting)} connections did not come up")
        return {"open": len(self._by_fd)}

    def round(self) -> dict[str, Any]:
        """Wait until every connection has received something; from the first to the last, and how many bytes."""
        for one in self._by_fd.values():
            one.is_hit = False
        sys.stdout.write('{"ready": true}\n')
        sys.stdout.flush()
        left, size, first = len(self._by_fd), 0, 0.0
        began = answered = time.monotonic()
        by_fd, clock = self._by_fd, time.perf_counter
        while left and time.monotonic() < began + ROUND_S:
            if time.monotonic() > answered + ANSWER_S:
                answered = time.monotonic()
                self._heed_all()
            for fd, _ in self._epoll.poll(1.0, 512):
                one = by_fd[fd]
                data = one.socket.recv(65536)
                if not data:
                    raise ConnectionError(f"a server has closed a connection: {b''.join(one.unread)[-200:]!r}")
                one.unread.append(data)
                if not one.is_hit and len(data) >= NEWS_BYTES:
                    first = first or clock()
                    one.is_hit = True
                    size += len(data)
                    left -= 1
        last = clock()
        self._heed_all()
        return {"missed": left, "took_s": last - first, "bytes": size, "count": len(self._by_fd)}

    def idle(self, for_s: float) -> dict[str, Any]:
        """Answer signs of life for a while."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            self._take(0.1)
            self._heed_all()
        return {"idle": for_s}

    def _take(self, wait_s: float) -> None:
        for fd, _ in self._epoll.poll(wait_s, 1024):
            data = self._by_fd[fd].socket.recv(65536)
            if not data:
                raise ConnectionError("a server has closed a connection")
            self._by_fd[fd].unread.append(data)

    def _heed_all(self) -> None:
        for one in self._by_fd.values():
            if one.unread:
                one.heed()


def main() -> None:
    """Obey until the standard input ends."""
    fleet = Fleet(json.loads(sys.argv[1] if sys.argv[1] != "-" else sys.stdin.readline()))
    for line in sys.stdin:
        wish = json.loads(line)
        match wish["do"]:
            case "open":
                answer = fleet.open(int(wish["count"]))
            case "round":
                answer = fleet.round()
            case _:
                answer = fleet.idle(float(wish["for_s"]))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
