"""The files of one allocation as callers from outside see them: read only, never outside of its directory.

A path is opened in one step below the allocation's directory (see `beneath`), then judged by where it really led: the
descriptor itself says so. So neither a symlink nor a directory swapped in between reaches a task's `secrets` or
`private`, whatever the spelling. Only regular files are read: a FIFO would wait for ever, and the mere opening of a
device may do something.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedsched.client.paths import open_beneath
from fedsched.model.errors import BadRequest, FedschedError, NotFound
from fedsched.rpc.methods.alloc_access import FsFile

HIDDEN: Final = frozenset({"secrets", "private"})
LIST_MAX: Final = 10_000
"""Entries of one directory that are shown; a reply must fit into a frame."""
SNIFF_BYTES: Final = 512
CHUNK_BYTES: Final = 64 * 1024
DELETED: Final = " (deleted)"


class FileRefused(FedschedError):
    """A file that is never shown, whoever asks."""

    code = "file_refused"
    http_status = 403


class AllocFiles:
    """One allocation's directory. Everything here blocks: call it in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, path: str) -> tuple[tuple[FsFile, ...], bool]:
        """The entries of a directory by name, and whether there are more than are shown."""
        with self.open(path) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise BadRequest(f"{path[:200]!r} is not a directory", hint="read it as a file")
            directory = os.open(_again(fd), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            names: list[str] = []
            with os.scandir(directory) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > LIST_MAX:
                        break
            found = [one for name in sorted(names[:LIST_MAX]) if (one := _entry(directory, name)) is not None]
            return tuple(found), len(names) > LIST_MAX
        finally:
            os.close(directory)

    def stat(self, path: str) -> FsFile:
        """What is at a path."""
        if not path.strip("/"):
            raise BadRequest("must provide a file name", hint="name a file below the allocation's directory")
        with self.open(path) as fd:
            found = os.fstat(fd)
            name = os.path.basename(path.rstrip("/"))
            kind = _content_type(fd) if stat.S_ISREG(found.st_mode) else ""
            return _file(name, found, kind)

    @contextmanager
    def regular(self, path: str, *, follow: bool = True) -> Iterator[int]:
        """A regular file, open for reading."""
        with self.open(path, follow=follow) as handle:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
                raise BadRequest(f"{path[:200]!r} is {kind}", hint="only regular files can be read")
            fd = os.open(_again(handle), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def open(self, path: str, *, follow: bool = True) -> Iterator[int]:
        """A handle (`O_PATH`) of whatever is at a path, once it is clear that it may be seen."""
        relative = path.lstrip("/") or "."
        refuse_hidden(relative, path)
        try:
            root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound("the allocation has no directory on this node", hint="it may have been removed") from None
        try:
            fd = _opened(root, relative, path, follow)
            try:
                refuse_hidden(_inside(root, fd, path), path)
                yield fd
            finally:
                os.close(fd)
        finally:
            os.close(root)


def refuse_hidden(relative: str, path: str) -> None:
    """Refuse what lies in a task's secret directories, by how it is spelt or by where it led."""
    parts = os.path.normpath(relative).split("/")
    if len(parts) > 1 and parts[1].casefold() in HIDDEN:
        raise FileRefused(f"{path[:200]!r} is not shown", hint="secrets and private files stay on their node")


def read_at(fd: int, offset: int, size: int) -> bytes:
    """A piece of a file; empty at its end."""
    return os.pread(fd, size, offset)


def _opened(root: int, relative: str, path: str, follow: bool) -> int:
    try:
        return open_beneath(root, relative, os.O_PATH, follow=follow)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no file {path[:200]!r}", hint="`fedsched alloc fs` lists what there is") from None
    except OSError as error:
        raise BadRequest(f"{path[:200]!r} cannot be opened: {error.strerror}") from error


def _inside(root: int, fd: int, path: str) -> str:
    """Where a handle really is, below the root."""
    top, here = os.readlink(f"/proc/self/fd/{root}"), os.readlink(f"/proc/self/fd/{fd}")
    if here == top:
        return "."
    if not here.startswith(f"{top}/") or here.endswith(DELETED):
        raise NotFound(f"no file {path[:200]!r}", hint="it was moved or removed just now")
    return here[len(top) + 1 :]


def _again(handle: int) -> str:
    """A name of what a handle stands for: opening it gives the same file, not whatever has its name by now."""
    return f"/proc/self/fd/{handle}"


def _entry(directory: int, name: str) -> FsFile | None:
    try:
        return _file(name, os.stat(name, dir_fd=directory, follow_symlinks=False))
    except OSError:
        return None  # gone meanwhile


def _file(name: str, found: os.stat_result, content_type: str = "") -> FsFile:
    return FsFile(
        name=name.encode("utf-8", "backslashreplace").decode(),
        is_dir=stat.S_ISDIR(found.st_mode),
        size=found.st_size,
        file_mode=stat.filemode(found.st_mode),
        mod_time_ns=found.st_mtime_ns,
        content_type=content_type,
    )


def _content_type(handle: int) -> str:
    try:
        fd = os.open(_again(handle), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        head = os.pread(fd, SNIFF_BYTES, 0)
    finally:
        os.close(fd)
    return "application/octet-stream" if b"\0" in head else "text/plain; charset=utf-8"
