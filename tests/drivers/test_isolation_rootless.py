"""Isolation by somebody who is not root, in a user namespace: the same view, fewer powers."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedsched.drivers.isolation.capabilities import TaskCapabilities, task_capabilities
from fedsched.drivers.isolation.plan import IsolationPlan
from fedsched.drivers.isolation.users import TaskUser
from tests.drivers.jails import KEEPER, PYTHON, a_plan, mounts_below, run, shell

USER = 61234


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that an ordinary user reaches, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="fedsched-rootless-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)
        assert mounts_below(Path(folder)) == []


@pytest.fixture
def plan(place: Path) -> IsolationPlan:
    made = a_plan(place, is_rootless=True, user=TaskUser(str(USER), USER, USER))
    made = replace(made, system=tuple(bind for bind in made.system if bind.target != PYTHON))
    made.root.chmod(0o777)
    made.root.parent.chmod(0o777)
    found = shell(made, "true", user=USER)
    if found.failure:
        pytest.skip(f"this host has no user namespaces for ordinary users: {found.failure}")
    return made


def test_a_task_sees_its_own_root_and_processes_and_is_itself(plan: IsolationPlan) -> None:
    ended = shell(plan, "id -u; id -g; echo $$; ls -d /root /home /proc/[0-9]*; cat /proc/self/uid_map", user=USER)

    words = ended.output.split()
    assert words[:3] == [str(USER), str(USER), "2"]
    assert ended.output.count("cannot access") == 2
    assert words.count("/proc/2") == 1
    assert "/proc/1" not in words
    assert words[-3:] == [str(USER), str(USER), "1"]


def test_it_has_no_rights_and_gets_none(plan: IsolationPlan) -> None:
    ended = shell(plan, "grep -E '^(CapEff|CapPrm|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status", user=USER)

    zero = "0000000000000000"
    assert ended.output.split() == [
        *("CapPrm:", zero, "CapEff:", zero, "CapAmb:", zero, "NoNewPrivs:", "1", "Seccomp:", "2")
    ]


def test_it_writes_only_into_its_own_directories(plan: IsolationPlan) -> None:
    ended = shell(
        plan,
        "touch /local/new /alloc/data/new /tmp/new /dev/shm/new;"
        "for d in /etc /usr /dev /proc/sys /sys; do touch $d/new 2>/dev/null && echo $d; done; ls -A /private",
        user=USER,
    )

    assert ended.output == ""
    assert (plan.root / "local/new").stat().st_uid == USER


def test_system_calls_that_reach_out_are_refused(plan: IsolationPlan) -> None:
    ended = shell(plan, "unshare -U true; unshare -m true; mount -t tmpfs none /tmp", user=USER)

    assert ended.output.count("Operation not permitted") == 2, ended.output
    assert ended.status == 32, "mount refuses too"


def test_the_keeper_is_no_way_around_the_filter(plan: IsolationPlan) -> None:
    ended = run(plan, "/bin/ls", "/proc/1", user=USER)

    assert "No such file" in ended.output
    assert {name: ended.keeper[name] for name in KEEPER} == KEEPER


def test_exit_codes_signals_and_commands_are_true(plan: IsolationPlan) -> None:
    assert shell(plan, "exit 7", user=USER).status == 7
    assert shell(plan, "echo; exec sleep 60", signals=[signal.SIGTERM], user=USER).status == -signal.SIGTERM
    ended = shell(plan, "echo; exec sleep 60", commands=[["/bin/sh", "-c", "id -u; ls /root; exit 5"]], user=USER)

    assert ended.found[0][0] == 5
    assert ended.found[0][1].startswith(f"{USER}\nls: cannot access '/root'")


def test_added_capabilities_count_inside_only(plan: IsolationPlan) -> None:
    added: TaskCapabilities = task_capabilities(add=["net_bind_service"])
    ended = shell(replace(plan, capabilities=added), "grep CapEff /proc/self/status", user=USER)

    assert ended.output.split()[1] == "0000000000000400"
