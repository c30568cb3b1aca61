"""The system calls a task has no business with, as a filter for the kernel.

A list of refusals, not of permissions: a task may be any program, and what is refused here is what reaches into the
kernel or out of the task's namespaces. Refused calls fail with EPERM, as they would for want of a capability, so
programs that try them go on. A capability that an operator has allowed takes the calls it is for off the list. Calls of
a foreign architecture (32-bit programs, x32) would be numbered differently and end the program.

The numbers are written down here and not read from the host: filters are built on machines without headers, and the
tests compare them with the kernel's own.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fedsched.drivers.driver import DriverError

_NEW: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
"""Since number 424 all architectures agree."""

_ROWS: Final = """
    _sysctl 156 -             acct 163 89               add_key 248 217           bpf 321 280
    clock_settime 227 112     clone 56 220              create_module 174 -       delete_module 176 106
    fanotify_init 300 262     finit_module 313 273      get_kernel_syms 177 -     init_module 175 105
    ioctl 16 29               ioperm 173 -              iopl 172 -                kcmp 312 272
    kexec_file_load 320 294   kexec_load 246 104        keyctl 250 219            lookup_dcookie 212 18
    migrate_pages 256 238     mount 165 40              move_pages 279 239        nfsservctl 180 42
    open_by_handle_at 304 265 perf_event_open 298 241   personality 135 92        pivot_root 155 41
    process_vm_readv 310 270  process_vm_writev 311 271 query_module 178 -        quotactl 179 60
    reboot 169 142            request_key 249 218       setdomainname 171 162     sethostname 170 161
    setns 308 268             settimeofday 164 170      socket 41 198             swapoff 168 225
    swapon 167 224            sysfs 139 -               syslog 103 116            umount2 166 39
    unshare 272 97            uselib 134 -              userfaultfd 323 282       ustat 136 -
    vhangup 153 58
"""
"""Name, number on x86_64, number on aarch64."""


def _table(column: int) -> dict[str, int]:
    words = _ROWS.split()
    rows = [words[at : at + 3] for at in range(0, len(words), 3)]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"} | _NEW


NUMBERS: Final = {"x86_64": _table(1), "aarch64": _table(2)}
ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of the kernel."""
_X32_BIT: Final = 0x40000000

REFUSED: Final = frozenset(
    (
        *("add_key", "keyctl", "request_key", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("uselib", "ustat", "sysfs", "_sysctl", "create_module", "get_kernel_syms", "query_module", "nfsservctl"),
    )
)
"""No capability makes these fit for a task: keys know no namespaces, the next ones are mostly ways to exploit the
kernel, and the rest is long dead."""

REFUSED_WITHOUT: Final = {
    "sys_admin": frozenset(
        (
            *(
                "mount",
                "umount2",
                "pivot_root",
                "open_tree",
                "open_tree_attr",
                "move_mount",
                "fsopen",
                "fsconfig",
                "fsmount",
            ),
            *("fspick", "mount_setattr", "setns", "unshare", "sethostname", "setdomainname", "quotactl", "quotactl_fd"),
            *("swapon", "swapoff", "fanotify_init", "lookup_dcookie"),
        )
    ),
    "dac_read_search": frozenset({"open_by_handle_at"}),
    "sys_module": frozenset({"init_module", "finit_module", "delete_module"}),
    "sys_boot": frozenset({"reboot", "kexec_load", "kexec_file_load"}),
    "sys_time": frozenset({"settimeofday", "clock_settime"}),
    "sys_ptrace": frozenset({"process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"}),
    "sys_rawio": frozenset({"ioperm", "iopl"}),
    "sys_nice": frozenset({"move_pages", "migrate_pages"}),
    "sys_pacct": frozenset({"acct"}),
    "sys_tty_config": frozenset({"vhangup"}),
    "syslog": frozenset({"syslog"}),
    "bpf": frozenset({"bpf"}),
    "perfmon": frozenset({"perf_event_open"}),
}

_CLONE_NAMESPACES: Final = 0x7E020000
_TERMINAL_INJECTION: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody else's terminal."""
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, with or without 32-bit and 2.6 uname; the last only asks. Others switch protections off."""
_SOCKET_FAMILIES: Final = (38, 40)
"""AF_ALG and AF_VSOCK: kernel crypto with a history, and a line to the hypervisor that no namespace separates."""

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
EPERM: Final = 0x00050000 | errno.EPERM
ENOSYS: Final = 0x00050000 | errno.ENOSYS

_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST, _AT_SECOND = 0, 4, 16, 24
Instruction = tuple[int, int, int, int]


def build(capabilities: Iterable[str] = (), machine: str = "") -> bytes:
    """Make the filter for a task that may hold these capabilities, on this machine if none is named."""
    machine = machine or platform.machine()
    if machine not in NUMBERS:
        raise DriverError(f"no seccomp filter is known for {machine} machines", hint=f"known: {', '.join(NUMBERS)}")
    return _build(frozenset(capabilities), machine)


@lru_cache(maxsize=64)  # nearly all tasks of a client have the same
def _build(held: frozenset[str], machine: str) -> bytes:
    program = [
        *_if_equal_else_kill(ARCHITECTURE[machine]),
        (_LOAD, 0, 0, _AT_NUMBER),
        *([(_JUMP_FROM, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL)] if machine == "x86_64" else []),
    ]
    for name in sorted(refused(held)):
        if name in NUMBERS[machine]:
            program += [(_JUMP_EQUAL, 0, 1, NUMBERS[machine][name]), (_RETURN, 0, 0, EPERM)]
    for name, block in _by_arguments(held).items():
        program += [(_JUMP_EQUAL, 0, len(block), NUMBERS[machine][name]), *block]
    program.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def refused(capabilities: frozenset[str]) -> frozenset[str]:
    """Names of calls that fail whatever their arguments, for a task that may hold these capabilities."""
    return REFUSED.union(*(names for needed, names in REFUSED_WITHOUT.items() if needed not in capabilities))


def _by_arguments(held: frozenset[str]) -> dict[str, list[Instruction]]:
    """Calls whose arguments decide. Each block ends in a verdict: the call's number is gone from the register."""
    blocks = {
        "ioctl": _refuse_values(_AT_SECOND, _TERMINAL_INJECTION),
        "socket": _refuse_values(_AT_FIRST, _SOCKET_FAMILIES),
        "personality": [
            (_LOAD, 0, 0, _AT_FIRST),
            *((_JUMP_EQUAL, len(_PERSONALITIES) - at, 0, value) for at, value in enumerate(_PERSONALITIES)),
            (_RETURN, 0, 0, EPERM),
            (_RETURN, 0, 0, ALLOW),
        ],
    }
    if "sys_admin" not in held:
        blocks["clone"] = [
            (_LOAD, 0, 0, _AT_FIRST),
            (_JUMP_BITS, 0, 1, _CLONE_NAMESPACES),
            (_RETURN, 0, 0, EPERM),
            (_RETURN, 0, 0, ALLOW),
        ]
        # Its flags are behind a pointer, out of a filter's sight; without it libc uses clone.
        blocks["clone3"] = [(_RETURN, 0, 0, ENOSYS)]
    return blocks


def _refuse_values(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    jumps = [(_JUMP_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [(_LOAD, 0, 0, argument), *jumps, (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, EPERM)]


def _if_equal_else_kill(architecture: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, _AT_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, KILL)]
