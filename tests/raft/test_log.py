from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.raft.entry import RECORD_OVERHEAD, Entry, EntryKind
from fedsched.raft.log import RaftLog
from tests.raft.region import a_log

terms = st.lists(st.integers(1, 6), max_size=25).map(sorted)


def test_an_empty_log_knows_only_where_it_starts() -> None:
    log = RaftLog(7, 3)

    assert (log.first, log.last, log.last_term, log.bytes) == (8, 7, 3, 0)
    assert log.term(7) == 3
    assert log.term(6) is None
    assert log.term(8) is None
    assert log.take_unsaved() == ()


def test_restored_entries_are_durable_and_need_no_writing() -> None:
    log = RaftLog(0, 0, a_log([1, 1, 2]))

    assert log.durable == log.handed == 3
    assert log.take_unsaved() == ()


def test_entries_must_follow_each_other() -> None:
    log = RaftLog(0, 0, a_log([1, 2]))

    with pytest.raises(AssertionError, match="does not follow"):
        log.append(Entry(4, 2, EntryKind.COMMAND, b""))
    with pytest.raises(AssertionError, match="after term 2"):
        log.append(Entry(3, 1, EntryKind.COMMAND, b""))


def test_cutting_back_takes_durability_along() -> None:
    log = RaftLog(0, 0, a_log([1, 1, 2, 2]))
    log.truncate(3)

    assert (log.last, log.last_term, log.durable, log.handed) == (2, 1, 2, 2)
    log.append(Entry(3, 5, EntryKind.COMMAND, b"new"))
    assert log.take_unsaved() == (Entry(3, 5, EntryKind.COMMAND, b"new"),)
    assert log.durable == 2


def test_cutting_everything_falls_back_to_the_compaction_point() -> None:
    log = RaftLog(4, 2, a_log([2, 3], after=4))
    log.truncate(5)

    assert (log.last, log.last_term, log.bytes) == (4, 2, 0)


def test_compaction_keeps_the_term_it_stops_at() -> None:
    log = RaftLog(0, 0, a_log([1, 2, 2, 3]))
    log.compact(3)
    log.compact(2)

    assert (log.first, log.term(3), log.term(4), log.term(2)) == (4, 2, 3, None)
    assert log.slice(2, 4) == []
    assert [entry.index for entry in log.slice(4, 9)] == [4]


def test_compaction_beyond_the_end_is_a_broken_promise() -> None:
    with pytest.raises(AssertionError, match="log ends at 1"):
        RaftLog(0, 0, a_log([1])).compact(2)


def test_a_run_of_records_fits_into_the_limit_or_travels_alone() -> None:
    size = RECORD_OVERHEAD + 2
    log = RaftLog(3, 1, a_log([1] * 5, after=3))

    assert log.fitting(4, 3 * size) == 6
    assert log.fitting(4, 3 * size - 1) == 5
    assert log.fitting(5, 1) == 5
    assert log.fitting(7, 100 * size) == 8
    assert log.bytes_between(4, 7) == 3 * size
    assert log.bytes_between(0, 5) == 2 * size


def test_a_log_is_current_by_last_term_then_length() -> None:
    log = RaftLog(0, 0, a_log([1, 3]))

    assert log.is_current(2, 3)
    assert log.is_current(1, 4)
    assert not log.is_current(1, 3)
    assert not log.is_current(9, 2)


@given(terms=terms, index=st.integers(0, 30), term=st.integers(0, 7), compacted=st.integers(0, 25))
def test_skipping_back_finds_what_a_walk_would(terms: list[int], index: int, term: int, compacted: int) -> None:
    log = RaftLog(0, 0, a_log(terms))
    log.compact(min(compacted, log.last))

    walked = min(index, log.last)
    while walked > log.prev_index and terms[walked - 1] > term:
        walked -= 1
    walked = max(walked, log.prev_index)

    assert log.skip_back(index, term) == (walked, log.term(walked))


@given(terms=terms, cut=st.integers(1, 26), compacted=st.integers(0, 25), more=terms)
def test_a_cut_compacted_and_extended_log_equals_a_new_one(
    terms: list[int], cut: int, compacted: int, more: list[int]
) -> None:
    log = RaftLog(0, 0, a_log(terms))
    log.compact(min(compacted, log.last))
    log.truncate(max(min(cut, log.last + 1), log.first))
    later = [term + log.last_term for term in more]
    for entry in a_log(later, after=log.last):
        log.append(entry)

    kept = [*terms[: log.last - len(more)], *later]
    assert [log.term(index) for index in range(log.first, log.last + 1)] == kept[log.prev_index :]
    assert log.bytes == sum(RECORD_OVERHEAD + len(entry.payload) for entry in log.slice(log.first, log.last))
    for term in set(kept[log.prev_index :]):
        assert log.last_of_term(term) == max(i for i, each in enumerate(kept, start=1) if each <= term)
