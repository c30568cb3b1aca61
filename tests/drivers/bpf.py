"""What the kernel would make of a seccomp filter: a machine for the few instructions that filters use."""

from __future__ import annotations

import struct


def verdict(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """The value that the filter returns for one system call."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(argument & (2**64 - 1) for argument in padded))
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, register = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                register = struct.unpack_from("<I", data, value)[0]
            case 0x15:
                at += if_true if register == value else if_false
            case 0x35:
                at += if_true if register >= value else if_false
            case 0x45:
                at += if_true if register & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"instruction {code:#x}")
