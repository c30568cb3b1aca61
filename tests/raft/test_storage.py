"""The SQLite log store keeps the contract, checkpoints between groups, and stops for good at the first error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.raft.messages import HardState, Restored
from fedsched.raft.storage import DamagedStore, LogStore, StoreFailed, StoreWrite

from .storage_kit import Image, a_mark, a_write, an_entry, entries, memory_directory, recovered
from .store_contract import StoreContract


class TestLogStore(StoreContract):
    def open(self, path: Path) -> LogStore:
        return LogStore(path)


class TestSmallLogStore(StoreContract):
    """The form that the damage tests use: smallest pages, WAL not recycled, a checkpoint after nearly every group."""

    def open(self, path: Path) -> LogStore:
        return LogStore(path, page_bytes=512, wal_bytes_max=4096, recycle_wal=False)


# --- against a model -------------------------------------------------------------------------------------------------


class Model:
    """The obvious store: a list, and a copy of the rest."""

    def __init__(self) -> None:
        self.found = Restored()

    def apply(self, write: StoreWrite) -> None:
        hard_state, log, snapshot = self.found.hard_state, list(self.found.entries), self.found.snapshot
        prev_index, prev_term = self.found.prev_index, self.found.prev_term
        if write.reset is not None:
            log, snapshot, prev_index, prev_term = [], write.reset, write.reset.index, write.reset.term
        if write.append:
            log[write.append[0].index - prev_index - 1 :] = write.append
        if write.hard_state is not None:
            hard_state = write.hard_state
        self.found = Restored(hard_state, tuple(log), snapshot, prev_index, prev_term)

    def shorten(self, index: int) -> None:
        found = self.found
        count = max(0, min(index - found.prev_index, len(found.entries)))
        if count:
            last = found.entries[count - 1]
            self.found = Restored(found.hard_state, found.entries[count:], found.snapshot, last.index, last.term)

    @property
    def last_index(self) -> int:
        return self.found.prev_index + len(self.found.entries)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Groups, shortenings, restarts and crashes that make sense one after the other."""
    model, made = Model(), list[tuple[str, Any]]()
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["group", "group", "group", "shorten", "close", "crash"]))
        if kind == "group":
            group = []
            for _ in range(draw(st.integers(1, 3))):
                write = draw(a_possible_write(model))
                model.apply(write)
                group.append(write)
            made.append((kind, group))
        elif kind == "shorten":
            index = draw(st.integers(0, model.last_index + 1))
            model.shorten(index)
            made.append((kind, index))
        else:
            made.append((kind, None))
    return made


@st.composite
def a_possible_write(draw: st.DrawFn, model: Model) -> StoreWrite:
    prev_index, last_index = model.found.prev_index, model.last_index
    reset = None
    if draw(st.integers(0, 9)) == 0:
        prev_index = last_index = last_index + draw(st.integers(0, 5))
        reset = a_mark(last_index, draw(st.integers(1, 5)))
    first = draw(st.integers(prev_index + 1, last_index + 1))
    payloads = draw(st.lists(st.binary(max_size=700), max_size=4))
    term = draw(st.integers(1, 9))
    hard_state = draw(st.none() | st.builds(HardState, st.integers(0, 99), st.none() | st.just("a"), st.integers(0, 9)))
    return StoreWrite(
        1, hard_state, reset, tuple(an_entry(first + at, term, payload) for at, payload in enumerate(payloads))
    )


