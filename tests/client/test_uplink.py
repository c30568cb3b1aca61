"""A client's link to its servers on virtual time: whom it dials, when it speaks, and what it says again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import trio
from trio.testing import MockClock

from fedsched.client.journal_records import AllocReport
from fedsched.client.reports_core import AGAIN_S, ReportsCore
from fedsched.client.server_list import ServerList
from fedsched.client.uplink import Uplink, UplinkEnds
from fedsched.codec import from_bytes
from fedsched.model.alloc import ClientStatus
from fedsched.model.errors import FedschedError, NotFound, Unavailable
from fedsched.model.node import Node, NodeStatus
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.agent import AGENT_HEALTH, AgentHealthReply
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_STATUS,
    NODE_WATCH,
    NodeRegisterRequest,
    NodeStatusRequest,
    NodeUpdateReply,
    NodeWatchRequest,
    NodeWriteReply,
)
from fedsched.rpc.methods.node_frames import NodeReport, WatchFrame
from fedsched.rpc.node_watch import LAST, frame_items
from fedsched.rpc.server_side import CallContext, CallServer
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from fedsched.wire.link import Handler, Link, open_link
from fedsched.wire.memory import memory_pair
from tests.builders import an_id
from tests.client.virtual import VirtualEnv

TTL_S = 30.0


class NotAllowed(FedschedError):
    code = "not_allowed"
    http_status = 403


class PretendedServer:
    """One server, in the hands of a test."""

    def __init__(self, name: str, region: PretendedRegion) -> None:
        self.name = name
        self.region = region
        self.is_up = True
        self.is_leaderless = False
        self.links: list[Link] = []
        self.calls = CallServer({NODE_REGISTER: self.register, NODE_UPDATE_STATUS: self.beat, NODE_WATCH: self.watch})

    def die(self) -> None:
        self.is_up = False
        for link in self.links:
            link.close(message="the server died")

    def note(self, what: str) -> None:
        self.region.heard.append((round(trio.current_time(), 1), self.name, what))
        if self.is_leaderless:
            raise Unavailable("no leader")

    def _reply(self) -> NodeUpdateReply:
        region = self.region
        return NodeUpdateReply(heartbeat_ttl_s=TTL_S, status=region.status, servers=region.addresses, time_ns=1)

    async def register(self, request: NodeRegisterRequest, context: CallContext) -> NodeUpdateReply:
        self.note("register")
        self.region.check(request.node.secret_id)
        self.region.is_known = True
        self.region.nodes.append(request.node)
        return self._reply()

    async def beat(self, request: NodeStatusRequest, context: CallContext) -> NodeUpdateReply:
        self.note("beat")
        self.region.check(request.secret_id)
        if not self.region.is_known:
            raise NotFound("node not found")
        return self._reply()

    async def watch(self, request: NodeWatchRequest, context: CallContext) -> NodeWriteReply:
        self.note("watch")
        self.region.check(request.secret_id)
        if not self.region.is_known:
            raise NotFound("node not found")
        stream = Stream(context)
        self.region.streams.append(stream)
        await stream.run()
        return NodeWriteReply()


class Stream:
    """A node's stream as the server has it."""

    def __init__(self, context: CallContext) -> None:
        self._items = context.raw_items
        self.link = context.link
        self.reports: list[NodeReport] = []
        self.acknowledges = True
        self._over = trio.CancelScope()

    async def run(self) -> None:
        with self._over:
            self.say(frame_items(1, is_whole=True, jobs=[], origins=[], pace_ms=200))
            while True:
                report = from_bytes(await self._items.receive(), NodeReport)
                self.reports.append(report)
                if self.acknowledges:
                    self.say(frame_items(1, jobs=[], origins=[], written=report.number))

    def say(self, items: list[bytes]) -> None:
        for item in items:
            assert self._items.try_send(item)

    def end(self) -> None:
        self._over.cancel()


