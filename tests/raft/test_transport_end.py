"""A link whose other end goes away while nothing is being sent."""

from __future__ import annotations

import struct

import trio
from trio.testing import MockClock, memory_stream_pair

from fedsched.codec import cbor
from fedsched.env.fixed import FixedEnv
from fedsched.raft.membership import ServerInfo
from fedsched.raft.transport import PacketReader, Transport
from fedsched.telemetry.log import Hub

ME, PEER = ServerInfo("id-a", "a", "a:1"), ServerInfo("id-b", "b", "b:1")


async def _let_in(stream: trio.abc.Stream) -> None:
    """Be the peer: hear the hello, and say yes to it."""
    await PacketReader(stream).receive(4096, one=True)
    yes = cbor.dumps("")
    await stream.send_all(struct.pack(">I", len(yes)) + yes)


def test_a_peer_that_goes_away_while_nothing_is_sent_is_noticed_and_dialled_again() -> None:
    unreachable: list[str] = []

    async def main() -> None:
        dialled_in, dialled_out = trio.open_memory_channel[trio.abc.Stream](4)

        async def dial(_: ServerInfo) -> trio.abc.Stream:
            near, far = memory_stream_pair()
            await dialled_in.send(far)
            return near

        async def adopt(_: str) -> bool:
            return True

        transport = Transport(
            ME,
            dial=dial,
            env=FixedEnv(1),
            log=Hub().logger("raft"),
            on_unreachable=unreachable.append,
            on_messages=lambda _: None,
            adopt_cluster=adopt,
            cluster_id="c",
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            transport.set_peers([ME, PEER])
            first = await dialled_out.receive()
            await _let_in(first)
            while not transport.links_up()[PEER.id]:
                await trio.sleep(0.01)

            await first.aclose()

            with trio.fail_after(5):
                second = await dialled_out.receive()
            await _let_in(second)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert unreachable == [PEER.id]
