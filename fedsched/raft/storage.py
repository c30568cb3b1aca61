"""The log store: entries, term and vote, and the snapshot mark of one server, in one SQLite file.

SQLite is here for what it is trusted for: ordered, atomic, durable groups. Everything else is our own care:

- One group is one transaction, synced before `write` returns. Checkpoints never run inside one; `tidy` does them.
- Every row carries a CRC. `recover` reads everything, so damage is found at start, not in the middle of an election.
- Any error poisons the store: the transaction may or may not be on disk, the kernel may have dropped the pages of a
  failed sync, and trying again could "succeed" on air. A poisoned store does nothing more, not even close its file
  (closing would copy the WAL into the database); the process is expected to end and the next one to recover.
- What SQLite would cut in silence is noticed: `wal_check` finds damage in the middle of the WAL, and `acked_mark` knows
  how far the log was acknowledged.

The WAL's space is written once at start and recycled from then on: a sync that does not change the file's size costs
about half of one that does.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from fedsched.codec import cbor
from fedsched.model.errors import FedschedError
from fedsched.raft import store_group as rows
from fedsched.raft.acked_mark import AckedMark
from fedsched.raft.disk_errors import FULL, StoreFailed, disk_hint
from fedsched.raft.entry import DamagedRecord, Entry, EntryKind, unpack
from fedsched.raft.messages import HardState, Restored, SnapshotMeta
from fedsched.raft.store_group import Group, StoreWrite
from fedsched.raft.wal_check import check_wal
from fedsched.raft.wire import BadMessage, meta_from_bytes, meta_to_bytes

__all__ = ["DamagedStore", "EntryHeader", "LogStore", "Store", "StoreFailed", "StoreStatistics", "StoreWrite"]

FORMAT_VERSION: Final = 1
APPLICATION_ID: Final = 0x46534C47  # "FSLG": tells our file from any other SQLite database
WAL_BYTES_MAX: Final = 4 * 1024 * 1024
"""A checkpoint of this much held up the next group for 8 ms where it was measured, of four times as much for 24."""
DELETE_SLICE: Final = 2048
"""Entries removed per transaction when the log is shortened: 6 ms for 1 KB entries."""


class DamagedStore(FedschedError):
    """What is on disk is not what was written. Starting would mean voting with amnesia."""

    code = "damaged_store"


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """An entry as log inspection shows it."""

    index: int
    term: int
    kind: EntryKind
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    first_index: int
    """Of the first entry kept; one more than `last_index` when there is none."""
    last_index: int
    groups: int
    """Since the store was opened."""
    checkpoints: int
    wal_bytes: int
    """An estimate of what the next checkpoint has to copy."""


class Store(Protocol):
    """What the store thread needs. Whatever keeps this contract can stand in for SQLite."""

    def write(self, batch: Sequence[StoreWrite]) -> None:
        """Make all of it durable, as a whole and in order; or raise and never succeed again."""

    def tidy(self, *, is_idle: bool) -> None:
        """House-keeping between groups; cheap when there is nothing to do."""

    def truncate_prefix(self, index: int, snapshot: SnapshotMeta | None = None) -> bool:
        """Forget entries through `index`, a bounded number per call; True when there are more to forget."""

    def read(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `first` on, at least one if there is one."""

    def headers(self, first: int, last: int) -> list[EntryHeader]:
        """What log inspection shows."""


