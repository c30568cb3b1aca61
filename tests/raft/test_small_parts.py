"""Campaign, flap guard, settings, rare marks, waiting reads: one screen each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsched.raft import rare
from fedsched.raft.campaign import Campaign
from fedsched.raft.flaps import FlapGuard
from fedsched.raft.quorum import Outcome
from fedsched.raft.reads import FollowerReads, LeaderReads, Reader
from fedsched.raft.settings import CoreSettings
from tests.raft.region import a_config


def test_the_first_answer_of_a_voter_stands() -> None:
    campaign = Campaign()
    campaign.note("1", True)
    campaign.note("2", False)
    campaign.note("2", True)
    assert campaign.outcome(a_config("123")) is Outcome.PENDING

    campaign.note("3", True)
    campaign.note("3", False)
    assert campaign.outcome(a_config("123")) is Outcome.WON


def test_three_losses_in_a_minute_make_a_server_stand_back_for_a_minute() -> None:
    guard = FlapGuard(CoreSettings(flap_losses=3, flap_window_ticks=100))

    assert not guard.lost(10)
    assert not guard.lost(50)
    assert not guard.lost(110)  # the first one is too long ago
    assert guard.lost(149)
    assert guard.is_wide(248)
    assert not guard.is_wide(249)


@pytest.mark.parametrize("heartbeat", [0, 20, 21])
def test_a_heartbeat_must_fit_into_an_election_time_out(heartbeat: int) -> None:
    with pytest.raises(ValueError, match="election time-out of 20"):
        CoreSettings(heartbeat_ticks=heartbeat, election_ticks=20)


def test_every_mark_in_the_source_is_listed_and_the_other_way_round() -> None:
    used: set[str] = set()
    for path in Path(rare.__file__).parent.glob("*.py"):
        if path.name != "rare.py":
            used |= set(re.findall(r'rare\.sometimes\("(\w+)"\)', path.read_text()))

    assert used == rare.NAMES


def test_marks_do_nothing_in_production() -> None:
    assert rare.sometimes is rare.ignore
    rare.ignore("anything")


def test_reads_that_arrive_during_a_round_share_the_next() -> None:
    reads = LeaderReads(limit=2)
    assert reads.add(Reader("", 1))
    reads.start(commit=5)
    assert reads.add(Reader("2", 7))
    assert not reads.can_start

    assert reads.confirmed() == (5, [Reader("", 1)])
    assert reads.can_start


def test_too_many_waiting_reads_are_turned_away() -> None:
    leader, follower = LeaderReads(limit=1), FollowerReads(limit=1, first_question=0)

    assert leader.add(Reader("", 1))
    assert not leader.add(Reader("", 2))
    assert follower.add(1)
    assert not follower.add(2)


def test_all_reads_of_a_lost_leadership_must_ask_again() -> None:
    reads = LeaderReads(limit=9)
    reads.add(Reader("", 1))
    reads.start(commit=5)
    reads.add(Reader("", 2))

    assert reads.drop() == [Reader("", 1), Reader("", 2)]
    assert not reads.is_round_out


def test_a_follower_ignores_the_answer_to_an_older_question() -> None:
    reads = FollowerReads(limit=9, first_question=100)
    reads.add(1)
    first = reads.ask(now=0)
    assert reads.expired(now=5, ticks=10) == []
    assert reads.expired(now=10, ticks=10) == [1]
    reads.add(2)
    second = reads.ask(now=11)

    assert (first, second) == (101, 102)
    assert reads.answered(first) == []
    assert reads.answered(second) == [2]
    assert reads.expired(now=99, ticks=10) == []
