"""Running from a program file that no task can change.

Between fork and exec a task's process is still this interpreter, already inside the task's root, and `/proc/self/exe`
is a way from there to the interpreter's file on the host: a task can have itself executed that way (by a first line of
`#!/proc/self/exe`), keep hold of the file, and write to it if its user may. That is nothing for an ordinary user, but
root may, and so may a task of an agent without root whose interpreter belongs to the same user. So whoever forks tasks
first executes itself again from a place that nobody can write to: a read-only mount that is attached nowhere, or a
sealed copy in memory. Where that cannot be had, `enter` refuses tasks of such users.
"""

from __future__ import annotations

import fcntl
import os
import sys

from fedsched.drivers.isolation import kernel
from fedsched.drivers.isolation.kernel import IsolationFailed

_SELF = "/proc/self/exe"
_SEALS = 0x1 | 0x2 | 0x4 | 0x8
_GET_SEALS, _ADD_SEALS = 1034, 1033


def become_unwritable() -> None:
    """Execute this program again from a file that tasks cannot change, if that can be had: see `is_unwritable`.

    Only before anything was opened or started. Returns in the program that was executed, or at once.
    """
    if is_unwritable():
        return
    try:
        program = _read_only_mount() if os.geteuid() == 0 else _sealed_copy()
    except (IsolationFailed, OSError):
        return
    if _starts(program):
        os.execve(program, sys.orig_argv, dict(os.environ))
    os.close(program)


def _starts(program: int) -> bool:
    """Try it: an interpreter that looks for its libraries beside its own file finds none beside this one."""
    pid = os.fork()
    if not pid:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            os.execve(program, [sys.orig_argv[0], "-I", "-S", "-c", "import os, ctypes"], dict(os.environ))
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def is_unwritable() -> bool:
    """Whether this process's own program file is beyond the reach of its user's tasks."""
    if os.statvfs(_SELF).f_flag & os.ST_RDONLY:
        return True
    opened = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.geteuid() != 0 and os.fstat(opened).st_uid != os.geteuid() and not os.access(_SELF, os.W_OK):
            return True
        return fcntl.fcntl(opened, _GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False  # an ordinary file has no seals
    finally:
        os.close(opened)


def _read_only_mount() -> int:
    program = kernel.clone_tree(os.path.realpath(_SELF), is_recursive=False)
    kernel.set_attributes(program, kernel.RDONLY | kernel.NODEV, _SELF)
    return program


def _sealed_copy() -> int:
    opened = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy: int = kernel.step(
            "make a file in memory", os.memfd_create, "fedsched", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        left, at = os.fstat(opened).st_size, 0
        while left > 0 and (sent := os.sendfile(copy, opened, at, left)):
            left, at = left - sent, at + sent
        os.fchmod(copy, 0o500)
        kernel.step("seal the program", fcntl.fcntl, copy, _ADD_SEALS, _SEALS)
        return copy
    finally:
        os.close(opened)
