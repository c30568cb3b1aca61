"""Landlock: a process gives up everything on disk but what it names. For good, and for all it starts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

CREATE_RULESET: Final = 444
ADD_RULE: Final = 445
RESTRICT_SELF: Final = 446
VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
ALL_V1: Final = (1 << 13) - 1
REFER: Final = 1 << 13
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
BIND_TCP: Final = 1 << 0
SCOPE_ABSTRACT_SOCKETS: Final = 1 << 0
SCOPE_SIGNALS: Final = 1 << 1
FILE_RIGHTS: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
MAKE_DEVICES: Final = (1 << 6) | (1 << 11)
"""MAKE_CHAR and MAKE_BLOCK."""

READ: Final = READ_FILE | READ_DIR
READ_AND_RUN: Final = READ | EXECUTE

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """What this kernel has of it; 0 for nothing."""
    return max(0, int(_LIBC.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)))


def restrict(writable: Iterable[int], readable: Mapping[str, int]) -> None:
    """Give up all files but those below the handles `writable` (all rights but devices) and the paths `readable`.

    Paths that are not there are passed over. What is open already stays usable. `OSError` if the kernel refuses.
    """
    version = landlock_version()
    if version < 1:
        raise OSError("this kernel has no landlock")
    handled = ALL_V1 | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    handled |= IOCTL_DEV if version >= 5 else 0
    rules = _Ruleset(handled, BIND_TCP if version >= 4 else 0, _scopes(version))
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call(CREATE_RULESET, ctypes.byref(rules), size, 0)
    try:
        for handle in writable:
            _allow(ruleset, handle, handled & ~(IOCTL_DEV | MAKE_DEVICES | EXECUTE))
        for path, rights in readable.items():
            with suppress(FileNotFoundError, PermissionError):
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    _allow(ruleset, handle, rights & handled if os.path.isdir(path) else rights & handled & FILE_RIGHTS)
                finally:
                    os.close(handle)
        if _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs is refused")
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _scopes(version: int) -> int:
    return SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= 6 else 0


def _allow(ruleset: int, handle: int, rights: int) -> None:
    rule = _PathBeneath(rights, handle)
    _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "landlock")
    return int(result)
