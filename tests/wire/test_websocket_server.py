"""The server's end of a client agent's websocket: it talks to the library's client, and survives whoever is not one."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from fedsched.wire.address import Address
from fedsched.wire.blocking_websocket import masked
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import Hello, encode
from fedsched.wire.limits import VERSION
from fedsched.wire.link import Link, open_link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.packing import pack
from fedsched.wire.websocket import Handshakes, WebSocketDoor, connect_websocket
from fedsched.wire.websocket_server import FRAGMENTS_MAX, UplinkCarrier, accept_uplink

KEY = base64.b64encode(bytes(range(16))).decode()
GOOD = {
    "Host": "a",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}
MASK = b"\x01\x02\x03\x04"


def request(path: str = "/v1/rpc", first: str = "", **changes: str | None) -> bytes:
    headers = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [first or f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame(opcode: int, payload: bytes = b"", *, is_last: bool = True, mask: bytes | None = MASK) -> bytes:
    size = len(payload)
    bit = 0x80 if mask is not None else 0
    if size < 126:
        head = bytes((opcode | (0x80 if is_last else 0), bit | size))
    else:
        head = bytes((opcode | (0x80 if is_last else 0), bit | 126)) + size.to_bytes(2, "big")
    return head + (mask + masked(payload, mask) if mask is not None else payload)


def packed(*frames: bytes) -> bytes:
    return pack([(one, b"") for one in frames])


async def opened(far: trio.abc.Stream, near: trio.abc.Stream) -> UplinkCarrier:
    await far.send_all(request())
    carrier = await accept_uplink(near, "test")
    answer = bytes(await far.receive_some(4096))
    assert answer.startswith(b"HTTP/1.1 101 ")
    return carrier


def with_carrier(story: Callable[[UplinkCarrier, trio.abc.Stream], Awaitable[None]]) -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await story(await opened(far, near), far)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_client_of_the_library_and_this_end_understand_each_other() -> None:
    async def serve(call: ServedCall) -> bytes:
        return call.payload[::-1]

    async def main() -> None:
        links: list[Link] = []

        async def one(stream: trio.SocketStream) -> None:
            link = Link(await accept_uplink(stream, "client"), is_opener=False, handler=serve)
            links.append(link)
            await link.run()

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, one, listeners)
            host, port = listeners[0].socket.getsockname()[:2]
            carrier = await connect_websocket(nursery, Address(host, port))
            async with open_link(carrier, is_opener=True) as link:
                for size in (0, 10, 126, 70_000, 300_000):
                    data = bytes(range(256)) * (size // 256 + 1)
                    assert await link.call("Echo", data[:size]) == data[:size][::-1]
            nursery.cancel_scope.cancel("done")

    trio.run(main)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (request("/elsewhere"), b"404"),
        (request(first="POST /v1/rpc HTTP/1.1"), b"400"),
        (request(first="GET /v1/rpc HTTP/1.0"), b"400"),
        (request(first="GET /v1/rpc"), b"400"),
        (request(Upgrade="h2c"), b"426"),
        (request(Connection="close"), b"426"),
        (request(Sec_WebSocket_Version="8"), b"400"),
        (request(Sec_WebSocket_Key="short"), b"400"),
        (request(Sec_WebSocket_Key=None), b"400"),
        (request(Origin="https://evil.example"), b"403"),
        (b"GET /v1/rpc HTTP/1.1\r\nno header\r\n\r\n", b"400"),
        (b"GET /v1/rpc HTTP/1.1\r\n folded: x\r\n\r\n", b"400"),
    ],
)
def test_whoever_asks_for_something_else_is_told_so(text: bytes, status: bytes) -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await far.send_all(text)
        with pytest.raises(CarrierClosed, match="websocket handshake"):
            await accept_uplink(near, "test")
        answer = bytes(await far.receive_some(4096))
        assert answer.startswith(b"HTTP/1.1 " + status)

    trio.run(main)


def test_a_handshake_has_limits_of_size_time_and_number() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        await far.send_all(b"GET /v1/rpc HTTP/1.1\r\nA: " + b"x" * 20_000)
        with pytest.raises(CarrierClosed, match="endless headers"):
            await accept_uplink(near, "test")

        near, far = memory_stream_pair()
        with pytest.raises(CarrierClosed, match="not done within 5 s"):
            await accept_uplink(near, "test")

        near, far = memory_stream_pair()
        await far.aclose()
        with pytest.raises(CarrierClosed, match="hung up"):
            await accept_uplink(near, "test")

        with pytest.raises(CarrierClosed, match="that is the limit"):
            await accept_uplink(near, "test", WebSocketDoor(handshakes=Handshakes(0)))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_bytes_that_were_read_before_belong_to_the_handshake_and_those_after_it_to_the_first_message() -> None:
    async def main() -> None:
        near, far = memory_stream_pair()
        hello = b"".join(encode(Hello(VERSION, VERSION, 1 << 20, 16)))
        text = request() + frame(0x2, packed(hello))
        await far.send_all(text[4:])
        carrier = await accept_uplink(near, "test", first=text[:4])
        assert await carrier.receive(4096) == [hello]

    trio.run(main)


def test_messages_come_whole_however_they_are_cut() -> None:
    async def story(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        data = packed(b"first", b"second" * 50)
        pieces = frame(0x2, data[:7], is_last=False) + frame(0x9, b"are you there") + frame(0x0, data[7:])
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for at in range(0, len(pieces), 11):
                    await far.send_all(pieces[at : at + 11])
                    await trio.sleep(0.01)

            nursery.start_soon(drip)
            assert await carrier.receive(1 << 20) == [b"first", b"second" * 50]
        assert bytes(await far.receive_some(4096)) == bytes((0x8A, 13)) + b"are you there"

    with_carrier(story)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(0x2, packed(b"x"), mask=None), "without a mask"),
        (bytes((0xC2, 0x80)) + MASK, "with extensions"),
        (frame(0x1, b"text"), "kind 1"),
        (frame(0x0, b"x"), "out of order"),
        (frame(0x2, b"x", is_last=False) + frame(0x2, b"y"), "out of order"),
        (bytes((0x82, 0xFF)) + (1 << 62).to_bytes(8, "big") + MASK, "at most"),
        (bytes((0x89, 0xFE)) + (200).to_bytes(2, "big") + MASK, "at most"),
        (frame(0x9, b"x", is_last=False), "at most"),
        (frame(0x2, b"\x00\x00\x00\x05ab"), "no row of frames"),
        (frame(0x2, b""), "no row of frames"),
        (frame(0x2, b"", is_last=False) + frame(0x0, b"", is_last=False) * FRAGMENTS_MAX, "fragments"),
    ],
)
def test_what_breaks_the_rules_ends_the_link_with_a_reason(data: bytes, why: str) -> None:
    async def story(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        await far.send_all(data)
        with pytest.raises(ProtocolViolation, match=why):
            await carrier.receive(4096)

    with_carrier(story)


def test_a_message_over_the_limit_is_refused_before_it_is_here() -> None:
    async def story(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        await far.send_all(bytes((0x82, 0xFE)) + (9_000).to_bytes(2, "big") + MASK)
        with pytest.raises(ProtocolViolation, match="9000 bytes"):
            await carrier.receive(4096)

    with_carrier(story)


def test_the_end_is_told_as_it_was() -> None:
    async def closes(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        await far.send_all(frame(0xA) + frame(0x8, b"\x03\xe8bye"))
        with pytest.raises(CarrierClosed, match=r"websocket closed \(1000\)"):
            await carrier.receive(4096)

    async def hangs_up(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        await far.send_all(frame(0x2, b"abc")[:4])
        await far.aclose()
        with pytest.raises(CarrierClosed, match="in the middle of a message"):
            await carrier.receive(4096)
        with pytest.raises(CarrierClosed, match="write failed"):
            await carrier.send([(b"head", b"")])

    async def we_close(carrier: UplinkCarrier, far: trio.abc.Stream) -> None:
        await carrier.aclose()
        assert bytes(await far.receive_some(4096)) == b"\x88\x02\x03\xe8"

    with_carrier(closes)
    with_carrier(hangs_up)
    with_carrier(we_close)


class Stuck(trio.abc.Stream):
    """Takes nothing that is sent to it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._data = self._data[:65_536], self._data[65_536:]
        if not data:
            await trio.sleep_forever()
        return data

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_peer_that_pings_and_does_not_read_is_held_up_and_a_write_given_up_half_way_is_the_last() -> None:
    async def main() -> None:
        carrier = UplinkCarrier(Stuck(frame(0x9, b"x" * 100) * 2_000), "test", b"")
        with trio.move_on_after(1) as waits:
            await carrier.receive(4096)
        assert waits.cancelled_caught
        with pytest.raises(CarrierClosed, match="half way"):
            await carrier.send([(b"head", b"")])

        busy = UplinkCarrier(Stuck(frame(0x9, b"x" * 100) * 2_000), "test", b"")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.send, [(b"head", b"")])
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ProtocolViolation, match="pings faster"):
                await busy.receive(4096)
            nursery.cancel_scope.cancel("done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_message_waits_until_the_answer_to_a_ping_is_out() -> None:
    class Slow(Stuck):
        def __init__(self) -> None:
            super().__init__(frame(0x9, b"?"))
            self.sent: list[bytes] = []

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await trio.sleep(1)
            self.sent.append(bytes(data))

    async def main() -> None:
        slow = Slow()
        carrier = UplinkCarrier(slow, "test", b"")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carrier.receive, 4096)
            await trio.sleep(0.5)
            await carrier.send([(b"head", b"payload")])
            nursery.cancel_scope.cancel("done")
        assert [data[0] for data in slow.sent] == [0x8A, 0x82]

    trio.run(main, clock=MockClock(autojump_threshold=0))
