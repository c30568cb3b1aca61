"""What arrives at a call server: bad payloads, wrong flows, bugs; and what it counts."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from fedsched.codec import dumps
from fedsched.rpc.body import Body, seal, unseal
from fedsched.rpc.context import CallMeta, ReplyMeta, RequestID
from fedsched.rpc.method import Method
from fedsched.rpc.relay import relay
from fedsched.rpc.server_side import CALL_ERRORS, CALL_TIME, CallContext, CallServer, Handler
from fedsched.telemetry.metrics import Registry
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import RemoteError
from fedsched.wire.link import Link, open_link
from fedsched.wire.memory import memory_pair
from tests.rpc.builders import ADD, COUNT, HANDLERS, AddReply, AddRequest, a_server, link_caller, run


def ask(method: str, payload: bytes, *, handlers: dict[Method[Any, Any], Handler] | None = None) -> RemoteError:
    """The error one raw call comes back with."""
    errors: list[RemoteError] = []

    async def main() -> None:
        left, right = memory_pair()
        server = CallServer(HANDLERS if handlers is None else handlers)
        async with open_link(right, is_opener=False, handler=server), open_link(left, is_opener=True) as link:
            with pytest.raises(RemoteError) as caught:
                await link.call(method, payload)
            errors.append(caught.value)

    run(main)
    return errors[0]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        dumps(5),
        dumps([{}]),
        dumps([{}, "text"]),
        dumps([[], b""]),
        dumps([{"Stale": 3}, b""]),
        dumps([{"Hops": "x"}, b""]),
        dumps([{}, b"\xff"]),
        dumps([{}, dumps([])]),
        dumps([{}, dumps({"B": 1})]),
        dumps([{}, dumps({"A": "one"})]),
    ],
)
def test_a_payload_that_is_no_request_is_refused_as_the_callers_mistake(payload: bytes) -> None:
    error = ask("Test.Add", payload)

    assert (error.code, error.http_status) == ("codec", 400)


def test_a_method_that_is_not_in_the_table_is_refused() -> None:
    assert ask("No.Such", b"").code == "unknown_method"


def test_a_call_that_streams_the_wrong_way_is_refused() -> None:
    error = ask("Test.Count", seal(CallMeta(), Body(AddRequest, record=AddRequest(a=1))))

    assert error.code == "bad_request"
    assert "Test.Count streams down, not none" in error.message


def test_a_handler_that_streams_where_nobody_listens_is_a_bug_and_says_so() -> None:
    async def stream(request: AddRequest, context: CallContext) -> AddReply:
        await context.send(b"x")
        return AddReply()

    error = ask("Test.Add", seal(CallMeta(), Body(AddRequest, record=AddRequest(a=1))), handlers={ADD: stream})

    assert error.code == "internal"


class Deaf:
    """Nobody listens any more."""

    def __init__(self) -> None:
        self.offered = 0

    async def send(self, item: bytes) -> bool:
        self.offered += 1
        return False

    def try_send(self, item: bytes) -> bool:
        return False

    async def receive(self) -> bytes:
        raise trio.EndOfChannel


def test_a_stream_nobody_wants_ends_at_its_first_item() -> None:
    async def main() -> None:
        deaf = Deaf()
        context = CallContext(COUNT, CallMeta(), peer="", identity=None, items=deaf)
        request = Body(AddRequest, record=AddRequest(a=100))
        answer = await CallServer(HANDLERS).serve_here(context, request)
        assert answer.reply.record() == AddReply()
        assert deaf.offered == 1

        async with link_caller(a_server()) as far:
            answer = await relay(context, request, far, me="middle")
        assert deaf.offered == 2

    run(main)


def test_calls_and_errors_are_counted_by_method() -> None:
    metrics = Registry()

    async def main() -> None:
        left, right = memory_pair()
        server = CallServer(HANDLERS, metrics=metrics)
        async with open_link(right, is_opener=False, handler=server), open_link(left, is_opener=True) as link:
            await call(link, AddRequest(a=1))
            with pytest.raises(RemoteError):
                await call(link, AddRequest(a=-1))

    async def call(link: Link, request: AddRequest) -> None:
        await link.call("Test.Add", seal(CallMeta(), Body(AddRequest, record=request)))

    run(main)

    assert metrics.histograms(CALL_TIME).labels("Test.Add").count == 2
    assert metrics.counters(CALL_ERRORS).labels("Test.Add", "conflict").value == 1


def test_what_goes_beside_a_request_survives_the_trip() -> None:
    meta = CallMeta(
        region="eu",
        namespace="shop",
        token="secret",
        stale=True,
        min_index=7,
        max_wait_s=1.5,
        request_id=RequestID(session="s", seq=3),
        hops=("a", "b"),
    )

    got, body = unseal(seal(meta, Body(AddRequest, record=AddRequest(a=1))), CallMeta, AddRequest)

    assert got == meta
    assert body.record() == AddRequest(a=1)


def test_a_body_is_encoded_and_decoded_at_most_once() -> None:
    record = AddRequest(a=1)
    body = Body(AddRequest, record=record)
    assert body.data is body.data
    assert body.record() is record

    received = Body(AddRequest, data=body.data)
    assert received.record() is received.record()
    assert received.data is body.data


def test_a_quiet_reply_costs_a_few_bytes() -> None:
    assert len(seal(ReplyMeta(), Body(AddReply, record=AddReply()))) == 4
    assert Flow.NONE == 0
