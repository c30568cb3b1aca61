"""Frames over byte streams: preambles, cuts at any byte, limits, and real sockets."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MemoryReceiveStream, memory_stream_pair

from fedsched.model.errors import Unavailable
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.link import Link, open_link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.packing import pack
from fedsched.wire.stream import READ_BYTES, Preamble, StreamCarrier, connect_stream, read_preamble
from tests.wire.builders import listen


async def echo(call: ServedCall) -> bytes:
    return call.payload


def test_frames_arrive_whole_however_the_bytes_are_cut() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        carrier = StreamCarrier(far, "peer")
        data = pack([(b"one", b""), (b"t", b"wo"), (b"", b"x" * 1000)])
        received: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def feed() -> None:
                for at in range(len(data)):
                    await near.send_all(data[at : at + 1])

            nursery.start_soon(feed)
            while len(received) < 3:
                received += await carrier.receive(2000)
        assert received == [b"one", b"two", b"x" * 1000]

    trio.run(main)


def test_many_frames_in_one_read_are_handed_on_together() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(pack([(b"a", b""), (b"b", b"")]))
        assert await StreamCarrier(far, "peer").receive(100) == [b"a", b"b"]

    trio.run(main)


def test_a_busy_stream_is_read_in_larger_pieces() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        carrier = StreamCarrier(far, "peer")
        await near.send_all(pack([(b"", b"x" * 3 * READ_BYTES)]))
        assert len((await carrier.receive(10**6))[0]) == 3 * READ_BYTES

    trio.run(main)


def test_a_frame_over_the_limit_is_refused_before_it_is_held() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(b"\xff\xff\xff\xff")
        with pytest.raises(ProtocolViolation, match="4294967295 bytes, at most 4096"):
            await StreamCarrier(far, "peer").receive(4096)

    trio.run(main)


def test_the_end_says_whether_a_frame_was_cut() -> None:
    async def main() -> None:
        for data, why in ((b"", "closed$"), (b"\x00\x00\x00\x09abc", "in the middle of a frame")):
            near, far = memory_stream_pair()
            await near.send_all(data)
            await near.aclose()
            with pytest.raises(CarrierClosed, match=why):
                await StreamCarrier(far, "peer").receive(4096)

    trio.run(main)


def test_a_broken_stream_is_weather_in_both_directions() -> None:
    async def main() -> None:
        _, far = memory_stream_pair()
        carrier = StreamCarrier(far, "peer")
        await carrier.aclose()
        with pytest.raises(CarrierClosed, match="read failed"):
            await carrier.receive(10)
        with pytest.raises(CarrierClosed, match="write failed"):
            await carrier.send([(b"x", b"")])
        with pytest.raises(CarrierClosed, match="half way"):
            await carrier.send([(b"x", b"")])

    trio.run(main)


def test_after_a_write_was_given_up_half_way_nothing_more_is_sent() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        near.send_stream.send_all_hook = trio.sleep_forever  # type: ignore[union-attr]
        carrier = StreamCarrier(near, "peer")
        with trio.move_on_after(0):
            await carrier.send([(b"x", b"")])
        with pytest.raises(CarrierClosed, match="half way"):
            await carrier.send([(b"y", b"")])
        await far.aclose()

    trio.run(main)


@pytest.mark.parametrize("preamble", list(Preamble))
def test_a_preamble_is_read_and_not_a_byte_more(preamble: Preamble) -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(preamble.value + b"rest")
        assert await read_preamble(far) is preamble
        assert await far.receive_some(10) == b"rest"

    trio.run(main)


def test_bytes_that_are_no_preamble_are_named() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(b"POST / HTTP/1.1")
        with pytest.raises(ProtocolViolation, match="begins with b'POST'"):
            await read_preamble(far)

    trio.run(main)


def test_a_connection_that_ends_in_its_preamble_is_weather() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await near.send_all(b"fs")
        await near.aclose()
        with pytest.raises(CarrierClosed, match="after 2 bytes"):
            await read_preamble(far)
        broken = MemoryReceiveStream(close_hook=None)
        await broken.aclose()
        with pytest.raises(CarrierClosed, match="broke"):
            await read_preamble(broken)

    trio.run(main)


def test_a_link_over_loopback_tcp() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        assert await read_preamble(stream) is Preamble.CALLS
        await Link(StreamCarrier(stream, "client"), is_opener=False, handler=echo).run()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await listen(nursery, serve)
            stream = await connect_stream("127.0.0.1", port, Preamble.CALLS)
            async with open_link(StreamCarrier(stream, "server"), is_opener=True) as link:
                assert await link.call("Echo", b"x" * 900_000) == b"x" * 900_000
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_nobody_at_the_other_end_is_unavailable_and_says_where() -> None:
    async def main() -> None:
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
                await connect_stream("127.0.0.1", port, Preamble.RAFT)

    trio.run(main)
