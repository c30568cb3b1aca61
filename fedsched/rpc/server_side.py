"""Answers calls: decode, decide where, run the handler, time it, and turn refusals into failures.

A handler takes `(request, context)` and is either an async function that returns the reply, or, for a stream down, an
async generator of items. Where a call really runs (here, at the leader, in another region) is a **policy** plugged in
by the server; without one, everything runs here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol, Self, TypeVar

import trio

from fedsched.model.declare import Record
from fedsched.model.errors import BadRequest
from fedsched.rpc.body import Answer, Body, decode_item, encode_item, seal, unseal
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.method import Method, UnknownMethod, method_named
from fedsched.telemetry.metrics import Registry, counter, histogram
from fedsched.wire.call_state import Flow
from fedsched.wire.link import Link
from fedsched.wire.link_calls import ServedCall

CALL_TIME: Final = histogram("rpc.call", "time to answer a call", labels=("method",), nomad="nomad.nomad.rpc.request")
CALL_ERRORS: Final = counter("rpc.errors", "calls answered with an error", labels=("method", "code"))

T = TypeVar("T", bound=Record)


class Items(Protocol):
    """The streams of one call, in encoded items."""

    async def send(self, item: bytes) -> bool:
        """Wait for room, then send. False if nobody wants more."""

    def try_send(self, item: bytes) -> bool:
        """Send if there is room now. False if there is not, or nobody wants more."""

    async def receive(self) -> bytes:
        """The next item; `trio.EndOfChannel` after the last."""


class CallContext:
    """What a handler may know about a call beside its request."""

    __slots__ = ("_items", "identity", "link", "meta", "method", "peer", "reply_meta")

    def __init__(
        self,
        method: Method[Any, Any],
        meta: CallMeta,
        *,
        peer: str,
        identity: Any,
        items: Items | None,
        link: Link | None = None,
    ) -> None:
        self.method = method
        self.meta = meta
        self.peer = peer
        self.identity = identity
        """What authentication made of the peer; None when it was not asked."""
        self.link = link
        """What it came over, which is also the way to call the peer; None for a call within the process."""
        self.reply_meta = ReplyMeta()
        """Goes out with the reply; a handler puts in what its answer reflects."""
        self._items = items

    async def send(self, item: object) -> bool:
        """Stream one item to the caller; false if it wants no more."""
        return await self.raw_items.send(encode_item(item, self.method.item))

    async def receive(self) -> Any:
        """The caller's next item; `trio.EndOfChannel` after the last."""
        return decode_item(await self.raw_items.receive(), self.method.item)

    def __aiter__(self) -> Self:
        """Everything the caller streams: `async for item in context`."""
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def stay(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what takes the rest of the call's life. Over a link that is after the handler has returned."""
        if isinstance(self._items, ServedCall):
            self._items.rest = work
        else:
            await work()

    @property
    def raw_items(self) -> Items:
        """The streams before decoding, for whoever passes them on."""
        if self._items is None:
            raise TypeError(f"{self.method.name} does not stream")
        return self._items


Handler = Callable[[Any, CallContext], Any]
"""An async function to the reply, or an async generator of items."""

ServeHere = Callable[[CallContext, Body[Any]], Awaitable[Answer]]

Policy = Callable[[CallContext, Body[Any], ServeHere], Awaitable[Answer]]
"""Decides where a call runs: checks it, passes it on, or gives it to `serve_here`."""


async def always_here(context: CallContext, request: Body[Any], serve_here: ServeHere) -> Answer:
    """The policy of an agent that is all there is."""
    return await serve_here(context, request)


class CallServer:
    """Serves a table of methods; give it to a `Link` as its handler, or to a `LocalCaller`."""

    def __init__(
        self,
        handlers: Mapping[Method[Any, Any], Handler],
        *,
        policy: Policy = always_here,
        metrics: Registry | None = None,
    ) -> None:
        self._handlers = dict(handlers)
        self._policy = policy
        metrics = metrics or Registry()
        self._times = metrics.histograms(CALL_TIME)
        self._errors = metrics.counters(CALL_ERRORS)

    async def __call__(self, call: ServedCall) -> bytes:
        """Answer one call of a link."""
        method = method_named(call.method)
        if call.state.flow != method.flow:
            raise BadRequest(f"{method.name} streams {method.flow.name.lower()}, not {call.state.flow.name.lower()}")
        meta, request = unseal(call.payload, CallMeta, method.request)
        call.payload = b""
        items = None if method.flow is Flow.NONE else call
        link = call.link
        context = CallContext(method, meta, peer=link.peer, identity=link.identity, items=items, link=link)
        answer = await self.answer(context, request)
        return seal(answer.meta, answer.reply)

    async def answer(self, context: CallContext, request: Body[Any]) -> Answer:
        """Put one call through the policy, timed and counted."""
        name = context.method.name
        started = trio.current_time()
        try:
            return await self._policy(context, request, self.serve_here)
        except Exception as error:
            self._errors.labels(name, str(getattr(error, "code", "internal"))).add()
            raise
        finally:
            self._times.labels(name).observe(trio.current_time() - started)

    async def serve_here(self, context: CallContext, request: Body[Any]) -> Answer:
        """Run this agent's own handler."""
        method = context.method
        handler = self._handlers.get(method)
        if handler is None:
            raise UnknownMethod(f"this agent does not serve {method.name}", hint=f"it runs at {method.runs_at.value}")
        result = handler(request.record(), context)
        if inspect.isasyncgen(result):
            async with aclosing(result) as items:
                async for item in items:
                    if not await context.send(item):
                        break
            reply = method.reply()
        else:
            reply = await result
        return Answer(Body(method.reply, record=reply), context.reply_meta)
