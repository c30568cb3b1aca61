"""Places in a group."""

from __future__ import annotations

from fedsched.model.alloc import Allocation
from fedsched.scheduler.reconcile.held import Held
from fedsched.scheduler.reconcile.names import Places, canary_names, fresh_names
from tests.scheduler.reconcile.kit import a_service, alloc, held_of


def at(*places: int) -> list[Held]:
    return [held_of(_at(place)) for place in places]


def _at(place: int) -> Allocation:
    return alloc(place, a_service())


def test_the_lowest_free_places_come_first() -> None:
    assert fresh_names({0, 2, 4}, 6, 2).tolist() == [1, 3]
    assert fresh_names((), 4, 4).tolist() == [0, 1, 2, 3]


def test_places_beyond_the_count_do_not_matter() -> None:
    assert fresh_names({0, 7, 9}, 3, 2).tolist() == [1, 2]


def test_when_all_places_are_taken_counting_begins_again() -> None:
    assert fresh_names({0, 1, 2}, 4, 3).tolist() == [3, 0, 1]


def test_nothing_wanted_nothing_given() -> None:
    assert fresh_names({0}, 3, 0).tolist() == []
    assert fresh_names({0}, 3, -2).tolist() == []


def test_canaries_take_places_of_those_they_will_replace() -> None:
    assert canary_names({0, 1, 2}, [], at(0, 1, 2), 3, 2) == [0, 1]


def test_no_two_canaries_share_a_place() -> None:
    assert canary_names({0, 1, 2}, at(0), at(0, 1, 2), 3, 1) == [1]


def test_then_canaries_take_free_places() -> None:
    assert canary_names({0, 1}, [], at(0, 1), 4, 3) == [0, 1, 2]
    assert canary_names({0, 1}, at(2), at(0, 1), 4, 3) == [0, 1, 3]


def test_then_canaries_go_beyond_the_count() -> None:
    assert canary_names({0, 1, 2}, [], at(0, 1, 2), 3, 5) == [0, 1, 2, 3, 4]
    assert canary_names({0, 1}, at(2), at(0, 1), 2, 3) == [0, 1, 3]


def test_outdated_places_beyond_the_count_are_no_names_for_canaries() -> None:
    assert canary_names({0, 5}, [], at(0, 5), 2, 2) == [0, 1]


def test_a_place_held_by_others_of_the_same_version_is_avoided_as_long_as_there_is_another() -> None:
    places = Places({0}, {3}, 5)
    assert places.take(1, {1}) == 2  # nobody else will ask for it
    assert places.take(1, {1}) == 4
    assert places.take(1, {1}) == 3  # somebody might, but there is no other
    assert places.take(1, {1}) == 1  # better twice than not at all
    assert Places(set(), set(), 2).take(1, {0}) == 1
