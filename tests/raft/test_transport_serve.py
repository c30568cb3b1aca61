"""The reading side of the transport: connections that others dialled, and what becomes of dead ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from fedsched.env.fixed import FixedEnv
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import Heartbeat, Message
from fedsched.raft.transport import Transport, say_hello
from fedsched.raft.wire import encode_message
from fedsched.telemetry.log import Hub

ME, PEER = ServerInfo("id-a", "a", "a:1"), ServerInfo("id-b", "b", "b:1")


class Bench:
    """A transport that others call, and whatever they got across."""

    def __init__(self, adopt: Callable[[str], Awaitable[bool]]) -> None:
        self.heard: list[Message] = []
        self.ended = 0
        self.transport = Transport(
            ME,
            dial=self._dial,
            env=FixedEnv(1),
            log=Hub().logger("raft"),
            on_unreachable=lambda _: None,
            on_messages=self.heard.extend,
            adopt_cluster=adopt,
            cluster_id="c",
        )

    async def serve(self, stream: trio.abc.Stream) -> None:
        await self.transport.serve(stream)
        self.ended += 1
        await trio.aclose_forcefully(stream)

    async def _dial(self, _: ServerInfo) -> trio.abc.Stream:
        raise ConnectionRefusedError("nobody there")


async def adopts(_: str) -> bool:
    return True


def test_a_caller_that_dials_again_ends_the_connection_it_had() -> None:
    async def main() -> None:
        bench = Bench(adopts)
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.transport.run)
            ends = []
            for _ in range(3):
                near, far = memory_stream_pair()
                nursery.start_soon(bench.serve, far)
                await say_hello(near, "c", PEER, ME.id)
                ends.append(near)
            await wait_all_tasks_blocked()
            assert bench.ended == 2

            packet = encode_message(Heartbeat(sender=PEER.id, to=ME.id, term=1, commit=0, round=0), "c")
            await ends[-1].send_all(len(packet).to_bytes(4, "big") + packet)
            await wait_all_tasks_blocked()
            assert len(bench.heard) == 1
            assert bench.transport.known(PEER.id) == PEER
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_caller_still_being_greeted_when_the_transport_ends_does_no_harm() -> None:
    async def main() -> None:
        thinking = trio.Event()

        async def adopt(_: str) -> bool:
            await thinking.wait()
            return True

        bench = Bench(adopt)
        running = trio.CancelScope()

        async def run() -> None:
            with running:
                await bench.transport.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            near, far = memory_stream_pair()
            nursery.start_soon(bench.serve, far)
            nursery.start_soon(say_hello, near, "another cluster", PEER, ME.id)
            await wait_all_tasks_blocked()
            running.cancel()
            await wait_all_tasks_blocked()
            thinking.set()
            await wait_all_tasks_blocked()
            await near.aclose()

        assert bench.ended == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))
