"""A small table of methods served over every kind of caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock

from fedsched.model.declare import Record
from fedsched.model.errors import Conflict
from fedsched.rpc.caller import Caller, LinkCaller, LocalCaller
from fedsched.rpc.context import ReplyMeta
from fedsched.rpc.method import Empty, Method, RunsAt
from fedsched.rpc.server_side import CallContext, CallServer, Handler, Policy, always_here
from fedsched.wire.call_state import Flow
from fedsched.wire.link import open_link
from fedsched.wire.memory import memory_pair


class AddRequest(Record):
    a: int
    b: int = 0


class AddReply(Record):
    total: int = 0


def a_method(name: str, **changes: Any) -> Method[Any, Any]:
    settings: dict[str, Any] = {
        "request": AddRequest,
        "reply": AddReply,
        "runs_at": RunsAt.ANY_SERVER,
        "needs": "",
        "doc": "for a test",
    }
    return Method(name, **{**settings, **changes})


ADD = a_method("Test.Add")
COUNT = a_method("Test.Count", flow=Flow.DOWN, item=AddReply)
TOTAL = a_method("Test.Total", request=Empty, flow=Flow.UP, item=AddRequest)
SHOUT = a_method("Test.Shout", request=Empty, reply=Empty, flow=Flow.BOTH, item=bytes)
METHODS = {method.name: method for method in (ADD, COUNT, TOTAL, SHOUT)}


async def add(request: AddRequest, context: CallContext) -> AddReply:
    if request.a < 0:
        raise Conflict(f"a is {request.a}", hint="use a positive one")
    context.reply_meta = ReplyMeta(index=7, server=context.meta.namespace or "none")
    return AddReply(total=request.a + request.b)


async def count(request: AddRequest, context: CallContext) -> AsyncIterator[AddReply]:
    for number in range(request.a):
        yield AddReply(total=number)
    if request.b:
        raise Conflict("counted too far")


async def total(request: Empty, context: CallContext) -> AddReply:
    result = 0
    async for item in context:
        result += item.a
        if item.b:
            break
    return AddReply(total=result)


async def shout(request: Empty, context: CallContext) -> Empty:
    async for item in context:
        await context.send(item.upper())
    return Empty()


HANDLERS: dict[Method[Any, Any], Handler] = {ADD: add, COUNT: count, TOTAL: total, SHOUT: shout}


def a_server(policy: Policy = always_here, handlers: dict[Method[Any, Any], Handler] | None = None) -> CallServer:
    return CallServer(HANDLERS if handlers is None else handlers, policy=policy)


@asynccontextmanager
async def link_caller(server: CallServer) -> AsyncIterator[Caller]:
    left, right = memory_pair()
    async with (
        open_link(right, is_opener=False, handler=server),
        open_link(left, is_opener=True) as link,
    ):
        yield LinkCaller(link)


@asynccontextmanager
async def local_caller(server: CallServer) -> AsyncIterator[Caller]:
    yield LocalCaller(server, identity="me")


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))
