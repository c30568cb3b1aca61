"""A node whose client holds a link to one server of a region, and moves to another when it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from fedsched.client.access import ClientAccess
from fedsched.model.errors import FedschedError
from fedsched.rpc.body import Body
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_STATUS,
    NODE_WATCH,
    NodeRegisterRequest,
    NodeRequest,
    NodeStatusRequest,
    NodeWatchRequest,
)
from fedsched.rpc.methods.node_calls import NODE_HAS_LINK
from fedsched.server.dialling import Dialer
from fedsched.wire.link import Link
from fedsched.wire.stream import Preamble, StreamCarrier
from tests.client.access_kit import FakeClient
from tests.server.around import SECRET, a_host, place
from tests.server.region import Member, Region, until


class LinkedClient:
    """A client of one node; everything but the link is made by hand."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.client = FakeClient(directory)
        self.access = ClientAccess(self.client)
        self.host = a_host(1)
        self.link: Link | None = None
        self._nursery = nursery

    async def start(self) -> None:
        await self._nursery.start(self.access.run)

    async def restart(self) -> None:
        """The agent is killed and comes back: nothing of what it knew of readers is left, files and tasks are."""
        self.cut()
        self.access = ClientAccess(self.client)
        await self.start()

    async def link_to(self, member: Member) -> None:
        """Dial a server, register, and open the stream; returns when the server has the link."""
        opened = trio.Event()
        self._nursery.start_soon(self._keep, member, opened)
        await opened.wait()
        await self.wait_link(member, is_there=True)

    async def wait_link(self, member: Member, *, is_there: bool) -> None:
        """Wait until a server has this node's link, or has noticed that it is gone."""
        with trio.fail_after(10):
            while (await member.call(NODE_HAS_LINK, NodeRequest(node_id=self.host.id))).has_link != is_there:
                await trio.sleep(0.005)

    def cut(self) -> None:
        assert self.link is not None
        self.link.close(message="cut by the test")

    async def _keep(self, member: Member, opened: trio.Event) -> None:
        stream = await Dialer().open_address(member.address, Preamble.CALLS)
        link = Link(StreamCarrier(stream, member.name), is_opener=True, handler=self.access.calls)
        try:
            async with trio.open_nursery() as nursery:
                self.link = link
                nursery.start_soon(link.run)
                caller = LinkCaller(link)
                await caller.call(NODE_REGISTER, NodeRegisterRequest(node=self.host))
                await caller.call(NODE_UPDATE_STATUS, NodeStatusRequest(node_id=self.host.id, secret_id=SECRET))
                request = NodeWatchRequest(node_id=self.host.id, secret_id=SECRET)
                async with caller.open_raw(NODE_WATCH, Body(NodeWatchRequest, record=request), CallMeta()) as watch:
                    opened.set()
                    while True:
                        await watch.receive()
        except* (FedschedError, trio.EndOfChannel):
            link.close()


@asynccontextmanager
async def a_node(region: Region, *, holder: str = "s1") -> AsyncIterator[LinkedClient]:
    """A region of three, a job, one node whose link one of them holds, and an allocation on it."""
    leader = await region.form(3)
    async with trio.open_nursery() as nursery:
        node = LinkedClient(region.directory / "node", nursery)
        await node.start()
        await node.link_to(region.members[holder])
        await leader.register("web")
        await place(leader, [1])
        node.client.add(1)
        for member in region.running():
            await until(f"the allocation at {member.name}", lambda member=member: _knows(member))  # type: ignore[misc]
        yield node
        nursery.cancel_scope.cancel()


def _knows(member: Member) -> bool:
    return len(member.server.machine.store.allocations) > 0
