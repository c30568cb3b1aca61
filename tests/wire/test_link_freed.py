"""Links and calls that are over are freed by counting references: servers look for circles once in hours only."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from fedsched.model.errors import NotFound
from fedsched.wire.address import Address
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.errors import RemoteError
from fedsched.wire.link import Link, open_link
from fedsched.wire.link_calls import OwnCall, ServedCall
from fedsched.wire.link_core import LinkCore
from fedsched.wire.memory import memory_pair
from fedsched.wire.websocket import WebSocketDoor, accept_websocket, connect_websocket
from tests.wire.builders import listen

KINDS = (Link, LinkCore, CallState, OwnCall, ServedCall)
Story = Callable[[Link], Awaitable[None]]
Pair = Callable[[], AbstractAsyncContextManager[Link]]


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Old garbage gone first, and none found while the test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))


async def serve(call: ServedCall) -> bytes:
    if call.method == "Refuse":
        raise NotFound("nothing of that name")
    if call.method == "Break":
        raise RuntimeError("a bug in a handler")
    if call.method == "Sleep":
        await trio.sleep_forever()
    if call.method == "Echo":
        async for item in call:
            await call.send(item)
    return call.payload


async def plain_calls(link: Link) -> None:
    for number in range(3):
        assert await link.call("Plain", bytes([number])) == bytes([number])


async def refused_calls(link: Link) -> None:
    for method in ("Refuse", "Break"):
        with pytest.raises(RemoteError):
            await link.call(method, b"")


async def calls_given_up(link: Link) -> None:
    with trio.move_on_after(0.01):
        await link.call("Sleep", b"")


async def streams_to_their_end(link: Link) -> None:
    async with link.open_call("Echo", b"", Flow.BOTH) as call:
        assert await call.send(b"one")
        assert call.try_send(b"two")
        assert [await call.receive(), await call.receive()] == [b"one", b"two"]
        call.end_items()
        assert await call.wait_reply() == b""


async def streams_left_early(link: Link) -> None:
    async with link.open_call("Echo", b"", Flow.BOTH) as call:
        assert await call.send(b"one")
        assert await call.receive() == b"one"


async def calls_under_way_when_the_link_goes(link: Link) -> None:
    async def wait() -> None:
        with pytest.raises(RemoteError):
            await link.call("Sleep", b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        async with link.open_call("Echo", b"", Flow.BOTH) as call:
            assert await call.send(b"one")
            assert await call.receive() == b"one"
            link.close()


STORIES = (
    plain_calls,
    refused_calls,
    calls_given_up,
    streams_to_their_end,
    streams_left_early,
    calls_under_way_when_the_link_goes,
)


@asynccontextmanager
async def in_memory() -> AsyncIterator[Link]:
    left, right = memory_pair()
    async with open_link(right, is_opener=False, handler=serve), open_link(left, is_opener=True) as link:
        await link.wait_ready()
        yield link


async def accept(stream: trio.SocketStream) -> None:
    async with trio.open_nursery() as nursery:
        carrier = await accept_websocket(nursery, stream, "client", WebSocketDoor())
        await Link(carrier, is_opener=False, handler=serve).run()


@asynccontextmanager
async def by_websocket(port: int) -> AsyncIterator[Link]:
    async with trio.open_nursery() as nursery:
        carrier = await connect_websocket(nursery, Address("127.0.0.1", port))
        async with open_link(carrier, is_opener=True) as link:
            await link.wait_ready()
            yield link
        nursery.cancel_scope.cancel("done")


async def many(story: Story, pair: Pair, count: int = 50) -> None:
    for _ in range(count):
        async with pair() as link:
            await story(link)


@pytest.mark.parametrize("story", STORIES)
def test_links_in_memory_leave_nothing_behind(story: Story) -> None:
    before = alive()
    trio.run(partial(many, story, in_memory), clock=MockClock(autojump_threshold=0))
    assert alive() - before == Counter()


def test_links_over_a_websocket_leave_nothing_behind_at_either_end() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await listen(nursery, accept)
            pair = partial(by_websocket, port)
            await many(plain_calls, pair, 1)
            for story in STORIES:
                await many(story, pair, 10)
            with trio.fail_after(10):
                while alive() - before:  # the other end is done a moment later
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    before = alive()
    trio.run(main)
