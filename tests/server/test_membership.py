"""Who belongs to a region: forming it, joining it, moving, being wiped, leaving, and who leads."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.rpc.methods.autopilot import AUTOPILOT_HEALTH
from fedsched.rpc.methods.raft import (
    RAFT_CHANGE_PEER,
    RAFT_LIST_PEERS,
    RAFT_LOG,
    RAFT_REMOVE_PEER,
    RAFT_TRANSFER_LEADERSHIP,
    LogRequest,
    PeerChangeRequest,
    PeerRequest,
)
from fedsched.rpc.methods.server import (
    SERVER_JOIN,
    SERVER_LEAVE,
    SERVER_MEMBERS,
    ServerJoinRequest,
    ServerLeaveRequest,
)
from fedsched.server.joining import JoinGaveUp
from fedsched.server.leader.office import hold_office
from fedsched.server.members import Members
from tests.server.region import Member, Region, options, run_region, until


def in_config(through: Member, name: str) -> bool:
    return any(server.name == name for server in through.server.raft.core.config.servers)


def is_voter(through: Member, server_id: str) -> bool:
    return through.server.raft.core.config.is_voter(server_id)


def test_leadership_is_handed_to_the_server_that_is_named(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        old, (chosen, other) = await region.leader(), await region.followers()

        await other.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest(id=chosen.name))

        assert await region.leader() is chosen
        await until("the old office is closed", lambda: old.said("office_closed"))
        await until("the new office is open", lambda: chosen.said("office_opened"))
        assert old.said("office_closed")[-1]["term"] < chosen.said("office_opened")[-1]["term"]

    run_region(tmp_path, scenario)


def test_leadership_is_handed_to_the_best_when_nobody_is_named_and_to_nobody_unknown(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        old = await region.leader()

        with pytest.raises(NotFound, match="no server 'nobody' in this region"):
            await old.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest(id="nobody"))
        await old.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest())

        assert await region.leader() is not old

    run_region(tmp_path, scenario)


def test_a_stopping_leader_hands_over_and_a_follower_has_nothing_to_hand_over(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        term = leader.server.raft.core.term

        for follower in await region.followers():
            await follower.server.stop()
        assert leader.server.raft.core.term == term
        await leader.server.stop()

        assert await region.leader() is not leader
        assert (await region.leader()).server.raft.core.term == term + 1

    run_region(tmp_path, scenario)


def test_a_leader_that_nobody_can_succeed_stops_all_the_same(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        for follower in await region.followers():
            await region.stop(follower)

        await leader.server.stop()

    run_region(tmp_path, scenario)


def test_a_removed_server_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (gone, other) = await region.leader(), await region.followers()

        removed = await other.call(RAFT_REMOVE_PEER, PeerRequest(address=gone.address))

        assert (removed.id, removed.address) == (gone.id, gone.address)
        assert await region.voters(leader) == {leader.name, other.name}
        await region.stop(gone)
        await leader.register("web")
        with pytest.raises(BadRequest, match="no server named"):
            await leader.call(RAFT_REMOVE_PEER, PeerRequest())
        with pytest.raises(NotFound, match="no server 'nobody'"):
            await leader.call(RAFT_REMOVE_PEER, PeerRequest(id="nobody"))

    run_region(tmp_path, scenario)


def test_an_operator_takes_a_vote_away_gives_it_back_and_gives_it_to_another(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (one, other) = await region.leader(), await region.followers()

        async def change(what: str, server: Member, **more: Any) -> Any:
            return await other.call(RAFT_CHANGE_PEER, PeerChangeRequest(change=what, id=server.name, **more))

        demoted = await change("demote", one)
        assert (demoted.id, is_voter(leader, one.id), in_config(leader, one.name)) == (one.id, False, True)
        await change("promote", one, config_index=(await leader.call(RAFT_LIST_PEERS)).index)
        assert is_voter(leader, one.id)
        await change("demote", one)
        await change("replace", other, by=one.id)
        assert (is_voter(leader, one.id), is_voter(leader, other.id)) == (True, False)
        with pytest.raises(BadRequest, match="no such change of a server: 'promise'"):
            await change("promise", one)
        with pytest.raises(BadRequest, match="no server named"):
            await change("replace", one, by="")
        with pytest.raises(Conflict, match="membership changed since the caller looked: based on config 1"):
            await change("demote", one, config_index=1)

    run_region(tmp_path, scenario, autopilot=AutopilotSettings(server_stabilization_time_s=600))


def test_the_log_is_shown_by_its_headers_from_where_one_asks(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        written = (await leader.register("web")).index

        whole = await leader.call(RAFT_LOG, LogRequest())
        one = await leader.call(RAFT_LOG, LogRequest(first=written, last=written))

        assert (whole.first, whole.last) == (1, leader.server.raft.core.log.last)
        assert [entry.index for entry in whole.entries] == list(range(1, whole.last + 1))
        assert [(entry.index, entry.kind) for entry in one.entries] == [(written, "command")]
        assert one.entries[0].size > 100
        for first, last in ((1 << 40, 0), (5, 2)):
            assert (await leader.call(RAFT_LOG, LogRequest(first=first, last=last))).entries == ()

    run_region(tmp_path, scenario)


def test_a_fourth_server_listens_until_a_fifth_makes_it_worth_their_votes(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        await leader.register("web")

        fourth = await region.add("s4", bootstrap_expect=0)
        await until("s4 is in", lambda: in_config(leader, "s4"))
        assert (await fourth.job("web")).id == "web"
        health = await fourth.call(AUTOPILOT_HEALTH)
        assert len(health.voters) == 3  # four voters survive no more failures than three

        await region.add("s5")
        await until("five votes", lambda: len(leader.server.raft.core.config.voters) == 5)

        assert await region.voters(leader) == {"s1", "s2", "s3", "s4", "s5"}
        health = await fourth.call(AUTOPILOT_HEALTH)
        assert (health.failure_tolerance, health.leader, len(health.servers)) == (2, leader.id, 5)
        assert leader.said("autopilot")

    run_region(tmp_path, scenario)


def test_a_wiped_server_comes_back_under_a_new_id_and_its_former_self_is_let_go(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (wiped, _) = await region.leader(), await region.followers()
        await leader.register("web")
        await region.stop(wiped)
        shutil.rmtree(wiped.options.data_dir)

        again = await region.restart(wiped)

        assert again.id != wiped.id
        await until("its former self is gone", lambda: leader.server.raft.core.config.server(wiped.id) is None)
        await until("it votes again", lambda: is_voter(leader, again.id))
        assert (await again.job("web")).id == "web"
        assert leader.said("server_was_wiped")[0]["former_id"] == wiped.id

    run_region(tmp_path, scenario)


def test_a_leader_that_was_not_told_of_a_wiped_server_sees_it_by_who_answers_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Members, "say_goodbye", lambda *_: None)

    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (wiped, _) = await region.leader(), await region.followers()
        await region.stop(wiped)
        shutil.rmtree(wiped.options.data_dir)

        again = await region.restart(wiped)

        await until("its former self is gone", lambda: leader.server.raft.core.config.server(wiped.id) is None)
        await until("it votes again", lambda: is_voter(leader, again.id))

    run_region(tmp_path, scenario)


@pytest.mark.parametrize("join", [(), ("127.0.0.1:1",)], ids=["knows nobody", "was told of somebody who is gone"])
def test_a_server_that_moved_tells_the_others_where_it_is(tmp_path: Path, join: tuple[str, ...]) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (moving, _) = await region.leader(), await region.followers()
        await region.stop(moving)

        moved = await region.start(replace(moving.options, rpc_port=0, join=join))

        assert (moved.id, moved.address != moving.address) == (moving.id, True)
        await until("its address is known", lambda: leader.server.raft.core.config.server(moved.id) == moved.server.me)
        await leader.register("web")
        assert (await moved.job("web")).id == "web"

    run_region(tmp_path, scenario)


def test_a_lone_server_that_moved_corrects_its_own_entry(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        await region.stop(lone)

        moved = await region.restart(lone, elsewhere=True)

        await until("its address is known", lambda: moved.server.raft.core.config.servers == (moved.server.me,))

    run_region(tmp_path, scenario)


def test_a_name_that_is_taken_and_a_server_too_old_are_refused(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        newcomer = ServerJoinRequest(id="x", name=leader.name, address="127.0.0.1:1")

        with pytest.raises(Conflict, match=f"there is a server named {leader.name!r} already") as taken:
            await leader.call(SERVER_JOIN, newcomer)
        with pytest.raises(BadRequest, match="understands commands up to version 0") as old:
            await leader.call(SERVER_JOIN, structs.replace(newcomer, name="new", version_max=0))

        assert f"remove-peer -peer-id {leader.id}" in taken.value.hint
        assert old.value.hint == "upgrade it first"

    run_region(tmp_path, scenario)


def test_a_newcomer_whose_name_is_taken_waits_and_says_why(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        double = await region.add("s1", data_dir=tmp_path / "double", join=(leader.address,))
        await until("it says why", lambda: double.said("not_let_in_yet"))

        assert "there is a server named 's1' already" in double.said("not_let_in_yet")[0]["why"]
        assert leader.server.raft.core.config.members == {leader.id}

    run_region(tmp_path, scenario)


def test_joining_twice_changes_nothing(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()
        before = (await leader.call(RAFT_LIST_PEERS)).index
        me = follower.server.me

        reply = await follower.call(SERVER_JOIN, ServerJoinRequest(id=me.id, name=me.name, address=me.address))

        assert (reply.is_voter, reply.index) == (True, before)
        assert reply.cluster_id == leader.server.raft.transport.cluster_id

    run_region(tmp_path, scenario)


def test_a_server_that_leaves_is_taken_out_whoever_leads(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, other) = await region.leader(), await region.followers()

        await follower.server.leave()
        assert not in_config(leader, follower.name)
        await region.stop(follower)
        await leader.server.leave()
        await region.stop(leader)

        await until("the last one leads alone", lambda: other.is_leader)
        assert await region.voters(other) == {other.name}
        with pytest.raises(NotFound, match="no server 'nobody' in this region"):
            await other.call(SERVER_LEAVE, ServerLeaveRequest(id="nobody"))

    run_region(tmp_path, scenario)


def test_leaving_a_region_that_does_not_let_go_is_noted_and_not_waited_for(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)

        await lone.server.leave()

        assert lone.said("not_left")

    run_region(tmp_path, scenario)


def test_a_server_nobody_answers_gives_up_after_its_attempts_and_says_whom_it_missed(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.add("s1", join=("127.0.0.1:1",), join_attempts_max=2)
        await trio.sleep_forever()

    with pytest.raises(JoinGaveUp) as gave_up:
        run_region(tmp_path, scenario)

    assert gave_up.value.message == "no region to join after 2 attempts: 1 of 3 expected servers are here: s1"
    assert "retry_join" in gave_up.value.hint


def test_a_server_of_another_region_is_not_let_in(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        stranger = await region.add("s9", region="us", bootstrap_expect=2)
        await until("both sides say why", lambda: leader.said("greeting_refused") and stranger.said("greeting_refused"))

        assert leader.said("greeting_refused")[0]["why"] == "server s9 is of region 'us', we are of 'eu'"
        assert not in_config(leader, "s9")
        assert (await stranger.call(SERVER_MEMBERS)).members == ()

    run_region(tmp_path, scenario)


def test_two_servers_that_expect_different_numbers_found_nothing(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        one = await region.add("s1", bootstrap_expect=2)
        two = await region.add("s2", bootstrap_expect=3)

        await until("both wait", lambda: "make bootstrap_expect the same" in str(one.said("region_refused")))

        assert not one.server.raft.core.config.members
        assert not two.server.raft.core.config.members

    run_region(tmp_path, scenario)


def test_a_cluster_is_joined_once_however_many_call_at_the_same_moment(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        member = await region.add("s1", bootstrap_expect=3)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(member.server.raft.join_cluster, "c1")

        with pytest.raises(Conflict, match="belongs to cluster c1, not c2"):
            await member.server.raft.join_cluster("c2")

    run_region(tmp_path, scenario)


def test_a_data_directory_serves_one_server_at_a_time(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        twin = Member(options(region.directory, "s1"))

        with pytest.raises(Exception, match="s1"):
            await twin.server.run()

    run_region(tmp_path, scenario)


class Duty:
    """A leader-only service that notes when it is at work."""

    def __init__(self, story: list[str], name: str) -> None:
        self._story = story
        self._name = name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._story.append(f"{self._name} began")
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self._story.append(f"{self._name} ended")


def test_an_office_starts_its_services_in_order_and_ends_them_as_a_whole() -> None:
    story: list[str] = []

    async def main() -> None:
        office: Any = None
        with trio.move_on_after(0.01):
            await hold_office(office, [Duty(story, "first"), Duty(story, "second")])

    trio.run(main)

    assert story[:2] == ["first began", "second began"]
    assert sorted(story[2:]) == ["first ended", "second ended"]


def test_a_new_leader_takes_up_its_duties_in_this_order(tmp_path: Path) -> None:
    """Plans can be committed before evaluations are handed out, and timers of silent nodes come last."""

    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        assert [type(service).__name__ for service in leader.server.office_services] == [
            "AutopilotService",
            "ReconcileService",
            "VersionService",
            "PlanApplier",
            "BrokerService",
            "ClientUpdatesService",
            "DeploymentsService",
            "DrainService",
            "PeriodicService",
            "RolloutsService",
            "GcService",
            "HeartbeatsService",
        ]

    run_region(tmp_path, scenario)


def test_leader_only_services_end_with_their_leadership(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        story: list[str] = []
        leader.server.office_services.append(Duty(story, "duty"))
        await leader.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest())
        successor = await region.leader()
        await successor.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest(id=leader.id))
        await until("the duty is taken up", lambda: story[-1:] == ["duty began"])

        for follower in await region.followers():
            await region.stop(follower)
        await until("the duty has ended", lambda: story[-1:] == ["duty ended"])

        assert not leader.server.raft.is_leader

    run_region(tmp_path, scenario)
