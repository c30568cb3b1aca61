"""The smallest program there is: it sleeps until it is killed.

Every isolated task has a keeper, which after its first milliseconds does nothing for the rest of its life. A forked
interpreter would keep a megabyte and more for that; this program keeps a page. It is machine code, written out below
for the architectures we know: forbid others to look into this process, then sleep for ever, again after every signal.
"""

from __future__ import annotations

import os
import struct

_X86_64 = bytes.fromhex(
    "b89d000000"  # mov eax, 157        prctl(
    "bf04000000"  # mov edi, 4            PR_SET_DUMPABLE,
    "31f6"  # xor esi, esi                0)
    "0f05"  # syscall
    "b822000000"  # again: mov eax, 34  pause()
    "0f05"  # syscall
    "ebf7"  # jmp again
)
_AARCH64 = struct.pack(
    "<11I",
    *(0xD28014E8, 0xD2800080, 0xD2800001, 0xD4000001),  # x8 = 167, x0 = 4, x1 = 0: prctl(PR_SET_DUMPABLE, 0)
    *(0xD2800928, 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003),  # again: x8 = 73, x0..x3 = 0:
    *(0xD4000001, 0x17FFFFFA),  # ppoll(nothing, for ever); b again
)
CODE = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
"""By machine: its number in program files, and the instructions."""

_BASE = 0x400000
_HEADERS = 64 + 56


def program(machine: str) -> bytes:
    """The whole program file: one header, one segment, the code. Empty for a machine that is not known."""
    if machine not in CODE:
        return b""
    number, code = CODE[machine]
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    size = _HEADERS + len(code)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000) + code


def open_program() -> int:
    """A file in memory with the program for this machine; -1 if there is none."""
    content = program(os.uname().machine)
    if not content:
        return -1
    descriptor = os.memfd_create("keeper", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    return descriptor