@settings(max_examples=60)
@given(steps())
def test_any_sequence_of_groups_restarts_and_crashes_leaves_what_a_list_would_hold(made: list[tuple[str, Any]]) -> None:
    model = Model()
    with memory_directory() as directory:
        generation = directory / "0"
        generation.mkdir()
        store = LogStore(generation / "log.db", page_bytes=512, wal_bytes_max=2048, recycle_wal=True)
        assert store.recover() == Restored()
        for at, (kind, what) in enumerate(made):
            if kind == "group":
                store.write(what)
                for write in what:
                    model.apply(write)
                store.tidy(is_idle=False)
            elif kind == "shorten":
                store.truncate_prefix(what)
                model.shorten(what)
            else:
                image = Image.of(generation)
                store.close()
                if kind == "crash":
                    generation = directory / f"after-crash-{at}"
                    generation.mkdir()
                    image.put(generation)
                store = LogStore(generation / "log.db", page_bytes=512, wal_bytes_max=2048, recycle_wal=True)
                assert store.recover() == model.found
        store.close()
        assert recovered(generation) == model.found


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_waits_for_tidy_and_then_for_the_limit(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db", wal_bytes_max=64 * 1024)
    store.recover()
    at_start = store.statistics().checkpoints
    index = 0
    while store.statistics().wal_bytes <= 64 * 1024:
        index += 1
        store.write([a_write(an_entry(index, payload=b"x" * 4000))])
        assert store.statistics().checkpoints == at_start

    store.tidy(is_idle=False)
    store.tidy(is_idle=False)

    assert store.statistics().checkpoints == at_start + 1
    assert store.statistics().wal_bytes == 0
    store.close()


def test_an_idle_store_checkpoints_earlier_but_not_for_a_trifle(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db", wal_bytes_max=64 * 1024)
    store.recover()
    at_start = store.statistics().checkpoints

    store.write([a_write(an_entry(1))])
    store.tidy(is_idle=True)
    assert store.statistics().checkpoints == at_start
    store.write([a_write(an_entry(2, payload=b"x" * 20_000))])
    store.tidy(is_idle=True)

    assert store.statistics().checkpoints == at_start + 1
    store.close()


def test_the_write_ahead_log_keeps_its_size_while_groups_come_and_go(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db", wal_bytes_max=256 * 1024)
    store.recover()
    wal = tmp_path / "log.db-wal"
    size = wal.stat().st_size

    for index in range(1, 400):
        store.write([a_write(an_entry(index, payload=b"x" * 1000))])
        store.tidy(is_idle=False)

    assert size >= 256 * 1024
    assert wal.stat().st_size == size
    assert store.statistics().checkpoints > 3
    store.close()


def test_the_settings_that_durability_rests_on_are_in_force(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    assert store._connection is not None
    in_force = {
        name: store._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "locking_mode")
    }

    assert in_force == {"journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 0, "locking_mode": "exclusive"}
    store.close()


# --- the first error is the last word --------------------------------------------------------------------------------


class FailingConnection:
    """Passes everything on to SQLite until the statement named; from then on the disk is broken, once."""

    def __init__(self, connection: sqlite3.Connection, statement: str, error: Exception) -> None:
        self._connection = connection
        self._statement = statement
        self._error: Exception | None = error
        self.calls_after_failure = 0

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self._error is None:
            self.calls_after_failure += 1
        elif statement.startswith(self._statement):
            error, self._error = self._error, None
            raise error
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        if self._error is None:
            self.calls_after_failure += 1
        return getattr(self._connection, name)


def an_io_error(code: int = sqlite3.SQLITE_IOERR, text: str = "disk I/O error") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[tuple[LogStore, FailingConnection]]:
    store = LogStore(tmp_path / "log.db", recycle_wal=False)
    store.recover()
    store.write([a_write(*entries(1, 3))])
    real = store._connection
    assert real is not None
    failing = FailingConnection(real, "COMMIT", an_io_error())
    store._connection = failing  # type: ignore[assignment]
    yield store, failing
    real.close()


def test_a_failed_commit_is_reported_and_never_tried_again(broken: tuple[LogStore, FailingConnection]) -> None:
    store, failing = broken

    with pytest.raises(StoreFailed, match="failed while writing: disk I/O error") as failure:
        store.write([a_write(an_entry(4))])
    for attempt in (
        lambda: store.write([a_write(an_entry(4))]),
        lambda: store.read(1, 10),
        lambda: store.headers(1, 2),
        lambda: store.truncate_prefix(1),
        lambda: store.recover(),
    ):
        with pytest.raises(StoreFailed, match="failed earlier"):
            attempt()
    store.close()

    assert "restart" in failure.value.hint
    assert failing.calls_after_failure == 0


def test_a_full_disk_is_called_by_its_name(broken: tuple[LogStore, FailingConnection]) -> None:
    store, failing = broken
    failing._error = an_io_error(sqlite3.SQLITE_FULL, "database or disk is full")

    with pytest.raises(StoreFailed, match="disk is full") as failure:
        store.write([a_write(an_entry(4))])

    assert "make room" in failure.value.hint


def test_a_mark_that_cannot_be_written_ends_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore(tmp_path / "log.db", recycle_wal=False)
    store.recover()

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._mark, "set", no_room)

    with pytest.raises(StoreFailed, match="No space left") as failure:
        store.write([a_write(an_entry(1))])

    assert "make room" in failure.value.hint
    store.close()


def test_a_checkpoint_that_could_not_move_everything_ends_the_store(
    broken: tuple[LogStore, FailingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, failing = broken
    real = failing._connection
    monkeypatch.setattr(failing, "execute", lambda _: real.execute("SELECT 0, 5, 3"), raising=False)
    store._wal_bytes_max = 0

    with pytest.raises(StoreFailed, match="folding the write-ahead log in: only 3 of 5 frames"):
        store.tidy(is_idle=True)


# --- refusals at start -----------------------------------------------------------------------------------------------


def test_a_missing_log_is_noticed_by_the_mark_it_left(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(an_entry(1))])
    store.close()
    (tmp_path / "log.db").unlink()

    with pytest.raises(DamagedStore, match="the log file is missing, but 1 groups were written") as refusal:
        LogStore(tmp_path / "log.db").recover()

    assert "wipe the data directory" in refusal.value.hint


def test_an_older_copy_of_the_log_is_refused(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(an_entry(1))])
    store.close()
    old = (tmp_path / "log.db").read_bytes()
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(an_entry(2), hard_state=HardState(7, "a"))])
    store.close()
    (tmp_path / "log.db").write_bytes(old)

    for _ in range(2):
        with pytest.raises(DamagedStore, match="group 2 was acknowledged, but the log ends with group 1"):
            LogStore(tmp_path / "log.db").recover()


def test_a_crash_before_the_first_transaction_leaves_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()

    assert recovered(tmp_path) == Restored()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("PRAGMA user_version = 9", "format version 9"),
        ("PRAGMA application_id = 5", "not a log file"),
        ("DELETE FROM log WHERE idx = 2", "entry 2 is missing; the next one found is 3"),
        ("DELETE FROM log WHERE idx = 4", "entry 3 is not the last of the group"),
        ("UPDATE log SET idx = 9 WHERE idx = 4", "entry 4 is missing; the next one found is 9"),
        (
            "UPDATE log SET record = (SELECT record FROM log WHERE idx = 1) WHERE idx = 2",
            "entry 1 was found in the place",
        ),
        ("UPDATE log SET record = x'00' WHERE idx = 2", "entry 2 is not what was written"),
        ("UPDATE log SET record = 5 WHERE idx = 2", "entry 2 is not what was written"),
        ("UPDATE log SET record = CAST(record || record AS BLOB) WHERE idx = 2", "entry 2 is not what was written"),
        ("UPDATE log SET sequence = 'x' WHERE idx = 4", "not the last of the group"),
        ("DELETE FROM log", "group 1 was acknowledged"),
        ("DELETE FROM meta WHERE key = 1", "term, vote or the beginning of the log is missing"),
        ("UPDATE meta SET value = x'00' WHERE key = 1", "term and vote fails its checksum"),
        (
            "UPDATE meta SET value = (SELECT value FROM meta WHERE key = 1) WHERE key = 2",
            "the beginning of the log fails",
        ),
        ("DROP TABLE log", "SQLite says: no such table"),
        ("PRAGMA journal_mode = DELETE", ""),
    ],
)
def test_what_was_tampered_with_is_refused_by_name(tmp_path: Path, statement: str, says: str) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(*entries(1, 4), number=1)])
    store.close()
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute(statement)
    other.close()

    if not says:
        assert recovered(tmp_path).entries == entries(1, 4)
        return
    for _ in range(2):
        with pytest.raises(DamagedStore, match=says):
            LogStore(tmp_path / "log.db").recover()


