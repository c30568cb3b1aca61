"""Whom to stop when there are too many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsched.model.policies import ReschedulePolicy
from fedsched.scheduler.reconcile.held import Held, Taint
from fedsched.scheduler.reconcile.surplus import surplus
from fedsched.scheduler.reconcile.wanted import NOT_NEEDED
from tests.scheduler.reconcile.kit import (
    a_service,
    alloc,
    allocs,
    places,
    roster_of,
    run_group,
    stopped,
)


def helds(*places: int) -> list[Held]:
    records = [alloc(at, a_service(), index=place) for at, place in enumerate(places)]
    return roster_of(records).held(np.arange(len(records)))


def indexes(found: Iterable[Held]) -> list[int]:
    return [held.name_index for held in found]


def test_nothing_is_surplus_up_to_the_count() -> None:
    assert surplus(helds(0, 1, 2), [], [], 3, is_canarying=False) == []
    assert surplus(helds(0, 1, 2), [], [], 5, is_canarying=False) == []


def test_the_highest_places_go() -> None:
    found = surplus(helds(*range(20)), [], [], 10, is_canarying=False)

    assert sorted(indexes(found)) == list(range(10, 20))


def test_movers_with_the_highest_places_go_before_those_that_stay() -> None:
    found = surplus(helds(*range(3, 10)), helds(0, 1, 2), [], 8, is_canarying=False)

    assert indexes(found) == [2, 1]


def test_old_ones_make_room_for_promoted_canaries_of_the_same_place() -> None:
    stayers = helds(0, 1, 2, 3, 0, 1)
    canaries = stayers[4:]

    found = surplus(stayers, [], canaries, 4, is_canarying=False)

    assert set(found) == set(stayers[:2])


def test_places_of_promoted_canaries_come_before_movers() -> None:
    stayers, movers = helds(0, 1, 2, 0), helds(9, 9, 9, 9, 3, 4)[4:]

    found = surplus(stayers, movers, stayers[3:], 4, is_canarying=False)

    assert found == [stayers[0], movers[1]]


def test_before_the_promotion_old_ones_stay() -> None:
    stayers = helds(0, 1, 2, 3, 4)

    assert indexes(surplus(stayers, [], stayers[:1], 4, is_canarying=True)) == [4]


def test_second_copies_of_a_place_go_before_places_within_the_count() -> None:
    stayers = helds(0, 0, 1, 2)

    found = surplus(stayers, [], [], 3, is_canarying=False)

    assert found == [stayers[1]]


def test_places_beyond_the_count_go_before_second_copies() -> None:
    assert indexes(surplus(helds(0, 1, 1, 3), [], [], 3, is_canarying=False)) == [3]


def test_a_place_that_a_mover_keeps_has_a_second_copy_too() -> None:
    stayers, movers = helds(0, 1, 2), helds(9, 1)

    found = surplus(stayers, movers[1:], [], 3, is_canarying=False)

    assert found == [movers[1]]


def test_count_10_of_20_stops_10_to_19() -> None:
    job = a_service(10)

    wanted = run_group(job, allocs(job, 20))

    assert stopped(wanted) == list(range(10, 20))
    assert places(wanted) == []
    assert {stop.description for stop in wanted.stops} == {"alloc not needed due to job update"}
    assert wanted.desired.stop == 10
    assert wanted.desired.ignore == 10


def test_count_5_of_10_with_0_and_1_lost_stops_0_1_7_8_9() -> None:
    job = a_service(5)

    wanted = run_group(job, allocs(job, 10), tainted={0: Taint.DOWN, 1: Taint.DOWN})

    assert stopped(wanted) == [0, 1, 7, 8, 9]
    assert places(wanted) == []


def test_count_8_of_10_with_0_1_2_migrating_stops_1_and_2_and_moves_0() -> None:
    job = a_service(8)
    records = [*allocs(job, 3, flags=["migrate"]), *allocs(job, 7, start=3)]

    wanted = run_group(job, records)

    words = {stop.held.name_index: stop.description for stop in wanted.stops}
    assert words == {0: "alloc is being migrated", 1: NOT_NEEDED, 2: NOT_NEEDED}
    (moved,) = wanted.special
    assert (moved.name_index, moved.reason) == (0, "migrate")
    assert wanted.desired.migrate == 1


def test_failed_ones_that_nobody_replaces_are_surplus_like_the_others() -> None:
    job = a_service(3, reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False))
    records = [*allocs(job, 3), *allocs(job, 2, start=3, client="failed")]

    assert stopped(run_group(job, records)) == [3, 4]
