"""What the client does with paths that a job or a caller names: make directories, write, move, measure, remove.

Everything here works through directory handles (see `beneath`). String normalisation is no defence: a task may swap a
directory for a symlink at any moment, so what was checked and what is used must be the same handle.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsched.client.beneath import (
    DIRECTORY,
    PathEscapes,
    has_openat2,
    is_directory,
    open_beneath,
    open_unmounted,
    walk_beneath,
)

__all__ = [
    "Owner",
    "PathEscapes",
    "DiskUse",
    "open_beneath",
    "walk_beneath",
    "has_openat2",
    "is_directory",
    "directory",
    "makedirs_beneath",
    "write_file_beneath",
    "disk_use",
    "scatter",
    "remove_tree",
    "remove_beneath",
    "rename_between",
    "exchange",
]

DEPTH_MAX: Final = 200
"""Directories inside one another that we measure or merge; nobody who means well nests deeper."""
HANDLES_DEPTH: Final = 64
"""How deep a removal goes with open handles; what is deeper is moved up first, so that no depth runs us out of them."""
ROUNDS_MAX: Final = 10_000
"""So often we look again at what is left; each round takes another `HANDLES_DEPTH` levels of a nested tree."""
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
READ_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_GET_FLAGS: Final = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_SET_FLAGS: Final = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
_TOP_DIRECTORY: Final = 0x00020000
"""`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` and `FS_TOPDIR_FL` of linux/fs.h."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Owner:
    uid: int
    gid: int


@contextmanager
def directory(root: int | Path, relative: str = ".", *, follow: bool = True) -> Iterator[int]:
    """A handle of a directory below `root`, for as long as the block runs."""
    fd = open_beneath(root, relative, os.O_RDONLY | os.O_DIRECTORY, follow=follow)
    try:
        yield fd
    finally:
        os.close(fd)


Guard = Callable[[int], None]
"""Looks at the handle of a directory before something is made in it; raises to refuse."""


def makedirs_beneath(
    root: int | Path,
    relative: str,
    mode: int = 0o755,
    owner: Owner | None = None,
    guard: Guard | None = None,
) -> None:
    """Make a directory and those above it; what is there already keeps its mode and owner.

    Symlinks on the way are followed as long as they stay inside. `NotADirectoryError` if something else is in the way.
    """
    with directory(root) as top:
        done = ""
        for name in (part for part in _inside(relative).split("/") if part not in ("", ".")):
            if name != "..":
                with directory(top, done or ".") as above:
                    _make_one(above, name, mode, owner, guard)
            done = f"{done}/{name}" if done else name
        os.close(open_beneath(top, done or ".", DIRECTORY))


