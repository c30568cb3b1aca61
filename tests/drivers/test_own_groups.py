"""Stepping into a task's cgroups and back, and what happens where that is not possible."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.cgroups import CgroupMode, detect
from fedsched.drivers.driver import TaskLimits
from fedsched.drivers.supervisor import child, own_groups
from fedsched.drivers.supervisor.child import LaunchFailed, launch_task
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.own_groups import NoWayBack, own_group, root_of, spawn_inside

PARENT = f"fedsched-test-{os.getpid()}-own.slice"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_groups, "_known", {})
    own_groups.forget_homes()


@pytest.fixture
def groups() -> Iterator[list[str]]:
    """A task's groups, real ones."""
    found = detect(parent=PARENT)
    if found.mode is CgroupMode.NONE:
        pytest.skip(f"no cgroups to write to: {found.reason}")
    found.prepare()
    made = list(found.group("alloc.task", TaskLimits(cpu_mhz=100, memory_mb=64, pids_max=50)).paths)
    for path in made:
        os.makedirs(path)
    yield made
    for root in set(found.hierarchies.values()):
        for folder, _, _ in os.walk(root / PARENT, topdown=False):
            os.rmdir(folder)


def memberships() -> str:
    return Path("/proc/self/cgroup").read_text()


def written(tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "membership").write_text(lines)
    monkeypatch.setattr(own_groups, "MEMBERSHIP", str(tmp_path / "membership"))


def test_what_is_started_inside_is_in_the_groups_and_who_starts_it_is_not(groups: list[str]) -> None:
    before = memberships()
    seen: list[str] = []

    def spawn() -> int:
        seen.append(memberships())
        return 7

    assert spawn_inside(groups, spawn) == 7
    assert seen[0].count(PARENT) == len(groups)
    assert memberships() == before


def test_a_start_that_fails_inside_is_left_all_the_same(groups: list[str]) -> None:
    before = memberships()

    def spawn() -> int:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        spawn_inside(groups, spawn)

    assert memberships() == before


def test_nobody_steps_in_without_a_way_back(groups: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "1:name=other:/\n", monkeypatch)

    assert spawn_inside(groups, lambda: pytest.fail("it was started")) is None


def test_a_task_whose_supervisor_cannot_step_back_is_killed(
    groups: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def stuck(_: list[str], spawn: Callable[[], int]) -> int:
        begun.append(spawn())
        raise NoWayBack("a supervisor cannot leave the cgroups of its task: Device or resource busy")

    monkeypatch.setattr(child, "spawn_inside", stuck)
    spec = a_spec(groups, tmp_path, [sys.executable, "-c", "import time; time.sleep(3600)"])

    with pytest.raises(LaunchFailed, match="cannot leave"):
        start(spec)
    assert not os.path.exists(f"/proc/{begun[0]}")


@pytest.mark.parametrize("room", ["50", "1"])
def test_a_task_begins_in_its_groups_however_little_room_they_have(
    groups: list[str], tmp_path: Path, room: str
) -> None:
    (pids,) = [path for path in groups if os.path.exists(f"{path}/pids.max")]
    Path(pids, "pids.max").write_text(room)
    spec = a_spec(groups, tmp_path, ["/bin/cat", "/proc/self/cgroup"], cgroup_files=[[f"{pids}/pids.max", room]])

    pid, output = start(spec)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert output.read_text().count(PARENT) == len(groups)


@pytest.mark.parametrize(
    ("mount", "lines", "expected"),
    [
        ("memory", "4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/u\n", "/a/b"),
        ("cpu,cpuacct", "4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/u\n", "/c"),
        ("cpuacct", "3:cpu,cpuacct:/c\n", "/c"),
        ("pids", "8:pids:/\n", ""),
        ("memory", "4:memory:/with:colon\n", "/with:colon"),
    ],
)
def test_the_own_group_is_found_by_the_controllers_of_the_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, lines: str, expected: str
) -> None:
    written(tmp_path, lines, monkeypatch)

    assert own_group(f"/sys/fs/cgroup/{mount}") == f"/sys/fs/cgroup/{mount}{expected}"


def test_the_only_hierarchy_of_newer_hosts_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    written(tmp_path, "0::/system.slice/fedsched.service\n", monkeypatch)

    assert own_group(str(root)) == f"{root}/system.slice/fedsched.service"


def test_the_root_of_a_hierarchy_is_where_it_is_mounted() -> None:
    assert root_of("/proc/self") == "/proc"


def a_spec(groups: list[str], tmp_path: Path, argv: list[str], **more: Any) -> LaunchSpec:
    return LaunchSpec(key="t", task_id="t", directory=str(tmp_path), argv=argv, cgroups=groups, **more)


def start(spec: LaunchSpec) -> tuple[int, Path]:
    """Launch it with its output in a file."""
    path = Path(spec.directory) / "output"
    nothing = os.open("/dev/null", os.O_RDWR)
    output = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        return launch_task(spec, (nothing, output, output), None), path
    finally:
        os.close(nothing)
        os.close(output)
