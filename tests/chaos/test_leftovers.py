"""What belongs to a run is known by its name, and only what has no living owner is ever removed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.leash import ORPHANED
from tests.chaos.leftovers import MARK, Owner, Run, owner_of, processes_of, remove_abandoned, spaces_of
from tests.chaos.namespaces import missing
from tests.chaos.polling import wait_until
from tests.chaos.watchdog import LOG, Watchdog, guarded

PROBLEM = missing()
SLEEP = ["sleep", "60"]
PARENT = """
import subprocess
from tests.chaos.leftovers import Run
with subprocess.Popen([*Run.mine().leash, "sleep", "60"]) as child:
    print(child.pid, flush=True)
"""


def a_dead_owner() -> Owner:
    process = subprocess.Popen(["true"])
    owner = owner_of(process.pid)
    process.wait()
    return owner


def a_process_of(run: Run) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, env={**os.environ, MARK: run.name})


def end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def test_a_run_is_known_by_the_names_it_gives() -> None:
    run = Run.mine()

    assert Run.parse(run.name) == run
    assert Run.parse(run.space("s1")) == run
    assert Run.mine() != run
    assert len(Run(Owner(4_194_304, 1), 123_456).interface) <= 15


@pytest.mark.parametrize("name", ["", "s1", "fedsched-chaos", "fedsched-chaos-1-2", "fedsched-chaos-1-2-x", "cni-1-2"])
def test_other_names_are_nobodys(name: str) -> None:
    assert Run.parse(name) is None


def test_an_owner_lives_until_it_ends_even_if_nobody_waits_for_it_or_its_id_is_used_again() -> None:
    process = subprocess.Popen(["true"])
    owner = owner_of(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    me = owner_of(os.getpid())

    assert me.is_alive
    assert not Owner(me.pid, me.started - 1).is_alive
    assert not owner.is_alive
    process.wait()
    assert not owner.is_alive


def test_processes_of_dead_runs_are_killed_and_those_of_living_ones_are_not() -> None:
    abandoned, kept = a_process_of(Run(a_dead_owner(), 1)), a_process_of(Run.mine())
    try:
        remove_abandoned()

        assert abandoned.wait(10) == -signal.SIGKILL
        assert kept.poll() is None
    finally:
        end(abandoned, kept)


@pytest.mark.skipif(bool(PROBLEM), reason=f"no network namespaces here: {PROBLEM}")
def test_namespaces_of_dead_runs_are_removed_with_all_inside_and_others_are_kept() -> None:
    dead, mine = Run(a_dead_owner(), 1), Run.mine()
    abandoned, kept, foreign = dead.space("s1"), mine.space("s1"), f"other-{os.getpid()}"
    inside = None
    try:
        for space in (abandoned, kept, foreign):
            subprocess.run(["ip", "netns", "add", space], check=True)
        inside = subprocess.Popen(["ip", "netns", "exec", abandoned, *SLEEP], stderr=subprocess.DEVNULL)
        is_in = functools.partial(processes_of, lambda run: run == dead)
        wait_until(lambda: bool(is_in()) or inside.poll() is not None, 20, is_in)  # any other run may sweep it first
        remove_abandoned()

        assert inside.wait(10) != 0
        listed = os.listdir("/var/run/netns")
        assert abandoned not in listed
        assert {kept, foreign} <= set(listed)
    finally:
        if inside is not None:
            end(inside)
        for space in (abandoned, kept, foreign):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def test_a_leashed_process_dies_with_its_parent_without_anybody_else_doing_anything() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = owner_of(int(parent.stdout.readline()))
        comm = Path(f"/proc/{child.pid}/comm")
        wait_until(lambda: comm.read_text() == "sleep\n", 20, comm.read_text)
        parent.kill()

    wait_until(lambda: not child.is_alive, 20, lambda: f"{child} lives")


def test_a_leash_held_by_nobody_starts_nothing(tmp_path: Path) -> None:
    started = tmp_path / "started"
    leash = Run(a_dead_owner(), 1).leash

    assert subprocess.run([*leash, "touch", str(started)], check=False).returncode == ORPHANED
    assert not started.exists()


def test_the_watchdog_cannot_be_asked_to_leave_and_removes_what_is_left(tmp_path: Path) -> None:
    run = Run.mine()
    watchdog = Watchdog(run, tmp_path)
    left, kept = a_process_of(run), a_process_of(Run.mine())
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            watchdog.process.send_signal(number)
        watchdog.close()

        assert left.wait(10) == -signal.SIGKILL
        assert kept.poll() is None
        assert "has ended: killed 1 processes, removed 0 namespaces\n" in (tmp_path / LOG).read_text()
    finally:
        end(left, kept)


def test_a_run_whose_watchdog_died_says_so(tmp_path: Path) -> None:
    watchdog = Watchdog(Run.mine(), tmp_path)
    end(watchdog.process)

    with pytest.raises(RuntimeError, match="the watchdog ended with -9"):
        watchdog.close()


def test_a_run_that_cleans_up_for_itself_leaves_nothing_to_do(tmp_path: Path) -> None:
    with guarded(tmp_path) as run:
        process = a_process_of(run)
        assert processes_of(lambda other: other == run) == [process.pid]
        end(process)

    assert processes_of(lambda other: other == run) == []
    assert spaces_of(lambda other: other == run) == []
    assert "has ended: killed 0 processes" in (tmp_path / LOG).read_text()
