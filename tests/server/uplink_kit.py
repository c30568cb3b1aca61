"""A server's streams to the clients of its nodes, with both ends in the hands of a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

from fedsched.codec import to_bytes_sparse
from fedsched.rpc.methods.node import NodeReportsReply, NodeReportsRequest
from fedsched.rpc.methods.node_frames import NodeReport, WatchFrame
from fedsched.rpc.node_watch import FrameReader, WatchedAllocations
from fedsched.server.machine import StateMachine
from fedsched.server.pace import SHORTEST_S
from fedsched.server.reports import Reports
from fedsched.server.uplinks import Uplinks
from fedsched.state.changes import Changes
from fedsched.state.tables.alloc_columns import Flag
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition
from fedsched.telemetry.log import Hub
from tests.builders import a_group, a_job, an_id
from tests.server.leader.worlds import Region as World
from tests.state.worlds import ids

MIGRATE = int(Flag.MIGRATE)


class Client:
    """The other end of a stream: reads when it is told to, and has room for so many items."""

    def __init__(self, number: int, room: int = 1_000_000) -> None:
        self.number = number
        self.room = room
        self.unread: deque[bytes] = deque()
        self.seen = WatchedAllocations(an_id(number))
        self.ended = trio.Event()
        self.error: Exception | None = None
        self._reader = FrameReader()
        self._out, self._in = trio.open_memory_channel[bytes](10)

    # what the server sees of it

    def try_send(self, item: bytes) -> bool:
        if len(self.unread) >= self.room:
            return False
        self.unread.append(item)
        return True

    async def send(self, item: bytes) -> bool:
        raise AssertionError("uplinks never wait for one client")

    async def receive(self) -> bytes:
        return await self._in.receive()

    # what a test does with it

    def frames(self) -> list[WatchFrame]:
        """Everything that has come in."""
        found = []
        while self.unread:
            frame = self._reader.take(self.unread.popleft())
            if frame is not None:
                self.seen.take(frame)
                found.append(frame)
        return found

    def frame(self) -> WatchFrame:
        (frame,) = self.frames()
        return frame

    @property
    def knows(self) -> list[str]:
        return sorted(self.seen.allocations)

    async def say(self, number: int, numbers: list[int], status: int = 2) -> None:
        report = NodeReport(number=number, ids=ids(numbers), statuses=bytes([status]) * len(numbers))
        await self._out.send(to_bytes_sparse(report))

    async def say_raw(self, item: bytes) -> None:
        await self._out.send(item)

    def say_no_more(self) -> None:
        self._out.close()


class Site:
    """A server's streams, with a state to change by hand and a leader that writes what it is told."""

    def __init__(self, nursery: trio.Nursery, nodes: int = 2) -> None:
        self.machine = StateMachine(Hub().logger("test"))
        self.world = World()
        self.world.store = self.machine.store
        for number in range(1, nodes + 1):
            self.world.node(number)
        self.world.register(a_job(groups=[a_group(count=9)]))
        self.leader_hold: trio.Event | None = None
        self.refused = b""
        self.reports = Reports(self._write, Hub().logger("test"))
        self.uplinks = Uplinks(self.machine, self.reports)
        self._nursery = nursery

    async def _write(self, request: NodeReportsRequest) -> NodeReportsReply:
        if self.leader_hold is not None:
            await self.leader_hold.wait()
        if not self.refused:
            self.do(AllocStatusUpdate(ids=request.ids, statuses=request.statuses))
        return NodeReportsReply(refused=self.refused)

    def tell(self) -> None:
        self.changed(*self.world.changes())

    def changed(self, *changes: Changes) -> None:
        for listener in self.machine._listeners:
            listener(list(changes))

    def do(self, command: Any) -> None:
        self.world.do(command)
        self.tell()

    def place(self, numbers: list[int], nodes: list[int], **fields: Any) -> None:
        self.world.place(numbers, nodes, **fields)
        self.tell()

    def touch(self, numbers: list[int]) -> None:
        """Something that servers decide about allocations."""
        self.do(AllocTransition(ids=ids(numbers), flags=MIGRATE))

    async def join(self, number: int = 1, room: int = 1_000_000) -> Client:
        """A client opens its stream."""
        client = Client(number, room)

        async def serve() -> None:
            try:
                await self.uplinks.serve(an_id(number), number - 1, client)
            except Exception as error:
                client.error = error
            client.ended.set()

        self._nursery.start_soon(serve)
        await trio.sleep(2 * SHORTEST_S)
        return client


async def settle() -> None:
    """Long enough for news to go out, too short for anything to be told alone."""
    await trio.sleep(0.01)


def run(story: Callable[[Site], Awaitable[None]], nodes: int = 2) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            site = Site(nursery, nodes)
            nursery.start_soon(site.uplinks.run)
            await story(site)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
