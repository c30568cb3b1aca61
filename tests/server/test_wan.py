"""Regions that find each other by gossip: nobody is told more than one address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.federation.route import NoPath
from fedsched.gossip.profiles import LOCAL
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.rpc.methods.server import REGION_LIST, SERVER_MEMBERS
from fedsched.server.settings import GossipOptions
from tests.builders import a_job
from tests.server.region import Member, Region, run_region, until

Story = Callable[[Region, Region], Awaitable[None]]
KEY = bytes(range(32))


def run_federation(directory: Path, story: Story, **changes: Any) -> None:
    """`eu` with one server, `us` with three; each server but the first joins the first."""

    changes.setdefault("profile", LOCAL)

    async def scenario(eu: Region) -> None:
        first = await eu.add("s1", bootstrap_expect=1, gossip=GossipOptions(**changes))
        await eu.leader()
        host, port = gossip_address(first)
        us = Region(directory / "us", eu._nursery, {"region": "us", "num_schedulers": 0})
        joining = GossipOptions(join=(f"{host}:{port}",), **changes)
        for number in (1, 2, 3):
            await us.add(f"s{number}", bootstrap_expect=3, gossip=joining)
        await us.leader()
        await until("all know both regions", lambda: all(knows(one) for one in (*eu.running(), *us.running())))
        await story(eu, us)

    run_region(directory / "eu", scenario, num_schedulers=0)


def gossip_address(member: Member) -> tuple[str, int]:
    assert member.server.wan is not None
    return member.server.wan.gossip.address


def knows(member: Member) -> bool:
    directory = member.server.directory
    return {one: len(directory.servers(one)) for one in directory.regions()} == {"eu": 1, "us": 3}


async def register(through: Member, job_id: str, region: str) -> None:
    await through.call(JOB_REGISTER, JobRegisterRequest(job=a_job(job_id, region=region)), region=region)


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["open", "sealed"])
def test_a_job_can_be_submitted_anywhere_for_anywhere(tmp_path: Path, keys: tuple[bytes, ...]) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        await register(here, "web", "us")
        for member in us.running():
            await register(member, f"from-{member.name}", "eu")

        assert (await (await us.leader()).job("web")).id == "web"
        assert {(await here.job(f"from-s{number}")).id for number in (1, 2, 3)} == {"from-s1", "from-s2", "from-s3"}

    run_federation(tmp_path, story, keys=keys)


def test_regions_are_listed_with_their_servers_from_wherever_one_asks(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        leader = await us.leader()
        await until("eu knows who leads us", lambda: here.server.directory.leader("us") is not None, within_s=12)

        rows = {one.name: one for one in (await here.call(REGION_LIST)).regions}
        assert [(one.name, one.state, one.servers_up, one.servers, one.is_own) for one in rows.values()] == [
            ("eu", "healthy", 1, 1, True),
            ("us", "healthy", 3, 3, False),
        ]
        assert (rows["eu"].leader, rows["us"].leader) == ("s1.eu", f"{leader.name}.us")
        there = (await here.call(REGION_LIST, region="us")).regions
        assert [one.name for one in there if one.is_own] == ["us"]
        members = (await here.call(SERVER_MEMBERS)).members
        assert [one.name for one in members] == ["s1.eu", "s1.us", "s2.us", "s3.us"]
        assert {one.region for one in members} == {"eu", "us"}

    run_federation(tmp_path, story)


def test_a_leader_is_announced_to_other_regions_and_so_is_the_next(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        directory = (await eu.leader()).server.directory

        def is_known(leader: Member) -> bool:
            known = directory.leader("us")
            return known is not None and known.id == leader.id

        first = await us.leader()
        await until("eu knows who leads us", lambda: is_known(first), within_s=12)
        await us.stop(first)
        second = await us.leader()
        await until("eu knows who leads us now", lambda: is_known(second), within_s=12)

    run_federation(tmp_path, story)


def test_a_region_that_is_gone_is_not_waited_for_and_found_again_by_itself(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        stopped = us.running()
        for member in stopped:
            await us.stop(member)
        began = trio.current_time()
        with pytest.raises(NoPath):
            await here.job("web", region="us")
        assert trio.current_time() - began < 5

        for member in stopped:
            await us.restart(member)
        await us.leader()
        began = trio.current_time()
        while True:
            try:
                await register(here, "web", "us")
                break
            except NoPath:
                await trio.sleep(0.05)
        assert trio.current_time() - began < 15
        assert (await (await us.leader()).job("web")).id == "web"

    run_federation(tmp_path, story)
