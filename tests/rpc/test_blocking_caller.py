"""Methods from a one-shot command: in plain values, in records, in streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from fedsched.codec import CodecError, dumps
from fedsched.model.errors import Conflict
from fedsched.rpc.blocking_caller import BlockingCaller
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.method import UnknownMethod
from fedsched.wire.address import Address
from fedsched.wire.blocking_link import connect
from fedsched.wire.call_state import Flow
from fedsched.wire.link import Handler, Link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.websocket import accept_websocket
from tests.rpc.builders import ADD, AddReply, AddRequest, a_server
from tests.wire.builders import listen


def with_agent(body: Callable[[BlockingCaller], None], handler: Handler | None = None) -> None:
    handler = handler or a_server()

    async def serve(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            carrier = await accept_websocket(nursery, stream, "command")
            await Link(carrier, is_opener=False, handler=handler).run()

    def talk(address: Address) -> None:
        with BlockingCaller(connect(address)) as caller:
            body(caller)

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                port = await listen(nursery, serve)
                await trio.to_thread.run_sync(talk, Address("127.0.0.1", port))
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_plain_values_in_and_out() -> None:
    def body(caller: BlockingCaller) -> None:
        reply, meta = caller.call_plain("Test.Add", {"A": 2, "B": 3}, {"Namespace": "shop"}, timeout_s=5)
        assert reply == {"Total": 5}
        assert meta == {"Index": 7, "Server": "shop"}

    with_agent(body)


def test_records_in_and_out() -> None:
    def body(caller: BlockingCaller) -> None:
        assert caller.call(ADD, AddRequest(a=1)) == (AddReply(total=1), ReplyMeta(index=7, server="none"))
        meta = CallMeta(namespace="shop")
        assert caller.call(ADD, AddRequest(a=1), meta, 5)[1].server == "shop"

    with_agent(body)


def test_refusals_come_back_as_the_errors_they_were() -> None:
    def body(caller: BlockingCaller) -> None:
        with pytest.raises(Conflict, match="a is -1"):
            caller.call_plain("Test.Add", {"A": -1})
        with pytest.raises(UnknownMethod):
            caller.call_plain("No.Such")

    with_agent(body)


def test_streams_in_both_directions() -> None:
    def body(caller: BlockingCaller) -> None:
        with caller.open_stream("Test.Count", Flow.DOWN, {"A": 3}) as down:
            assert list(down.items()) == [dumps({}), dumps({"Total": 1}), dumps({"Total": 2})]
            assert down.wait_reply() == ({}, {})
        with caller.open_stream("Test.Total", Flow.UP) as up:
            assert up.send(dumps({"A": 40}))
            assert up.send(dumps({"A": 2}))
            up.end_items()
            assert up.wait_reply()[0] == {"Total": 42}
        with caller.open_stream("Test.Count", Flow.DOWN, {"A": 1, "B": 1}) as failing:
            items = failing.items()
            assert next(items) == dumps({})
            with pytest.raises(Conflict):
                next(items)

    with_agent(body)


@pytest.mark.parametrize("answer", [5, [{}], [{}, "x"], [[], b""], [{}, dumps([])]])
def test_an_answer_out_of_shape_is_refused(answer: Any) -> None:
    async def odd(call: ServedCall) -> bytes:
        return dumps(answer)

    def body(caller: BlockingCaller) -> None:
        with pytest.raises(CodecError):
            caller.call_plain("Any.Thing")

    with_agent(body, odd)
