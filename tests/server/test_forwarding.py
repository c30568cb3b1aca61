"""Calls for another region: who is asked, what happens when a server there is gone, and when they run in circles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from fedsched.federation.route import DIAL_S, ForwardingLoop, NoPath
from fedsched.model.errors import NotFound
from fedsched.model.region import MemberStatus, ServerMember
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from fedsched.server import dispatch
from fedsched.server.dispatch import NoLeader
from tests.builders import a_job
from tests.server.region import Member, Region, run_region, until

Story = Callable[[Region, Region], Awaitable[None]]


def run_regions(directory: Path, story: Story, *, us: int = 3) -> None:
    """Two regions that know of each other: `eu` with one server, `us` with some."""

    async def scenario(eu: Region) -> None:
        await eu.form(1)
        other = Region(directory / "us", eu._nursery, {"region": "us", "num_schedulers": 0})
        await other.form(us)
        for member in eu.running():
            introduce(member, other.running())
        for member in other.running():
            introduce(member, eu.running())
        await story(eu, other)

    run_region(directory / "eu", scenario, num_schedulers=0)


def introduce(to: Member, members: list[Member], status: MemberStatus = MemberStatus.ALIVE) -> None:
    """Tell a server of others, as gossip would."""
    for member in members:
        tell(to, member.name, member.options.region, member.id, member.address, status)


def tell(
    to: Member, name: str, region: str, server_id: str, address: str, status: MemberStatus = MemberStatus.ALIVE
) -> None:
    host, _, port = address.rpartition(":")
    tags = {"role": "fedsched", "region": region, "id": server_id, "rpc_addr": host, "port": port}
    to.server.directory.member_seen(ServerMember(name=f"{name}.{region}", addr=host, tags=tags, status=status))


async def register(through: Member, job_id: str, region: str) -> None:
    await through.call(JOB_REGISTER, JobRegisterRequest(job=a_job(job_id, region=region)), region=region)


def test_a_job_for_another_region_is_there_and_nowhere_else(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        await register(here, "web", "us")

        assert (await here.job("web", region="us")).id == "web"
        for member in us.running():
            assert (await member.job("web")).id == "web"
        with pytest.raises(NotFound):
            await here.job("web")

    run_regions(tmp_path, story)


def test_a_refusal_of_the_other_region_comes_back_as_it_is(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        with pytest.raises(NotFound, match="job 'web'"):
            await (await eu.leader()).job("web", region="us")

    run_regions(tmp_path, story, us=1)


def test_a_server_that_is_gone_costs_one_request_a_dial_and_the_others_nothing(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        await register(here, "web", "us")
        await us.stop((await us.followers())[0])

        slowest = 0.0
        for _ in range(20):
            began = trio.current_time()
            assert (await here.job("web", region="us", stale=True)).id == "web"
            slowest = max(slowest, trio.current_time() - began)
        assert slowest < DIAL_S + 1
        assert len(here.said("forward_failed")) <= 2  # its link broke, and perhaps it was dialled once more

    run_regions(tmp_path, story)


def test_a_write_finds_the_new_leader_after_the_old_one_is_gone(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        await us.stop(await us.leader())

        await register(here, "web", "us")

        assert (await (await us.leader()).job("web")).id == "web"

    run_regions(tmp_path, story)


def test_a_region_that_is_gone_fails_fast_and_says_who_was_tried(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        for member in us.running():
            await us.stop(member)

        began = trio.current_time()
        with pytest.raises(NoPath) as refused:
            await here.job("web", region="us")
        assert trio.current_time() - began < 5
        assert str(refused.value).startswith("No path to region 'us': ")
        for name in ("s1.us", "s2.us", "s3.us"):
            assert name in str(refused.value)

        began = trio.current_time()
        with pytest.raises(NoPath):
            await here.job("web", region="us")
        assert trio.current_time() - began < 0.2  # all of them rest

    run_regions(tmp_path, story)


def test_a_region_that_nobody_knows_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        with pytest.raises(NoPath, match="No path to region 'moon'") as refused:
            await (await eu.leader()).job("web", region="moon")
        assert refused.value.hint == "known regions: eu, us"

    run_regions(tmp_path, story, us=1)


def test_stale_records_that_send_a_call_in_a_circle_are_noticed(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        one, other = await eu.leader(), await us.leader()
        tell(one, "ghost", "asia", "g1", other.address)
        tell(other, "ghost", "asia", "g2", one.address)

        with pytest.raises(ForwardingLoop, match="came back"):
            await one.job("web", region="asia")

    run_regions(tmp_path, story, us=1)


def test_what_any_server_may_answer_is_answered_without_a_leader(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        for member in us.running()[:2]:
            await us.stop(member)

        with trio.fail_after(5):
            reply = await here.call(RAFT_LIST_PEERS, region="us", stale=True)
        assert {server.node for server in reply.servers} == {"s1", "s2", "s3"}

    run_regions(tmp_path, story)


def test_a_region_without_a_leader_refuses_writes_after_its_patience_and_answers_stale_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        await register(here, "web", "us")
        lone = (await us.followers())[0]
        await until("it has the job", lambda: lone.server.raft.applier.applied == lone.server.raft.core.commit)
        for member in us.running():
            if member is not lone:
                await us.stop(member)
        await until("it follows nobody", lambda: lone.server.raft.role.leader is None)
        monkeypatch.setattr(dispatch, "PATIENCE_S", 1.0)

        began = trio.current_time()
        with pytest.raises(NoLeader) as refused:
            await register(here, "late", "us")
        assert 1.0 <= trio.current_time() - began < 4.0
        assert refused.value.message == "No cluster leader: Job.Register waited 1 s for one in region 'us'"
        assert (await here.job("web", region="us", stale=True)).id == "web"
        await register(here, "ours", "eu")
        with pytest.raises(NotFound):
            await here.job("late", region="us", stale=True)

    run_regions(tmp_path, story)


def test_a_longer_circle_is_noticed_before_it_closes(tmp_path: Path) -> None:
    """Three servers whose stale records send each other's calls on: the hop that would close the circle is refused."""

    async def story(eu: Region, us: Region) -> None:
        one, (two, three) = await eu.leader(), us.running()[:2]
        tell(one, "ghost", "asia", "g1", two.address)
        tell(two, "ghost", "asia", "g2", three.address)
        tell(three, "ghost", "asia", "g3", one.address)

        began = trio.current_time()
        with pytest.raises(ForwardingLoop, match="came back"):
            await register(one, "web", "asia")
        assert trio.current_time() - began < 2.0

    run_regions(tmp_path, story)
