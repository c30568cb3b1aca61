"""Moving what was fetched from its staging directory to where the job wants it, through directory handles only."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fedsched.client.beneath import open_beneath
from fedsched.client.fetch.limits import FetchFailed
from fedsched.client.paths import READ_DIRECTORY, Owner, directory, makedirs_beneath, rename_between
from fedsched.client.task_paths import refuse_reserved
from fedsched.drivers.driver import TaskDirs

PIECE: Final = 256 * 1024
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def place_tree(tree: int, part: str, dirs: TaskDirs, destination: str, owner: Owner | None) -> None:
    """Merge all (or a part) of what was fetched into a directory of the allocation. Files replace files."""
    source = open_beneath(tree, part or ".", os.O_RDONLY, follow=False)
    try:
        if stat.S_ISDIR(os.fstat(source).st_mode):
            with _destination(dirs, destination, owner) as target:
                _merge(source, target, owner)
        else:
            above, _, name = part.rpartition("/")
            with (
                directory(tree, above or ".", follow=False) as parent,
                _destination(dirs, destination, owner) as target,
            ):
                _move(parent, name, target, name, owner)
    finally:
        os.close(source)


def place_file(tree: int, dirs: TaskDirs, destination: str, owner: Owner | None) -> None:
    """Make the one file that was fetched the file of this name."""
    above, _, name = destination.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise FetchFailed(f"the destination {destination[:200]!r} names no file")
    with _destination(dirs, above or ".", owner) as target:
        _move(tree, os.listdir(tree)[0], target, name, owner)


@contextmanager
def _destination(dirs: TaskDirs, path: str, owner: Owner | None) -> Iterator[int]:
    """A handle of a directory of the allocation, made if it is missing; never one that is the agent's own."""

    def guard(fd: int) -> None:
        refuse_reserved(fd, dirs.alloc)

    makedirs_beneath(dirs.alloc, path, owner=owner, guard=guard)
    with directory(dirs.alloc, path) as fd:
        guard(fd)
        yield fd


def _merge(source: int, target: int, owner: Owner | None) -> None:
    for name in sorted(os.listdir(source)):
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            _move(source, name, target, name, owner)
            continue
        try:
            os.mkdir(name, 0o700, dir_fd=target)
            is_new = True
        except FileExistsError:
            is_new = False
        inner_source = os.open(name, READ_DIRECTORY, dir_fd=source)
        try:
            inner_target = _open_directory(name, target)
            try:
                _merge(inner_source, inner_target, owner)
                if is_new:
                    _give(inner_target, stat.S_IMODE(found.st_mode), owner)
            finally:
                os.close(inner_target)
        finally:
            os.close(inner_source)


def _open_directory(name: str, target: int) -> int:
    try:
        return os.open(name, READ_DIRECTORY, dir_fd=target)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise FetchFailed(f"{name[:200]!r} is in the way at the destination: it is no directory there") from None


def _move(source: int, name: str, target: int, target_name: str, owner: Owner | None) -> None:
    if os.geteuid() == 0:
        uid, gid = (owner.uid, owner.gid) if owner is not None else (os.geteuid(), os.getegid())
        os.chown(name, uid, gid, dir_fd=source, follow_symlinks=False)
    try:
        rename_between(source, name, target, target_name)
    except IsADirectoryError:
        raise FetchFailed(f"{target_name[:200]!r} is in the way at the destination: it is a directory there") from None
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, name, target, target_name, owner)


def _copy(source: int, name: str, target: int, target_name: str, owner: Owner | None) -> None:
    """To another file system (secrets are in memory): under another name first, then in one step."""
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    temporary = f".new-{os.urandom(8).hex()}"
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), temporary, dir_fd=target)
    else:
        _copy_bytes(source, name, target, temporary, stat.S_IMODE(found.st_mode), owner)
    rename_between(target, temporary, target, target_name)


def _copy_bytes(source: int, name: str, target: int, new: str, mode: int, owner: Owner | None) -> None:
    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    try:
        writing = os.open(new, NEW_FILE, 0o600, dir_fd=target)
        try:
            while data := os.read(reading, PIECE):
                view = memoryview(data)
                while view:
                    view = view[os.write(writing, view) :]
            _give(writing, mode, owner)
        except BaseException:
            os.unlink(new, dir_fd=target)
            raise
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _give(fd: int, mode: int, owner: Owner | None) -> None:
    if owner is not None:
        os.fchown(fd, owner.uid, owner.gid)
    os.fchmod(fd, mode)
