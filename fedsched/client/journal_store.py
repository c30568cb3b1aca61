"""The file under the journal: rows of bytes by kind and key in one SQLite database, each with a checksum.

What a client has written must be there after a power cut, so a group of writes is one transaction, synced before it
counts. What it finds again may be damaged all the same, and a damaged file must never keep a host from running its
tasks: rows that can still be read are carried over into a fresh file, the damaged one is set aside for inspection.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedsched.model.errors import FedschedError
from fedsched.telemetry.log import Logger

FILE: Final = "state.db"
VERSION: Final = 2
"""Of the schema; see `MIGRATIONS`."""
APPLICATION_ID: Final = 0x46534353  # "FSCS": tells our file from any other SQLite database
DAMAGED_MAX: Final = 1_000
SYNCHRONOUS = "FULL"
"""A write counts when a power cut can no longer undo it."""
_VERSION_KEY: Final = ("schema", "version")
_ROWS: Final = (
    "CREATE TABLE rows (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,"
    " PRIMARY KEY (kind, key))"
)
"""With row numbers: what is new lies side by side, so that a transaction about many allocations touches few pages.
Files of older versions have their rows in the order of their keys, and are used as they are."""
CHECKPOINT_PAGES: Final = 2_000
"""So much of the WAL (8 MB) before pages go into the file: an allocation's rows change a dozen times within seconds."""
TOGETHER: Final = 8
"""Rows in one statement where there are as many: each statement lets go of the interpreter and waits to get it back."""
_PUT_ROWS: Final = (
    "INSERT INTO rows VALUES {} ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body, crc = excluded.crc"
)
_PUT: Final = _PUT_ROWS.format("(?, ?, ?, ?)")
_PUT_TOGETHER: Final = _PUT_ROWS.format(", ".join(["(?, ?, ?, ?)"] * TOGETHER))
_ASIDE: Final = (
    "CREATE TABLE aside (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL,"
    " why TEXT NOT NULL)"
)


class StateInUse(FedschedError):
    """Another agent uses this state directory."""

    code = "state_in_use"
    http_status = 409


class StateTooNew(FedschedError):
    """A newer version wrote this state; reading it would forget what only that version knows."""

    code = "state_too_new"


class JournalFailed(FedschedError):
    """The disk did not take what must not be forgotten."""

    code = "journal_failed"


class _Damaged(Exception):
    """The file is not what was written."""


class Row(NamedTuple):
    kind: str
    key: str
    body: bytes


class Put(NamedTuple):
    """Write a row, over one of the same kind and key; no body removes it."""

    kind: str
    key: str
    body: bytes | None


