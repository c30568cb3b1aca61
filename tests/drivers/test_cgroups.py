"""Which cgroups a host has, what a task's are to hold, and that they hold a real task."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsched.drivers.cgroups import CgroupMode, Cgroups, TaskGroup, cpu_weight, detect
from fedsched.drivers.driver import TaskLimits
from fedsched.drivers.supervisor import processes
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.usage import usage
from tests.drivers.supervised import Host, retire, run

PARENT = f"fedsched-test-{os.getpid()}.slice"


def v1_host(root: Path, *controllers: str) -> Path:
    for name in controllers:
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").touch()
    return root


def v2_host(root: Path, controllers: str = "cpuset cpu io memory pids") -> Path:
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").write_text(controllers)
    return root


def test_a_host_with_a_tree_per_controller_is_v1(tmp_path: Path) -> None:
    found = detect(v1_host(tmp_path, "cpu", "memory", "pids", "blkio"))

    assert found.mode is CgroupMode.V1
    assert set(found.hierarchies) == {"cpu", "memory", "pids"}


def test_a_hybrid_with_an_empty_unified_tree_is_v1(tmp_path: Path) -> None:
    v2_host(v1_host(tmp_path, "memory") / "unified", "")

    assert detect(tmp_path).mode is CgroupMode.V1


def test_the_unified_tree_is_v2(tmp_path: Path) -> None:
    found = detect(v2_host(tmp_path))

    assert found.mode is CgroupMode.V2
    assert set(found.hierarchies) == {"cpu", "memory", "pids", "cpuset"}


def test_a_host_without_any_says_so(tmp_path: Path) -> None:
    assert detect(tmp_path / "none").mode is CgroupMode.NONE
    assert "no controllers" in detect(tmp_path).reason


def test_nothing_is_asked_for_without_cgroups() -> None:
    assert Cgroups(CgroupMode.NONE).group("a.web", TaskLimits(cpu_mhz=500, memory_mb=10)) == TaskGroup()


def test_v1_limits_are_shares_hard_and_soft_memory_and_pids(tmp_path: Path) -> None:
    found = detect(v1_host(tmp_path, "cpu", "memory", "pids"), parent="p")
    group = found.group("a.web", TaskLimits(cpu_mhz=500, memory_mb=64, memory_max_mb=128, pids_max=7))

    assert group.paths == tuple(f"{tmp_path}/{name}/p/a.web" for name in ("cpu", "memory", "pids"))
    assert dict(group.files) == {
        f"{tmp_path}/cpu/p/a.web/cpu.shares": "500",
        f"{tmp_path}/memory/p/a.web/memory.limit_in_bytes": str(128 << 20),
        f"{tmp_path}/memory/p/a.web/memory.soft_limit_in_bytes": str(64 << 20),
        f"{tmp_path}/pids/p/a.web/pids.max": "7",
    }
    assert group.kill == f"{tmp_path}/pids/p/a.web"
    assert group.oom_files == (f"{tmp_path}/memory/p/a.web/memory.oom_control",)


def test_v2_limits_are_weight_max_low_and_pids_in_the_shared_slice(tmp_path: Path) -> None:
    found = detect(v2_host(tmp_path), parent="p")
    group = found.group("a.web", TaskLimits(cpu_mhz=500, memory_mb=64, memory_max_mb=128, pids_max=7))
    place = f"{tmp_path}/p/share/a.web.scope"

    assert group.paths == (place,)
    assert dict(group.files) == {
        f"{place}/cpu.weight": str(cpu_weight(500)),
        f"{place}/memory.max": str(128 << 20),
        f"{place}/memory.low": str(64 << 20),
        f"{place}/memory.oom.group": "1",
        f"{place}/pids.max": "7",
    }


def test_cores_are_reserved(tmp_path: Path) -> None:
    group = detect(v2_host(tmp_path), parent="p").group("a.web", TaskLimits(cores=(3, 1)))

    assert dict(group.files) == {f"{tmp_path}/p/reserve/a.web.scope/cpuset.cpus": "1,3"}


def test_memory_below_zero_is_no_hard_limit(tmp_path: Path) -> None:
    limits = TaskLimits(memory_mb=64, memory_max_mb=-1)
    v2 = detect(v2_host(tmp_path / "2"), parent="p").group("a", limits)
    v1 = detect(v1_host(tmp_path / "1", "memory"), parent="p").group("a", limits)

    assert (f"{tmp_path}/2/p/share/a.scope/memory.max", "max") in v2.files
    assert [Path(path).name for path, _ in v1.files] == ["memory.soft_limit_in_bytes"]


@pytest.mark.parametrize(("mhz", "weight"), [(0, 1), (2, 1), (1024, 39), (262_144, 10_000), (10**9, 10_000)])
def test_weights_stand_to_each_other_as_shares(mhz: int, weight: int) -> None:
    assert cpu_weight(mhz) == weight


def test_v2_controllers_are_handed_down(tmp_path: Path) -> None:
    detect(v2_host(tmp_path), parent="p").prepare()

    for place in ("", "p", "p/share", "p/reserve"):
        assert (tmp_path / place / "cgroup.subtree_control").read_text() == "+cpuset"  # a plain file keeps the last


def test_v2_use_is_read_from_the_tasks_group(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.peak").write_text("2000\n")
    (tmp_path / "memory.stat").write_text("anon 600\nfile 300\nworkingset_refault x\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_throttled 2\nthrottled_usec 3\n")
    (tmp_path / "cgroup.procs").write_text("7\n8\n")

    found = usage([str(tmp_path)], 1)

    assert (found.memory_rss, found.memory_cache, found.memory_usage, found.memory_max_usage) == (600, 300, 1000, 2000)
    assert (found.cpu_user_ns, found.cpu_system_ns, found.throttled_periods, found.throttled_ns) == (
        5000,
        4000,
        2,
        3000,
    )
    assert found.pids == (7, 8)


# The host's own


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[Host, Cgroups]]:
    found = detect(parent=PARENT)
    if found.mode is CgroupMode.NONE:
        pytest.skip(f"no cgroups to write to: {found.reason}")
    found.prepare()
    host = Host(tmp_path)
    yield host, found
    retire(host.directory)
    for root in set(found.hierarchies.values()):
        for folder, _, _ in os.walk(root / PARENT, topdown=False):
            os.rmdir(folder)


def in_group(host: Host, script: str | list[str], group: TaskGroup) -> LaunchSpec:
    return host.spec(
        script,
        cgroups=list(group.paths),
        cgroup_files=[list(pair) for pair in group.files],
        cgroup_kill=group.kill,
        oom_files=list(group.oom_files),
    )


def test_a_task_is_in_its_groups_before_it_begins_and_they_go_with_it(real: tuple[Host, Cgroups]) -> None:
    host, found = real

    limits = TaskLimits(cpu_mhz=500, memory_mb=64, pids_max=50, cores=(0,))
    group = found.group("alloc.web", limits)

    async def scenario() -> None:
        spec = in_group(host, "cat /proc/self/cgroup; exec sleep 3600", group)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            text = await host.logged(spec, "cpuset" if found.mode is CgroupMode.V1 else "0::")
            assert text.count(f"{PARENT}") == len(group.paths)
            assert all(processes.group_pids(path) == [task.pid] for path in group.paths)
            assert [_read(path) for path, _ in group.files] == [value for _, value in group.files]
            use = usage(task.cgroups, task.supervisor_pid)
            assert use.pids == (task.pid,)
            assert use.memory_usage > 0
            assert "Usage" in use.measured
            await task.stop(signal.SIGTERM, 5)
            await task.acknowledge()

    run(scenario)
    assert not any(os.path.exists(path) for path in group.paths)


def test_a_task_that_takes_too_much_memory_is_told_as_such(real: tuple[Host, Cgroups]) -> None:
    host, found = real
    if "memory" not in found.hierarchies:
        pytest.skip("no memory controller")

    group = found.group("alloc.hungry", TaskLimits(memory_mb=16))

    async def scenario() -> None:
        spec = in_group(host, [sys.executable, "-I", "-S", "-c", "bytearray(10**9)"], group)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            result = await task.wait()
            assert result.oom_killed
            assert result.signal == signal.SIGKILL
            await task.acknowledge()

    run(scenario)


def test_a_group_that_forks_without_end_is_killed(real: tuple[Host, Cgroups]) -> None:
    host, found = real
    if "pids" not in found.hierarchies:
        pytest.skip("no pids controller")

    group = found.group("alloc.bomb", TaskLimits(pids_max=40))

    async def scenario() -> None:
        spec = in_group(host, "f() { setsid sh -c 'while :; do sleep 0.01 & done' & }; f; f; f; echo on; wait", group)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await host.logged(spec, "on")
            await task.stop(signal.SIGKILL, 0)
            assert processes.group_pids(group.kill) == []
            await task.acknowledge()

    run(scenario)
    assert not any(os.path.exists(path) for path in group.paths)


def test_a_limit_that_cannot_be_set_fails_the_launch_and_leaves_no_group(real: tuple[Host, Cgroups]) -> None:
    host, found = real

    group = found.group("alloc.bad", TaskLimits(memory_mb=16))

    async def scenario() -> None:
        spec = in_group(host, "exit 0", group)
        spec.cgroup_files.append([f"{group.paths[0]}/no.such.file", "1"])
        async with host.agent() as agent:
            with pytest.raises(Exception, match=r"no\.such\.file"):
                await agent.launch(spec)

    run(scenario)
    assert not any(os.path.exists(path) for path in group.paths)


def test_after_its_supervisor_was_killed_a_task_goes_by_its_group_escapees_included(real: tuple[Host, Cgroups]) -> None:
    host, found = real

    group = found.group("alloc.lost", TaskLimits(pids_max=50))

    async def scenario() -> None:
        spec = in_group(host, "setsid sleep 3600 & setsid sleep 3600 & echo on; wait", group)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await host.logged(spec, "on")
            os.kill(task.supervisor_pid, signal.SIGKILL)
            assert "supervisor" in (await task.wait()).error
            assert processes.group_pids(group.kill) == []
            await task.acknowledge()

    run(scenario)
    assert not any(os.path.exists(path) for path in group.paths)


def test_without_cgroups_use_is_added_up_over_the_tree(tmp_path: Path) -> None:
    host = Host(tmp_path)

    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("sleep 3600 & echo on; wait")
            task = await agent.launch(spec)
            await host.logged(spec, "on")
            found = usage([], task.supervisor_pid)
            assert len(found.pids) == 2
            assert task.pid in found.pids
            assert found.memory_rss > 0
            assert found.measured == ("RSS", "System Mode", "User Mode")
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)
    retire(host.directory)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()
