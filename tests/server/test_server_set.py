"""Changes of the server set that are asked for more than once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.model.errors import BadRequest, NotFound
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.errors import OutcomeUnknown, ProposalRefused
from fedsched.raft.membership import (
    AddLearner,
    Config,
    ConfigChange,
    Demote,
    Promote,
    Readdress,
    Remove,
    Removed,
    Replace,
    settled,
)
from fedsched.raft.membership import changed as config_after
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.methods.raft import (
    RAFT_CHANGE_PEER,
    RAFT_REMOVE_PEER,
    PeerChangeRequest,
    PeerRequest,
)
from fedsched.rpc.methods.server import SERVER_JOIN, SERVER_LEAVE, ServerJoinRequest, ServerLeaveRequest
from fedsched.server.server_set import (
    Wanted,
    admission,
    find,
    peer_change,
    removal,
    request_name,
    settled_config,
)
from tests.raft.region import a_config, a_server
from tests.server.region import Region, run_region, until

NOBODY_DECIDES = AutopilotSettings(server_stabilization_time_s=600)


def after(config: Config, change: ConfigChange | None) -> Config:
    assert change is not None
    return settled(config_after(config, change))


def test_a_request_is_named_alike_whenever_it_is_repeated_and_unlike_any_other() -> None:
    requests = [RequestID(session="s", seq=1), RequestID(session="s", seq=2), RequestID(session="t", seq=1)]
    names = [request_name(CallMeta(request_id=one)) for one in requests]

    assert names[0] == request_name(CallMeta(request_id=RequestID(session="s", seq=1), hops=("s2",)))
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {32}
    assert request_name(CallMeta()) == ""


@pytest.mark.parametrize(
    "peer", [PeerRequest(id="3"), PeerRequest(id="server-3"), PeerRequest(address="127.0.0.1:7003")]
)
def test_a_member_is_removed_and_the_same_request_again_finds_that_it_was(peer: PeerRequest) -> None:
    before = a_config("123")

    first = removal(before, peer, "us")
    left = after(before, first.change)

    assert first == Wanted(a_server("3"), Remove("3", "us"))
    assert removal(left, peer, "us") == Wanted(a_server("3"), None, is_own=True)
    assert removal(left, peer, "somebody else") == Wanted(a_server("3"), None)
    assert removal(left, peer, "") == Wanted(a_server("3"), None)


def test_a_retry_does_not_remove_the_one_that_came_in_its_place() -> None:
    left = after(a_config("123"), Remove("3", "us"))
    successor = replace(a_server("4"), name="server-3")
    refilled = after(left, AddLearner(successor))

    assert removal(refilled, PeerRequest(id="server-3"), "us") == Wanted(a_server("3"), None, is_own=True)
    assert removal(refilled, PeerRequest(id="server-3"), "later") == Wanted(successor, Remove("4", "later"))


def test_a_server_nobody_has_heard_of_is_not_found_and_those_there_are_are_named() -> None:
    config = a_config("12", removed="3")

    with pytest.raises(NotFound, match="no server '9' in this region") as missing:
        removal(config, PeerRequest(id="9"), "us")
    with pytest.raises(NotFound, match=r"no server '10\.9\.9\.9:1' in this region"):
        find(config, PeerRequest(address="10.9.9.9:1"))
    with pytest.raises(BadRequest, match="no server named"):
        removal(config, PeerRequest(), "us")

    assert missing.value.hint == "there are server-1 (1), server-2 (2)"


@pytest.mark.parametrize(
    ("request_", "change"),
    [
        (PeerChangeRequest(change="promote", id="4"), Promote("4")),
        (PeerChangeRequest(change="demote", id="server-2"), Demote("2")),
        (PeerChangeRequest(change="replace", id="1", by="4"), Replace("1", "4", "us")),
    ],
)
def test_a_change_of_votes_that_was_made_is_not_made_again(request_: PeerChangeRequest, change: ConfigChange) -> None:
    before = a_config("123", "4")

    assert peer_change(before, request_, "us").change == change
    assert peer_change(after(before, change), request_, "us").change is None
    assert peer_change(after(before, change), request_, "another").change is None


def test_a_replacement_is_done_only_if_both_halves_are() -> None:
    config = a_config("12", "4", removed="3")

    with pytest.raises(NotFound, match="no server '3'"):
        peer_change(config, PeerChangeRequest(change="replace", id="3", by="4"), "us")
    with pytest.raises(NotFound, match="no server '9'"):
        peer_change(config, PeerChangeRequest(change="replace", id="9", by="1"), "us")
    with pytest.raises(NotFound, match="no server '9'"):
        peer_change(config, PeerChangeRequest(change="replace", id="1", by="9"), "us")
    with pytest.raises(BadRequest, match="no server named"):
        peer_change(config, PeerChangeRequest(change="replace", id="1"), "us")


def test_who_is_in_is_let_in_once() -> None:
    config, newcomer = a_config("1"), a_server("2")
    moved = replace(newcomer, address="10.9.9.9:4647")

    assert admission(config, newcomer) == AddLearner(newcomer)
    assert admission(after(config, AddLearner(newcomer)), newcomer) is None
    assert admission(after(config, AddLearner(newcomer)), moved) == Readdress(moved)


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, region: Region) -> list[Any]:
    """Let the next change of the set be made, and its proposer not hear of it."""
    lost: list[Any] = []
    for member in region.running():
        raft = member.server.raft
        real = raft.change_config

        async def change_config(change: Any, based_on: int | None = None, real: Any = real) -> int:
            index: int = await real(change, based_on)
            if not lost:
                lost.append(change)
                raise OutcomeUnknown("leadership was lost before the answer")
            return index

        monkeypatch.setattr(raft, "change_config", change_config)
    return lost


def test_a_removal_whose_answer_was_lost_is_a_success_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (gone, other) = await region.leader(), await region.followers()
        lost = lose_the_answer(monkeypatch, region)

        removed = await other.call(RAFT_REMOVE_PEER, PeerRequest(id=gone.name))

        assert [change.id for change in lost] == [gone.id]
        assert (removed.id, removed.address, removed.already) == (gone.id, gone.address, False)
        assert len(leader.said("server_removed")) == 0  # nobody was told at the time
        again = await other.call(RAFT_REMOVE_PEER, PeerRequest(id=gone.id))
        assert (again.id, again.already, again.index) == (gone.id, True, removed.index)
        with pytest.raises(NotFound, match="no server 'nobody'"):
            await other.call(RAFT_REMOVE_PEER, PeerRequest(id="nobody"))

    run_region(tmp_path, scenario, autopilot=NOBODY_DECIDES)


def test_another_leader_answers_for_what_the_one_before_did(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (gone, other) = await region.leader(), await region.followers()
        request_id = RequestID(session="operator", seq=1)
        await leader.call(RAFT_REMOVE_PEER, PeerRequest(id=gone.name), request_id=request_id)
        await region.stop(gone)
        await until("it is over", lambda: not leader.server.raft.core.config.is_joint)

        await leader.server.stop()  # hands over
        await until("the other leads", lambda: other.is_leader)
        again = await other.call(RAFT_REMOVE_PEER, PeerRequest(id=gone.name), request_id=request_id)

        assert (again.id, again.already) == (gone.id, False)

    run_region(tmp_path, scenario, autopilot=NOBODY_DECIDES)


@pytest.mark.parametrize("what", ["demote", "promote", "replace"])
def test_a_change_of_votes_whose_answer_was_lost_is_a_success_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (one, other) = await region.leader(), await region.followers()
        if what != "demote":
            await leader.call(RAFT_CHANGE_PEER, PeerChangeRequest(change="demote", id=one.id))
        lose_the_answer(monkeypatch, region)
        target, by = (other.id, one.id) if what == "replace" else (one.id, "")
        seen = leader.server.raft.core.history.index

        reply = await leader.call(RAFT_CHANGE_PEER, PeerChangeRequest(change=what, id=target, by=by, config_index=seen))

        assert reply.id == target
        assert leader.server.raft.core.config.is_voter(one.id) == (what != "demote")

    run_region(tmp_path, scenario, autopilot=NOBODY_DECIDES)


def test_joining_and_leaving_whose_answers_were_lost_are_successes_when_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        newcomer = ServerJoinRequest(id="new", name="s9", address="127.0.0.1:1")
        lost = lose_the_answer(monkeypatch, region)

        joined = await lone.call(SERVER_JOIN, newcomer)
        assert not joined.is_voter
        assert lone.server.raft.core.config.learners == {"new"}
        lost.clear()
        left = await lone.call(SERVER_LEAVE, ServerLeaveRequest(id="new"))

        assert lone.server.raft.core.config.learners == frozenset()
        again = await lone.call(SERVER_LEAVE, ServerLeaveRequest(id="new"))
        assert again.index == left.index > joined.index

    run_region(tmp_path, scenario, autopilot=NOBODY_DECIDES)


def test_nothing_is_said_of_a_set_that_is_being_changed() -> None:
    class Core:
        commit = 7

        def __init__(self, config: Config, index: int) -> None:
            self.config = config
            self.history = type("History", (), {"index": index})

    class Raft:
        def __init__(self, core: Core) -> None:
            self.core = core

        async def read_barrier(self) -> int:
            return 7

    async def ask(config: Config, index: int) -> Config:
        return await settled_config(Raft(Core(config, index)))  # type: ignore[arg-type]

    assert trio.run(ask, a_config("123"), 7) == a_config("123")
    for config, index in ((a_config("123"), 8), (a_config("12", outgoing="123"), 7)):
        with pytest.raises(ProposalRefused, match="under way"):
            trio.run(ask, config, index)


def test_a_server_that_left_is_told_apart_by_id_from_one_of_the_same_name() -> None:
    namesake = replace(a_server("4"), name="server-3", address="127.0.0.1:7003")
    config = replace(a_config("12"), removed=(Removed(a_server("3")), Removed(namesake)))

    assert removal(config, PeerRequest(id="3"), "us").server == a_server("3")
    assert removal(config, PeerRequest(id="server-3"), "us").server == namesake