def checksum(kind: str, key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{kind}\0{key}\0".encode()))


class StateLock:
    """Held for as long as a client uses its state directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            raise StateInUse(
                f"another agent uses {directory}" + (f" (process {holder})" if holder else ""),
                hint="stop it first, or give this agent a data_dir of its own",
            ) from error
        os.truncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


class JournalStore:
    """One open file. Not for two threads at a time; every call may wait for the disk."""

    def __init__(self, directory: Path, log: Logger) -> None:
        self._path = directory / FILE
        self._log = log
        self._connection: sqlite3.Connection

    def open(self) -> list[Row]:
        """Open (or make) the file and read it; damage is set aside, and what can be read of it is carried over."""
        try:
            return self._open()
        except (_Damaged, sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.OperationalError) and _is_weather(error, self._path):
                raise self._failure(error) from error
            return self._start_over(error)

    def write(self, puts: Iterable[Put]) -> None:
        """All of it, durably, or nothing."""
        newest = {(kind, key): body for kind, key, body in puts}
        gone = [place for place, body in newest.items() if body is None]
        kept = [(*place, body, checksum(*place, body)) for place, body in newest.items() if body is not None]
        whole = len(kept) - len(kept) % TOGETHER
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("DELETE FROM rows WHERE kind = ? AND key = ?", gone)
                for at in range(0, whole, TOGETHER):
                    self._connection.execute(_PUT_TOGETHER, [one for row in kept[at : at + TOGETHER] for one in row])
                self._connection.executemany(_PUT, kept[whole:])
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def set_aside(self, rows: Sequence[tuple[Row, str]]) -> None:
        """Move rows that nobody can read out of the way, with the reason; they are kept for whoever looks into it."""
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for row, why in rows:
                    self._put_aside(row, why)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def aside(self) -> list[tuple[Row, str]]:
        """What was set aside so far."""
        found = self._connection.execute("SELECT kind, key, body, why FROM aside ORDER BY number").fetchall()
        return [(Row(kind, key, body), why) for kind, key, body, why in found]

    def close(self) -> None:
        self._connection.close()

    # ---- opening --------------------------------------------------------------------------------------------

    def _open(self) -> list[Row]:
        self._connection = _connect(self._path)
        try:
            self._prepare()
            return list(self._read_all())
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection = self._connection
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            _make(connection)
        elif application != APPLICATION_ID:
            raise _Damaged(f"its application id is {application:#x}")
        else:
            problems = connection.execute("PRAGMA quick_check(1)").fetchone()
            if problems != ("ok",):
                raise _Damaged(f"{problems[0]}"[:200])
            self._migrate()

    def _migrate(self) -> None:
        version = _version(self._connection)
        if version > VERSION:
            raise StateTooNew(
                f"{self._path} was written by a newer version (schema {version}, this one knows {VERSION})",
                hint="start that version again, or move the file away and lose what it remembers",
            )
        for number in range(version, VERSION):
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                MIGRATIONS[number - 1](self._connection)
                _put_version(self._connection, number + 1)

    def _read_all(self) -> Iterator[Row]:
        bad: list[tuple[Row, str]] = []
        for kind, key, body, crc in self._connection.execute("SELECT kind, key, body, crc FROM rows"):
            row = Row(kind, key, body)
            if (kind, key) == _VERSION_KEY:
                continue
            if not _is_whole(row, crc):
                bad.append((row, "its checksum does not fit"))
            else:
                yield row
        if bad:
            self._log.warn("state_rows_damaged", rows=[f"{row.kind}/{row.key}"[:120] for row, _ in bad])
            self.set_aside(bad)

    def _put_aside(self, row: Row, why: str) -> None:
        body: Any = row.body
        if not isinstance(body, bytes):
            body = repr(body).encode()
        self._connection.execute(
            "INSERT INTO aside (kind, key, body, why) VALUES (?, ?, ?, ?)", (str(row.kind), str(row.key), body, why)
        )
        self._connection.execute("DELETE FROM rows WHERE kind = ? AND key = ?", (row.kind, row.key))

    def _start_over(self, why: BaseException) -> list[Row]:
        salvaged = _salvage(self._path)
        kept = self._move_away()
        self._log.error("state_damaged", file=str(self._path), why=str(why), kept_as=kept, rows_saved=len(salvaged))
        self._connection = _connect(self._path)
        _make(self._connection)
        self.write(Put(*row) for row in salvaged)
        return salvaged

    def _move_away(self) -> str:
        for number in range(1, DAMAGED_MAX):
            target = self._path.with_name(f"{FILE}.damaged-{number}")
            if not target.exists():
                break
        for suffix in ("", "-wal", "-shm"):
            source = Path(f"{self._path}{suffix}")
            if source.exists():
                source.replace(f"{target}{suffix}")
        return str(target)

    def _failure(self, error: sqlite3.Error) -> JournalFailed:
        return JournalFailed(
            f"{self._path} could not be written: {error}", hint="is the disk full, or read-only? nothing was started"
        )


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_ROWS)
        connection.execute(_ASIDE)
        _put_version(connection, VERSION)


def _version(connection: sqlite3.Connection) -> int:
    """Out of a row with a checksum, not out of the header: a flipped bit there must not pass for a newer version."""
    found = connection.execute("SELECT body, crc FROM rows WHERE kind = ? AND key = ?", _VERSION_KEY).fetchone()
    if found is None or not _is_whole(Row(*_VERSION_KEY, found[0]), found[1]) or not found[0].isdigit():
        raise _Damaged("its schema version cannot be read")
    return int(found[0])


def _put_version(connection: sqlite3.Connection, version: int) -> None:
    body = str(version).encode()
    connection.execute(
        "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", (*_VERSION_KEY, body, checksum(*_VERSION_KEY, body))
    )


def _is_whole(row: tuple[Any, Any, Any], crc: object) -> bool:
    """Whether this is what was written; a damaged file may hold anything under any name."""
    kind, key, body = row
    if not (isinstance(kind, str) and isinstance(key, str) and isinstance(body, bytes)):
        return False
    return crc == checksum(kind, key, body)


def _salvage(path: Path) -> list[Row]:
    """The rows of a damaged file that still are what was written, read from both ends and along both trees."""
    found: dict[tuple[str, str], Row] = {}
    for order in ("kind, key", "kind DESC, key DESC", "rowid", "rowid DESC"):
        try:
            connection = sqlite3.connect(path, isolation_level=None, timeout=0.1)
        except sqlite3.Error:
            break
        try:
            for kind, key, body, crc in connection.execute(f"SELECT kind, key, body, crc FROM rows ORDER BY {order}"):
                row = Row(kind, key, body)
                if (kind, key) != _VERSION_KEY and _is_whole(row, crc):
                    found[kind, key] = row
        except (sqlite3.Error, UnicodeDecodeError):
            continue  # as far as it went; older files have no row numbers
        finally:
            connection.close()
    return list(found.values())


def _is_weather(error: sqlite3.OperationalError, path: Path) -> bool:
    """A full or failing disk, or a missing right: not the file's fault.

    A damaged header can make SQLite say that the file may not be written or opened, so that is tried.
    """
    name = str(getattr(error, "sqlite_errorname", ""))
    if name.startswith(("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_NOMEM")):
        return True
    probe = path.with_name(f".{path.name}.probe")
    try:
        probe.write_bytes(path.read_bytes()[:1])
        probe.unlink()
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return True
    return False


def _keep_what_was_set_aside(connection: sqlite3.Connection) -> None:
    """1 to 2: rows that cannot be read are kept in a table of their own."""
    connection.execute(_ASIDE)


MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (_keep_what_was_set_aside,)
"""From each version to the next."""
