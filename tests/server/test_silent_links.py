"""Calls for another region over links that have fallen silent: nobody waits long for a server that may be gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from fedsched.env.fixed import FixedEnv
from fedsched.federation.directory import Directory
from fedsched.federation.route import NoPath
from fedsched.model.errors import Unavailable
from fedsched.model.region import MemberStatus, ServerMember
from fedsched.rpc.body import Answer, Body
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.job import JOB_GET, JobGetReply, JobRequest
from fedsched.rpc.server_side import CallContext, CallServer
from fedsched.server.forwarding import Forwarding
from fedsched.server.peers import PeerLinks
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from fedsched.wire.link import Link
from fedsched.wire.memory import MemoryCarrier, memory_pair
from tests.builders import a_job

FAR = ("s1", "s2", "s3")


class Carrier:
    """The far end of a link, whose process may stand still."""

    def __init__(self, carrier: MemoryCarrier) -> None:
        self._carrier = carrier
        self.peer = carrier.peer
        self.send = carrier.send
        self.aclose = carrier.aclose
        self.stands_still = False

    async def receive(self, bytes_max: int) -> list[bytes]:
        got = await self._carrier.receive(bytes_max)
        if self.stands_still:
            await trio.sleep_forever()
        return got


class Peers:
    """Three servers of another region, each with a link that is there already."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.far: dict[str, Carrier] = {}
        self.takes_s = 0.0

    async def open(self, nursery: trio.Nursery) -> None:
        for name in FAR:
            near, far = memory_pair()
            self.far[name] = Carrier(far)
            calls = CallServer({JOB_GET: self._get})
            nursery.start_soon(Link(self.far[name], is_opener=False, handler=calls).run)
            self.links[name] = Link(near, is_opener=True)
            nursery.start_soon(self.links[name].run)
            await self.links[name].wait_ready()

    async def _get(self, request: JobRequest, context: CallContext) -> JobGetReply:
        await trio.sleep(self.takes_s)
        return JobGetReply(job=a_job(request.job_id))

    async def caller_at(self, address: str, region: str) -> LinkCaller:
        return LinkCaller(self.links[address.partition(":")[0]])


Story = Callable[[Forwarding, Peers], Awaitable[None]]


def run(story: Story) -> None:
    async def main() -> None:
        directory = Directory("eu")
        for name in FAR:
            tags = {"role": "fedsched", "region": "us", "id": f"id-{name}", "rpc_addr": name, "port": "1"}
            directory.member_seen(ServerMember(name=f"{name}.us", addr=name, tags=tags, status=MemberStatus.ALIVE))
        peers = Peers()
        forwarding = Forwarding(
            directory,
            me="a.eu",
            server_id="id-a",
            peers=cast(PeerLinks, peers),
            env=FixedEnv(),
            log=Hub(wall=lambda: 0.0).logger("test"),
            metrics=Registry(),
        )
        async with trio.open_nursery() as nursery:
            await peers.open(nursery)
            await story(forwarding, peers)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def ask(forwarding: Forwarding) -> Answer:
    context = CallContext(JOB_GET, CallMeta(region="us"), peer="test", identity=None, items=None)
    return await forwarding.answer(context, Body(JobRequest, record=JobRequest(job_id="web")))


def test_a_server_that_stands_still_costs_a_request_two_seconds_and_the_next_one_answers() -> None:
    async def story(forwarding: Forwarding, peers: Peers) -> None:
        for far in list(peers.far.values())[:2]:
            far.stands_still = True

        for _ in range(4):
            began = trio.current_time()
            assert (await ask(forwarding)).reply.record().job.id == "web"
            assert trio.current_time() - began < 4

    run(story)


def test_a_region_that_stands_still_fails_fast_and_says_who_was_tried() -> None:
    async def story(forwarding: Forwarding, peers: Peers) -> None:
        for far in peers.far.values():
            far.stands_still = True

        began = trio.current_time()
        with pytest.raises(NoPath) as refused:
            await ask(forwarding)

        assert trio.current_time() - began < 5
        assert all(f"{name}.us fell silent" in str(refused.value) for name in FAR)

    run(story)


def test_a_server_that_takes_long_is_waited_for() -> None:
    async def story(forwarding: Forwarding, peers: Peers) -> None:
        peers.takes_s = 12.0

        assert (await ask(forwarding)).reply.record().job.id == "web"
        assert trio.current_time() >= 12.0

    run(story)


def test_a_link_that_breaks_under_a_call_is_no_answer() -> None:
    async def story(forwarding: Forwarding, peers: Peers) -> None:
        peers.takes_s = 1.0
        asked: list[Any] = []

        async with trio.open_nursery() as nursery:

            async def one() -> None:
                asked.append(await ask(forwarding))

            nursery.start_soon(one)
            await trio.sleep(0.5)
            peers.takes_s = 0.0
            for link in [link for link in peers.links.values() if link.statistics().calling]:
                link.close(Unavailable.code, "reset")

        assert asked[0].reply.record().job.id == "web"

    run(story)
