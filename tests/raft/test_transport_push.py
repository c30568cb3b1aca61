"""Packets that leave at once, over real sockets: in order, whole, and by the child when the connection is full."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable

import trio
import trio.testing

from fedsched.codec import cbor
from fedsched.env.fixed import FixedEnv
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import Append, Message
from fedsched.raft.transport import MESSAGE_BYTES_MAX, PacketReader, Transport
from fedsched.raft.wire import decode_message
from fedsched.telemetry.log import Hub

ME, PEER = ServerInfo("id-a", "a", "a:1"), ServerInfo("id-b", "b", "b:1")

Story = Callable[[Transport, trio.abc.Stream], Awaitable[None]]


def an_append(number: int, payload: bytes = b"") -> Append:
    entries = (Entry(number, 1, EntryKind.COMMAND, payload),) if payload else ()
    return Append(sender=ME.id, to=PEER.id, term=1, prev_index=number - 1, prev_term=1, entries=entries, commit=0)


def tell(story: Story) -> list[str]:
    """Give the story a transport with one link up, and the far end of that link; returns who became unreachable."""
    unreachable: list[str] = []

    async def main() -> None:
        arrived_in, arrived = trio.open_memory_channel[trio.abc.Stream](4)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]

        async def dial(_: ServerInfo) -> trio.abc.Stream:
            return await trio.open_tcp_stream("127.0.0.1", port)

        async def answer(stream: trio.abc.Stream) -> None:
            await PacketReader(stream).receive(4096, one=True)
            yes = cbor.dumps("")
            await stream.send_all(struct.pack(">I", len(yes)) + yes)
            await arrived_in.send(stream)
            await trio.sleep_forever()

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
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, answer, [listener])
                await nursery.start(transport.run)
                transport.set_peers([ME, PEER])
                far = await arrived.receive()
                while not transport.links_up()[PEER.id]:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                await story(transport, far)
                nursery.cancel_scope.cancel()

    trio.run(main)
    return unreachable


async def hear(far: trio.abc.Stream, count: int) -> list[Message]:
    reader, heard = PacketReader(far), list[Message]()
    while len(heard) < count:
        heard += [decode_message(packet)[1] for packet in await reader.receive(MESSAGE_BYTES_MAX)]
    return heard


def test_a_packet_for_an_idle_link_has_left_when_send_returns() -> None:
    async def story(transport: Transport, far: trio.abc.Stream) -> None:
        assert isinstance(far, trio.SocketStream)
        messages = [an_append(1), an_append(2)]

        transport.send(messages)

        waiting = os.read(far.socket.fileno(), 65536)  # in the same turn: nobody else has run
        (length,) = struct.unpack_from(">I", waiting)
        assert decode_message(waiting[4 : 4 + length])[1] == messages[0]
        assert decode_message(waiting[8 + length :])[1] == messages[1]

    tell(story)


def test_what_a_full_connection_does_not_take_follows_in_order() -> None:
    big = bytes(4 * 1024 * 1024)
    messages = [an_append(number, big) for number in range(1, 6)] + [an_append(number) for number in range(6, 20)]

    async def story(transport: Transport, far: trio.abc.Stream) -> None:
        for message in messages:
            transport.send([message])

        assert await hear(far, len(messages)) == messages

    assert tell(story) == []


def test_a_broken_connection_is_left_to_the_child_which_reports_it() -> None:
    async def story(transport: Transport, far: trio.abc.Stream) -> None:
        assert isinstance(far, trio.SocketStream)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        await far.aclose()
        while transport.links_up()[PEER.id]:
            transport.send([an_append(1)])
            await trio.lowlevel.checkpoint()

    assert tell(story) == [PEER.id]
