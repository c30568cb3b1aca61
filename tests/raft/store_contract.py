"""What every log store promises. Derive from `StoreContract`, say how to open one, and inherit the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsched.raft.messages import HardState, Restored
from fedsched.raft.storage import EntryHeader, LogStore, StoreFailed

from .storage_kit import a_mark, a_write, an_entry, entries


class StoreContract:
    """One open store per test; `reopened` closes it and says what the next start finds."""

    def open(self, path: Path) -> LogStore:
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "log.db"

    @pytest.fixture
    def store(self, path: Path) -> Iterator[LogStore]:
        store = self.open(path)
        store.recover()
        yield store
        store.close()

    def reopened(self, store: LogStore, path: Path) -> Restored:
        store.close()
        again = self.open(path)
        try:
            return again.recover()
        finally:
            again.close()

    def test_a_new_store_holds_nothing(self, path: Path) -> None:
        store = self.open(path)

        assert store.recover() == Restored()

        store.close()

    def test_what_was_written_is_there_at_the_next_start(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 3), hard_state=HardState(4, "b", 2))])

        assert self.reopened(store, path) == Restored(HardState(4, "b", 2), entries(1, 3))

    def test_an_append_cuts_off_what_stood_from_its_first_index_on(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 5))])
        store.write([a_write(an_entry(3, term=2))])

        assert self.reopened(store, path).entries == (*entries(1, 2), an_entry(3, term=2))

    def test_writes_of_one_group_take_effect_in_order(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 2))])
        store.write(
            [
                a_write(*entries(3, 6), hard_state=HardState(1, "a")),
                a_write(*entries(5, 6, term=2), hard_state=HardState(2)),
                a_write(an_entry(2, term=3)),
                a_write(an_entry(3, term=4), hard_state=HardState(4, "c")),
            ]
        )

        assert self.reopened(store, path) == Restored(
            HardState(4, "c"), (an_entry(1), an_entry(2, term=3), an_entry(3, term=4))
        )

    def test_a_reset_replaces_the_log_and_keeps_the_vote(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 5), hard_state=HardState(2, "a"))])
        store.write([a_write(reset=a_mark(100, term=2))])

        assert self.reopened(store, path) == Restored(HardState(2, "a"), (), a_mark(100, term=2), 100, 2)

    def test_entries_follow_a_reset_in_the_same_group(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 5))])
        store.write(
            [a_write(*entries(6, 7)), a_write(*entries(101, 102), reset=a_mark(100)), a_write(an_entry(102, term=3))]
        )

        found = self.reopened(store, path)

        assert (found.prev_index, found.entries) == (100, (an_entry(101), an_entry(102, term=3)))

    def test_an_append_may_replace_everything_after_a_reset(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(101, 102), reset=a_mark(100))])
        store.write([a_write(an_entry(101, term=9))])

        assert self.reopened(store, path).entries == (an_entry(101, term=9),)

    def test_a_group_without_content_changes_nothing(self, store: LogStore, path: Path) -> None:
        store.write([a_write(), a_write()])
        store.write([])

        assert store.statistics().groups == 0
        assert self.reopened(store, path) == Restored()

    def test_reading_gives_at_least_one_entry_and_no_more_bytes_than_asked(self, store: LogStore) -> None:
        store.write([a_write(*(an_entry(index, payload=b"x" * 10) for index in range(1, 11)))])

        assert [entry.index for entry in store.read(3, 35)] == [3, 4, 5]
        assert [entry.index for entry in store.read(3, 0)] == [3]
        assert [entry.index for entry in store.read(9, 1000)] == [9, 10]
        assert store.read(11, 1000) == ()

    def test_reading_what_the_log_no_longer_has_gives_nothing(self, store: LogStore) -> None:
        store.write([a_write(*entries(1, 5))])
        store.truncate_prefix(3)

        assert store.read(3, 1000) == ()
        assert store.read(4, 1000) == entries(4, 5)

    def test_a_shortened_log_remembers_what_came_just_before(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 2), *entries(3, 5, term=4))])

        assert store.truncate_prefix(3, a_mark(4, term=4)) is False

        assert self.reopened(store, path) == Restored(HardState(), entries(4, 5, term=4), a_mark(4, term=4), 3, 4)

    def test_a_long_prefix_goes_in_slices(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 10))])

        steps = [store.truncate_prefix(9, entries_max=4) for _ in range(3)]

        assert steps == [True, True, False]
        assert self.reopened(store, path).entries == entries(10, 10)

    def test_shortening_beyond_the_end_empties_the_log_and_no_more(self, store: LogStore, path: Path) -> None:
        store.write([a_write(*entries(1, 5))])

        assert store.truncate_prefix(50) is False
        assert store.truncate_prefix(3) is False
        store.write([a_write(an_entry(6))])

        assert self.reopened(store, path) == Restored(entries=(an_entry(6),), prev_index=5, prev_term=1)

    def test_headers_show_entries_without_their_payload(self, store: LogStore) -> None:
        store.write([a_write(*entries(1, 5))])
        store.truncate_prefix(1)

        assert store.headers(0, 3) == [
            EntryHeader(entry.index, entry.term, entry.kind, len(entry.payload)) for entry in entries(2, 3)
        ]
        assert store.headers(6, 9) == []

    @pytest.mark.parametrize("index", [2, 7, 100])
    def test_an_entry_that_leaves_a_gap_is_refused_and_ends_the_store(self, store: LogStore, index: int) -> None:
        store.write([a_write(*entries(1, 5))])
        store.truncate_prefix(2)

        with pytest.raises(ValueError, match=f"entry {index} cannot follow a log of 3 to 5"):
            store.write([a_write(an_entry(index))])
        with pytest.raises(StoreFailed, match="failed earlier"):
            store.write([a_write(an_entry(6))])

    def test_a_closed_store_takes_nothing(self, store: LogStore) -> None:
        store.close()

        with pytest.raises(StoreFailed, match="not open"):
            store.write([a_write(an_entry(1))])

    def test_closing_twice_is_harmless(self, store: LogStore) -> None:
        store.close()
        store.close()
