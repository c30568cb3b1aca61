"""The harness itself is killed in the middle of a run: nothing of the run goes on, and its evidence stays."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.__main__ import CRASH_LOG
from tests.chaos.leftovers import Run, owner_of, processes_of, remove, spaces_of
from tests.chaos.namespaces import missing
from tests.chaos.plan import LEADER, PAUSE, Plan, Step
from tests.chaos.polling import wait_until
from tests.chaos.run import NAMESPACES, PROXY
from tests.chaos.watchdog import LOG

PROBLEM = missing()
START_S = 60.0
"""Three agents on a crowded machine, and their first election."""

GONE_S = 20.0
"""From the death of the harness until nothing is left; a second is usual."""


class Seen:
    """What there is of one harness's run, looked for without asking the harness."""

    def __init__(self, harness: int, directory: Path) -> None:
        self._directory = directory
        self.owner = owner_of(harness)

    def is_mine(self, run: Run) -> bool:
        return run.owner == self.owner

    def agents(self) -> list[int]:
        return self._commands(f"{self._directory}/s")

    def paused(self) -> list[int]:
        return [pid for pid in self.agents() if "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()]

    def everything(self) -> list[str]:
        prefix = f"fs{self.owner.pid}x"
        found = [f"agent {pid}" for pid in self.agents()]
        found += [f"process {pid}" for pid in processes_of(self.is_mine)]
        found += [f"watchdog {pid}" for pid in self._commands(f"fedsched-chaos-{self.owner.pid}-{self.owner.started}")]
        found += [f"namespace {name}" for name in spaces_of(self.is_mine)]
        return found + [f"interface {name}" for _, name in socket.if_nameindex() if name.startswith(prefix)]

    def _commands(self, word: str) -> list[int]:
        """The processes with an argument that begins so."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_text(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if any(argument.startswith(word) for argument in arguments):
                found.append(int(path.parent.name))
        return found


@contextmanager
def a_harness(directory: Path, links: str) -> Iterator[tuple[subprocess.Popen[bytes], Seen]]:
    """One that has paused its leader, and would wait a minute before it goes on."""
    plan = Plan(seed=1, minutes=1, steps=[Step(kind=PAUSE, target=LEADER, hold_s=60.0)])
    (directory / "wanted.json").write_text(plan.to_json())
    command = [sys.executable, "-m", "tests.chaos", "--links", links, "--dir", str(directory / "run")]
    with (directory / "said").open("wb") as said, _no_core():
        process = subprocess.Popen(
            [*command, "--plan", str(directory / "wanted.json")], stdout=said, stderr=said, start_new_session=True
        )
    seen = Seen(process.pid, directory / "run")

    def said_so_far() -> str:
        crash = directory / "run" / CRASH_LOG
        return (directory / "said").read_text() + (crash.read_text() if crash.exists() else "")

    try:
        wait_until(lambda: process.poll() is not None or bool(seen.paused()), START_S, said_so_far)
        assert process.poll() is None, said_so_far()
        yield process, seen
    finally:
        process.kill()
        process.wait()
        remove(seen.is_mine)
        for pid in seen.agents():  # only where the test has failed
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _no_core() -> Iterator[None]:
    """A process started herein crashes without leaving its memory on the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.processes
@pytest.mark.skipif(bool(PROBLEM), reason=f"no network namespaces here: {PROBLEM}")
def test_no_agent_and_no_namespace_outlives_a_harness_that_was_killed(tmp_path: Path) -> None:
    with a_harness(tmp_path, NAMESPACES) as (harness, seen):
        assert len(seen.agents()) == 3
        assert len(spaces_of(seen.is_mine)) == 4  # one each, and the bridge's
        assert str(tmp_path / "run") in (tmp_path / "said").read_text()

        harness.kill()
        harness.wait()
        wait_until(lambda: not seen.everything(), GONE_S, seen.everything)

    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"plan.json", "history.jsonl", "relay-s1.log", CRASH_LOG, LOG, "s1", "s2", "s3"} <= kept
    assert (tmp_path / "run/s1/agent.log").stat().st_size > 0
    assert (tmp_path / "run/history.jsonl").stat().st_size > 0
    assert "has died: " in (tmp_path / "run" / LOG).read_text()


@pytest.mark.processes
def test_a_harness_that_crashed_says_where_and_leaves_no_agent(tmp_path: Path) -> None:
    with a_harness(tmp_path, PROXY) as (harness, seen):
        assert len(seen.agents()) == 3

        harness.send_signal(signal.SIGSEGV)
        assert harness.wait(GONE_S) == -signal.SIGSEGV
        wait_until(lambda: not seen.everything(), GONE_S, seen.everything)

    crash = (tmp_path / "run" / CRASH_LOG).read_text()
    assert "Segmentation fault" in crash
    assert "nemesis.py" in crash
