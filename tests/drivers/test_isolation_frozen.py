"""Programs that run from a file nobody can write to."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from fedsched.drivers.isolation import frozen
from tests.drivers.jails import REPOSITORY

AGAIN = "from fedsched.drivers.isolation import frozen; print(frozen.is_unwritable(), *sys.argv[2:])"
SETUP = "import sys, os; sys.path[:0] = [sys.argv[1]]; from fedsched.drivers.isolation import frozen\n"


def said_by(script: str) -> str:
    argv = [sys.executable, "-I", "-c", SETUP + script, str(REPOSITORY), "an argument"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a mount")
def test_a_program_executes_itself_from_a_read_only_place_with_the_same_words() -> None:
    said = said_by(
        "frozen.become_unwritable(); frozen.become_unwritable(); print(frozen.is_unwritable(), *sys.argv[2:])"
    )

    assert said == "True an argument\n"


def test_a_sealed_copy_runs_and_cannot_be_changed() -> None:
    said = said_by(
        "copy = frozen._sealed_copy()\n"
        "assert frozen._starts(copy)\n"
        f"os.execve(copy, [sys.executable, '-I', '-c', {SETUP + AGAIN!r}, *sys.argv[1:]], {{}})"
    )

    assert said == "True an argument\n"
    copy = frozen._sealed_copy()
    try:
        with pytest.raises(PermissionError):
            os.write(copy, b"x")
        assert fcntl.fcntl(copy, 1034) & 0xF == 0xF
    finally:
        os.close(copy)


def test_a_place_that_the_program_does_not_start_from_is_not_used() -> None:
    said = said_by("frozen._starts = lambda program: False\nfrozen.become_unwritable(); print('went on')")

    assert said == "went on\n"


def test_something_that_is_no_program_does_not_start() -> None:
    with open(__file__, "rb") as file:
        assert not frozen._starts(file.fileno())
