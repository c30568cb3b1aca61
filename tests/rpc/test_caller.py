"""Calls and streams look the same over a link, within the process, and passed on by somebody in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from fedsched.codec import CodecError
from fedsched.model.errors import Conflict, FedschedError, Unavailable
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import LOCAL_ITEMS, Caller, local_streams
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.method import Empty, UnknownMethod
from fedsched.rpc.relay import RunsInCircles, relay
from fedsched.rpc.server_side import CallContext, CallServer, ServeHere
from tests.rpc.builders import (
    ADD,
    COUNT,
    SHOUT,
    TOTAL,
    AddReply,
    AddRequest,
    a_server,
    link_caller,
    local_caller,
    run,
)

OpenCaller = Callable[[CallServer], AbstractAsyncContextManager[Caller]]


@asynccontextmanager
async def relayed_caller(server: CallServer) -> AsyncIterator[Caller]:
    """The server is two links away; the one in between passes everything on."""
    async with link_caller(server) as far:

        async def pass_on(context: CallContext, request: Body, serve_here: ServeHere) -> Answer:  # type: ignore[type-arg]
            return await relay(context, request, far, me="middle")

        async with link_caller(a_server(pass_on, {})) as near:
            yield near


callers = pytest.mark.parametrize("open_caller", [link_caller, local_caller, relayed_caller])


@callers
def test_a_call_brings_back_the_reply_and_what_is_said_beside_it(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller:
            reply, meta = await caller.call(ADD, AddRequest(a=2, b=3), CallMeta(namespace="shop"))
        assert reply == AddReply(total=5)
        assert meta == ReplyMeta(index=7, server="shop")

    run(main)


@callers
def test_a_refusal_comes_back_as_the_error_it_was(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller:
            with pytest.raises(Conflict, match="a is -1") as caught:
                await caller.call(ADD, AddRequest(a=-1))
        assert caught.value.hint == "use a positive one"

    run(main)


@callers
def test_a_method_nobody_serves_is_refused(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server(handlers={})) as caller:
            with pytest.raises(UnknownMethod, match=r"does not serve Test\.Add"):
                await caller.call(ADD, AddRequest(a=1))

    run(main)


@callers
def test_a_stream_down_of_records(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller, caller.open_stream(COUNT, AddRequest(a=50)) as stream:
            assert [item.total async for item in stream] == list(range(50))
            assert await stream.wait_reply() == (AddReply(), ReplyMeta())

    run(main)


@callers
def test_a_stream_that_is_left_early_stops_at_its_source(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller:
            async with caller.open_stream(COUNT, AddRequest(a=10**9)) as stream:
                assert await stream.receive() == AddReply(total=0)
            assert await caller.call(ADD, AddRequest(a=1)) != ()

    run(main)


@callers
def test_a_stream_that_fails_gives_its_items_and_then_the_error(open_caller: OpenCaller) -> None:
    async def main() -> None:
        seen = []
        async with open_caller(a_server()) as caller, caller.open_stream(COUNT, AddRequest(a=3, b=1)) as stream:
            for _ in range(3):
                seen.append((await stream.receive()).total)  # noqa: PERF401
            with pytest.raises(Conflict, match="counted too far"):
                await stream.receive()
            with pytest.raises(Conflict):
                await stream.wait_reply()
        assert seen == [0, 1, 2]

    run(main)


@callers
def test_a_stream_up_of_records(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller, caller.open_stream(TOTAL, Empty()) as stream:
            for number in range(20):
                assert await stream.send(AddRequest(a=number))
            stream.end_items()
            reply, _ = await stream.wait_reply()
        assert reply == AddReply(total=190)

    run(main)


@callers
def test_a_sender_learns_that_nobody_wants_more(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller, caller.open_stream(TOTAL, Empty()) as stream:
            while await stream.send(AddRequest(a=1, b=1)):
                pass
            reply, _ = await stream.wait_reply()
        assert reply == AddReply(total=1)

    run(main)


@callers
def test_both_directions_at_once(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller, caller.open_stream(SHOUT, Empty()) as stream:
            for word in (b"hello", b"again"):
                await stream.send(word)
                assert await stream.receive() == word.upper()
            stream.end_items()
            assert await stream.wait_reply() == (Empty(), ReplyMeta())
            with pytest.raises(trio.EndOfChannel):
                await stream.receive()

    run(main)


@callers
def test_an_error_in_the_block_comes_out_as_itself(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller:
            with pytest.raises(ZeroDivisionError):
                async with caller.open_stream(COUNT, AddRequest(a=10)):
                    raise ZeroDivisionError

    run(main)


def test_an_item_of_the_wrong_kind_is_not_sent() -> None:
    async def main() -> None:
        async with link_caller(a_server()) as caller, caller.open_stream(SHOUT, Empty()) as stream:
            with pytest.raises(CodecError, match="was given a str"):
                await stream.send("text")

    run(main)


def test_a_sender_within_the_process_learns_of_the_failure() -> None:
    async def fail(request: Empty, context: CallContext) -> AddReply:
        await context.receive()
        raise Unavailable("disk full")

    async def main() -> None:
        server = a_server(handlers={TOTAL: fail})
        async with local_caller(server) as caller, caller.open_stream(TOTAL, Empty()) as stream:
            assert await stream.send(AddRequest(a=1))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Unavailable, match="disk full"):
                await stream.send(AddRequest(a=1))

    run(main)


def test_a_call_that_runs_in_circles_is_stopped() -> None:
    async def main() -> None:
        servers: dict[str, Caller] = {}

        def policy(me: str, to: str):  # type: ignore[no-untyped-def]
            async def pass_on(context: CallContext, request: Body, serve_here: ServeHere) -> Answer:  # type: ignore[type-arg]
                return await relay(context, request, servers[to], me=me)

            return pass_on

        async with link_caller(a_server(policy("a", "b"))) as a, link_caller(a_server(policy("b", "a"))) as b:
            servers.update(a=a, b=b)
            with pytest.raises(Unavailable, match="was passed on by a, b and came back to a"):
                await a.call(ADD, AddRequest(a=1))

    run(main)


def test_too_many_hops_are_a_circle_too() -> None:
    async def main() -> None:
        async with local_caller(a_server()) as caller:
            context = CallContext(ADD, CallMeta(hops=("a", "b", "c", "d")), peer="", identity=None, items=None)
            with pytest.raises(RunsInCircles):
                await relay(context, Body(AddRequest, record=AddRequest(a=1)), caller, me="e")

    run(main)


def test_errors_on_the_way_keep_their_class_only_if_it_is_known() -> None:
    class Odd(FedschedError):
        code = "odd"
        http_status = 418

    async def refuse(request: AddRequest, context: CallContext) -> AddReply:
        raise Odd("strange", hint="look")

    async def main() -> None:
        async with link_caller(a_server(handlers={ADD: refuse})) as caller:
            with pytest.raises(Odd):
                await caller.call(ADD, AddRequest(a=1))

    run(main)


@callers
def test_an_item_is_sent_at_once_or_not_at_all(open_caller: OpenCaller) -> None:
    async def main() -> None:
        async with open_caller(a_server()) as caller, caller.open_stream(TOTAL, Empty()) as stream:
            while not stream.try_send(AddRequest(a=7)):
                await trio.sleep(0.001)  # the other side has to grant something first
            stream.end_items()
            assert not stream.try_send(AddRequest(a=9))
            reply, _ = await stream.wait_reply()
        assert reply == AddReply(total=7)

    run(main)


def test_items_within_the_process_wait_for_their_reader() -> None:
    async def main() -> None:
        near, far = local_streams()
        sent = 0
        while near.try_send(b"x"):
            sent += 1
        assert sent == LOCAL_ITEMS
        assert await far.receive() == b"x"
        assert near.try_send(b"y")
        far.close()
        assert not near.try_send(b"z")

    run(main)
