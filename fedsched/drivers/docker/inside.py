"""Paths that a task names, held inside a directory, at the moment they are used.

Nothing here resolves a link: a component that is one ends the walk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from fedsched.drivers.driver import DriverError


def parts_inside(relative: str) -> tuple[str, ...]:
    """The components of a path that stays inside; anything else is refused."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or "\0" in relative:
        raise DriverError(f"{relative!r:.120} leaves the task's directory", hint="name a path inside it")
    return path.parts


def open_inside(root: Path, relative: str) -> int:
    """Open a plain file for reading, below a directory, through no link at all."""
    parts = parts_inside(relative)
    if not parts:
        raise DriverError(f"{relative!r:.120} names no file")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            fd = _step(fd, part, os.O_DIRECTORY)
        fd = _step(fd, parts[-1], os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise DriverError(f"{relative!r:.120} is not a plain file")
    except OSError as error:
        os.close(fd)
        raise DriverError(f"{relative!r:.120} cannot be opened inside {root}: {error.strerror}") from error
    except DriverError:
        os.close(fd)
        raise
    return fd


def ensure_inside(root: Path, relative: str) -> Path:
    """The path of something below a directory, reached through no link; made as a directory if nothing is there."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    parts = parts_inside(relative)
    try:
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            try:
                found = os.stat(part, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                os.mkdir(part, 0o777, dir_fd=fd)
                found = os.stat(part, dir_fd=fd, follow_symlinks=False)
            if is_last and stat.S_ISREG(found.st_mode):
                break
            fd = _step(fd, part, os.O_DIRECTORY)
    except OSError as error:
        raise DriverError(f"{relative!r:.120} cannot be used inside {root}: {error.strerror}") from error
    finally:
        os.close(fd)
    return root.joinpath(*parts)


def _step(fd: int, part: str, flags: int) -> int:
    """One component further; the descriptor before it is closed if the step succeeds."""
    following = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=fd)
    os.close(fd)
    return following
