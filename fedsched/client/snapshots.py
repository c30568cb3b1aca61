"""What a replacement takes over from an allocation, as a tar archive: `alloc/data` and each task's `local`.

Written as it is read, through handles that follow no symlink: those are archived as symlinks, and what is neither a
file, a directory nor a symlink is left out. An archive that cannot be finished says so in its last entry, because by
then its beginning is long sent.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from fedsched.client.files import CHUNK_BYTES
from fedsched.client.paths import open_beneath
from fedsched.model.errors import FedschedError
from fedsched.rpc.methods.alloc_access import SNAPSHOT_ERROR

DEPTH_MAX: Final = 200
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Write = Callable[[bytes], None]
"""Takes the next piece; waits while nobody reads."""


class SnapshotFailed(FedschedError):
    """Something in the tree cannot be archived."""

    code = "snapshot_failed"


def write_snapshot(root: Path, tasks: Iterable[str], write: Write) -> None:
    """Archive one allocation's directory. Blocks: call it in a thread."""
    with tarfile.open(mode="w|", fileobj=_Out(write), bufsize=CHUNK_BYTES, format=tarfile.PAX_FORMAT) as archive:
        try:
            for relative in ("alloc/data", *(f"{task}/local" for task in sorted(tasks))):
                _add_tree(archive, root, relative)
        except (OSError, SnapshotFailed) as error:
            why = str(error).encode("utf-8", "replace")
            entry = tarfile.TarInfo(SNAPSHOT_ERROR)
            entry.size = len(why)
            archive.addfile(entry, io.BytesIO(why))


def _add_tree(archive: tarfile.TarFile, root: Path, relative: str) -> None:
    try:
        fd = open_beneath(root, relative, os.O_RDONLY | os.O_DIRECTORY, follow=False)
    except FileNotFoundError:
        return
    try:
        archive.addfile(_entry(relative, os.fstat(fd), tarfile.DIRTYPE))
        _add_inside(archive, fd, relative, 1)
    finally:
        os.close(fd)


def _add_inside(archive: tarfile.TarFile, directory: int, above: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise SnapshotFailed(f"{above[:200]!r} is more than {DEPTH_MAX} directories deep")
    for name in sorted(os.listdir(directory)):
        path = f"{above}/{name}"
        try:
            _add_one(archive, directory, name, path, depth)
        except FileNotFoundError:
            continue  # removed meanwhile


def _add_one(archive: tarfile.TarFile, directory: int, name: str, path: str, depth: int) -> None:
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        entry = _entry(path, found, tarfile.SYMTYPE)
        entry.linkname = os.readlink(name, dir_fd=directory)
        archive.addfile(entry)
    elif stat.S_ISDIR(found.st_mode):
        fd = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            archive.addfile(_entry(path, os.fstat(fd), tarfile.DIRTYPE))
            _add_inside(archive, fd, path, depth + 1)
        finally:
            os.close(fd)
    elif stat.S_ISREG(found.st_mode):
        fd = os.open(name, FILE, dir_fd=directory)
        try:
            opened = os.fstat(fd)
            if stat.S_ISREG(opened.st_mode):
                entry = _entry(path, opened, tarfile.REGTYPE)
                entry.size = opened.st_size
                archive.addfile(entry, _Exactly(fd))
        finally:
            os.close(fd)


def _entry(path: str, found: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type = kind
    entry.mode = stat.S_IMODE(found.st_mode)
    entry.uid, entry.gid = found.st_uid, found.st_gid
    entry.mtime = found.st_mtime
    return entry


class _Exactly(io.RawIOBase):
    """A file that gives as many bytes as its entry promised, also when it has shrunk since: the rest is zeroes."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def read(self, size: int = -1) -> bytes:
        data = b""
        while len(data) < size and (piece := os.read(self._fd, size - len(data))):
            data += piece
        return data.ljust(max(size, 0), b"\0")


class _Out(io.RawIOBase):
    """Where tarfile writes to."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._write(piece)
        return len(piece)
