"""Servers that move, leave, fail or lose their disk while the region knows of it by gossip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fedsched.gossip.messages import State
from fedsched.gossip.profiles import LOCAL
from fedsched.model.errors import BadRequest, Conflict, FedschedError, NotFound
from fedsched.raft.autopilot import LEFT
from fedsched.rpc.methods.gossip import AGENT_FORCE_LEAVE, AGENT_JOIN, AgentForceLeaveRequest, AgentJoinRequest
from fedsched.rpc.methods.raft import RAFT_REMOVE_PEER, PeerRequest
from fedsched.rpc.methods.server import ServerHello
from fedsched.server.joining import Joining
from fedsched.server.leader import reconcile_core
from fedsched.server.leader.autopilot import AutopilotService
from fedsched.server.settings import GossipOptions
from tests.server.region import Member, Region, run_region, until
from tests.server.test_forming_by_gossip import gossip_at

QUICK = replace(LOCAL, probe_interval_s=0.4, suspicion_unit_s=0.4)
"""Who is dead is known after a second or two; who is only slow refutes it, and Raft's links are believed anyway."""
GOSSIP = GossipOptions(profile=QUICK)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of a tenth, so that a test shows its end."""
    monkeypatch.setattr(reconcile_core, "SETTLE_S", 0.3)
    monkeypatch.setattr(reconcile_core, "LOOK_SOON_S", 0.1)
    monkeypatch.setattr(reconcile_core, "LOOK_S", 0.3)


def states(member: Member) -> dict[str, State]:
    assert member.server.wan is not None
    return {one.name.partition(".")[0]: one.state for one in member.server.wan.gossip.members}


def config_of(member: Member) -> dict[str, str]:
    return {server.name: server.address for server in member.server.raft.core.config.servers}


async def formed(region: Region) -> Member:
    leader = await region.form(3)
    await until("all are in one pool", lambda: all(len(states(one)) == 3 for one in region.running()))
    return leader


def test_a_server_that_comes_back_at_other_addresses_is_found_again(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await formed(region)
        moved = (await region.followers())[0]
        assert leader.server.wan is not None
        before = next(one for one in leader.server.wan.gossip.members if one.id == moved.id)
        await region.stop(moved)

        again = await region.restart(moved, elsewhere=True)

        assert again.id == before.id
        assert again.address != moved.address
        await until("the set has it there", lambda: config_of(leader)[moved.name] == again.address)
        assert leader.server.wan is not None
        wan = leader.server.wan

        def is_known() -> bool:
            now = next(one for one in wan.gossip.members if one.id == before.id)
            return now.inc > before.inc and now.addr == again.server.wan.gossip.address  # type: ignore[union-attr]

        await until("gossip has it there", is_known)
        assert next(one for one in leader.server.directory.servers("eu") if one.id == again.id).rpc == again.address
        await until("raft reaches it", lambda: leader.server.raft.transport.links_up().get(again.id))

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_a_server_that_moved_and_cannot_tell_anybody_is_found_by_gossip(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def says_nothing(_: Joining) -> None:
        """As if nobody that it knows were where it was."""

    async def scenario(region: Region) -> None:
        leader = await formed(region)
        moved = (await region.followers())[0]
        await region.stop(moved)
        monkeypatch.setattr(Joining, "_correct_address", says_nothing)
        again = await region.start(replace(moved.options, rpc_port=0, join=()))
        await until("the set has it there", lambda: config_of(leader)[moved.name] == again.address)
        await until("the leader entered it", lambda: leader.said("server_found_again"))

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_a_server_that_was_forced_to_leave_is_out_of_the_set_and_back_when_it_returns(
    tmp_path: Path, quick: None
) -> None:
    async def scenario(region: Region) -> None:
        leader = await formed(region)
        lost = (await region.followers())[0]
        with pytest.raises(Conflict, match=rf"{lost.name}\.eu is alive"):
            await leader.call(AGENT_FORCE_LEAVE, AgentForceLeaveRequest(name=lost.name))
        with pytest.raises(NotFound, match="no member 's9'"):
            await leader.call(AGENT_FORCE_LEAVE, AgentForceLeaveRequest(name="s9"))
        await region.stop(lost)
        await until("it is dead", lambda: states(leader)[lost.name] is State.DEAD, within_s=20)
        assert lost.name in config_of(leader)  # failed is not gone

        await leader.call(AGENT_FORCE_LEAVE, AgentForceLeaveRequest(name=lost.name))

        await until("it is out", lambda: lost.name not in config_of(leader))
        assert len(leader.server.raft.core.config.voters) == 2

        await region.restart(lost)
        await until("it is back and votes", lambda: len(leader.server.raft.core.config.voters) == 3, within_s=15)
        assert leader.said("server_returned")

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_a_forgotten_server_is_out_of_the_set(tmp_path: Path, quick: None) -> None:
    async def scenario(region: Region) -> None:
        leader = await formed(region)
        lost = (await region.followers())[0]
        await region.stop(lost)
        await until("it is dead", lambda: states(leader)[lost.name] is State.DEAD, within_s=20)

        await leader.call(AGENT_FORCE_LEAVE, AgentForceLeaveRequest(name=f"{lost.name}.eu", prune=True))

        await until("it is out", lambda: lost.name not in config_of(leader))
        assert lost.name not in states(leader)

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_a_server_without_a_quorum_beside_it_is_not_removed(tmp_path: Path, quick: None) -> None:
    async def scenario(region: Region) -> None:
        first = await region.form(2)
        await until("both are in one pool", lambda: all(len(states(one)) == 2 for one in region.running()))
        other = (await region.followers())[0]
        await region.stop(other)
        await until("it is dead", lambda: states(first)[other.name] is State.DEAD, within_s=20)
        await first.call(AGENT_FORCE_LEAVE, AgentForceLeaveRequest(name=other.name))
        await until("it has left", lambda: states(first)[other.name] is State.LEFT)
        autopilot = first.server.office_services[0]
        assert isinstance(autopilot, AutopilotService)
        await until("autopilot is told so", lambda: autopilot._seen()[other.id].status == LEFT)
        actions, _ = autopilot._core.review(trio.current_time(), first.server.raft.core.status(), autopilot._seen())
        assert actions == []
        assert set(config_of(first)) == {"s1", "s2"}

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_one_that_an_operator_removed_is_not_let_in_again(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted: list[str] = []
    greet = Joining.greet

    async def noted(joining: Joining, address: str) -> ServerHello | None:
        greeted.append(address)
        return await greet(joining, address)

    async def scenario(region: Region) -> None:
        leader = await formed(region)
        unwanted = (await region.followers())[0]

        await leader.call(RAFT_REMOVE_PEER, PeerRequest(id=unwanted.id))

        monkeypatch.setattr(Joining, "greet", noted)
        await until("the leader looked at it again and again", lambda: greeted.count(unwanted.address) >= 3)
        assert states(leader)[unwanted.name] is State.ALIVE
        assert unwanted.name not in config_of(leader)

    run_region(tmp_path, scenario, gossip=GOSSIP)


def test_a_pool_is_entered_by_hand(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        here = await region.add("s1", bootstrap_expect=1, gossip=GOSSIP)
        far = await region.add("s2", region="us", join=(), bootstrap_expect=1, gossip=GOSSIP)

        reply = await here.call(AGENT_JOIN, AgentJoinRequest(addresses=(gossip_at(far), "127.0.0.1:1", "no port: x")))

        assert reply.joined == 1
        assert [one.address for one in reply.failures] == ["127.0.0.1:1", "no port: x"]
        assert {one.why for one in reply.failures} == {"no member of the pool answers there"}
        assert here.server.directory.regions() == ("eu", "us")
        with pytest.raises(BadRequest, match="0 addresses"):
            await here.call(AGENT_JOIN, AgentJoinRequest())

    run_region(tmp_path, scenario)


def test_of_two_servers_with_one_name_the_newcomer_is_told_and_ends(tmp_path: Path) -> None:
    gossip = GossipOptions(profile=replace(LOCAL, reclaim_s=0.3))

    async def scenario(region: Region) -> None:
        first = await region.add("s1", bootstrap_expect=1, gossip=gossip)
        await region.leader()
        entering = replace(gossip, join=(gossip_at(first),))
        other = Member(replace(first.options, data_dir=tmp_path / "other", bootstrap_expect=0, gossip=entering))

        with pytest.raises(ExceptionGroup) as ended:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: other.run(task_status=trio.TASK_STATUS_IGNORED))

        why: BaseException = ended.value
        while isinstance(why, BaseExceptionGroup):
            why = why.exceptions[0]
        assert isinstance(why, FedschedError)
        assert why.message == f"gossip: the name s1.eu is taken by {gossip_at(first)}, id {first.id}"
        assert first.is_leader
        assert config_of(first) == {"s1": first.address}

    run_region(tmp_path, scenario)
