from __future__ import annotations

import pytest
import trio

from fedsched.raft.errors import OutcomeUnknown, ProposalLost
from fedsched.raft.waiters import AppliedWaits, Promise, Proposals


def settled(promise: Promise[tuple[int, object]]) -> tuple[int, object]:
    assert promise.is_settled
    return trio.run(promise.wait)


def test_a_proposal_applied_in_its_own_term_is_kept_with_its_result() -> None:
    proposals = Proposals()
    promise = proposals.open(7, term=2)

    proposals.applied(7, 2, "done")

    assert settled(promise) == (7, "done")
    assert len(proposals) == 0


def test_another_terms_entry_at_that_index_means_lost() -> None:
    proposals = Proposals()
    promise = proposals.open(7, term=2)

    proposals.applied(7, 3, "somebody else's")

    with pytest.raises(ProposalLost, match="index 7"):
        settled(promise)


def test_overwritten_entries_are_lost_but_only_those_of_that_term() -> None:
    proposals = Proposals()
    old, new = proposals.open(7, term=2), proposals.open(8, term=3)

    proposals.lost(6, 9, term=2)

    with pytest.raises(ProposalLost):
        settled(old)
    assert not new.is_settled


def test_losing_the_leadership_leaves_every_open_outcome_unknown() -> None:
    proposals = Proposals()
    promises = [proposals.open(index, term=2) for index in (1, 2)]

    assert proposals.leadership_lost() == 2

    for promise in promises:
        with pytest.raises(OutcomeUnknown, match="same request id"):
            settled(promise)


def test_who_stopped_waiting_is_forgotten_and_nobody_else() -> None:
    proposals = Proposals()
    first = proposals.open(1, term=1)
    second = proposals.open(1, term=2)

    proposals.forget(1, first)
    assert len(proposals) == 1
    proposals.forget(1, second)
    assert len(proposals) == 0
    proposals.applied(1, 2, None)
    assert not second.is_settled


def test_applied_waits_wake_in_index_order_and_only_when_reached() -> None:
    waits = AppliedWaits()
    five, three, three_again = waits.add(5), waits.add(3), waits.add(3)

    waits.reached(3)
    assert (three.is_set(), three_again.is_set(), five.is_set()) == (True, True, False)
    waits.reached(9)
    assert five.is_set()


def test_a_promise_cannot_be_settled_twice() -> None:
    promise: Promise[int] = Promise()
    promise.keep(1)

    with pytest.raises(AssertionError):
        promise.fail(ValueError())
