from __future__ import annotations

from dataclasses import replace

import pytest

from fedsched.raft.autopilot import FAILED, LEFT, UNKNOWN, Action, Autopilot, AutopilotSettings, HealthReport, Member
from fedsched.raft.membership import AddLearner, Config, Promote, Readdress, Remove, Replace
from fedsched.raft.status import CoreStatus, PeerStatus
from tests.raft.region import Region, a_config, a_server


def a_status(config: Config, *, last: int = 1_000, commit: int = 1_000, **behind: int) -> CoreStatus:
    """The status of leader 1; `contact2=9` and `match3=500` spoil one peer each."""
    template = Region("1").core("1").status()
    peers = tuple(
        PeerStatus(
            id=server_id,
            match=behind.get(f"match{server_id}", last),
            next=last + 1,
            mode="replicate",
            inflight=0,
            inflight_bytes=0,
            last_contact_ticks=behind.get(f"contact{server_id}", 1),
            is_active=True,
        )
        for server_id in sorted(config.members - {"1"})
    )
    return replace(template, config=config, config_index=7, commit=commit, last=last, peers=peers, role="leader")


def everybody(config: Config, **statuses: str) -> dict[str, Member]:
    """All members alive, except `s2=FAILED`."""
    return {each: Member(a_server(each), statuses.get(f"s{each}", "alive")) for each in config.members}


def health(report: HealthReport, server_id: str) -> str:
    return next(each.why_not for each in report.servers if each.id == server_id)


def test_a_healthy_set_needs_nothing() -> None:
    config = a_config("123")

    actions, report = Autopilot(AutopilotSettings()).review(0.0, a_status(config), everybody(config))

    assert actions == []
    assert report.is_healthy
    assert report.failure_tolerance == 1
    assert [each.id for each in report.servers if each.is_leader] == ["1"]


@pytest.mark.parametrize(
    ("spoiled", "gossip", "why"),
    [
        ({"contact2": 5}, {}, "last contact 0.25 s ago, more than 0.2 s"),
        ({"match2": 700}, {}, "300 entries behind, more than 250"),
        ({}, {"s2": UNKNOWN}, "gossip reports it unknown"),
    ],
)
def test_an_unhealthy_server_is_reported_with_the_reason(
    spoiled: dict[str, int], gossip: dict[str, str], why: str
) -> None:
    config = a_config("123")

    actions, report = Autopilot(AutopilotSettings()).review(
        0.0, a_status(config, **spoiled), everybody(config, **gossip)
    )

    assert actions == []
    assert health(report, "2") == why
    assert not report.is_healthy
    assert report.failure_tolerance == 0


def test_a_member_gossip_never_heard_of_is_unhealthy_but_stays() -> None:
    config = a_config("123")
    members = everybody(config)
    del members["2"]

    actions, report = Autopilot(AutopilotSettings()).review(0.0, a_status(config), members)

    assert actions == []
    assert health(report, "2") == "gossip reports it unknown"


@pytest.mark.parametrize("gossip", [FAILED, LEFT])
def test_a_dead_voter_is_removed_when_the_rest_can_decide(gossip: str) -> None:
    config = a_config("123")

    actions, _ = Autopilot(AutopilotSettings()).review(0.0, a_status(config), everybody(config, s3=gossip))

    reason = f"gossip reports server-3 (3) {gossip}; a quorum of the remaining voters is healthy"
    assert actions == [Action(Remove("3"), reason, based_on=7)]


def test_a_dead_voter_stays_when_the_rest_could_not_decide() -> None:
    config = a_config("123")
    status = a_status(config, contact2=99)

    actions, report = Autopilot(AutopilotSettings()).review(0.0, status, everybody(config, s3=FAILED))

    assert actions == []
    assert report.failure_tolerance == 0


def test_of_two_dead_voters_in_five_both_go_one_after_the_other() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("12345")
    first, _ = pilot.review(0.0, a_status(config), everybody(config, s4=FAILED, s5=FAILED))
    config = a_config("1235")
    second, _ = pilot.review(1.0, a_status(config), everybody(config, s5=FAILED))

    assert [each.change for each in first + second] == [Remove("4"), Remove("5")]


def test_min_quorum_is_never_gone_below() -> None:
    config = a_config("123")

    actions, _ = Autopilot(AutopilotSettings(min_quorum=3)).review(0.0, a_status(config), everybody(config, s3=LEFT))

    assert actions == []


def test_clean_up_can_be_turned_off() -> None:
    config = a_config("123", learners="4")
    settings = AutopilotSettings(cleanup_dead_servers=False)

    actions, _ = Autopilot(settings).review(0.0, a_status(config), everybody(config, s3=FAILED, s4=FAILED))

    assert actions == []


