"""What a server says of regions and servers besides their names: how far they are, and how far apart the clocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from fedsched.federation.directory import Directory
from fedsched.model.region import ServerMember
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import RegionRow
from fedsched.server.endpoints.server import ServerEndpoint
from tests.federation.builders import a_member

NEAR, FAR = a_member("e1", "eu"), a_member("u1", "us")


def an_endpoint(directory: Directory) -> ServerEndpoint:
    desk: Any = SimpleNamespace(region="eu", datacenter="dc1", me=SimpleNamespace(name="e1"), raft=None)
    members: Any = SimpleNamespace(listed=lambda _: (NEAR,))
    return ServerEndpoint(desk, members, lambda hello: hello, directory, lambda: (FAR,))


def a_directory() -> Directory:
    directory = Directory("eu")
    directory.member_seen(NEAR)
    directory.member_seen(FAR, is_suspect=True)
    return directory


def regions(directory: Directory) -> dict[str, RegionRow]:
    nothing: Any = None
    return {one.name: one for one in trio.run(an_endpoint(directory).regions, Empty(), nothing).regions}


def members(directory: Directory) -> dict[str, ServerMember]:
    nothing: Any = None
    return {one.region: one for one in trio.run(an_endpoint(directory).members, Empty(), nothing).members}


def test_the_way_to_another_region_and_its_clock_are_told_once_they_were_measured() -> None:
    directory = a_directory()
    assert (regions(directory)["us"].round_trip_ms, regions(directory)["us"].skew_ms) == (None, None)

    directory.round_trip_seen(FAR.server_id, 0.0934)
    directory.skew_seen(FAR.server_id, -7.25)

    row = regions(directory)["us"]
    assert (row.round_trip_ms, row.skew_ms, row.is_skewed) == (93.4, -7250.0, True)
    assert members(directory)["us"].round_trip_ms == 93.4


def test_there_is_no_way_to_our_own_region_but_its_clocks_may_differ() -> None:
    directory = a_directory()
    directory.round_trip_seen(NEAR.server_id, 0.001)
    directory.skew_seen(NEAR.server_id, 0.5)

    row = regions(directory)["eu"]
    assert (row.is_own, row.round_trip_ms, row.skew_ms, row.is_skewed) == (True, None, 500.0, False)


def test_a_suspected_server_is_told_of_as_such() -> None:
    found = members(a_directory())

    assert (found["eu"].is_suspect, found["us"].is_suspect) == (False, True)