def write_file_beneath(
    root: int | Path,
    relative: str,
    data: bytes,
    mode: int = 0o644,
    owner: Owner | None = None,
    *,
    makes_directories: bool = True,
    guard: Guard | None = None,
) -> None:
    """Write a whole file in one step: readers see the old one or the new one, and a symlink in its place is replaced.

    The directories above it are made if asked. `PathEscapes` if it would be outside, `IsADirectoryError` if a
    directory has that name.
    """
    above, name = _split(relative)
    if makes_directories:
        makedirs_beneath(root, above, owner=owner, guard=guard)
    with directory(root, above) as parent:
        if guard is not None:
            guard(parent)
        _refuse_directory(parent, name)
        temporary = f".new-{os.urandom(8).hex()}"
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
        try:
            try:
                _write_all(fd, data)
                if owner is not None:
                    os.fchown(fd, owner.uid, owner.gid)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            raise


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a tree takes on disk."""

    used_bytes: int
    files: int
    is_too_deep: bool
    """Something lies deeper than we look: the figures are a lower bound."""


def disk_use(root: int | Path) -> DiskUse:
    """Measure a tree without following symlinks or crossing mounts; what vanishes meanwhile counts for nothing.

    Blocks are counted, not sizes (a sparse file is small), and a file with several names once.
    """
    with directory(root) as top:
        device = os.fstat(top).st_dev
        return _Measure(device).of(top)


def scatter(directory: Path) -> bool:
    """Tell the file system that what is in here does not belong together; whether it takes such a hint (ext4 does).

    Then every entry gets a place of its own on the disk. Else ext4 puts all of them where it has just removed others,
    and without a journal it looks at each file deleted there in the last minutes before it makes a new one.
    """
    fd = os.open(directory, READ_DIRECTORY)
    try:
        flags = bytearray(struct.calcsize("l"))
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        (found,) = struct.unpack_from("i", flags)
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("l", found | _TOP_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove_tree(parent: int | Path, name: str) -> None:
    """Remove a file or a whole tree below a directory, whatever is in it.

    Symlinks are removed, never followed. Mounts are not crossed: `OSError` (EBUSY) names the one that is in the way.
    No depth, no permission and no other process that adds files meanwhile can make it touch anything outside.
    """
    with directory(parent) as top:
        _Removal(top, name).run()


def remove_beneath(root: int | Path, relative: str) -> None:
    """Remove what a relative path names, if it is there; its last component is never followed."""
    above, name = _split(relative)
    with suppress(FileNotFoundError), directory(root, above) as parent:
        _Removal(parent, name).run()


def rename_between(source: int, source_name: str, target: int, target_name: str, *, replace: bool = True) -> None:
    """Move one entry from a directory to another. Names are single components, so nothing can be followed."""
    for name in (source_name, target_name):
        if "/" in name or name in ("", ".", ".."):
            raise PathEscapes(f"{name[:200]!r} is not the name of an entry", hint="a single component is expected")
    if replace:
        os.rename(source_name, target_name, src_dir_fd=source, dst_dir_fd=target)
    else:
        _renameat2(source, source_name, target, target_name, RENAME_NOREPLACE)


def exchange(source: int, source_name: str, target: int, target_name: str) -> None:
    """Swap two entries in one step."""
    _renameat2(source, source_name, target, target_name, RENAME_EXCHANGE)


def _renameat2(source: int, source_name: str, target: int, target_name: str, flags: int) -> None:
    if _LIBC.renameat2(source, os.fsencode(source_name), target, os.fsencode(target_name), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source_name, None, target_name)


class _Measure:
    def __init__(self, device: int) -> None:
        self._device = device
        self._seen: set[tuple[int, int]] = set()
        self._bytes = 0
        self._files = 0
        self._is_too_deep = False

    def of(self, fd: int) -> DiskUse:
        self._walk(fd, 0)
        return DiskUse(self._bytes, self._files, self._is_too_deep)

    def _walk(self, fd: int, depth: int) -> None:
        for name in _names(fd):
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if found.st_dev != self._device:
                continue
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if (found.st_dev, found.st_ino) in self._seen:
                    continue
                self._seen.add((found.st_dev, found.st_ino))
            self._bytes += found.st_blocks * 512
            self._files += 1
            if stat.S_ISDIR(found.st_mode):
                self._down(fd, name, depth + 1)

    def _down(self, fd: int, name: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            self._is_too_deep = True
            return
        try:
            inner = os.open(name, READ_DIRECTORY, dir_fd=fd)
        except OSError:
            return
        try:
            self._walk(inner, depth)
        finally:
            os.close(inner)


class _Removal:
    """Removes one entry of a directory. Directories deeper than our handles reach are first moved next to the top."""

    def __init__(self, parent: int, name: str) -> None:
        self._parent = parent
        self._name = name
        self._device = 0
        self._moved = 0

    def run(self) -> None:
        try:
            found = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(self._name, dir_fd=self._parent)
            return
        self._device = os.fstat(self._parent).st_dev
        top = self._open(self._parent, self._name)
        try:
            for _ in range(ROUNDS_MAX):
                if not self._empty(top, top, 0):
                    break
        finally:
            os.close(top)
        os.rmdir(self._name, dir_fd=self._parent)

    def _open(self, parent: int, name: str) -> int:
        handle = open_unmounted(parent, name)
        try:
            found = os.fstat(handle)
            if found.st_dev != self._device:
                raise OSError(errno.EBUSY, "something is mounted here", name)
            if found.st_mode & 0o700 != 0o700:
                # By its handle: a name could be a symlink to elsewhere by now.
                os.chmod(f"/proc/self/fd/{handle}", 0o700)
            return os.open(".", READ_DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)

    def _empty(self, top: int, fd: int, depth: int) -> int:
        """Remove all entries; how many there were (somebody may be adding more)."""
        names = _names(fd)
        for name in names:
            try:
                self._one(top, fd, name, depth)
            except FileNotFoundError:
                continue
        return len(names)

    def _one(self, top: int, fd: int, name: str, depth: int) -> None:
        with suppress(IsADirectoryError):
            os.unlink(name, dir_fd=fd)
            return
        if depth >= HANDLES_DEPTH:
            self._moved += 1
            os.rename(name, f".removed-{os.getpid()}-{self._moved}", src_dir_fd=fd, dst_dir_fd=top)
            return
        with suppress(OSError):
            os.rmdir(name, dir_fd=fd)  # many are empty
            return
        inner = self._open(fd, name)
        try:
            self._empty(top, inner, depth + 1)
        finally:
            os.close(inner)
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            # Something was added meanwhile: the next round sees it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _names(fd: int) -> list[str]:
    try:
        return os.listdir(fd)
    except OSError:
        return []


def _make_one(parent: int, name: str, mode: int, owner: Owner | None, guard: Guard | None) -> None:
    if _exists(parent, name):
        return
    if guard is not None:
        guard(parent)
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    fd = os.open(name, READ_DIRECTORY, dir_fd=parent)
    try:
        if owner is not None:
            os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _inside(relative: str) -> str:
    if relative.startswith("/") or "\0" in relative:
        raise PathEscapes(f"path {relative[:200]!r} is not relative", hint="name it relative to its directory")
    return relative


def _split(relative: str) -> tuple[str, str]:
    above, _, name = _inside(relative).rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise PathEscapes(f"path {relative[:200]!r} names no file", hint="end it with the name of a file")
    return above or ".", name


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _refuse_directory(parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
