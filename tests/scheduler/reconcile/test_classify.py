"""Sorting allocations: one test per row of the table, in its order, and a few where two rows would fit."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.alloc import AllocState
from fedsched.model.policies import DisconnectStrategy
from fedsched.scheduler.reconcile.classify import Kind, classify
from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.reconcile.held import Taint
from tests.builders import a_group
from tests.scheduler.reconcile.kit import NOW, SECOND, a_batch, a_service, alloc, held_of

PATIENT = CutOff(lost_after_ns=300 * SECOND)
NO_REPLACEMENT = CutOff(may_replace=False)
NO_PATIENCE = CutOff()
RECENTLY = NOW - 10 * SECOND
LONG_AGO = NOW - 301 * SECOND


def sorted_as(taint: Taint = Taint.NONE, cut_off: CutOff = PATIENT, **fields: Any) -> Kind:
    return classify(held_of(alloc(0, a_service(), **fields)), cut_off, taint, NOW)


def test_row_1_a_failed_allocation_that_was_unknown_and_is_wanted_is_reconnecting() -> None:
    assert sorted_as(client="failed", unknown_at=RECENTLY) is Kind.RECONNECTING
    assert sorted_as(Taint.DISCONNECTED, client="failed", unknown_at=RECENTLY) is Kind.RECONNECTING


def test_row_2_a_stopped_allocation_that_nothing_is_to_replace_stays() -> None:
    kind = sorted_as(desired="stop", client="complete", flags=["migrate", "migrate_disable_placement"])

    assert kind is Kind.UNTAINTED


def test_row_3_a_stopped_allocation_is_ignored() -> None:
    for client in ("running", "complete", "failed", "lost"):
        assert sorted_as(desired="stop", client=client) is Kind.IGNORE
    assert sorted_as(desired="evict", client="running") is Kind.IGNORE
    assert sorted_as(Taint.DOWN, desired="stop", client="running") is Kind.IGNORE


def test_row_4_a_canary_that_ended_and_should_move_is_migrated() -> None:
    assert sorted_as(client="failed", canary=True, flags=["migrate"]) is Kind.MIGRATE


def test_row_5_an_allocation_that_ended_by_itself_stays() -> None:
    for client in ("complete", "failed", "lost"):
        assert sorted_as(client=client) is Kind.UNTAINTED
        assert sorted_as(Taint.DOWN, client=client) is Kind.UNTAINTED
    assert sorted_as(client="failed", flags=["migrate"]) is Kind.UNTAINTED


def test_row_6_an_allocation_unknown_for_too_long_expires() -> None:
    assert sorted_as(Taint.DISCONNECTED, client="unknown", unknown_at=LONG_AGO) is Kind.EXPIRING
    assert sorted_as(Taint.NONE, client="unknown", unknown_at=LONG_AGO) is Kind.EXPIRING
    assert sorted_as(Taint.DOWN, client="unknown", unknown_at=LONG_AGO) is Kind.EXPIRING
    exactly = NOW - 300 * SECOND
    assert sorted_as(Taint.DISCONNECTED, client="unknown", unknown_at=exactly) is Kind.EXPIRING


def test_row_6_needs_to_know_since_when_it_is_unknown() -> None:
    assert sorted_as(Taint.DISCONNECTED, client="unknown") is Kind.UNTAINTED


def test_row_7_a_failed_allocation_that_was_unknown_and_is_to_stop_is_ignored() -> None:
    flags = ["migrate", "migrate_disable_placement"]

    assert sorted_as(client="failed", desired="stop", unknown_at=RECENTLY, flags=flags) is Kind.IGNORE


def test_row_8_an_unknown_allocation_on_a_disconnected_node_stays() -> None:
    assert sorted_as(Taint.DISCONNECTED, client="unknown", unknown_at=RECENTLY) is Kind.UNTAINTED


def test_row_9_a_pending_allocation_on_a_disconnected_node_is_lost() -> None:
    assert sorted_as(Taint.DISCONNECTED, client="pending") is Kind.LOST


def test_row_10_an_allocation_on_a_disconnected_node_is_lost_if_the_group_has_no_patience() -> None:
    assert sorted_as(Taint.DISCONNECTED, NO_PATIENCE, client="running") is Kind.LOST


def test_row_11_a_running_allocation_on_a_disconnected_node_is_disconnecting() -> None:
    assert sorted_as(Taint.DISCONNECTED, client="running") is Kind.DISCONNECTING
    assert sorted_as(Taint.DISCONNECTED, client="running", flags=["migrate"]) is Kind.DISCONNECTING


@pytest.mark.parametrize("taint", [Taint.NONE, Taint.DRAINING, Taint.DOWN, Taint.MISSING])
def test_row_12_an_allocation_that_should_move_is_migrated_wherever_it_is(taint: Taint) -> None:
    assert sorted_as(taint, client="running", flags=["migrate"]) is Kind.MIGRATE


def test_row_13_an_allocation_that_was_unknown_on_a_good_node_is_reconnecting() -> None:
    assert sorted_as(client="running", unknown_at=RECENTLY) is Kind.RECONNECTING
    assert sorted_as(client="unknown", unknown_at=RECENTLY) is Kind.RECONNECTING
    assert sorted_as(client="complete", unknown_at=RECENTLY) is Kind.RECONNECTING
    assert sorted_as(client="running", unknown_at=LONG_AGO) is Kind.RECONNECTING
    assert sorted_as(client="running", desired="stop", unknown_at=RECENTLY) is Kind.RECONNECTING
    assert sorted_as(client="failed", desired="evict", unknown_at=RECENTLY) is Kind.RECONNECTING


def test_row_14_an_allocation_on_a_good_node_stays() -> None:
    assert sorted_as(client="running") is Kind.UNTAINTED
    assert sorted_as(client="pending") is Kind.UNTAINTED


def test_row_15_an_allocation_on_a_deleted_node_is_lost() -> None:
    assert sorted_as(Taint.MISSING, client="running") is Kind.LOST
    assert sorted_as(Taint.MISSING, NO_REPLACEMENT, client="running") is Kind.LOST


def test_row_16_an_unknown_allocation_without_replacement_on_a_node_that_is_down_stays() -> None:
    assert sorted_as(Taint.DOWN, NO_REPLACEMENT, client="unknown", unknown_at=RECENTLY) is Kind.UNTAINTED


def test_row_17_a_running_allocation_without_replacement_on_a_node_that_is_down_is_disconnecting() -> None:
    assert sorted_as(Taint.DOWN, NO_REPLACEMENT, client="running") is Kind.DISCONNECTING


def test_row_18_an_allocation_on_a_node_that_is_down_is_lost() -> None:
    assert sorted_as(Taint.DOWN, client="running") is Kind.LOST
    assert sorted_as(Taint.DOWN, NO_REPLACEMENT, client="pending") is Kind.LOST
    assert sorted_as(Taint.DOWN, client="unknown", unknown_at=RECENTLY) is Kind.LOST
    assert sorted_as(Taint.DOWN, client="complete", unknown_at=RECENTLY) is Kind.LOST


def test_row_19_an_allocation_on_a_draining_node_stays_until_it_is_told_to_move() -> None:
    assert sorted_as(Taint.DRAINING, client="running") is Kind.UNTAINTED


def test_a_later_state_ends_the_need_to_reconnect() -> None:
    states = (AllocState(value="unknown", time_ns=1), AllocState(value="running", time_ns=2))

    assert sorted_as(client="running", alloc_states=states) is Kind.UNTAINTED


def test_states_of_other_fields_are_passed_over() -> None:
    states = (AllocState(value="unknown", time_ns=RECENTLY), AllocState(field=7, value="running", time_ns=NOW))

    assert sorted_as(client="running", alloc_states=states) is Kind.RECONNECTING


def test_the_older_fields_stand_for_a_disconnect_block() -> None:
    group = a_group(max_client_disconnect_s=60.0, prevent_reschedule_on_lost=True)

    assert CutOff.of(group) == CutOff(lost_after_ns=60 * SECOND, may_replace=False)


def test_a_disconnect_block_goes_before_the_older_fields() -> None:
    group = a_group(max_client_disconnect_s=60.0, disconnect=DisconnectStrategy(lost_after_s=5.0))

    assert CutOff.of(group) == CutOff(lost_after_ns=5 * SECOND)


def test_a_batch_allocation_is_sorted_by_the_same_rows() -> None:
    held = held_of(alloc(0, a_batch(), client="complete"))

    assert classify(held, NO_PATIENCE, Taint.NONE, NOW) is Kind.UNTAINTED
