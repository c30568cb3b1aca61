"""Who is where, as gossip tells it."""

from __future__ import annotations

import pytest

from fedsched.federation.directory import Directory, LeaderHint, RegionState, server_of
from fedsched.model.region import MemberStatus, ServerMember
from tests.federation.builders import a_member


def a_directory(*members: ServerMember) -> Directory:
    directory = Directory("eu")
    for member in members:
        directory.member_seen(member)
    return directory


def test_tags_say_who_a_server_is_and_where_it_is_called() -> None:
    server = server_of(a_member("s1", "us", rpc_addr="10.1.1.1", http="10.1.1.1:4646", dc="dc1"))

    assert server is not None
    assert (server.id, server.name, server.region) == ("id-s1", "s1.us", "us")
    assert (server.rpc, server.http, server.datacenter, server.build) == (
        "10.1.1.1:4647",
        "10.1.1.1:4646",
        "dc1",
        "0.1.0",
    )


def test_without_an_address_for_calls_the_one_of_gossip_serves() -> None:
    server = server_of(a_member("s1"))
    assert server is not None
    assert server.rpc == "10.0.0.1:4647"
    six = server_of(a_member("s1", rpc_addr="fd00::1"))
    assert six is not None
    assert six.rpc == "[fd00::1]:4647"


@pytest.mark.parametrize(
    "member",
    [
        a_member("s1", role="consul"),
        a_member("s1", id=""),
        a_member("s1", region=""),
        a_member("s1", status=MemberStatus.LEFT),
    ],
)
def test_what_is_no_server_of_a_region_is_left_out(member: ServerMember) -> None:
    directory = a_directory(member)

    assert directory.servers("eu") == ()
    assert directory.regions() == ("eu",)  # our own is always there


def test_a_region_whose_servers_all_failed_is_known_but_not_asked() -> None:
    directory = a_directory(a_member("s1", "us"), a_member("s1", "asia", status=MemberStatus.FAILED))

    assert directory.regions() == ("eu", "us")
    assert directory.all_regions() == ("asia", "eu", "us")


def test_a_server_that_leaves_is_forgotten_and_so_is_its_leading() -> None:
    directory = a_directory(a_member("s1", "us"))
    directory.leader_told(LeaderHint("us", 3, "id-s1"))

    assert directory.member_seen(a_member("s1", "us", status=MemberStatus.LEFT))
    assert directory.leader("us") is None
    assert not directory.member_gone("s1.us")


def test_a_server_that_returns_under_another_name_is_listed_once() -> None:
    directory = a_directory(a_member("s1", "us", id="x"), a_member("s9", "us", id="x"))

    assert [one.name for one in directory.servers("us")] == ["s9.us"]


def test_the_same_word_twice_is_no_news() -> None:
    directory = Directory("eu")

    assert directory.member_seen(a_member("s1"))
    assert not directory.member_seen(a_member("s1"))
    assert directory.member_seen(a_member("s1"), is_suspect=True)


class TestLeaders:
    def test_a_higher_term_replaces_a_lower_one_and_not_the_other_way(self) -> None:
        directory = a_directory(a_member("s1", "us"), a_member("s2", "us"))
        directory.leader_told(LeaderHint("us", 5, "id-s2"))

        assert not directory.leader_told(LeaderHint("us", 4, "id-s1"))
        leader = directory.leader("us")
        assert leader is not None
        assert leader.name == "s2.us"

    def test_a_hint_that_was_wrong_is_not_followed_again(self) -> None:
        directory = a_directory(a_member("s1", "us"))
        directory.leader_told(LeaderHint("us", 5, "id-s1"))
        directory.leader_denied("us", "id-s1")

        assert directory.leader("us") is None
        assert directory.leader_told(LeaderHint("us", 6, "id-s1"))

    def test_a_leader_that_nobody_has_met_is_none(self) -> None:
        directory = a_directory(a_member("s1", "us"))
        directory.leader_told(LeaderHint("us", 5, "id-of-a-stranger"))

        assert directory.leader("us") is None


class TestSummary:
    @pytest.mark.parametrize(
        ("alive", "state"),
        [(3, RegionState.HEALTHY), (2, RegionState.DEGRADED), (1, RegionState.AT_RISK), (0, RegionState.FAILED)],
    )
    def test_health_follows_from_who_answers(self, alive: int, state: RegionState) -> None:
        statuses = [MemberStatus.ALIVE] * alive + [MemberStatus.FAILED] * (3 - alive)
        directory = a_directory(*(a_member(f"s{n}", "us", status=status) for n, status in enumerate(statuses)))

        summary = directory.summary("us")
        assert (summary.state, summary.alive, summary.known) == (state, alive, 3)

    def test_servers_without_a_vote_do_not_make_a_majority(self) -> None:
        directory = a_directory(
            a_member("s1", "us"),
            a_member("s2", "us", status=MemberStatus.FAILED),
            a_member("s3", "us", nonvoter="1"),
        )

        assert directory.summary("us").state is RegionState.AT_RISK

    def test_the_nearest_server_and_the_wrongest_clock_are_shown(self) -> None:
        directory = a_directory(a_member("s1", "us", build="0.2.0"), a_member("s2", "us"))
        directory.round_trip_seen("id-s1", 0.2)
        directory.round_trip_seen("id-s2", 0.1)
        directory.skew_seen("id-s1", -7.0)
        directory.skew_seen("id-s2", 1.0)
        summary = directory.summary("us")

        assert (summary.round_trip_s, summary.skew_s, summary.is_skewed) == (0.1, -7.0, True)
        assert summary.builds == ("0.1.0", "0.2.0")

    def test_one_slow_answer_does_not_make_a_server_far(self) -> None:
        directory = a_directory(a_member("s1", "us"))
        directory.round_trip_seen("id-s1", 0.1)
        directory.round_trip_seen("id-s1", 0.5)

        assert directory.summary("us").round_trip_s == pytest.approx(0.2)

    def test_measurements_outlive_a_change_of_tags(self) -> None:
        directory = a_directory(a_member("s1", "us"))
        directory.round_trip_seen("id-s1", 0.1)
        directory.member_seen(a_member("s1", "us", build="0.2.0"))

        assert directory.summary("us").round_trip_s == 0.1

    def test_every_known_region_has_its_line(self) -> None:
        directory = a_directory(a_member("s1", "us"), a_member("s1", "asia", status=MemberStatus.FAILED))

        assert [(one.name, one.state.value) for one in directory.summaries()] == [
            ("asia", "failed"),
            ("eu", "failed"),
            ("us", "healthy"),
        ]
