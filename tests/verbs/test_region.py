from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from fedsched.rpc.methods.server import REGION_LIST, RegionListReply, RegionRow
from tests.verbs.commands import fedsched

REGIONS = RegionListReply(
    regions=(
        RegionRow(
            name="eu", state="healthy", servers_up=3, servers=3, leader="eu-2.eu", builds=("0.1.0",), is_own=True
        ),
        RegionRow(name="us", state="failed", servers_up=0, servers=3),
    )
)


def test_regions_are_listed_with_one_that_does_not_answer_as_a_row() -> None:
    seen = fedsched("region list", {REGION_LIST: lambda _: REGIONS})

    assert seen.out == (
        "Name  State    Servers  Leader     Round Trip  Clock Skew  Build\n"
        "eu*   healthy  3/3      eu-2.eu    -           -           0.1.0\n"
        "us    failed   0/3      <unknown>  <unknown>   <unknown>   <none>\n"
        "\n"
        "* the region of the agent that was asked; -region names another one\n"
    )
    assert seen.code == 0


def test_programs_get_the_same_as_json() -> None:
    seen = fedsched("region list -json", {REGION_LIST: lambda _: REGIONS})

    assert [(one["Name"], one["ServersUp"], one["IsOwn"]) for one in json.loads(seen.out)] == [
        ("eu", 3, True),
        ("us", 0, False),
    ]


FAR = RegionRow(
    name="asia", state="degraded", servers_up=2, servers=3, leader="a-1.asia", round_trip_ms=181.26, skew_ms=-42.0
)


def a_reply(*rows: RegionRow) -> Any:
    return lambda _: RegionListReply(regions=rows)


def test_a_region_whose_clock_is_off_is_warned_of() -> None:
    late = replace(FAR, skew_ms=-7240.0, is_skewed=True)

    seen = fedsched("region list", {REGION_LIST: a_reply(late)})

    assert "181.3 ms    -7.2 s" in seen.out
    assert seen.err.startswith("Warning: a clock of region asia is 7.2 s behind ours; ")
    assert seen.code == 0


def test_the_status_of_the_federation_is_a_line_per_region_and_fails_with_a_region() -> None:
    seen = fedsched("operator federation status", {REGION_LIST: a_reply(FAR, *REGIONS.regions)})

    assert seen.out == (
        "Region  Alive  Known  Leader     Round Trip  Clock Skew  State\n"
        "asia    2      3      a-1.asia   181.3 ms    -42 ms      degraded\n"
        "eu      3      3      eu-2.eu    -           -           healthy\n"
        "us      0      3      <unknown>  <unknown>   <unknown>   failed\n"
    )
    assert seen.code == 1
    assert fedsched("operator federation status", {REGION_LIST: a_reply(FAR)}).code == 0
    assert fedsched("operator federation status -json", {REGION_LIST: a_reply(replace(FAR, leader=""))}).code == 1


def test_regions_that_are_named_are_picked_and_no_other_region_is_asked() -> None:
    seen = fedsched("operator federation status -region us,mars", {REGION_LIST: lambda _: REGIONS})

    assert [line.split()[0] for line in seen.out.splitlines()] == ["Region", "us", "mars"]
    assert seen.out.splitlines()[2].endswith("unknown")
    assert {meta.region for meta in seen.agent.metas(REGION_LIST)} == {""}


def test_one_region_that_is_named_is_asked_for_its_own_view() -> None:
    seen = fedsched("region list -region us", {REGION_LIST: lambda _: REGIONS})

    assert [meta.region for meta in seen.agent.metas(REGION_LIST)] == ["us"]