class PretendedRegion:
    """Servers, and the client that is tested."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: PretendedServer(name, self) for name in names}
        self.addresses = tuple(names)
        self.heard: list[tuple[float, str, str]] = []
        self.streams: list[Stream] = []
        self.nodes: list[Node] = []
        self.status = NodeStatus.READY
        self.is_known = False
        self.secret = "secret"
        self.reports: dict[str, AllocReport] = {}
        self.acked: dict[str, AllocReport] = {}
        self.frames: list[WatchFrame] = []
        self.node = Node(id=an_id(1), secret_id="secret", name="n1")
        self.uplink = Uplink(
            ServerList(names),
            self.dial,
            UplinkEnds(
                node=lambda: self.node,
                take_frame=self.frames.append,
                report_of=self.reports.get,
                live=lambda: list(self.reports),
                save_acked=self.save_acked,
            ),
            ReportsCore(),
            env=VirtualEnv(),
            log=Hub().logger("client"),
            metrics=Registry(),
        )

    def check(self, secret: str) -> None:
        if secret != self.secret:
            raise NotAllowed("known with another secret")

    async def save_acked(self, acked: dict[str, AllocReport]) -> None:
        self.acked |= acked

    @asynccontextmanager
    async def dial(self, address: str, handler: Handler | None) -> AsyncIterator[Link]:
        server = self.servers[address]
        if not server.is_up:
            raise Unavailable(f"cannot reach {address}")
        near, far = memory_pair()
        async with open_link(far, is_opener=False, handler=server.calls) as theirs:
            server.links.append(theirs)
            async with open_link(near, is_opener=True, handler=handler) as ours:
                await ours.wait_ready()
                yield ours

    def said(self, what: str) -> list[tuple[float, str]]:
        return [(at, server) for at, server, heard in self.heard if heard == what]

    @property
    def stream(self) -> Stream:
        return self.streams[-1]


def run(story: Callable[[PretendedRegion], Awaitable[None]], *names: str) -> None:
    async def main() -> None:
        region = PretendedRegion(*(names or ("s1",)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(region.uplink.run)
            await story(region)
            nursery.cancel_scope.cancel("done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def running(text: str = "") -> AllocReport:
    return AllocReport(client_status=ClientStatus.RUNNING, client_description=text)


def test_a_client_registers_says_that_it_is_ready_and_listens_then_beats_in_time() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(100)
        assert region.said("register") == [(0.0, "s1")]
        assert region.said("watch") == [(0.0, "s1")]
        beats = [at for at, _ in region.said("beat")]
        assert beats[:3] == [0.0, 20.0, 40.0]
        assert region.uplink.is_connected
        assert region.uplink.is_registered.is_set()
        assert region.uplink.last_contact >= 80.0
        assert region.frames[0].is_whole

    run(story)


def test_a_client_stays_with_its_server_and_goes_to_another_when_that_is_gone() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(50)
        first = region.heard[0][1]
        assert {server for _, server, _ in region.heard} == {first}

        region.servers[first].die()
        await trio.sleep(5)

        others = [(at, server, what) for at, server, what in region.heard if server != first]
        assert others
        assert others[0][0] <= 52.0
        assert {what for _, _, what in others} == {"beat", "watch"}  # it is known: no need to register
        assert region.uplink.is_connected

    run(story, "s1", "s2", "s3")


def test_a_client_never_gives_up_and_does_not_hammer() -> None:
    async def story(region: PretendedRegion) -> None:
        for server in region.servers.values():
            server.is_up = False
        await trio.sleep(3600)
        assert not region.uplink.is_connected
        dialled = region.uplink.servers._failures
        assert 100 < dialled < 500  # every 15 s on average, in the end

        region.servers["s2"].is_up = True
        await trio.sleep(120)
        assert region.uplink.is_connected

    run(story, "s1", "s2")


def test_a_node_that_servers_have_forgotten_registers_and_listens_again() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(5)
        region.is_known = False
        region.stream.end()
        await trio.sleep(5)

        assert len(region.said("register")) == 2
        assert len(region.streams) == 2
        region.is_known = False  # heard of with the next sign of life this time
        await trio.sleep(30)
        assert len(region.said("register")) == 3

    run(story)


def test_a_wrong_secret_is_refused_and_the_client_goes_on_asking_patiently() -> None:
    async def story(region: PretendedRegion) -> None:
        region.secret = "another"
        await trio.sleep(120)
        times = [at for at, _ in region.said("register")]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) > 3
        assert all(15 <= pause <= 30.1 for pause in pauses)
        assert region.streams == []
        assert not region.uplink.is_registered.is_set()

        region.secret = "secret"
        await trio.sleep(31)
        assert region.uplink.is_registered.is_set()
        assert len(region.streams) == 1

        region.secret = "another"  # and a node that was let in once registers again when it is not any more
        before = len(region.said("register"))
        await trio.sleep(40)
        assert len(region.said("register")) > before

    run(story)


def test_a_server_that_cannot_pass_anything_on_is_left_for_another() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(5)
        first = region.heard[0][1]
        region.servers[first].is_leaderless = True
        await trio.sleep(90)

        assert region.uplink.servers.current != first
        assert region.uplink.is_connected

    run(story, "s1", "s2")


def test_reports_are_gathered_confirmed_and_not_said_twice() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(1)
        for number in (1, 2, 3):
            region.reports[an_id(number)] = running()
            region.uplink.changed(an_id(number))
        await trio.sleep(1)
        assert [len(report.statuses) for report in region.stream.reports] == [3]
        assert set(region.acked) == set(region.reports)
        assert region.uplink.unsaid == 0

        region.uplink.changed(an_id(1))
        await trio.sleep(20)
        assert len(region.stream.reports) == 1

    run(story)


def test_a_report_that_nobody_confirms_is_said_again_and_a_new_stream_says_it_too() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(1)
        region.stream.acknowledges = False
        region.reports[an_id(1)] = running()
        region.uplink.changed(an_id(1))
        await trio.sleep(1 + AGAIN_S)
        assert [report.number for report in region.stream.reports] == [1, 2]
        assert region.acked == {}

        for link in region.servers["s1"].links:
            link.close(message="weather")
        await trio.sleep(10)
        assert len(region.streams) == 2
        assert [report.number for report in region.stream.reports] == [1]
        assert set(region.acked) == {an_id(1)}

    run(story)


def test_a_node_that_was_missed_tells_everything_it_runs_until_it_is_ready() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(1)
        region.reports[an_id(1)] = running()
        region.uplink.changed(an_id(1))
        await trio.sleep(1)
        assert len(region.stream.reports) == 1

        region.status = NodeStatus.INITIALIZING
        await trio.sleep(25)
        assert len(region.stream.reports) > 1
        region.status = NodeStatus.READY
        await trio.sleep(5)
        count = len(region.stream.reports)
        await trio.sleep(60)
        assert len(region.stream.reports) == count

    run(story)


def test_a_frame_that_cannot_be_read_ends_the_stream_and_not_the_client() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(1)
        region.stream.say([LAST + b"\xff\xff\xff"])
        await trio.sleep(5)
        assert len(region.streams) == 2
        assert region.uplink.is_connected

    run(story)


def test_servers_can_call_the_client_over_its_own_link() -> None:
    async def story(region: PretendedRegion) -> None:
        async def health(request: Empty, context: CallContext) -> AgentHealthReply:
            return AgentHealthReply(ok=True, message="the client answers")

        region.uplink.serve(CallServer({AGENT_HEALTH: health}))
        await trio.sleep(1)
        link = region.stream.link
        assert link is not None
        reply, _ = await LinkCaller(link).call(AGENT_HEALTH, Empty())
        assert reply.message == "the client answers"

    run(story)


def test_a_changed_node_is_told_at_once_and_others_can_ask_servers_through_the_link() -> None:
    async def story(region: PretendedRegion) -> None:
        await trio.sleep(3)
        region.node = Node(id=an_id(1), secret_id="secret", name="n1", node_class="big")
        region.uplink.node_changed()
        await trio.sleep(0.5)
        assert [node.node_class for node in region.nodes] == ["", "big"]

        caller = await region.uplink.caller()
        reply, _ = await caller.call(NODE_UPDATE_STATUS, NodeStatusRequest(node_id=an_id(1), secret_id="secret"))
        assert reply.heartbeat_ttl_s == TTL_S

    run(story)


def test_servers_that_are_learnt_are_dialled_too() -> None:
    async def story(region: PretendedRegion) -> None:
        region.servers["s2"] = PretendedServer("s2", region)
        region.addresses = ("s1", "s2")
        await trio.sleep(5)
        assert region.uplink.servers.known == ("s1", "s2")
        region.servers["s1"].die()
        await trio.sleep(10)
        assert region.uplink.servers.current == "s2"
        assert region.uplink.is_connected

    run(story, "s1")


def test_waiting_for_a_server_ends_when_one_is_reached() -> None:
    async def story(region: PretendedRegion) -> None:
        region.servers["s1"].is_up = False
        await trio.sleep(1)
        asked: list[Any] = []

        async def ask() -> None:
            asked.append(await region.uplink.caller())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(10)
            assert asked == []
            region.servers["s1"].is_up = True
        assert asked

    run(story)
