from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.raft.membership import Config
from fedsched.raft.quorum import Outcome, has_quorum, majority, majority_reached, vote_outcome
from tests.raft.region import a_config

ids = st.frozensets(st.sampled_from("1234567"))


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_majority_counts_everybody_including_oneself(voters: int, needed: int) -> None:
    assert majority(voters) == needed


@pytest.mark.parametrize(
    ("matches", "reached"), [([], 0), ([7], 7), ([3, 9], 3), ([1, 5, 9], 5), ([1, 5, 8, 9], 5), ([2, 2, 7, 8, 9], 7)]
)
def test_majority_reached_is_what_a_majority_holds(matches: list[int], reached: int) -> None:
    assert majority_reached(matches) == reached


def test_no_config_is_no_quorum() -> None:
    assert not has_quorum(Config(), {"1"})
    assert vote_outcome(Config(), {"1"}, set()) is Outcome.PENDING


def test_a_joint_config_needs_both_majorities() -> None:
    config = a_config("145", outgoing="123")

    assert not has_quorum(config, {"4", "5"})
    assert not has_quorum(config, {"2", "3"})
    assert has_quorum(config, {"1", "2", "4"})


def test_strangers_do_not_count() -> None:
    assert not has_quorum(a_config("123"), {"1", "8", "9"})


def test_a_ballot_is_lost_when_it_cannot_be_won_any_more() -> None:
    assert vote_outcome(a_config("1234"), {"1"}, {"2"}) is Outcome.PENDING
    assert vote_outcome(a_config("1234"), {"1"}, {"2", "3"}) is Outcome.LOST
    assert vote_outcome(a_config("123"), {"1", "2"}, {"3"}) is Outcome.WON
    assert vote_outcome(a_config("145", outgoing="123"), {"1", "4", "5"}, {"2", "3"}) is Outcome.LOST


@given(voters=ids, outgoing=ids, one=ids, other=ids)
def test_two_quorums_always_share_a_server(
    voters: frozenset[str], outgoing: frozenset[str], one: frozenset[str], other: frozenset[str]
) -> None:
    config = Config(voters, outgoing)

    if has_quorum(config, one) and has_quorum(config, other):
        assert one & other & voters


@given(voters=ids, outgoing=ids, granted=ids, refused=ids)
def test_an_outcome_fits_the_votes(
    voters: frozenset[str], outgoing: frozenset[str], granted: frozenset[str], refused: frozenset[str]
) -> None:
    config = Config(voters, outgoing)
    refused -= granted
    outcome = vote_outcome(config, granted, refused)

    everybody_else = (voters | outgoing) - refused
    assert (outcome is Outcome.WON) == has_quorum(config, granted)
    if voters:
        assert (outcome is Outcome.LOST) == (not has_quorum(config, granted | everybody_else))


@given(matches=st.lists(st.integers(0, 20), min_size=1, max_size=7))
def test_majority_reached_agrees_with_counting(matches: list[int]) -> None:
    counted = max(v for v in range(21) if sum(m >= v for m in matches) >= majority(len(matches)))

    assert majority_reached(matches) == counted
