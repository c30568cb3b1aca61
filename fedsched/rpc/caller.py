"""Asks for methods: over a link, or within the process. Both look the same from outside.

    reply, meta = await caller.call(JOB_GET, JobGetRequest(job_id="web"), CallMeta(namespace="shop"))

    async with caller.open_stream(SNAPSHOT_SAVE, Empty()) as stream:
        async for chunk in stream:
            ...
        reply, meta = await stream.wait_reply()

The caller sets the deadline with a cancel scope. Refusals come back as the errors they were raised as, wherever that
was (see `errors`); a lost link is `Unavailable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

import trio

from fedsched.model.declare import Record
from fedsched.rpc.body import REPLY_LIMITS, Answer, Body, decode_item, encode_item, seal, unseal
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.errors import error_of
from fedsched.rpc.method import Method
from fedsched.rpc.server_side import CallContext, CallServer, Items
from fedsched.wire.errors import RemoteError
from fedsched.wire.groups import open_plain_nursery
from fedsched.wire.link import Link
from fedsched.wire.link_calls import OwnCall

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)

NO_META = CallMeta()
LOCAL_ITEMS = 4
"""Items on the way between two children of one process; the next one waits."""


class RawStream(Items, Protocol):
    """A streaming call under way, in encoded items, from the caller's side."""

    def end_items(self) -> None:
        """No more items from here."""

    async def wait_answer(self) -> Answer:
        """Wait for the end of the call."""


class Caller(Protocol):
    """Somebody who can be asked."""

    async def call(self, method: Method[Q, R], request: Q, meta: CallMeta = NO_META) -> tuple[R, ReplyMeta]:
        """Ask, and wait for the answer."""

    def open_stream(
        self, method: Method[Q, R], request: Q, meta: CallMeta = NO_META
    ) -> AbstractAsyncContextManager[CallStream[R]]:
        """Ask for a streaming method; leaving the block before the reply cancels it."""

    async def call_body(self, method: Method[Any, Any], request: Body[Any], meta: CallMeta) -> Answer:
        """Ask without decoding anything: for passing calls on."""

    def open_raw(
        self, method: Method[Any, Any], request: Body[Any], meta: CallMeta
    ) -> AbstractAsyncContextManager[RawStream]:
        """Stream without decoding anything: for passing calls on."""


class CallStream(Generic[R]):
    """A streaming call under way, in records."""

    def __init__(self, method: Method[Any, R], raw: RawStream) -> None:
        self._method = method
        self._raw = raw

    async def send(self, item: object) -> bool:
        """Stream one item up, as soon as there is room; false if the call was answered already."""
        return await self._raw.send(encode_item(item, self._method.item))

    def try_send(self, item: object) -> bool:
        """Stream one item up if there is room for it now."""
        return self._raw.try_send(encode_item(item, self._method.item))

    def end_items(self) -> None:
        """No more items from here."""
        self._raw.end_items()

    async def receive(self) -> Any:
        """The next item; `trio.EndOfChannel` after the last."""
        return decode_item(await self._raw.receive(), self._method.item)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def wait_reply(self) -> tuple[R, ReplyMeta]:
        """Wait for the end of the call."""
        answer = await self._raw.wait_answer()
        return answer.reply.record(REPLY_LIMITS), answer.meta


class _TypedCalls:
    """The half of a caller that is the same everywhere."""

    async def call(self: Caller, method: Method[Q, R], request: Q, meta: CallMeta = NO_META) -> tuple[R, ReplyMeta]:
        answer = await self.call_body(method, Body(method.request, record=request), meta)
        return answer.reply.record(REPLY_LIMITS), answer.meta

    @asynccontextmanager
    async def open_stream(
        self: Caller, method: Method[Q, R], request: Q, meta: CallMeta = NO_META
    ) -> AsyncIterator[CallStream[R]]:
        async with self.open_raw(method, Body(method.request, record=request), meta) as raw:
            yield CallStream(method, raw)


