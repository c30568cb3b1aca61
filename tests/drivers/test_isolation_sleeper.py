"""The program that sleeps: a valid program file for each machine, and on this one it really sleeps."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest
import trio

from fedsched.drivers.isolation import sleeper


@pytest.mark.parametrize("machine", sorted(sleeper.CODE))
def test_the_file_is_one_segment_with_the_code_at_its_entry(machine: str) -> None:
    program = sleeper.program(machine)
    number, code = sleeper.CODE[machine]
    kind, found, _, entry, headers = struct.unpack_from("<HHIQQ", program, 16)
    segment = struct.unpack_from("<IIQQQQQQ", program, headers)

    assert program[:7] == b"\x7fELF\x02\x01\x01"
    assert (kind, found) == (2, number)
    assert segment[:2] == (1, 5), "loaded, readable and executable, not writable"
    assert segment[5] == segment[6] == len(program)
    assert program[entry - segment[3] :] == code
    assert len(program) < 256


def test_an_unknown_machine_has_none() -> None:
    assert sleeper.program("vax") == b""


def test_arm_instructions_are_moves_calls_and_a_jump_to_the_loops_start() -> None:
    words = struct.unpack("<11I", sleeper.CODE["aarch64"][1])
    moves = [(word >> 5 & 0xFFFF, word & 31) for word in words if word >> 21 == 0xD2800000 >> 21]

    assert moves == [(167, 8), (4, 0), (0, 1), (73, 8), (0, 0), (0, 1), (0, 2), (0, 3)]
    assert [at for at, word in enumerate(words) if word == 0xD4000001] == [3, 9]
    assert words[10] >> 26 == 0b000101
    assert 10 + ((words[10] & 0x3FFFFFF) - (1 << 26)) == 4


@pytest.mark.skipif(os.uname().machine not in sleeper.CODE, reason="no code for this machine")
def test_it_sleeps_through_signals_that_are_ignored_until_it_is_killed() -> None:
    program = sleeper.open_program()
    pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve(program, ["keeper"], {})
        finally:
            os._exit(1)
    os.close(program)

    async def until_it_sleeps() -> None:
        with trio.fail_after(20):
            while not is_asleep():
                await trio.sleep(0.005)

    def is_asleep() -> bool:
        is_it = Path(f"/proc/{pid}/cmdline").read_bytes() == b"keeper\0"
        return is_it and " S " in Path(f"/proc/{pid}/stat").read_text()

    try:
        trio.run(until_it_sleeps)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        trio.run(until_it_sleeps)
    finally:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
