"""A server's data directory: whose it is, who may use it, and how much room is left.

lock         held with flock for the life of the process; names the process that holds it
server-id    made at first start; a wiped directory gets a new one, because a server that forgot its votes must not
             come back under the name it voted with
cluster-id   which cluster the log belongs to, once known
ballast      room to restart in when everything else is full
raft/        the log and the snapshots
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Self

from fedsched.model.errors import Conflict, FedschedError
from fedsched.raft.disk_errors import FULL, failing
from fedsched.raft.storage import DamagedStore

BALLAST_BYTES: Final = 64 * 1024 * 1024
START_ROOM_BYTES: Final = 16 * 1024 * 1024
"""What a start may need before it can free anything: the write-ahead log at its full size and folded in, with some air.
Where there is less, the ballast goes."""
ID_LENGTH_MAX: Final = 64


class DataDirInUse(FedschedError):
    """Another process holds this data directory."""

    code = "data_dir_in_use"
    http_status = 409


class Space(Enum):
    """How much room the disk has left, as far as a server cares."""

    OK = "ok"
    SOFT = "soft"
    """New client writes are refused; everything else goes on."""
    HARD = "hard"
    """A leader hands over."""


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """Each limit is the smaller of a size and a share: neither a huge nor a tiny disk makes it absurd."""

    soft_bytes: int = 1024 * 1024 * 1024
    soft_share: float = 0.05
    hard_bytes: int = 256 * 1024 * 1024
    hard_share: float = 0.0125


@dataclass(frozen=True, slots=True)
class DiskRoom:
    free_bytes: int
    total_bytes: int


def disk_room(path: Path) -> DiskRoom:
    """What an ordinary process may still use of the file system that holds `path`."""
    found = os.statvfs(path)
    return DiskRoom(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def open_data_dir(
    path: Path | str,
    new_id: Callable[[], str],
    *,
    ballast_bytes: int = BALLAST_BYTES,
    limits: SpaceLimits = SpaceLimits(),
    room: Callable[[Path], DiskRoom] = disk_room,
) -> DataDir:
    """Lock the directory (made if missing) and find out, or decide once, which server this is.

    Raises `DataDirInUse` if another process holds it, `DamagedStore` if it is only half there, `StoreFailed` if the
    disk does not let us.
    """
    directory = Path(path)
    with failing(f"opening data directory {directory}"):
        (directory / "raft").mkdir(parents=True, exist_ok=True)
        lock_fd = _lock(directory)
        try:
            return DataDir(directory, lock_fd, _server_id(directory, new_id), ballast_bytes, limits, room)
        except BaseException:
            os.close(lock_fd)
            raise


class DataDir:
    """An opened and locked data directory; made by `open_data_dir`. Calls block on the disk, briefly."""

    def __init__(
        self,
        path: Path,
        lock_fd: int,
        server_id: str,
        ballast_bytes: int,
        limits: SpaceLimits,
        room: Callable[[Path], DiskRoom],
    ) -> None:
        self.path = path
        self.server_id = server_id
        self._lock_fd = lock_fd
        self._limits = limits
        self._room = room
        self._cluster_id = _read_name(path / "cluster-id")
        self._ballast_bytes = ballast_bytes
        self.take_ballast()

    @property
    def log_path(self) -> Path:
        return self.path / "raft" / "log.db"

    @property
    def snapshots_path(self) -> Path:
        return self.path / "raft" / "snapshots"

    @property
    def images_path(self) -> Path:
        return self.path / "raft" / "images"

    @property
    def cluster_id(self) -> str:
        """Empty until this server has bootstrapped or joined a cluster."""
        return self._cluster_id

    def join_cluster(self, cluster_id: str) -> None:
        """Remember, durably, which cluster this log belongs to. It can never belong to another."""
        if self._cluster_id and self._cluster_id != cluster_id:
            raise Conflict(
                f"{self.path} belongs to cluster {self._cluster_id}, not {cluster_id}",
                hint="wipe the data directory to join another cluster",
            )
        if not self._cluster_id:
            with failing(f"writing to data directory {self.path}"):
                _write_name(self.path / "cluster-id", cluster_id)
            self._cluster_id = cluster_id

    def space(self) -> Space:
        """Whether there is room enough to go on."""
        room, limits = self._room(self.path), self._limits
        if room.free_bytes < min(limits.hard_bytes, int(limits.hard_share * room.total_bytes)):
            return Space.HARD
        if room.free_bytes < self._soft_limit(room):
            return Space.SOFT
        return Space.OK

    @property
    def has_ballast(self) -> bool:
        return self._ballast.exists()

    def release_ballast(self) -> None:
        """Give the reserve back to the disk; `take_ballast` takes it again once there is room for it."""
        self._ballast.unlink(missing_ok=True)

    def take_ballast(self) -> None:
        """Reserve room, unless that would itself make the disk short; on a full disk, give it back to start with.

        With a size of 0 what is there stays, as long as it is not needed.
        """
        size = self._ballast_bytes
        is_right = not size or (self.has_ballast and self._ballast.stat().st_size == size)
        if is_right and self._room(self.path).free_bytes >= START_ROOM_BYTES:
            return
        self.release_ballast()
        room = self._room(self.path)
        if size and room.free_bytes - size >= max(START_ROOM_BYTES, self._soft_limit(room)):
            with failing(f"reserving room in data directory {self.path}"):
                self._reserve(size)

    def close(self) -> None:
        """Let another process have the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def _reserve(self, size: int) -> None:
        fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            self.release_ballast()
            if error.errno not in (*FULL, errno.EFBIG):
                raise
        finally:
            os.close(fd)

    def _soft_limit(self, room: DiskRoom) -> int:
        return min(self._limits.soft_bytes, int(self._limits.soft_share * room.total_bytes))


def _lock(directory: Path) -> int:
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DataDirInUse(
            f"data directory {directory} is in use by process {holder}",
            hint="stop that process, or give this server a directory of its own with data_dir",
        ) from None
    os.pwrite(fd, f"{os.getpid():<15}\n".encode(), 0)  # over what is there: a full disk has no room for a new block
    return fd


def _server_id(directory: Path, new_id: Callable[[], str]) -> str:
    path = directory / "server-id"
    server_id = _read_name(path)
    if server_id:
        return server_id
    if (directory / "raft" / "log.db").exists():
        raise DamagedStore(
            f"{directory} has a log but no server id",
            hint="wipe the data directory and let the server rejoin as a new one",
        )
    server_id = new_id()
    _write_name(path, server_id)
    return server_id


def _read_name(path: Path) -> str:
    """The name in a file made by `_write_name`; empty if there is no such file, `DamagedStore` if it was altered."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    name = data[:-10].decode(errors="replace")
    if not name or data != _name_bytes(name):
        raise DamagedStore(
            f"{path} is not what was written", hint="wipe the data directory and let the server rejoin as a new one"
        )
    return name


def _write_name(path: Path, name: str) -> None:
    """Durable on return, and never half there."""
    if not 0 < len(name) <= ID_LENGTH_MAX or not name.isprintable():
        raise ValueError(f"{name!r} cannot be an id")
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(_name_bytes(name))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name_bytes(name: str) -> bytes:
    raw = name.encode()
    return raw + f" {zlib.crc32(raw):08x}\n".encode()