class LinkCaller(_TypedCalls):
    """Asks the peer of a link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def call_body(self, method: Method[Any, Any], request: Body[Any], meta: CallMeta) -> Answer:
        with _errors_as_raised():
            payload = await self.link.call(method.name, seal(meta, request))
        return _answer(method, payload)

    @asynccontextmanager
    async def open_raw(self, method: Method[Any, Any], request: Body[Any], meta: CallMeta) -> AsyncIterator[RawStream]:
        async with self.link.open_call(method.name, seal(meta, request), method.flow) as call:
            yield _LinkStream(method, call)


class _LinkStream:
    """A link's call with its errors translated."""

    def __init__(self, method: Method[Any, Any], call: OwnCall) -> None:
        self._method = method
        self._call = call

    async def send(self, item: bytes) -> bool:
        with _errors_as_raised():
            return await self._call.send(item)

    def try_send(self, item: bytes) -> bool:
        return self._call.try_send(item)

    def end_items(self) -> None:
        self._call.end_items()

    async def receive(self) -> bytes:
        with _errors_as_raised():
            return await self._call.receive()

    async def wait_answer(self) -> Answer:
        with _errors_as_raised():
            payload = await self._call.wait_reply()
        return _answer(self._method, payload)


class LocalCaller(_TypedCalls):
    """Asks the call server of this process: same policy, same errors, nothing encoded but what streams."""

    def __init__(self, server: CallServer, *, identity: Any = None, peer: str = "this process") -> None:
        self._server = server
        self._identity = identity
        self._peer = peer

    async def call_body(self, method: Method[Any, Any], request: Body[Any], meta: CallMeta) -> Answer:
        return await self._server.answer(self._context(method, meta, None), request)

    @asynccontextmanager
    async def open_raw(self, method: Method[Any, Any], request: Body[Any], meta: CallMeta) -> AsyncIterator[RawStream]:
        near, far = local_streams()
        context = self._context(method, meta, far)

        async def serve() -> None:
            try:
                near.answer = await self._server.answer(context, request)
            except Exception as error:
                near.error = error
            far.close()
            near.done.set()

        async with open_plain_nursery() as nursery:
            nursery.start_soon(serve)
            yield near
            nursery.cancel_scope.cancel("the caller is done")

    def _context(self, method: Method[Any, Any], meta: CallMeta, items: Items | None) -> CallContext:
        return CallContext(method, meta, peer=self._peer, identity=self._identity, items=items)


class LocalStream:
    """One side of a stream within the process."""

    def __init__(self, sender: trio.MemorySendChannel[bytes], receiver: trio.MemoryReceiveChannel[bytes]) -> None:
        self._sender = sender
        self._receiver = receiver
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.done = trio.Event()

    async def send(self, item: bytes) -> bool:
        try:
            await self._sender.send(item)
        except trio.BrokenResourceError:
            self._raise_error()
            return False
        return True

    def try_send(self, item: bytes) -> bool:
        try:
            self._sender.send_nowait(item)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def receive(self) -> bytes:
        try:
            return await self._receiver.receive()
        except trio.EndOfChannel:
            self._raise_error()
            raise

    def end_items(self) -> None:
        self._sender.close()

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()

    async def wait_answer(self) -> Answer:
        await self.done.wait()
        self._raise_error()
        assert self.answer is not None
        return self.answer

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def local_streams() -> tuple[LocalStream, LocalStream]:
    """The caller's side and the server's side."""
    up_send, up_receive = trio.open_memory_channel[bytes](LOCAL_ITEMS)
    down_send, down_receive = trio.open_memory_channel[bytes](LOCAL_ITEMS)
    return LocalStream(up_send, down_receive), LocalStream(down_send, up_receive)


@contextmanager
def _errors_as_raised() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise error_of(error.failure) from None


def _answer(method: Method[Any, Any], payload: bytes) -> Answer:
    meta, reply = unseal(payload, ReplyMeta, method.reply, REPLY_LIMITS)
    return Answer(reply, meta)
