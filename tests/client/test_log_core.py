"""Which bytes of a rotated log come next."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.log_core import DONE, WAIT, LogCore, Open, Read, Say, first_place
from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.alloc_access import FILE_DELETED, FILE_TRUNCATED, LogPlace


def at(file: int, offset: int) -> LogPlace:
    return LogPlace(file=file, offset=offset)


@pytest.mark.parametrize(
    ("origin", "offset", "place"),
    [
        ("start", 0, at(3, 0)),
        ("start", 9, at(3, 9)),
        ("start", 10, at(4, 0)),
        ("start", 99, at(5, 5)),
        ("end", 0, at(5, 5)),
        ("end", 5, at(5, 0)),
        ("end", 6, at(4, 9)),
        ("end", 16, at(3, 9)),
        ("end", 99, at(3, 0)),
    ],
)
def test_bytes_are_counted_over_all_files_together(origin: str, offset: int, place: LogPlace) -> None:
    assert first_place({3: 10, 4: 10, 5: 5}, origin, offset) == place


def test_a_log_without_files_begins_at_the_beginning() -> None:
    assert first_place({}, "end", 100) == at(0, 0)


@pytest.mark.parametrize(("origin", "offset"), [("middle", 0), ("start", -1)])
def test_a_beginning_that_makes_no_sense_is_refused(origin: str, offset: int) -> None:
    with pytest.raises(BadRequest):
        first_place({0: 1}, origin, offset)


def test_a_follower_reads_to_the_end_and_waits() -> None:
    core = LogCore(at(0, 0), end=None)

    assert core.step([0], None) == Open(0, 0)
    assert core.step([0], 100, read_max=64) == Read(0, 64)
    core.has_read(64)
    assert core.step([0], 100, read_max=64) == Read(64, 36)
    core.has_read(36)
    assert core.step([0], 100) == WAIT
    assert core.place == at(0, 100)


def test_the_next_file_waits_until_the_last_byte_of_this_one() -> None:
    core = LogCore(at(0, 0), end=None)
    core.step([0, 1], None)

    assert core.step([0, 1], 10, read_max=99) == Read(0, 10)
    core.has_read(10)
    assert core.step([0, 1], 12, read_max=99) == Read(10, 2)
    core.has_read(2)
    assert core.step([0, 1], 12) == Open(1, 0)


def test_files_that_were_rotated_away_unread_are_counted() -> None:
    core = LogCore(at(0, 0), end=None)
    core.step([0], None)
    core.has_read(10)

    assert core.step([4, 5], 10, is_deleted=True) == Open(4, 0, missed=3)


def test_a_place_whose_file_is_gone_goes_on_with_the_oldest() -> None:
    assert LogCore(at(2, 50), end=None).step([7, 8], None) == Open(7, 0, missed=5)


def test_a_place_in_a_log_that_is_no_more_begins_anew() -> None:
    assert LogCore(at(9, 50), end=None).step([0, 1], None) == Open(0, 0, event=FILE_TRUNCATED)


def test_a_truncated_file_is_read_again_from_its_start() -> None:
    core = LogCore(at(0, 0), end=None)
    core.step([0], None)
    core.has_read(10)

    assert core.step([0], 3) == Open(0, 0, event=FILE_TRUNCATED)


def test_a_deleted_file_is_told_of_once() -> None:
    core = LogCore(at(0, 0), end=None)
    core.step([0], None)

    assert core.step([], 0, is_deleted=True) == Say(FILE_DELETED)
    assert core.step([], 0, is_deleted=True) == WAIT
    assert core.step([1], 0, is_deleted=True) == Open(1, 0)


def test_without_following_the_end_is_where_the_log_ended_at_the_start() -> None:
    core = LogCore(at(0, 0), end=at(1, 5))
    core.step([0, 1], None)
    core.has_read(10)

    assert core.step([0, 1, 2], 10) == Open(1, 0)
    assert core.step([0, 1, 2], 50, read_max=99) == Read(0, 5)
    core.has_read(5)
    assert core.step([0, 1, 2], 50) == DONE


def test_without_following_an_empty_log_is_over_at_once() -> None:
    assert LogCore(at(0, 0), end=at(0, 0)).step([], None) == DONE
    assert LogCore(at(0, 0), end=at(2, 9)).step([], None) == DONE


def test_without_following_what_vanishes_before_its_end_is_over() -> None:
    core = LogCore(at(0, 0), end=at(0, 50))
    core.step([0], None)

    assert core.step([], 0, is_deleted=True) == DONE


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), max_size=60), st.integers(1, 5), st.data())
def test_whatever_the_order_of_writing_and_reading_no_byte_is_skipped_or_repeated(
    writes: list[tuple[int, int]], max_files: int, data: st.DataObject
) -> None:
    """A model of the files; a reader that starts over from its place at random must see a log without seams."""
    files: dict[int, bytes] = {0: b""}
    removed: dict[int, bytes] = {}
    whole = b""
    core, seen, held = LogCore(at(0, 0), end=None), b"", -1
    for size, reads in writes:
        newest = max(files)
        if len(files[newest]) + size > 100:
            newest += 1
            files[newest] = b""
            if len(files) > max_files:
                oldest = min(files)
                removed[oldest] = files.pop(oldest)
        chunk = bytes((len(whole) + at) % 251 for at in range(size))
        files[newest] += chunk
        whole += chunk
        if data.draw(st.booleans()) and core.place.file in files:  # its reader comes back over another link
            core, held = LogCore(core.place, end=None), -1
        for _ in range(reads):
            content = files.get(held, removed.get(held)) if held >= 0 else None
            step = core.step(sorted(files), None if content is None else len(content), read_max=32)
            if isinstance(step, Open):
                held = step.file
                if step.missed:
                    skipped = b"".join({**removed, **files}[one] for one in range(step.file))
                    seen = skipped
            elif isinstance(step, Read):
                assert content is not None
                seen += content[step.offset : step.offset + step.size]
                core.has_read(step.size)
        assert whole.startswith(seen)
