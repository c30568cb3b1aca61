from __future__ import annotations

from fedsched.raft.log import RaftLog
from fedsched.raft.messages import Lost
from fedsched.raft.unsettled import KEPT_MAX, Unsettled
from tests.raft.region import a_log


def test_nothing_is_lost_before_its_place_is_committed() -> None:
    unsettled = Unsettled()
    unsettled.add(3, 5, term=2)

    assert unsettled.settle(RaftLog(0, 0, a_log([1, 1, 3, 3])), commit=2) == []
    assert unsettled


def test_another_entry_in_the_first_place_means_all_are_lost() -> None:
    unsettled = Unsettled()
    unsettled.add(3, 5, term=2)

    assert unsettled.settle(RaftLog(0, 0, a_log([1, 1, 3])), commit=3) == [Lost(3, 5, 2)]
    assert not unsettled


def test_the_part_that_made_it_is_not_lost() -> None:
    unsettled = Unsettled()
    unsettled.add(3, 6, term=2)
    log = RaftLog(0, 0, a_log([1, 1, 2, 2, 3]))

    assert unsettled.settle(log, commit=4) == []
    assert unsettled.settle(log, commit=5) == [Lost(5, 6, 2)]


def test_everything_may_turn_out_well() -> None:
    unsettled = Unsettled()
    unsettled.add(2, 3, term=2)
    unsettled.add(9, 8, term=3)

    assert unsettled.settle(RaftLog(0, 0, a_log([1, 2, 2])), commit=3) == []
    assert not unsettled


def test_a_range_that_a_snapshot_swallowed_is_never_judged() -> None:
    unsettled = Unsettled()
    unsettled.add(3, 5, term=2)

    assert unsettled.settle(RaftLog(9, 4), commit=9) == []
    assert not unsettled


def test_a_partly_committed_range_waits_for_the_rest() -> None:
    unsettled = Unsettled()
    unsettled.add(2, 4, term=2)

    assert unsettled.settle(RaftLog(0, 0, a_log([1, 2, 2, 2])), commit=2) == []
    assert unsettled.settle(RaftLog(0, 0, a_log([1, 2, 3])), commit=3) == [Lost(3, 4, 2)]


def test_only_so_many_are_remembered() -> None:
    unsettled = Unsettled()
    for term in range(KEPT_MAX + 5):
        unsettled.add(term + 1, term + 1, term)

    lost = unsettled.settle(RaftLog(0, 0, a_log([99] * 40)), commit=40)

    assert len(lost) == KEPT_MAX
