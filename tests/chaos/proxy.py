"""A small network that can be cut: one TCP proxy for every directed pair of servers, in a process of its own.

Each server dials its peers through the proxies that belong to it, so the proxy knows for every byte who sent it and
who is to get it. A rule is kept per *direction*: `drop` from a to b silences what a says to b on every connection
between the two, no matter who opened it, and leaves what b says to a alone.

A byte that was dropped cannot be sent again the way a real TCP would: a connection that lost bytes is *spoiled*, and is
reset when its rule is lifted. Until then both ends believe in it, which is the half-open state worth testing. `stall`
holds bytes back instead and delivers them on healing, which is what a cut shorter than TCP's patience looks like.

The harness talks to this process in JSON lines over stdin and stdout; when stdin ends, so does the process. Nothing is
drawn at random here: every number comes from the plan, so that a stored plan repeats in intent.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import trio

CHUNK = 256 * 1024
"""One read. Also the most that a stalled or delayed direction keeps in memory per connection; the kernel and the
sender's own limits hold the rest."""

PASS, DROP, STALL, REFUSE = "pass", "drop", "stall", "refuse"
KINDS = (PASS, DROP, STALL, REFUSE)


@dataclass(frozen=True)
class Rule:
    """How one direction behaves. `refuse` resets every connection that carries it, at once and on each new dial."""

    kind: str = PASS
    delay_s: float = 0.0
    reset_after: int | None = None
    """Let this many more bytes through, then reset the connection: a link that breaks in mid-frame. Fires once."""


