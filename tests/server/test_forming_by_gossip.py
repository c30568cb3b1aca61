"""Regions that come together although their servers are told gossip addresses only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.env.real import RealEnv
from fedsched.federation.directory import Server
from fedsched.gossip.profiles import LOCAL
from fedsched.model.errors import Unavailable
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.server.dialling import Dialer
from fedsched.server.settings import GossipOptions
from fedsched.server.tls import load_contexts
from fedsched.wire.stream import Preamble
from tests.builders import a_job
from tests.server.certificates import NEEDS_OPENSSL, an_authority
from tests.server.region import Member, Region, run_region, until


def gossip_at(member: Member) -> str:
    assert member.server.wan is not None
    return member.server.wan.gossip_address


def entering_by(*members: Member, **changes: Any) -> GossipOptions:
    return GossipOptions(profile=LOCAL, join=tuple(map(gossip_at, members)), **changes)


def known(member: Member) -> Mapping[str, Server]:
    directory = member.server.directory
    return {one.name: one for region in directory.all_regions() for one in directory.servers(region)}


def test_a_region_forms_of_servers_that_know_one_gossip_address(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        first = await region.add("s1", gossip=GossipOptions(profile=LOCAL))
        for name in ("s2", "s3"):
            await region.add(name, join=(), gossip=entering_by(first))

        leader = await region.leader()

        assert await region.voters(leader) == {"s1", "s2", "s3"}

    run_region(tmp_path, scenario)


def test_the_address_may_be_one_that_nobody_said_is_gossip(tmp_path: Path) -> None:
    """`retry_join` takes server ports and gossip ports alike."""

    async def scenario(region: Region) -> None:
        first = await region.add("s1", bootstrap_expect=2, gossip=GossipOptions(profile=LOCAL))
        place = gossip_at(first)
        await region.add(
            "s2", bootstrap_expect=2, join=(place,), gossip=GossipOptions(profile=LOCAL, maybe=(place,), retry_max=1)
        )

        assert await region.voters(await region.leader()) == {"s1", "s2"}

    run_region(tmp_path, scenario)


def test_servers_that_met_by_their_server_ports_are_in_one_pool_too(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        everybody = {"s1.eu", "s2.eu", "s3.eu"}
        await until("all are in one pool", lambda: all(set(known(one)) == everybody for one in region.running()))

    run_region(tmp_path, scenario, gossip=GossipOptions(profile=LOCAL))


def test_a_server_that_comes_later_is_let_in_by_a_region_it_knows_from_gossip(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        first = await region.add("s1", bootstrap_expect=1, gossip=GossipOptions(profile=LOCAL))
        leader = await region.leader()
        await region.add("s2", join=(), bootstrap_expect=0, gossip=entering_by(first))

        await until("it is a member", lambda: len(leader.server.raft.core.config.servers) == 2)

    run_region(tmp_path, scenario)


def test_another_number_of_expected_servers_is_refused_with_who_said_what(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        first = await region.add("s1", bootstrap_expect=2, gossip=GossipOptions(profile=LOCAL))
        await region.add("s2", join=(), bootstrap_expect=3, gossip=entering_by(first))

        await until("it is refused", lambda: first.said("region_refused"))
        (refusal,) = first.said("region_refused")
        assert refusal["why"] == (
            "this server expects 2 servers but s2 expects 3: make bootstrap_expect the same everywhere"
        )
        assert all(one.server.raft.core.log.last == 0 for one in region.running())

    run_region(tmp_path, scenario)


def test_servers_of_other_regions_are_no_founders(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        far = await region.add("s1", region="us", bootstrap_expect=1, gossip=GossipOptions(profile=LOCAL))
        await until("us leads itself", lambda: far.is_leader)
        here = [await region.add(f"s{n}", join=(), bootstrap_expect=2, gossip=entering_by(far)) for n in (2, 3)]

        await until("eu has a leader", lambda: any(one.is_leader for one in here))
        assert {len(one.server.raft.core.config.servers) for one in here} == {2}
        assert len(far.server.raft.core.config.servers) == 1

    run_region(tmp_path, scenario)


class Late(RealEnv):
    """The real world, on a host whose clock is behind."""

    def wall(self) -> float:
        return super().wall() - 100


def test_how_far_others_are_and_how_their_clocks_go_is_known(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        first = await region.add("s1", bootstrap_expect=1, gossip=GossipOptions(profile=LOCAL))
        await region.leader()
        late = Member(
            replace(first.options, name="s2", region="us", data_dir=tmp_path / "us", gossip=entering_by(first))
        )
        late.server._env = Late()
        await region._nursery.start(late.run)

        def is_measured() -> bool:
            far = known(first).get("s2.us")
            return far is not None and far.skew_s is not None and far.round_trip_s is not None

        await until("it is measured", is_measured)
        far = known(first)["s2.us"]
        assert far.skew_s is not None
        assert far.round_trip_s is not None
        assert -101 < far.skew_s < -99
        assert 0 < far.round_trip_s < 0.5
        await until("it is said", lambda: first.said("clocks_differ"))
        assert first.server.directory.summary("us").is_skewed

    run_region(tmp_path, scenario)


@NEEDS_OPENSSL
def test_regions_with_certificates_of_their_own_work_together(tmp_path: Path) -> None:
    authority = an_authority(tmp_path / "ca")
    eu, us = (load_contexts(authority.server(region), region) for region in ("eu", "us"))

    async def scenario(region: Region) -> None:
        gossip = GossipOptions(profile=LOCAL, keys=(bytes(32),))
        here = await region.add("s1", bootstrap_expect=1, tls=eu, gossip=gossip)
        far = await region.add(
            "s2", region="us", join=(), bootstrap_expect=1, tls=us, gossip=entering_by(here, keys=(bytes(32),))
        )
        await until("both lead", lambda: here.is_leader and far.is_leader)
        await until("they know of each other", lambda: "us" in here.server.directory.regions())

        await here.call(JOB_REGISTER, JobRegisterRequest(job=a_job("web", region="us")), region="us")

        assert (await far.job("web")).id == "web"
        await until("clocks were compared", lambda: known(here)["s2.us"].skew_s is not None)

    run_region(tmp_path, scenario, num_schedulers=0)


@NEEDS_OPENSSL
def test_a_forged_address_leads_no_call_to_a_server_of_another_region(tmp_path: Path) -> None:
    authority = an_authority(tmp_path / "ca")
    eu, us = (load_contexts(authority.server(region), region) for region in ("eu", "us"))

    async def scenario(region: Region) -> None:
        far = await region.add("s2", region="us", bootstrap_expect=1, tls=us)
        dialer = Dialer(eu)
        await trio.aclose_forcefully(await dialer.open_address(far.address, Preamble.CALLS, "us"))
        with pytest.raises(Unavailable, match="certificate"):
            await dialer.open_address(far.address, Preamble.CALLS, "asia")

    run_region(tmp_path, scenario)