def test_a_meta_row_of_an_unknown_form_is_refused(tmp_path: Path) -> None:
    from fedsched.raft.store_group import HARD_STATE, seal

    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.close()
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("UPDATE meta SET value = ? WHERE key = ?", (seal(HARD_STATE, 0, b"\xff"), HARD_STATE))
    other.close()

    with pytest.raises(DamagedStore, match="a form not known here"):
        recovered(tmp_path)


def test_a_file_that_somebody_else_holds_is_weather_not_damage(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(an_entry(1))])

    with pytest.raises(StoreFailed, match="locked"):
        LogStore(tmp_path / "log.db").recover()

    store.close()


def test_an_entry_that_vanished_while_running_ends_the_store(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "log.db")
    store.recover()
    store.write([a_write(*entries(1, 4))])
    assert store._connection is not None
    store._connection.execute("DELETE FROM log WHERE idx = 4")

    with pytest.raises(DamagedStore, match="entry 4 is missing"):
        store.read(3, 1000)
    with pytest.raises(StoreFailed, match="failed earlier"):
        store.write([a_write(an_entry(5))])


def test_a_log_written_by_version_1_is_still_read(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "fixtures" / "raft_store"
    for suffix in ("db", "db.mark"):
        (tmp_path / f"log.{suffix}").write_bytes((golden / f"version-1.{suffix}").read_bytes())

    assert recovered(tmp_path) == Restored(HardState(3, "b", 18), entries(6, 20), a_mark(9), 5, 1)