class Net:
    """All rules, and the connections they act on."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Rule] = {}
        self._changed = trio.Event()
        self._connections: set[Connection] = set()
        self.bytes_dropped = 0
        self.resets = 0

    def rule(self, src: str, dst: str) -> Rule:
        return self._rules.get((src, dst), Rule())

    def is_dark(self, a: str, b: str) -> bool:
        """Whether a new connection between the two could not be made: each way is needed for a handshake."""
        return any(self.rule(*way).kind in (DROP, STALL) for way in ((a, b), (b, a)))

    def set_rule(self, src: str, dst: str, rule: Rule) -> None:
        """Put a rule in force; connections that can no longer be true under it are reset."""
        self._rules[src, dst] = rule
        self._changed.set()
        self._changed = trio.Event()
        for connection in list(self._connections):
            if connection.carries(src, dst) and (rule.kind == REFUSE or connection.is_past_saving(self)):
                connection.reset()

    async def wait_change(self) -> None:
        await self._changed.wait()

    async def serve(self, src: str, dst: str, to: tuple[str, int], listener: trio.SocketListener) -> None:
        """Carry what `src` dials towards `dst`; runs until cancelled."""

        async def carry(stream: trio.SocketStream) -> None:
            connection = Connection(self, src, dst, stream)
            self._connections.add(connection)
            try:
                await connection.run(to)
            finally:
                self._connections.discard(connection)

        await trio.serve_listeners(carry, [listener])


class Connection:
    """One dialled connection: the dialler's stream, the onward stream, and a pump for each direction."""

    def __init__(self, net: Net, src: str, dst: str, near: trio.SocketStream) -> None:
        self._net = net
        self._src = src
        self._dst = dst
        self._near = near
        self._far: trio.SocketStream | None = None
        self._spoiled = False
        self._scope = trio.CancelScope()

    def carries(self, src: str, dst: str) -> bool:
        return {src, dst} == {self._src, self._dst}

    def is_past_saving(self, net: Net) -> bool:
        """Bytes are missing and the cut is over: a real TCP would never deliver such a stream."""
        return self._spoiled and not net.is_dark(self._src, self._dst)

    def reset(self) -> None:
        """Break both ends with RST rather than an orderly end, as a dying link does."""
        self._net.resets += 1
        for stream in (self._near, self._far):
            if stream is not None:
                _linger_zero(stream.socket)
        self._scope.cancel()

    async def run(self, to: tuple[str, int]) -> None:
        with self._scope:
            try:
                await self._run(to)
            finally:
                self._near.socket.close()
                if self._far is not None:
                    self._far.socket.close()

    async def _run(self, to: tuple[str, int]) -> None:
        net, src, dst = self._net, self._src, self._dst
        if REFUSE in (net.rule(src, dst).kind, net.rule(dst, src).kind):
            self.reset()
            return
        if net.is_dark(src, dst):
            self._spoiled = True  # the dialler believes it is connected; nothing it says will arrive
            await trio.sleep_forever()
        try:
            self._far = await trio.open_tcp_stream(*to)
        except OSError:
            self.reset()
            return
        for stream in (self._near, self._far):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, src, dst, self._near, self._far)
            nursery.start_soon(self._pump, dst, src, self._far, self._near)

    async def _pump(self, src: str, dst: str, reader: trio.SocketStream, writer: trio.SocketStream) -> None:
        """Carry one direction until an end closes; an orderly end is passed on, a broken one breaks the other."""
        budget: int | None = None
        budget_rule: Rule | None = None
        while True:
            try:
                data = await reader.receive_some(CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.reset()
                return
            rule = await self._let_through(src, dst)
            if rule is None:  # dropped: an end of stream is lost like any other byte
                self._net.bytes_dropped += len(data)
                self._spoiled = True
                if not data:
                    await trio.sleep_forever()
                continue
            if rule.reset_after is not None:
                budget, budget_rule = (rule.reset_after, rule) if rule is not budget_rule else (budget, rule)
                assert budget is not None
                cut, data = len(data) > budget, data[:budget]
                budget -= len(data)
            else:
                cut = False
            try:
                if data:
                    await writer.send_all(data)
                elif not cut:
                    await writer.send_eof()
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.reset()
                return
            if cut:
                self._net.set_rule(src, dst, Rule())
                self.reset()
                return

    async def _let_through(self, src: str, dst: str) -> Rule | None:
        """The rule under which bytes just read may go on, after waiting as it asks; None when they are lost."""
        while True:
            rule = self._net.rule(src, dst)
            if rule.kind == DROP:
                return None
            if rule.kind == STALL:
                await self._net.wait_change()
                continue
            if rule.delay_s:
                await trio.sleep(rule.delay_s)
                if self._net.rule(src, dst).kind in (DROP, STALL):
                    continue
            return rule


def _linger_zero(sock: trio.socket.SocketType) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[dict[str, Any]]:
    buffer = bytearray()
    async for data in stream:
        buffer += data
        while (at := buffer.find(b"\n")) >= 0:
            yield json.loads(bytes(buffer[:at]))
            del buffer[: at + 1]


async def control(requests: AsyncIterator[dict[str, Any]], answer: Callable[[dict[str, Any]], None]) -> None:
    """Perform what the harness asks, one request at a time and each with an answer."""
    net = Net()
    async with trio.open_nursery() as nursery:
        async for request in requests:
            match request:
                case {"op": "open", "src": str(src), "dst": str(dst), "at": [str(at), int(near)], "to": [host, port]}:
                    [listener] = await trio.open_tcp_listeners(near, host=at)
                    nursery.start_soon(net.serve, src, dst, (host, port), listener)
                    answer({"port": listener.socket.getsockname()[1]})
                case {"op": "rule", "src": str(src), "dst": str(dst), "rule": dict(fields)} if (
                    fields.get("kind", PASS) in KINDS
                ):
                    net.set_rule(src, dst, Rule(**fields))
                    answer({})
                case {"op": "statistics"}:
                    answer({"bytes_dropped": net.bytes_dropped, "resets": net.resets})
                case _:
                    raise ValueError(f"no such request to the proxy: {request}")
        nursery.cancel_scope.cancel()


async def main() -> None:
    def answer(reply: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()

    await control(_lines(trio.lowlevel.FdStream(0)), answer)


if __name__ == "__main__":
    trio.run(main)