class LogStore:
    """One open log file. Not for two threads at a time; every call may wait for the disk."""

    def __init__(
        self, path: Path | str, *, wal_bytes_max: int = WAL_BYTES_MAX, page_bytes: int = 4096, recycle_wal: bool = True
    ) -> None:
        self._path = Path(path)
        self._wal_bytes_max = wal_bytes_max
        self._page_bytes = page_bytes
        self._recycle_wal = recycle_wal
        self._mark = AckedMark(self._path.with_name(self._path.name + ".mark"))
        self._connection: sqlite3.Connection | None = None
        self._failed: StoreFailed | None = None
        self._sequence = 0
        """Of the last group on disk."""
        self._prev_index = 0
        self._last_index = 0
        self._wal_bytes = 0
        self._groups = 0
        self._checkpoints = 0

    # --- start -------------------------------------------------------------------------------------------------------

    def recover(self) -> Restored:
        """Open (or create) the file, check all of it, and return what it holds.

        Raises `DamagedStore` if anything acknowledged is missing or altered, `StoreFailed` if the disk fails.
        """
        with self._failing("opening"):
            try:
                return self._recover()
            except (sqlite3.Error, UnicodeDecodeError, DamagedStore) as error:  # a complaint may itself be garbled
                if isinstance(error, sqlite3.Error) and _primary_code(error) in _WEATHER:
                    raise
                self._let_go(close=True)
                if isinstance(error, DamagedStore):
                    raise
                raise self._damage(f"SQLite says: {error}") from error

    def _recover(self) -> Restored:
        is_new = not self._path.exists()
        acked = self._mark.open()
        if is_new and acked:
            raise self._damage(f"the log file is missing, but {acked} groups were written to it")
        if not is_new:
            self._check_wal()
        self._connect(is_new)
        restored = self._read_all()
        if self._sequence < acked:
            raise self._damage(f"group {acked} was acknowledged, but the log ends with group {self._sequence}")
        self._start_writing()
        return restored

    def _check_wal(self) -> None:
        try:
            data = Path(f"{self._path}-wal").read_bytes()
        except FileNotFoundError:
            return
        findings = check_wal(data)
        if findings.damaged_at is not None:
            raise self._damage(f"byte {findings.damaged_at} of the write-ahead log lies in an acknowledged write")

    def _connect(self, is_new: bool) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        run = self._connection.execute
        if is_new:
            run(f"PRAGMA page_size = {self._page_bytes}")
        for pragma in _PRAGMAS:
            run(f"PRAGMA {pragma}")
        mode = self._one("PRAGMA journal_mode")
        if mode != "wal":
            raise self._damage(f"journal mode is {mode!r}, not a write-ahead log")
        if is_new or self._is_blank():
            self._create()
            _sync_directory(self._path.parent)

    def _is_blank(self) -> bool:
        """Whether a crash came between the file's birth and its first transaction."""
        return (self._one("SELECT count(*) FROM sqlite_schema"), self._one("PRAGMA user_version")) == (0, 0)

    def _create(self) -> None:
        run = self._db.execute
        run("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            run(statement)
        self._put(rows.HARD_STATE, 0, rows.hard_state_body(HardState()))
        self._put(rows.BASE, 0, rows.base_body(0, 0))
        self._put(rows.SNAPSHOT, 0, b"")
        run("COMMIT")

    def _read_all(self) -> Restored:
        if self._one("PRAGMA application_id") != APPLICATION_ID:
            raise self._damage("this is not a log file")
        version = self._one("PRAGMA user_version")
        if version != FORMAT_VERSION:
            raise self._damage(f"format version {version} is not known here, only {FORMAT_VERSION}")
        complaint = self._one("PRAGMA quick_check(1)")
        if complaint != "ok":
            raise self._damage(f"SQLite says: {complaint}")
        bodies = self._read_meta()
        try:
            hard_state = HardState(*cbor.loads(bodies[rows.HARD_STATE]))
            prev_index, prev_term = cbor.loads(bodies[rows.BASE])
            snapshot = meta_from_bytes(bodies[rows.SNAPSHOT]) if bodies[rows.SNAPSHOT] else None
        except (cbor.CodecError, BadMessage, TypeError, ValueError) as error:
            raise self._damage(f"a row of the meta table has a form not known here: {error}") from error
        entries = self._read_entries(prev_index)
        self._prev_index, self._last_index = prev_index, prev_index + len(entries)
        return Restored(hard_state, tuple(entries), snapshot, prev_index, prev_term)

    def _read_meta(self) -> dict[int, bytes]:
        found = dict(self._db.execute("SELECT key, value FROM meta"))
        if set(found) != set(rows.META_NAMES):
            raise self._damage("term, vote or the beginning of the log is missing")
        bodies: dict[int, bytes] = {}
        for key, value in found.items():
            try:
                sequence, bodies[key] = rows.unseal(key, value)
            except rows.BadSeal as error:
                raise self._damage(str(error)) from error
            self._sequence = max(self._sequence, sequence)
        return bodies

    def _read_entries(self, prev_index: int) -> list[Entry]:
        entries: list[Entry] = []
        expected, sequence = prev_index, 0
        for index, group, record in self._db.execute("SELECT idx, sequence, record FROM log ORDER BY idx"):
            expected += 1
            entries.append(self._entry(expected, index, record))
            sequence = group
        if entries and (type(sequence) is not int or not 0 < sequence <= rows.SEQUENCE_MAX):
            raise self._damage(f"entry {expected} is not the last of the group it was written with")
        self._sequence = max(self._sequence, sequence)
        return entries

    def _entry(self, expected: int, index: int, record: Any) -> Entry:
        if index != expected:
            raise self._damage(f"entry {expected} is missing; the next one found is {index}")
        try:
            (entry,) = unpack(record)
        except (DamagedRecord, TypeError, ValueError) as error:
            raise self._damage(f"entry {index} is not what was written: {error}") from error
        if entry.index != index:
            raise self._damage(f"entry {entry.index} was found in the place of {index}")
        return entry

    def _start_writing(self) -> None:
        """Fold the old WAL in, and give the new one its full size while nobody waits."""
        self._checkpoint("TRUNCATE")
        if self._recycle_wal:
            self._db.execute("INSERT INTO filler VALUES (zeroblob(?))", (self._wal_bytes_max * 5 // 4,))
            self._db.execute("DELETE FROM filler")
            self._checkpoint("PASSIVE")
        self._mark.set(self._sequence)

    # --- groups ------------------------------------------------------------------------------------------------------

    def write(self, batch: Sequence[StoreWrite]) -> None:
        """Make these writes durable in one transaction: all of them on return, or `StoreFailed` for ever."""
        with self._failing("writing"):
            group = Group(self._sequence + 1, self._prev_index, self._last_index)
            for write in batch:
                group.add(write)
            if group.is_empty:
                return
            run = self._db.execute
            run("BEGIN IMMEDIATE")
            if group.delete_from is not None:
                run("DELETE FROM log WHERE idx >= ?", (group.delete_from,))
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?)", group.rows())
            for key, body in group.meta.items():
                self._put(key, group.sequence, body)
            run("COMMIT")
            self._prev_index, self._last_index = group.prev_index, group.last_index
            self._group_is_durable(group.wal_bytes)

    def truncate_prefix(
        self, index: int, snapshot: SnapshotMeta | None = None, *, entries_max: int = DELETE_SLICE
    ) -> bool:
        """Forget entries through `index`, and remember the snapshot that makes them superfluous.

        Takes at most `entries_max` in one call, so that groups can go between; True when it has to be called again.
        """
        with self._failing("shortening the log"):
            upto = max(self._prev_index, min(index, self._last_index, self._prev_index + entries_max))
            sequence = self._sequence + 1
            self._db.execute("BEGIN IMMEDIATE")
            if upto > self._prev_index:
                (last,) = self._from(upto, upto)
                self._db.execute("DELETE FROM log WHERE idx <= ?", (upto,))
                self._put(rows.BASE, sequence, rows.base_body(last.index, last.term))
            if snapshot is not None:
                self._put(rows.SNAPSHOT, sequence, meta_to_bytes(snapshot))
            self._db.execute("COMMIT")
            if upto > self._prev_index or snapshot is not None:
                self._prev_index = upto
                self._group_is_durable(4 * self._page_bytes)
            return upto < min(index, self._last_index)

    def tidy(self, *, is_idle: bool) -> None:
        """Checkpoint when the WAL has grown to its limit, or has much in it while nobody waits."""
        if self._wal_bytes > self._wal_bytes_max or (is_idle and self._wal_bytes > self._wal_bytes_max // 4):
            with self._failing("folding the write-ahead log in"):
                self._checkpoint("PASSIVE")

    def _put(self, key: int, sequence: int, body: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, rows.seal(key, sequence, body)))

    def _group_is_durable(self, wal_bytes: int) -> None:
        self._sequence += 1
        self._groups += 1
        self._wal_bytes += wal_bytes
        self._mark.set(self._sequence)

    def _checkpoint(self, mode: str) -> None:
        self._mark.sync()  # from here on the mark vouches for what the database file holds
        busy, frames, moved = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if busy or frames != moved:
            raise sqlite3.OperationalError(f"only {moved} of {frames} frames could be moved")
        self._wal_bytes = 0
        self._checkpoints += 1

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `first` on, `max_bytes` of payload at most but at least one entry if there is one; all checked.

        Empty when the log ends before `first`, or no longer reaches back to it.
        """
        with self._failing("reading"):
            entries: list[Entry] = []
            if first <= self._prev_index:
                return ()
            left = max_bytes
            for entry in self._from(first, self._last_index):
                left -= len(entry.payload)
                if entries and left < 0:
                    break
                entries.append(entry)
            return tuple(entries)

    def headers(self, first: int, last: int) -> list[EntryHeader]:
        """What log inspection shows of entries `first` to `last`; each is read whole and checked."""
        with self._failing("reading"):
            found = self._from(max(first, self._prev_index + 1), min(last, self._last_index))
            return [EntryHeader(entry.index, entry.term, entry.kind, len(entry.payload)) for entry in found]

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(self._prev_index + 1, self._last_index, self._groups, self._checkpoints, self._wal_bytes)

    def _from(self, first: int, last: int) -> Iterator[Entry]:
        found = self._db.execute("SELECT idx, record FROM log WHERE idx BETWEEN ? AND ? ORDER BY idx", (first, last))
        expected = first
        for index, record in found:
            yield self._entry(expected, index, record)
            expected += 1
        if expected <= last:
            raise self._damage(f"entry {expected} is missing")

    # --- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Fold the WAL in and let go of the file. A poisoned store is left exactly as it lies."""
        if self._connection is not None and self._failed is None:
            with self._failing("closing"):
                self._mark.sync()
                self._connection.close()
        self._let_go(close=False)

    def _let_go(self, *, close: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and close:
            connection.close()
        self._mark.close()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreFailed(f"log store {self._path} is not open")
        return self._connection

    def _one(self, statement: str) -> Any:
        return self._db.execute(statement).fetchone()[0]

    def _damage(self, what: str) -> DamagedStore:
        return DamagedStore(
            f"{self._path}: {what}",
            hint="this log can no longer be trusted: wipe the data directory and let the server rejoin as a new one",
        )

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Turns the first error of any kind into the last thing this store ever says."""
        if self._failed is not None:
            raise StoreFailed(f"log store {self._path} failed earlier: {self._failed.message}", hint=self._failed.hint)
        try:
            yield
        except BaseException as error:
            self._failed = _failure(self._path, doing, error)
            if self._connection is not None:
                _keep_for_ever(self._connection)
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError, OSError)):
                raise self._failed from error
            raise


_PRAGMAS: Final = (
    "locking_mode = EXCLUSIVE",  # no shared memory file, and nobody else may look in
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 0",
    "cell_size_check = ON",
    "trusted_schema = OFF",
    "secure_delete = OFF",  # some builds zero what is deleted, which doubles the cost of shortening the log
    "cache_size = -4096",
)
_SCHEMA: Final = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
    "CREATE TABLE log (idx INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, record BLOB NOT NULL)",
    "CREATE TABLE meta (key INTEGER PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE filler (zeros BLOB)",
)
_WEATHER: Final = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}
"""Primary result codes that speak of the disk or the machine; any other, met while recovering, speaks of the file."""


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its refinements; 1, "some error", for those that Python itself makes."""
    return int(getattr(error, "sqlite_errorcode", 1)) & 0xFF


def _failure(path: Path, doing: str, error: BaseException) -> StoreFailed:
    is_full = isinstance(error, sqlite3.Error) and _primary_code(error) == sqlite3.SQLITE_FULL
    hint = disk_hint(OSError(FULL[0], "") if is_full else error)
    return StoreFailed(f"log store {path} failed while {doing}: {error}", hint=hint)


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """Make sure nothing ever closes this connection, not even the interpreter on its way out.

    Closing copies the WAL into the database without looking at checksums. After a failed sync the WAL's pages may be
    anything; the next process reads them with checksums and keeps what was acknowledged.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
