from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.errors import Unavailable
from fedsched.model.region import ListedMember, MemberStatus
from fedsched.rpc.methods.server import REGION_LIST, SERVER_MEMBERS, RegionListReply, RegionRow, ServerMembersReply
from fedsched.rpc.methods.status import STATUS_LEADER, LeaderReply
from tests.verbs.commands import fedsched


def a_member(name: str, region: str = "eu", status: MemberStatus = MemberStatus.ALIVE) -> ListedMember:
    tags = {"region": region, "dc": "dc1", "build": "0.1.0", "port": "4647", "raft_vsn": "3", "id": f"id-{name}"}
    return ListedMember(name=f"{name}.{region}", addr=f"10.0.0.{name[-1]}", port=4648, tags=tags, status=status)


MEMBERS = ServerMembersReply(
    members=(a_member("us-1", "us"), a_member("eu-2", status=MemberStatus.FAILED), a_member("eu-1"))
)


def leader_of(_: Any, context: Any) -> LeaderReply:
    if context.meta.region == "us":
        raise ConnectionRefused("no route to region 'us'")
    return LeaderReply(leader="10.0.0.1:4647", id="id-eu-1")


class ConnectionRefused(Unavailable):
    """Final, so that the command does not wait for better weather."""

    code = "rejected"


def test_members_are_sorted_by_region_and_name_and_an_unreachable_region_is_only_a_warning() -> None:
    seen = fedsched("server members", {SERVER_MEMBERS: lambda _: MEMBERS, STATUS_LEADER: leader_of})

    assert seen.out == (
        "Name     Address   Port  Status  Leader  Raft Version  Build  Datacenter  Region\n"
        "eu-1.eu  10.0.0.1  4648  alive   true    3             0.1.0  dc1         eu\n"
        "eu-2.eu  10.0.0.2  4648  failed  false   3             0.1.0  dc1         eu\n"
        "us-1.us  10.0.0.1  4648  alive   false   3             0.1.0  dc1         us\n"
    )
    assert seen.err == "Error determining leaders: region us: no route to region 'us'\n"
    assert seen.code == 0


def test_a_region_without_a_leader_is_warned_of() -> None:
    reply = ServerMembersReply(members=(a_member("eu-1"),))

    seen = fedsched("server members", {SERVER_MEMBERS: lambda _: reply, STATUS_LEADER: lambda _: LeaderReply()})

    assert seen.err == "Error determining leaders: region eu has no leader\n"
    assert "false" in seen.out
    assert seen.code == 0


def test_a_leader_without_an_id_is_known_by_its_address() -> None:
    reply = ServerMembersReply(members=(a_member("eu-1"), a_member("eu-2")))

    seen = fedsched(
        "server members",
        {SERVER_MEMBERS: lambda _: reply, STATUS_LEADER: lambda _: LeaderReply(leader="10.0.0.2:4647")},
    )

    assert [line.split()[4] for line in seen.out.splitlines()] == ["Leader", "false", "true"]


def test_verbose_shows_every_tag() -> None:
    seen = fedsched("server members -verbose", {SERVER_MEMBERS: lambda _: MEMBERS})

    assert seen.out.splitlines()[1] == (
        "eu-1.eu  10.0.0.1  4648  build=0.1.0,dc=dc1,id=id-eu-1,port=4647,raft_vsn=3,region=eu"
    )


def test_json_is_the_list_as_the_api_gives_it() -> None:
    seen = fedsched("server-members -json", {SERVER_MEMBERS: lambda _: MEMBERS})

    parsed = json.loads(seen.out)
    assert [one["Name"] for one in parsed] == ["eu-1.eu", "eu-2.eu", "us-1.us"]
    assert (parsed[0]["Addr"], parsed[0]["Status"], parsed[0]["Tags"]["dc"]) == ("10.0.0.1", "alive", "dc1")


def test_a_template_formats_what_json_prints() -> None:
    seen = fedsched("server members -t '{{range .}}{{.Name}} {{end}}'", {SERVER_MEMBERS: lambda _: MEMBERS})

    assert seen.out == "eu-1.eu eu-2.eu us-1.us \n"


def test_json_and_template_together_are_refused() -> None:
    seen = fedsched("server members -json -t x", {SERVER_MEMBERS: lambda _: MEMBERS})

    assert seen.err.startswith("Error: Both json and template formatting are not allowed\n")
    assert (seen.code, seen.out) == (1, "")


def test_details_say_who_is_suspected_and_how_far_everybody_is_without_asking_other_regions() -> None:
    suspect = replace(a_member("us-1", "us"), is_suspect=True, round_trip_ms=93.24)
    members = (a_member("eu-1"), a_member("eu-2"), suspect)
    reply = ServerMembersReply(server_name="eu-2", server_region="eu", members=members)
    regions = RegionListReply(regions=(RegionRow(name="us", leader="us-1.us"),))

    seen = fedsched("server members -detailed", {SERVER_MEMBERS: lambda _: reply, REGION_LIST: lambda _: regions})

    assert seen.out == (
        "Name     Address   Port  Status  Suspect  Leader  Region  Datacenter  Build  Round Trip  ID\n"
        "eu-1.eu  10.0.0.1  4648  alive   false    false   eu      dc1         0.1.0  <unknown>   id-eu-1\n"
        "eu-2.eu  10.0.0.2  4648  alive   false    false   eu      dc1         0.1.0  -           id-eu-2\n"
        "us-1.us  10.0.0.1  4648  alive   true     true    us      dc1         0.1.0  93.2 ms     id-us-1\n"
    )


@pytest.mark.parametrize(
    ("flag", "names", "code", "err"),
    [
        ("-region us", ["us-1.us"], 0, ""),
        ("-region us,eu", ["eu-1.eu", "eu-2.eu", "us-1.us"], 0, ""),
        ("-region us,mars", ["us-1.us"], 2, "Error: no server of region 'mars' is known; there are eu, us\n"),
        ("-region mars", [], 1, "Error: no server of region 'mars' is known; there are eu, us\n"),
    ],
)
def test_members_of_the_named_regions_are_picked_from_what_the_agent_knows(
    flag: str, names: list[str], code: int, err: str
) -> None:
    seen = fedsched(f"server members -json {flag}", {SERVER_MEMBERS: lambda _: MEMBERS})

    assert [one["Name"] for one in json.loads(seen.out)] == names
    assert (seen.code, seen.err) == (code, err)
    assert [meta.region for meta in seen.agent.metas(SERVER_MEMBERS)] == [""]
