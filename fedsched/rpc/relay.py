"""Passes a call on to somebody else, streams and all, without looking inside."""

from __future__ import annotations

from typing import Any

import trio
from msgspec import structs

from fedsched.model.errors import Unavailable
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import Caller, RawStream
from fedsched.rpc.context import HOPS_MAX
from fedsched.rpc.server_side import CallContext, Items
from fedsched.wire.call_state import Flow
from fedsched.wire.groups import open_plain_nursery


def hop_of(name: str, region: str) -> str:
    """What a server leaves in a call that it passes on: its name as all regions know it."""
    return f"{name}.{region}"


def was_passed_on_in(region: str, hops: tuple[str, ...]) -> bool:
    """Whether a server of this region has passed a call on already; one that says no region is taken for ours."""
    return any("." not in hop or hop.rpartition(".")[2] == region for hop in hops)


class RunsInCircles(Unavailable):
    """A call was passed on by servers that each believe another one leads."""


async def relay(context: CallContext, request: Body[Any], caller: Caller, *, me: str) -> Answer:
    """Ask `caller` what we were asked. `me` is left in the call's hops; a call that was here already is refused.

    An agent that is no server leaves no name: for servers such a call begins with them.
    """
    hops = context.meta.hops
    if (me and me in hops) or len(hops) >= HOPS_MAX:
        raise RunsInCircles(
            f"{context.method.name} was passed on by {', '.join(hops)} and came back to {me}",
            hint="the servers do not agree on a leader yet; try again",
        )
    meta = structs.replace(context.meta, hops=(*hops, me) if me else hops)
    if context.method.flow is Flow.NONE:
        return await caller.call_body(context.method, request, meta)
    async with caller.open_raw(context.method, request, meta) as far:
        return await _pump(context.raw_items, far, context.method.flow)


async def _pump(near: Items, far: RawStream, flow: Flow) -> Answer:
    """Carry items both ways until the far end answers; a slow reader slows its own stream only."""
    async with open_plain_nursery() as nursery:
        if flow in (Flow.UP, Flow.BOTH):
            nursery.start_soon(_pump_up, near, far)
        if flow in (Flow.DOWN, Flow.BOTH):
            try:
                while await near.send(await far.receive()):
                    pass
            except trio.EndOfChannel:
                pass
        answer = await far.wait_answer()
        nursery.cancel_scope.cancel("answered")
    return answer


async def _pump_up(near: Items, far: RawStream) -> None:
    try:
        while await far.send(await near.receive()):
            pass
    except trio.EndOfChannel:
        far.end_items()
