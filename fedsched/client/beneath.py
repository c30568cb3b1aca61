"""Opening a path that somebody else names, without ever leaving the directory it is meant to be in.

The kernel does it in one step (`openat2`, since Linux 5.6): nothing can be swapped between a check and its use. Where
it is missing, the path is walked component by component with handles, and symlinks are followed by hand; each step
opens what the last one has checked. Both refuse the same things: absolute paths, `..` above the root, and symlinks that
lead out, relative or absolute. What both allow: `..` and symlinks that stay inside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from functools import cache
from pathlib import Path
from typing import Final

from fedsched.model.errors import BadRequest

RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08

OPENAT2: Final = 437
"""The same number on every architecture that Linux has gained since 5.0, x86-64 and arm64 among them."""
SYMLINKS_MAX: Final = 40
"""As many as the kernel follows in one path."""
AGAIN_MAX: Final = 128
"""`openat2` gives up (EAGAIN) when directories are renamed while it looks; so often we ask again."""
DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class PathEscapes(BadRequest):
    """A path leads out of the directory that it must stay in."""

    code = "path_escapes"


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(
    root: int | Path, relative: str, flags: int = os.O_RDONLY, mode: int = 0, *, follow: bool = True
) -> int:
    """Open what `relative` names below `root` and give its descriptor (close-on-exec).

    `PathEscapes` if it leads out; `OSError` as `open` has it for everything else. Unless `follow`, no component may be
    a symlink (`ELOOP`). Never waits for a writer of a FIFO: such a thing is opened without blocking.
    """
    path = _checked(relative)
    if isinstance(root, int):
        return _open(root, path, flags, mode, follow)
    handle = os.open(root, DIRECTORY)
    try:
        return _open(handle, path, flags, mode, follow)
    finally:
        os.close(handle)


@cache
def has_openat2() -> bool:
    """Whether this kernel has it, and lets us (sandboxes answer EPERM or ENOSYS)."""
    if platform.system() != "Linux":
        return False
    try:
        os.close(_openat2(_root_handle(), ".", DIRECTORY, 0, RESOLVE_BENEATH))
    except OSError:
        return False
    return True


def walk_beneath(root: int, relative: str, flags: int, mode: int, *, follow: bool = True) -> int:
    """The same in plain steps, for kernels without `openat2`."""
    return _Walk(root, follow).open(_checked(relative), flags | os.O_CLOEXEC, mode)


def open_unmounted(parent: int, name: str) -> int:
    """A handle of a directory's entry that is a directory itself; `EBUSY` if something is mounted there.

    Without `openat2` a mount of the same device is taken for a plain directory: look for mounts first.
    """
    if not has_openat2():
        return os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        return _openat2(parent, name, DIRECTORY, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise OSError(errno.EBUSY, "something is mounted here", name) from None
        raise


@cache
def _root_handle() -> int:
    return os.open("/", DIRECTORY)


def _checked(relative: str) -> str:
    if "\0" in relative:
        raise PathEscapes(f"path {relative[:80]!r} holds a NUL character", hint="name a file below the allocation")
    if relative.startswith("/"):
        raise PathEscapes(f"path {relative[:200]!r} is absolute", hint="name it relative to its directory")
    return relative or "."


def _open(root: int, path: str, flags: int, mode: int, follow: bool) -> int:
    if not flags & os.O_PATH:
        flags |= os.O_NONBLOCK | os.O_NOCTTY
    if not has_openat2():
        return walk_beneath(root, path, flags, mode, follow=follow)
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if follow else RESOLVE_NO_SYMLINKS)
    try:
        return _openat2(root, path, flags | os.O_CLOEXEC, mode, resolve)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise escapes(path) from None
        raise


def escapes(path: str) -> PathEscapes:
    """The refusal of one path."""
    return PathEscapes(f"path {path[:200]!r} leads out of its directory", hint="symlinks and .. must stay inside")


def _openat2(root: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = _OpenHow(flags, mode if flags & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY) else 0, resolve)
    encoded = os.fsencode(path)
    for _ in range(AGAIN_MAX):
        fd = _LIBC.syscall(OPENAT2, root, ctypes.c_char_p(encoded), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


class _Walk:
    """One walk: the handles from the root to where we are, and how many symlinks were followed."""

    def __init__(self, root: int, follow: bool) -> None:
        self._root = root
        self._follow = follow
        self._handles: list[int] = []
        self._links = 0

    def open(self, path: str, flags: int, mode: int) -> int:
        try:
            return self._steps(path, flags, mode)
        finally:
            for handle in self._handles:
                os.close(handle)

    @property
    def _here(self) -> int:
        return self._handles[-1] if self._handles else self._root

    def _steps(self, path: str, flags: int, mode: int) -> int:
        todo = _components(path)
        whole = path
        while todo:
            name = todo.pop(0)
            if name == "..":
                if not self._handles:
                    raise escapes(whole)
                os.close(self._handles.pop())
            elif name != ".":
                if not todo and (link := self._link(name, follow=not flags & os.O_NOFOLLOW)) is None:
                    return self._last(name, flags, mode)
                elif todo and (link := self._link(name, follow=True)) is None:
                    self._handles.append(os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=self._here))
                else:
                    assert link is not None
                    todo = _components(link) + todo
                    if link.startswith("/"):
                        raise escapes(whole)
        if flags & os.O_CREAT:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), whole)
        return os.open(".", flags, dir_fd=self._here)

    def _last(self, name: str, flags: int, mode: int) -> int:
        """Open the last component; what is a symlink here was swapped in, or is to be opened itself (`O_PATH`)."""
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self._here)

    def _link(self, name: str, *, follow: bool) -> str | None:
        """Where a symlink leads; None for anything else."""
        try:
            target = os.readlink(name, dir_fd=self._here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        if not follow:
            return None
        self._links += 1
        if not self._follow or self._links > SYMLINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        return target


def _components(path: str) -> list[str]:
    """Its parts; a slash at the end asks for a directory, as in the kernel."""
    parts = [part for part in path.split("/") if part]
    return [*parts, "."] if path.endswith("/") and parts else parts


def is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)
