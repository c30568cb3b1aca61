"""Mounting small memory file systems and unmounting what lies below a directory, through the kernel's own calls."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

from fedsched.client.beneath import DIRECTORY

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_SPECIAL: Final = re.compile(rb"[ \t\n\\]")
"""What the kernel writes in that way."""


def mount_memory(parent: int, name: str, size_mb: int, mode: int) -> bool:
    """Put a tmpfs (noexec, nosuid, nodev, never swapped if the kernel can) on a directory that is there already.

    No effect if something is mounted there. False if this process may not mount: the directory stays what it is.
    """
    handle = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if os.fstat(handle).st_dev != os.fstat(parent).st_dev:
            return True
        # By its handle: the name may lead elsewhere by now.
        target = f"/proc/self/fd/{handle}"
        for swap in (",noswap", "") if has_noswap() else ("",):
            number = _mount(target, f"size={size_mb}m,mode={mode:o},nr_inodes=4096{swap}")
            if number == 0:
                return True
            if number in (errno.EPERM, errno.EACCES):
                return False
        raise OSError(number, os.strerror(number), name)
    finally:
        os.close(handle)


@cache
def has_noswap() -> bool:
    """Since Linux 6.4."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return (int(major), int(minor)) >= (6, 4)


def mounts_below(root: Path) -> list[str]:
    """Where something is mounted at or below a directory, the innermost and newest first."""
    real = os.fsencode(os.path.realpath(root))
    written = _SPECIAL.sub(lambda match: b"\\%03o" % match[0][0], real)
    with open("/proc/self/mountinfo", "rb") as table:
        lines = table.read()
    found = []
    for line in lines.splitlines() if written in lines else ():  # most allocations have none, and lines are many
        point = _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ")[4])
        if point == real or point.startswith(real + b"/"):
            found.append(os.fsdecode(point))
    found.reverse()
    return sorted(found, key=lambda point: -point.count("/"))


def unmount_below(root: Path) -> int:
    """Unmount everything at or below a directory, lazily what is busy; how many there were."""
    points = mounts_below(root)
    for point in points:
        unmount(point)
    return len(points)


def unmount(point: str | Path) -> None:
    """Unmount one place, lazily if it is busy. No effect if nothing is mounted there."""
    for flags in (UMOUNT_NOFOLLOW, UMOUNT_NOFOLLOW | MNT_DETACH):
        if _LIBC.umount2(os.fsencode(point), flags) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOENT):
            return  # it is gone already
        if number != errno.EBUSY:
            break
    raise OSError(number, os.strerror(number), point)


def _mount(target: str, options: str) -> int:
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if _LIBC.mount(b"tmpfs", target.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        return ctypes.get_errno()
    return 0