def test_a_dead_learner_is_removed() -> None:
    config = a_config("123", learners="4")

    actions, _ = Autopilot(AutopilotSettings()).review(0.0, a_status(config), everybody(config, s4=FAILED))

    assert [each.change for each in actions] == [Remove("4")]


def test_a_stable_learner_takes_the_seat_of_a_dead_voter() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("123", learners="4")
    pilot.review(0.0, a_status(config), everybody(config))

    actions, _ = pilot.review(10.0, a_status(config), everybody(config, s2=FAILED))

    assert [each.change for each in actions] == [Replace("2", "4")]


def test_a_learner_is_promoted_after_being_healthy_long_enough() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("12", learners="3")

    assert pilot.review(0.0, a_status(config), everybody(config))[0] == []
    assert pilot.review(9.9, a_status(config), everybody(config))[0] == []
    actions, _ = pilot.review(10.0, a_status(config), everybody(config))
    assert [(each.change, each.reason) for each in actions] == [
        (Promote("3"), "3 has been stable for 10 s; 3 voters then")
    ]


def test_a_stumble_starts_the_stabilization_time_anew() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("12", learners="3")
    pilot.review(0.0, a_status(config), everybody(config))
    pilot.review(5.0, a_status(config, contact3=99), everybody(config))
    pilot.review(6.0, a_status(config), everybody(config))

    assert pilot.review(15.9, a_status(config), everybody(config))[0] == []
    assert pilot.review(16.0, a_status(config), everybody(config))[0] != []


def test_a_lone_learner_waits_when_it_would_make_the_voters_even() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("123", learners="4")
    pilot.review(0.0, a_status(config), everybody(config))

    assert pilot.review(60.0, a_status(config), everybody(config))[0] == []


def test_two_stable_learners_are_promoted_one_after_the_other() -> None:
    pilot = Autopilot(AutopilotSettings())
    config = a_config("1", learners="23")
    pilot.review(0.0, a_status(config), everybody(config))
    first, _ = pilot.review(10.0, a_status(config), everybody(config))
    config = a_config("12", learners="3")
    second, _ = pilot.review(11.0, a_status(config), everybody(config))

    assert [each.change for each in first + second] == [Promote("2"), Promote("3")]


@pytest.mark.parametrize(
    "status",
    [a_status(a_config("12", outgoing="123")), a_status(a_config("123"), commit=6)],
    ids=["joint", "uncommitted"],
)
def test_nothing_is_proposed_while_a_change_is_in_flight(status: CoreStatus) -> None:
    actions, report = Autopilot(AutopilotSettings()).review(0.0, status, everybody(a_config("123"), s3=FAILED))

    assert actions == []
    assert len(report.servers) == 3


def test_a_server_that_gossip_found_joins_as_a_learner() -> None:
    config = a_config("123")
    members = everybody(config) | {"4": Member(a_server("4")), "5": Member(a_server("5"), FAILED)}

    actions, _ = Autopilot(AutopilotSettings()).review(0.0, a_status(config), members)

    assert [each.change for each in actions] == [AddLearner(a_server("4"))]


def test_a_moved_server_is_entered_with_its_new_address() -> None:
    config = a_config("123")
    moved = replace(a_server("2"), address="10.0.0.2:4647")
    members = everybody(config) | {"2": Member(moved)}

    actions, _ = Autopilot(AutopilotSettings()).review(0.0, a_status(config), members)

    assert [each.change for each in actions] == [Readdress(moved)]


def test_a_server_that_left_the_config_is_forgotten() -> None:
    pilot = Autopilot(AutopilotSettings())
    both = a_config("12", learners="3")
    pilot.review(0.0, a_status(both), everybody(both))
    pilot.review(5.0, a_status(a_config("12")), everybody(a_config("12")))

    assert pilot.review(10.0, a_status(both), everybody(both))[0] == []


def test_a_config_without_addresses_is_still_reported() -> None:
    config = Config(voters=frozenset("12"))

    actions, report = Autopilot(AutopilotSettings()).review(0.0, a_status(config), everybody(config, s2=FAILED))

    assert actions == []
    assert [each.name for each in report.servers] == ["1", "2"]


def test_a_dead_learner_without_a_name_is_called_by_its_id() -> None:
    config = Config(voters=frozenset("1"), learners=frozenset("2"))

    actions, _ = Autopilot(AutopilotSettings()).review(0.0, a_status(config), everybody(config, s2=LEFT))

    assert actions[0].reason == "gossip reports 2 left; it was a learner"


def test_deeds_are_remembered_for_the_operator() -> None:
    pilot = Autopilot(AutopilotSettings())
    action = Action(Remove("3"), "it left", 7)

    pilot.record(4.0, action, "committed at 9")

    assert [(each.at, each.action, each.outcome) for each in pilot.recent] == [(4.0, action, "committed at 9")]
