from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsched.model.errors import NotFound
from fedsched.model.region import MemberStatus, RaftConfiguration, RaftServer, RegionHealth, ServerHealth
from fedsched.rpc.methods.agent import AGENT_METRICS, AGENT_SELF, AgentMetricsReply, AgentSelfReply
from fedsched.rpc.methods.autopilot import AUTOPILOT_HEALTH
from fedsched.rpc.methods.raft import (
    RAFT_CHANGE_PEER,
    RAFT_LIST_PEERS,
    RAFT_LOG,
    RAFT_REMOVE_PEER,
    RAFT_TRANSFER_LEADERSHIP,
    LogEntryHeader,
    LogReply,
    LogRequest,
    PeerChangeRequest,
    PeerReply,
    PeerRequest,
)
from tests.verbs.commands import fedsched

PEERS = RaftConfiguration(
    servers=(
        RaftServer(id="id-1", node="eu-1.eu", address="127.0.0.1:4647", leader=True, voter=True),
        RaftServer(id="id-2", node="eu-2.eu", address="127.0.0.1:4657", voter=False),
    ),
    index=12,
)


def test_list_peers_shows_state_and_vote() -> None:
    seen = fedsched("operator raft list-peers", {RAFT_LIST_PEERS: lambda _: PEERS})

    assert seen.out == (
        "Node     ID    Address         State     Voter  RaftProtocol\n"
        "eu-1.eu  id-1  127.0.0.1:4647  leader    true   3\n"
        "eu-2.eu  id-2  127.0.0.1:4657  follower  false  3\n"
    )
    assert seen.agent.metas(RAFT_LIST_PEERS)[0].stale is False


def test_list_peers_as_json_and_stale() -> None:
    seen = fedsched("operator raft list-peers -json -stale", {RAFT_LIST_PEERS: lambda _: PEERS})

    parsed = json.loads(seen.out)
    assert [(one["Node"], one["Leader"]) for one in parsed["Servers"]] == [("eu-1.eu", True), ("eu-2.eu", False)]
    assert parsed["Index"] == 12
    assert seen.agent.metas(RAFT_LIST_PEERS)[0].stale is True


def test_remove_peer_by_id_or_address() -> None:
    answers = {RAFT_REMOVE_PEER: lambda _: PeerReply(id="id-2", address="127.0.0.1:4657", index=13)}

    by_id = fedsched("operator raft remove-peer -peer-id id-2", answers)
    by_address = fedsched("operator raft remove-peer -peer-address=127.0.0.1:4657 -json", answers)

    assert (by_id.code, by_id.out) == (0, 'Removed peer with id "id-2"\n')
    assert by_id.agent.requests(RAFT_REMOVE_PEER) == [PeerRequest(id="id-2")]
    assert by_id.agent.metas(RAFT_REMOVE_PEER)[0].request_id is not None
    assert by_address.agent.requests(RAFT_REMOVE_PEER) == [PeerRequest(address="127.0.0.1:4657")]
    assert json.loads(by_address.out)["ID"] == "id-2"


def test_what_was_done_before_is_said_to_be() -> None:
    earlier = PeerReply(id="id-2", address="127.0.0.1:4657", index=13, already=True)

    removed = fedsched("operator raft remove-peer -peer-id id-2", {RAFT_REMOVE_PEER: lambda _: earlier})
    promoted = fedsched("operator raft change-peer promote id-2", {RAFT_CHANGE_PEER: lambda _: earlier})

    assert (removed.code, removed.out) == (0, 'Removed earlier: peer with id "id-2"\n')
    assert (promoted.code, promoted.out) == (0, 'Nothing to change for peer with id "id-2" (promote)\n')


def test_remove_peer_needs_to_know_which_one() -> None:
    assert fedsched("operator raft remove-peer").err.startswith(
        "Error: which server is meant?\n  give -peer-id; `operator raft list-peers` shows the ids\n"
    )
    both = fedsched("operator raft remove-peer -peer-id x -peer-address y")
    assert both.err.startswith("Error: -peer-id and -peer-address were both given\n")
    assert both.code == 1


def test_a_refusal_of_the_leader_is_passed_on() -> None:
    def refuse(_: PeerRequest) -> PeerReply:
        raise NotFound('id "id-9" was not found in the Raft configuration', hint="look at list-peers")

    seen = fedsched("operator raft remove-peer -peer-id id-9", {RAFT_REMOVE_PEER: refuse})

    assert seen.err == 'Error: id "id-9" was not found in the Raft configuration\n  look at list-peers\n'
    assert seen.code == 1


def test_leadership_goes_to_whom_it_is_handed() -> None:
    seen = fedsched(
        "operator raft transfer-leadership -peer-id=id-2", {RAFT_TRANSFER_LEADERSHIP: lambda _: PeerReply(id="id-2")}
    )

    assert seen.out == 'Transferred leadership to peer with id "id-2"\n'
    assert seen.agent.requests(RAFT_TRANSFER_LEADERSHIP) == [PeerRequest(id="id-2")]


def a_health(is_healthy: bool) -> RegionHealth:
    server = ServerHealth(
        id="id-1",
        name="eu-1",
        address="127.0.0.1:4647",
        serf_status=MemberStatus.ALIVE,
        version="0.1.0",
        leader=True,
        voter=True,
        healthy=is_healthy,
        last_term=3,
        last_index=99,
        last_contact_s=0.025,
    )
    return RegionHealth(healthy=is_healthy, failure_tolerance=1, servers=(server,), leader="id-1", voters=("id-1",))


