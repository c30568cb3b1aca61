from __future__ import annotations

import json

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
        "Name  State    Servers  Leader     Build\n"
        "eu*   healthy  3/3      eu-2.eu    0.1.0\n"
        "us    failed   0/3      <unknown>  <none>\n"
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
