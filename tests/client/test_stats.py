"""Figures of hosts and tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from fedsched.client import host_stats, stats
from fedsched.client.stats import HostFigures, RunningTask, TaskFigures, rated, summed
from fedsched.drivers.driver import ResourceUse, TaskUnknown
from fedsched.model.usage import CpuStats, HostStats, MemoryStats, ResourceUsage

STAT = """cpu  100 0 50 850 0 0 0 0 0 0
cpu0 60 10 20 400 10 0 0 0 0 0
cpu1 40 0 30 430 0 5 5 0 0 0
cpu10 1 1 1 1
intr 1 2 3
"""
LATER = """cpu0 85 10 45 450 10 0 0 0 0 0
cpu1 40 0 30 530 0 5 5 0 0 0
cpu11 1 1 1 1
"""
MEMINFO = "MemTotal: 1000 kB\nMemFree: 200 kB\nMemAvailable: 600 kB\nBuffers: 100 kB\nCached: 200 kB\nOdd line\n"
MOUNTS = r"""/dev/sda1 / ext4 rw 0 0
proc /proc proc rw 0 0
/dev/sda1 /again ext4 rw 0 0
/dev/sdb /mnt/a\040b xfs rw 0 0
nas:/x /nas nfs rw 0 0
"""


def test_processors_are_rated_between_two_looks() -> None:
    cores = host_stats.cpu_rates(host_stats.cpu_times(STAT), host_stats.cpu_times(LATER), 2000.0)

    assert [core.cpu for core in cores] == ["cpu0", "cpu1"]
    assert (cores[0].user, cores[0].system, cores[0].idle, cores[0].total_percent) == (25.0, 25.0, 50.0, 50.0)
    assert cores[0].total_ticks == 1000.0
    assert (cores[1].idle, cores[1].total_ticks) == (100.0, 0.0)


def test_a_clock_that_stood_still_is_idle() -> None:
    times = host_stats.cpu_times(STAT)

    assert [core.idle for core in host_stats.cpu_rates(times, times, 1.0)] == [100.0] * 3


def test_memory_mounts_and_uptime_are_read() -> None:
    memory = host_stats.memory(MEMINFO)

    assert (memory.total, memory.available, memory.used, memory.free) == (1_024_000, 614_400, 512_000, 204_800)
    assert host_stats.mounts(MOUNTS) == [("/dev/sda1", "/"), ("/dev/sdb", "/mnt/a b")]
    assert host_stats.uptime_s("123.45 99\n") == 123
    assert host_stats.uptime_s("") == 0


def test_a_disk_is_measured_and_one_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    found = host_stats.disk("/dev/x", tmp_path)

    assert found is not None
    assert found.size >= found.used > 0
    assert 0 < found.used_percent <= 100
    assert host_stats.disk("/dev/x", tmp_path / "none") is None


def run(story: Callable[[], Any]) -> None:
    trio.run(story, clock=MockClock(autojump_threshold=0))


def a_proc(directory: Path) -> Path:
    for name, text in (("stat", STAT), ("meminfo", MEMINFO), ("mounts", MOUNTS), ("uptime", "5 5")):
        (directory / name).write_text(text)
    return directory


def test_a_host_is_looked_at_twice_only_by_who_has_not_looked_lately(tmp_path: Path) -> None:
    async def story() -> None:
        proc = a_proc(tmp_path)
        figures = HostFigures(tmp_path, now_ns=lambda: 7, core_mhz=lambda: 2000.0, proc=proc)
        first: list[HostStats] = []

        async def look() -> None:
            first.append(await figures.stats())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            nursery.start_soon(look)
            await trio.sleep(stats.APART_S / 2)
            (proc / "stat").write_text(LATER)
        assert trio.current_time() < 2
        assert first[0] is first[1]
        assert first[0].cpu_ticks_consumed == 1000.0
        assert (first[0].uptime, first[0].timestamp_ns) == (5, 7)
        assert first[0].alloc_dir_stats.mountpoint == str(tmp_path)
        await trio.sleep(1)
        started = trio.current_time()
        again = await figures.stats()
        assert trio.current_time() == started
        assert again.cpu_ticks_consumed == 0.0
        await trio.sleep(60)
        started = trio.current_time()
        await figures.stats()
        assert trio.current_time() - started == stats.APART_S

    run(story)


class Uses:
    """A driver that only measures: half a core busy, all the time."""

    name = "fake"

    def __init__(self, *, with_times: bool = False) -> None:
        self.looks = 0
        self.is_gone = False
        self._with_times = with_times

    async def task_stats(self, task_id: str) -> ResourceUse:
        if self.is_gone:
            raise TaskUnknown("gone")
        self.looks += 1
        now = trio.current_time()
        return ResourceUse(
            timestamp_ns=round(now * 1e9) if self._with_times else 0,
            memory_rss=100,
            cpu_user_ns=round(now * 0.4e9),
            cpu_system_ns=round(now * 0.1e9),
            measured=("memory_rss", "cpu_user_ns", "cpu_system_ns"),
        )


@pytest.mark.parametrize("with_times", [True, False])
def test_tasks_are_rated_by_what_they_used_since_the_last_look(with_times: bool) -> None:
    async def story() -> None:
        driver = Uses(with_times=with_times)
        task = RunningTask("web", "id-1", cast(Any, driver))
        figures = TaskFigures(now_ns=lambda: 7, core_mhz=lambda: 1000.0)

        first = await figures.usage([task])
        cpu = first.tasks["web"].resource_usage.cpu_stats
        assert (cpu.percent, cpu.user_mode, cpu.system_mode, cpu.total_ticks) == (50.0, 40.0, 10.0, 500.0)
        assert cpu.measured == ("System Mode", "User Mode", "Percent")
        assert first.resource_usage == first.tasks["web"].resource_usage
        assert first.resource_usage.memory_stats == MemoryStats(rss=100, measured=("RSS",))
        assert driver.looks == 2
        await trio.sleep(1)
        second = await figures.usage([task])
        assert driver.looks == 3
        assert second.tasks["web"].resource_usage.cpu_stats.percent == 50.0
        driver.is_gone = True
        await trio.sleep(1)
        assert (await figures.usage([task])).tasks == {}
        assert (await figures.usage([])).tasks == {}

    run(story)


def test_what_is_remembered_of_tasks_is_bounded() -> None:
    async def story() -> None:
        figures = TaskFigures(now_ns=lambda: 7, core_mhz=lambda: 1000.0, kept_max=2)
        for number in range(5):
            await figures.usage([RunningTask("web", f"id-{number}", cast(Any, Uses()))])
        assert list(figures._last) == ["id-3", "id-4"]

    run(story)


def test_no_time_between_two_looks_is_no_use() -> None:
    assert rated(ResourceUse(), ResourceUse(cpu_user_ns=5), 0.0, 1000.0).cpu_stats.percent == 0.0
    assert rated(ResourceUse(cpu_user_ns=9), ResourceUse(cpu_user_ns=5), 1.0, 1000.0).cpu_stats.percent == 0.0


def test_an_allocation_is_the_sum_of_its_tasks() -> None:
    one = ResourceUsage(
        memory_stats=MemoryStats(rss=1, usage=2, measured=("RSS",)), cpu_stats=CpuStats(percent=1.5, total_ticks=10.0)
    )
    two = ResourceUsage(
        memory_stats=MemoryStats(rss=3, cache=4, measured=("RSS", "Cache")),
        cpu_stats=CpuStats(percent=2.0, throttled_periods=7),
    )

    whole = summed([one, two])

    assert whole.memory_stats == MemoryStats(rss=4, usage=2, cache=4, measured=("RSS", "Cache"))
    assert whole.cpu_stats == CpuStats(percent=3.5, total_ticks=10.0, throttled_periods=7)
