"""Byte streams between simulated daemons: late, cut, stalled, reset in the middle of a frame.

A connection is two pipes. What is sent leaves a pipe some virtual time later, in order and perhaps in several pieces,
like TCP. A silent cut holds everything back until it is healed; a reset loses what was on its way but for a prefix of
any length; a power cut at one end leaves the other with a connection that never says anything again. A full pipe makes
its sender wait.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import trio

Tap = Callable[[bytes], None]
"""Sees every byte its end sends, before it leaves."""


class Weather(Protocol):
    """How good the links of a run are."""

    @property
    def delay_s(self) -> float:
        """How long a piece is under way, about."""

    @property
    def fragment(self) -> float:
        """How often what is sent arrives in pieces."""

    @property
    def window_bytes(self) -> int:
        """What a pipe holds before its sender has to wait."""


class Pipe:
    """One direction of one connection."""

    def __init__(self, net: VirtualNet, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self._net = net
        self._queue: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._last_due = 0.0
        self._changed = trio.Event()
        self._is_over = False
        """Nothing more is put in; what is in it still comes out, then the end."""
        self._is_reset = False
        self.is_silent = False
        """The sender's host has lost its power: nothing comes out any more, not even an end."""
        self.is_refused = False
        """The receiver's end is gone: sending fails."""

    def wake(self) -> None:
        """Let whoever waits look again."""
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def put(self, data: bytes) -> None:
        if self.is_refused or self._is_over:
            raise trio.BrokenResourceError("the connection is broken")
        for piece in self._net.pieces(data):
            due = trio.current_time() + self._net.delay(self.sender, self.receiver)
            self._last_due = due = max(due, self._last_due)
            self._queue.append((due, piece))
            self._bytes += len(piece)
        self.wake()
        while self._bytes > self._net.weather.window_bytes:
            self._net.counts["sender waits"] += 1
            await self._changed.wait()
            if self.is_refused:
                raise trio.BrokenResourceError("the connection broke")

    async def take(self, max_bytes: int) -> bytes:
        while True:
            is_held = self.is_silent or (self.sender, self.receiver) in self._net.cuts
            due = self._queue[0][0] if self._queue else trio.current_time()
            if not is_held and due <= trio.current_time():
                if self._queue:
                    return self._next(max_bytes)
                if self._is_reset:
                    raise trio.BrokenResourceError("the connection was reset")
                if self._is_over:
                    return b""
                is_held = True
            with trio.move_on_at(float("inf") if is_held else due):
                await self._changed.wait()

    def _next(self, max_bytes: int) -> bytes:
        due, data = self._queue.popleft()
        if len(data) > max_bytes:
            self._queue.appendleft((due, data[max_bytes:]))
            data = data[:max_bytes]
        self._bytes -= len(data)
        self.wake()
        return data

    def finish(self) -> None:
        """The sender has closed its end."""
        self._is_over = True
        self.wake()

    def refuse(self) -> None:
        """The receiver has closed its end, or is no more."""
        self.is_refused = True
        self.wake()

    def reset(self, rng: random.Random) -> None:
        """Both ends learn that it is over; of what was on its way a prefix of any length arrives."""
        data = b"".join(piece for _, piece in self._queue)
        kept = data[: rng.randrange(0, len(data) + 1)]
        if 0 < len(kept) < len(data):
            self._net.counts["reset inside data"] += 1
        self._queue = deque([(self._last_due, kept)] if kept else [])
        self._bytes = len(kept)
        self._is_reset = rng.random() < 0.5
        self._is_over = self.is_refused = True
        self.wake()


class VirtualStream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.tap: Tap | None = None
        self._is_closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self.tap is not None:
            self.tap(bytes(data))
        await self.outgoing.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self._check_open()
        return await self.incoming.take(max_bytes or 65_536)

    async def aclose(self) -> None:
        self._is_closed = True
        self.outgoing.finish()
        self.incoming.refuse()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this end is closed")


class VirtualNet:
    """All connections of a run, and what is wrong with them."""

    def __init__(self, weather: Weather, rng: random.Random, counts: Counter[str]) -> None:
        self.weather = weather
        self.counts = counts
        self.cuts: set[tuple[str, str]] = set()
        """(sender, receiver): what the one sends does not reach the other for now."""
        self.slow: dict[tuple[str, str], float] = {}
        self._rng = rng
        self._joined = trio.Event()
        self._connections: list[tuple[VirtualStream, VirtualStream]] = []

    def delay(self, sender: str, receiver: str) -> float:
        """How long the next piece is under way."""
        usual_s = self.weather.delay_s * (0.5 + self._rng.random())
        return usual_s + self.slow.get((sender, receiver), 0.0) * self._rng.random()

    def pieces(self, data: bytes) -> list[bytes]:
        """What is sent as one may arrive as several."""
        if len(data) < 2 or self._rng.random() >= self.weather.fragment:
            return [data]
        at = self._rng.randrange(1, len(data))
        return [data[:at], data[at:]]

    async def knock(self, caller: str, to: str) -> None:
        """The time a dial takes; for ever while nothing gets through."""
        await trio.sleep(self.delay(caller, to))
        while (caller, to) in self.cuts or (to, caller) in self.cuts:
            await self._joined.wait()

    def connect(self, caller: str, to: str) -> tuple[VirtualStream, VirtualStream]:
        """A new connection: the caller's end and the other one."""
        there, back = Pipe(self, caller, to), Pipe(self, to, caller)
        ends = VirtualStream(there, back), VirtualStream(back, there)
        self._connections = [each for each in self._connections if not _is_done(each)]
        self._connections.append(ends)
        return ends

    def cut(self, sender: str, receiver: str) -> None:
        self.cuts.add((sender, receiver))

    def join(self, sender: str, receiver: str) -> None:
        self.cuts.discard((sender, receiver))
        self._let_in()
        for pipe in self._pipes():
            if (pipe.sender, pipe.receiver) == (sender, receiver):
                pipe.wake()

    def reset(self, one: str, other: str) -> None:
        """Break every connection between the two."""
        for pipe in self._pipes():
            if {pipe.sender, pipe.receiver} == {one, other}:
                pipe.reset(self._rng)

    def host_gone(self, host: str, *, silently: bool) -> None:
        """A host's process is no more. Its kernel tells the others, unless the power went with it."""
        for pipe in self._pipes():
            if pipe.sender == host and silently:
                pipe.is_silent = True
            elif host in (pipe.sender, pipe.receiver) and not silently:
                pipe.reset(self._rng)

    def host_back(self, host: str) -> None:
        """A new kernel knows no old connections: sending on one fails; who only listens on one hears nothing, ever."""
        for pipe in self._pipes():
            if pipe.receiver == host:
                pipe.refuse()

    def heal(self) -> None:
        """No cut, no slow link from now on."""
        self.slow.clear()
        self.cuts.clear()
        self._let_in()
        for pipe in self._pipes():
            pipe.wake()

    def _let_in(self) -> None:
        event, self._joined = self._joined, trio.Event()
        event.set()

    def _pipes(self) -> list[Pipe]:
        return [end.outgoing for ends in self._connections for end in ends]


def _is_done(ends: tuple[VirtualStream, VirtualStream]) -> bool:
    return all(end._is_closed for end in ends)