@pytest.mark.parametrize(("is_healthy", "code"), [(True, 0), (False, 1)])
def test_health_is_also_the_exit_code(is_healthy: bool, code: int) -> None:
    answers = {AUTOPILOT_HEALTH: lambda _: a_health(is_healthy)}
    word = "true" if is_healthy else "false"

    seen = fedsched("operator autopilot health", answers)

    assert seen.code == code
    assert seen.out.startswith(
        f"Healthy           = {word}\nFailure Tolerance = 1\nLeader            = id-1\nVoters            = 1\n"
        "\nServers\nID "
    )
    assert seen.out.splitlines()[-1].split() == (
        f"id-1 eu-1 127.0.0.1:4647 alive 0.1.0 true true {word} 25ms 3 99".split()
    )
    as_json = fedsched("operator autopilot health -json", answers)
    assert json.loads(as_json.out)["Healthy"] is is_healthy
    assert as_json.code == code


def test_metrics_in_either_form() -> None:
    def answer(request: object) -> AgentMetricsReply:
        form = request.format  # type: ignore[attr-defined]
        return AgentMetricsReply(body=b'{"Gauges":[]}' if form == "json" else b"# HELP x y\nx 1\n")

    answers = {AGENT_METRICS: answer}

    assert fedsched("operator metrics", answers).out == '{"Gauges":[]}\n'
    assert fedsched("operator metrics -pretty", answers).out == '{\n    "Gauges": []\n}\n'
    assert fedsched("operator metrics -json", answers).out == '{\n    "Gauges": []\n}\n'
    assert fedsched("operator metrics -t '{{len .Gauges}}'", answers).out == "0\n"
    assert fedsched("operator metrics -format prometheus", answers).out == "# HELP x y\nx 1\n"
    assert fedsched("operator metrics -format xml", answers).err.startswith("Error: -format 'xml' is not known\n")


def test_agent_info_shows_figures_by_area() -> None:
    reply = AgentSelfReply(
        name="eu-1",
        config={"Region": "eu"},
        stats={"raft": {"term": "3", "state": "Leader"}, "nomad": {"server": "true"}},
    )
    answers = {AGENT_SELF: lambda _: reply}

    assert fedsched("agent-info", answers).out == "nomad\n  server = true\nraft\n  state = Leader\n  term = 3\n"
    assert json.loads(fedsched("agent-info -json", answers).out)["config"] == {"Region": "eu"}


def test_version_talks_to_nobody() -> None:
    for line in ("version", "-version", "--version"):
        assert fedsched(line).out.startswith("fedsched v0.1.0\nPython 3.")


@pytest.fixture
def recovered(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where recovery was carried out; nothing really is."""
    directories: list[Path] = []

    class Done:
        def explain(self) -> str:
            return "done"

    def recover(directory: Path) -> Done:
        directories.append(directory)
        return Done()

    monkeypatch.setattr("fedsched.raft.recover.recover", recover)
    return directories


def test_recovery_asks_first_and_only_y_goes_on(recovered: list[Path]) -> None:
    question = "Have all other servers been lost for good, and may /d go on alone? [y/N] "

    refused = fedsched("operator raft recover -data-dir /d", typed="n\n")
    assert (refused.code, refused.out, recovered) == (1, question + "Cancelled\n", [])

    agreed = fedsched("operator raft recover -data-dir /d", typed="y\n")
    assert (agreed.code, agreed.out) == (0, question + "done\n")
    assured = fedsched("operator raft recover -yes -data-dir /d")
    assert (assured.code, assured.out) == (0, "done\n")
    assert recovered == [Path("/d/server")] * 2


def test_recovery_needs_to_know_where(recovered: list[Path]) -> None:
    seen = fedsched("operator raft recover -yes")

    assert seen.err.startswith("Error: -data-dir is missing\n  name the data_dir of the stopped agent\n")
    assert (seen.code, recovered) == (1, [])


def test_change_peer_says_what_it_asked_for() -> None:
    answers = {RAFT_CHANGE_PEER: lambda _: PeerReply(id="id-2", address="127.0.0.1:4657", index=14)}

    promoted = fedsched("operator raft change-peer promote eu-2", answers)
    replaced = fedsched("operator raft change-peer replace eu-1 -by eu-2 -config-index 12 -json", answers)

    assert (promoted.code, promoted.out) == (0, 'Changed peer with id "id-2" (promote)\n')
    assert promoted.agent.requests(RAFT_CHANGE_PEER) == [PeerChangeRequest(change="promote", id="eu-2")]
    assert replaced.agent.requests(RAFT_CHANGE_PEER) == [
        PeerChangeRequest(change="replace", id="eu-1", by="eu-2", config_index=12)
    ]
    assert json.loads(replaced.out)["Index"] == 14


def test_the_log_is_listed_without_its_content() -> None:
    reply = LogReply(first=1, last=2, entries=(LogEntryHeader(index=2, term=3, kind="command", size=40),))

    seen = fedsched("operator raft log -first 2", {RAFT_LOG: lambda _: reply})

    assert seen.out == "Index  Term  Kind     Size\n2      3     command  40\n"
    assert seen.agent.requests(RAFT_LOG) == [LogRequest(first=2)]


def test_recover_wants_a_directory_and_a_yes(tmp_path: Path) -> None:
    without = fedsched("operator raft recover -yes", {})
    unsure = fedsched(f"operator raft recover -data-dir {tmp_path}", {}, stdin="n\n")
    nothing_there = fedsched(f"operator raft recover -yes -data-dir {tmp_path}", {})

    assert "-data-dir is missing" in without.err
    assert (unsure.code, unsure.out.endswith("Cancelled\n")) == (1, True)
    assert "is no server's data directory" in nothing_there.err
