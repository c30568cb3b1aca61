"""The short version of the proof about slow readers, and that it would notice; `just slow-reader` runs the long one."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from tests.kills.agent import READ_AHEAD_WHEN
from tests.kills.slow_reader import GROWTH_MAX_MIB, MIB, Memory, Outcome, running_trial
from tests.kills.throttle import throttled

WRITE_RATE = 20_000_000
PATIENCE_S = 60.0


def silent(_: str) -> None:
    """Nobody looks on."""


@pytest.mark.processes
def test_a_slow_reader_costs_no_memory_and_an_agent_that_reads_ahead_is_found_out(tmp_path: Path) -> None:
    is_planted = tmp_path / "planted"
    environ = {READ_AHEAD_WHEN: str(is_planted)}
    with running_trial(tmp_path, WRITE_RATE, program=["-m", "tests.kills.agent"], environ=environ) as trial:
        good = trial.read(PATIENCE_S, 1024, silent, lambda seen: seen.read > 2048)
        is_planted.touch()
        bad = trial.read(PATIENCE_S, 1024, silent, lambda seen: seen.agent.growth_mib >= GROWTH_MAX_MIB)

    assert [memory.growth_mib < GROWTH_MAX_MIB for memory in (good.agent, good.server)] == [True, True], good.text()
    assert good.read > 2048
    assert good.written > 0
    assert any(problem.startswith("the agent grew by") for problem in bad.problems()), bad.text()


def an_outcome(*, grown_mib: float = 1.0, read: int = 1000, written: int = 1000) -> Outcome:
    memory = Memory(first=50 * MIB, most=50 * MIB + int(grown_mib * MIB))
    return Outcome(read_wanted=1000, read=read, write_wanted=1000, written=written, agent=memory)


def test_growth_a_starved_reader_and_a_slowed_task_are_problems() -> None:
    assert an_outcome().problems() == []
    assert an_outcome(grown_mib=32).problems() == ["the agent grew by 32.0 MiB, 32 at most are allowed"]
    assert an_outcome(read=400).problems() == ["only 400 bytes came through a line for 1,000"]
    assert an_outcome(written=400).problems() == ["the task wrote 400 bytes of 1,000"]


def test_a_throttled_line_carries_everything_and_takes_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, throttled(listener.getsockname(), 10_000) as line:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(peer.recv(5) * 1000)

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = line.address.removeprefix("http://").split(":")
        began = time.monotonic()
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(b"hello")
            received = b""
            while data := sock.recv(4096):
                received += data
        thread.join(10)

    assert received == b"hello" * 1000
    assert line.passed == 5000
    assert time.monotonic() - began > 0.3  # half a second's worth, of which the first portion is free
