"""The cuttable network on real loopback sockets: each fault does what its name says, and healing ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.chaos.links import ProxyLinks, both_ways
from tests.chaos.proxy import DROP, REFUSE, STALL, Net, Rule, control

PATIENCE_S = 5


class Ends:
    """`a` has dialled `b` through the proxy; both ends of that are here."""

    def __init__(self, net: Net, near: trio.SocketStream, far: trio.SocketStream, port: int) -> None:
        self.net = net
        self.near = near
        self.far = far
        self.port = port


@asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    arrived_in, arrived_out = trio.open_memory_channel[trio.SocketStream](8)

    async def keep(stream: trio.SocketStream) -> None:
        await arrived_in.send(stream)
        await trio.sleep_forever()

    net = Net()
    async with trio.open_nursery() as nursery:
        [target] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, keep, [target])
        [door] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(net.serve, "a", "b", target.socket.getsockname(), door)
        port = door.socket.getsockname()[1]
        near = await trio.open_tcp_stream("127.0.0.1", port)
        far = await arrived_out.receive()
        async with near, far:
            with trio.fail_after(PATIENCE_S):
                yield Ends(net, near, far, port)
        nursery.cancel_scope.cancel()


def with_ends(body: Callable[[Ends], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected() as ends:
            await body(ends)

    trio.run(run)


async def receive(stream: trio.SocketStream, n: int) -> bytes:
    data = b""
    while len(data) < n and (more := await stream.receive_some(n - len(data))):
        data += more
    return data


async def receive_into(got: bytearray, stream: trio.SocketStream) -> None:
    async for data in stream:
        got += data


def test_bytes_and_the_end_of_a_stream_pass_both_ways() -> None:
    async def body(ends: Ends) -> None:
        await ends.near.send_all(b"ping")
        assert await receive(ends.far, 4) == b"ping"
        await ends.far.send_all(b"pong")
        await ends.far.send_eof()
        assert await receive(ends.near, 99) == b"pong"

    with_ends(body)


def test_one_way_drop_silences_one_direction_only_and_healing_resets_what_lost_bytes() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(kind=DROP))
        await ends.near.send_all(b"lost")
        await ends.far.send_all(b"heard")
        assert await receive(ends.near, 5) == b"heard"
        while ends.net.bytes_dropped < 4:
            await trio.lowlevel.checkpoint()

        ends.net.set_rule("a", "b", Rule())
        with pytest.raises(trio.BrokenResourceError):
            await receive(ends.far, 4)

    with_ends(body)


def test_a_connection_that_lost_nothing_survives_the_cut() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(kind=DROP))
        ends.net.set_rule("a", "b", Rule())
        await ends.near.send_all(b"still here")
        assert await receive(ends.far, 10) == b"still here"

    with_ends(body)


def test_stalled_bytes_arrive_whole_and_in_order_after_healing() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(kind=STALL))
        await ends.near.send_all(b"one ")
        await ends.near.send_all(b"two")
        with trio.move_on_after(0.05) as early:
            await receive(ends.far, 1)
        assert early.cancelled_caught

        ends.net.set_rule("a", "b", Rule())
        assert await receive(ends.far, 7) == b"one two"

    with_ends(body)


def test_a_dial_into_a_cut_link_is_neither_answered_nor_refused_until_it_heals() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("b", "a", Rule(kind=DROP))
        async with await trio.open_tcp_stream("127.0.0.1", ends.port) as stream:
            await stream.send_all(b"anyone?")
            with trio.move_on_after(0.05) as early:
                await receive(stream, 1)
            assert early.cancelled_caught

            ends.net.set_rule("b", "a", Rule())
            with pytest.raises(trio.BrokenResourceError):
                await receive(stream, 1)

    with_ends(body)


def test_reset_in_mid_frame_lets_exactly_the_given_bytes_through_once() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(reset_after=3))
        await ends.near.send_all(b"frame")
        got = bytearray()
        with pytest.raises(trio.BrokenResourceError):
            await receive_into(got, ends.far)
        assert b"fra".startswith(bytes(got))  # a reset may overtake bytes on their way, but never adds any
        assert ends.net.rule("a", "b") == Rule()
        assert ends.net.resets == 1

    with_ends(body)


def test_refuse_resets_what_is_open_and_what_is_dialled() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(kind=REFUSE))
        with pytest.raises(trio.BrokenResourceError):
            await receive(ends.near, 1)
        async with await trio.open_tcp_stream("127.0.0.1", ends.port) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await receive(stream, 1)

    with_ends(body)


def test_delay_holds_bytes_back_but_loses_none() -> None:
    async def body(ends: Ends) -> None:
        ends.net.set_rule("a", "b", Rule(delay_s=0.05))
        before = trio.current_time()
        await ends.near.send_all(b"late")
        assert await receive(ends.far, 4) == b"late"
        assert trio.current_time() - before >= 0.05

    with_ends(body)


def test_an_unknown_request_stops_the_proxy_instead_of_passing_as_a_fault() -> None:
    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"op": "rule", "src": "a", "dst": "b", "rule": {"kind": "cutt"}}

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(control, requests(), print)
    assert caught.group_contains(ValueError, match="cutt")


def test_the_harness_side_opens_cuts_counts_and_closes(tmp_path: Path) -> None:
    links = ProxyLinks(tmp_path / "proxy.log")
    try:
        host, _, port = links.open("a", "b", "127.0.0.1", 9).rpartition(":")
        links.cut(both_ways("a", ["a", "b"]))
        links.slow([("a", "b")], 0.1)
        links.break_after([("b", "a")], 10)
        links.heal()

        assert (host, int(port) > 0) == ("127.0.0.1", True)
        assert links.statistics() == {"bytes_dropped": 0, "resets": 0}
    finally:
        links.close()
    assert (tmp_path / "proxy.log").read_bytes() == b""
