"""Figures of hosts and tasks, taken while somebody looks and not otherwise.

A rate needs two looks. Whoever asks first waits a quarter of a second for the second one; whoever asks again within ten
seconds gets what happened since the last look, and many who ask at once share one. Nothing runs when nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from fedsched.client import host_stats
from fedsched.drivers.driver import Driver, DriverError, ResourceUse
from fedsched.model.node import Node
from fedsched.model.usage import (
    AllocResourceUsage,
    CpuStats,
    HostCpuStats,
    HostDiskStats,
    HostStats,
    MemoryStats,
    ResourceUsage,
    TaskResourceUsage,
)

APART_S: Final = 0.25
"""Between the two looks of somebody who has not looked lately."""
SHARED_S: Final = 0.5
"""Whoever asks again sooner is given the same figures."""
STALE_S: Final = 10.0
"""A rate over a longer time says little about now."""
KEPT_MAX: Final = 1_000
"""Tasks whose last look is remembered; those looked at longest ago are forgotten."""
READERS: Final = trio.CapacityLimiter(2)
PROC: Final = Path("/proc")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """What was seen, and when, in seconds of a clock that never jumps."""

    at: float
    value: T


def core_mhz_of(node: Node) -> float:
    """How fast one core of a node is."""
    cpu = node.node_resources.cpu
    return cpu.cpu_shares / cpu.total_cpu_cores if cpu.total_cpu_cores else 0.0


class HostFigures:
    """The host's own."""

    def __init__(
        self,
        alloc_dir: Path,
        *,
        now_ns: Callable[[], int],
        core_mhz: Callable[[], float],
        proc: Path = PROC,
        stale_s: float = STALE_S,
    ) -> None:
        self._alloc_dir = alloc_dir
        self._now_ns = now_ns
        self._core_mhz = core_mhz
        self._proc = proc
        self._stale_s = stale_s
        self._turn = trio.Lock()
        self._last: Look[dict[str, host_stats.CpuTimes]] | None = None
        self._stats: Look[HostStats] | None = None

    async def stats(self) -> HostStats:
        async with self._turn:
            now = trio.current_time()
            if self._stats is not None and now - self._stats.at < SHARED_S:
                return self._stats.value
            before = self._last
            if before is None or now - before.at > self._stale_s:
                before = await self._look()
                await trio.sleep(APART_S)
            after = self._last = await self._look()
            cores = host_stats.cpu_rates(before.value, after.value, self._core_mhz())
            stats = await trio.to_thread.run_sync(self._read_rest, cores, limiter=READERS)
            self._stats = Look(after.at, stats)
            return stats

    async def _look(self) -> Look[dict[str, host_stats.CpuTimes]]:
        return Look(trio.current_time(), host_stats.cpu_times((self._proc / "stat").read_text()))

    def _read_rest(self, cores: tuple[HostCpuStats, ...]) -> HostStats:
        disks = [
            found
            for device, place in host_stats.mounts((self._proc / "mounts").read_text())
            if (found := host_stats.disk(device, place)) is not None
        ]
        return HostStats(
            memory=host_stats.memory((self._proc / "meminfo").read_text()),
            cpu=cores,
            disk_stats=tuple(disks),
            alloc_dir_stats=host_stats.disk("", self._alloc_dir) or HostDiskStats(mountpoint=str(self._alloc_dir)),
            uptime=host_stats.uptime_s((self._proc / "uptime").read_text()),
            cpu_ticks_consumed=round(sum(core.total_ticks for core in cores), 3),
            timestamp_ns=self._now_ns(),
        )


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that figures are wanted of."""

    name: str
    task_id: str
    driver: Driver


class TaskFigures:
    """Those of tasks, as their drivers tell them."""

    def __init__(
        self,
        *,
        now_ns: Callable[[], int],
        core_mhz: Callable[[], float],
        stale_s: float = STALE_S,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._now_ns = now_ns
        self._core_mhz = core_mhz
        self._stale_s = stale_s
        self._kept_max = kept_max
        self._last: dict[str, Look[ResourceUse]] = {}
        """By the driver's id of a task, those looked at longest ago first."""

    async def usage(self, tasks: Iterable[RunningTask]) -> AllocResourceUsage:
        """What each of these uses and all of them together; a task that has just ended uses nothing.

        Of tasks of several allocations that have the same name only the sum says something.
        """
        wanted = list(tasks)
        before = {task.task_id: look for task in wanted if (look := self._fresh(task)) is not None}
        if len(before) < len(wanted):
            for task in wanted:
                if task.task_id not in before and (look := await self._look(task)) is not None:
                    before[task.task_id] = look
            await trio.sleep(APART_S)
        found: list[tuple[str, TaskResourceUsage]] = []
        for task in wanted:
            after = await self._look(task)
            if after is not None and task.task_id in before:
                found.append((task.name, self._rated(before[task.task_id], after)))
        return AllocResourceUsage(
            resource_usage=summed(one.resource_usage for _, one in found),
            tasks=dict(found),
            timestamp_ns=self._now_ns(),
        )

    def _fresh(self, task: RunningTask) -> Look[ResourceUse] | None:
        look = self._last.get(task.task_id)
        return look if look is not None and SHARED_S / 2 <= trio.current_time() - look.at <= self._stale_s else None

    async def _look(self, task: RunningTask) -> Look[ResourceUse] | None:
        try:
            use = await task.driver.task_stats(task.task_id)
        except DriverError:
            self._last.pop(task.task_id, None)
            return None
        look = Look(trio.current_time(), use)
        self._last.pop(task.task_id, None)
        self._last[task.task_id] = look
        if len(self._last) > self._kept_max:
            del self._last[next(iter(self._last))]
        return look

    def _rated(self, before: Look[ResourceUse], after: Look[ResourceUse]) -> TaskResourceUsage:
        return TaskResourceUsage(
            resource_usage=rated(before.value, after.value, _elapsed_s(before, after), self._core_mhz()),
            timestamp_ns=after.value.timestamp_ns or self._now_ns(),
            pids={str(pid): ResourceUsage() for pid in after.value.pids},
        )


def _elapsed_s(before: Look[ResourceUse], after: Look[ResourceUse]) -> float:
    """By the driver's own times if it gives them: it may take its time to look."""
    between_ns = after.value.timestamp_ns - before.value.timestamp_ns
    return between_ns / 1e9 if before.value.timestamp_ns and between_ns > 0 else after.at - before.at


def rated(before: ResourceUse, after: ResourceUse, elapsed_s: float, core_mhz: float) -> ResourceUsage:
    """What a task uses, out of two looks at it so far apart."""

    def percent(now_ns: int, then_ns: int) -> float:
        return round(max(0, now_ns - then_ns) / (elapsed_s * 1e9) * 100.0, 3) if elapsed_s > 0 else 0.0

    system = percent(after.cpu_system_ns, before.cpu_system_ns)
    user = percent(after.cpu_user_ns, before.cpu_user_ns)
    whole = round(system + user, 3)
    measured = frozenset(after.measured)
    return ResourceUsage(
        memory_stats=MemoryStats(
            rss=after.memory_rss,
            cache=after.memory_cache,
            swap=after.memory_swap,
            usage=after.memory_usage,
            max_usage=after.memory_max_usage,
            measured=_measured(MEMORY_NAMES, measured),
        ),
        cpu_stats=CpuStats(
            system_mode=system,
            user_mode=user,
            total_ticks=round(whole / 100.0 * core_mhz, 3),
            throttled_periods=after.throttled_periods,
            throttled_time=after.throttled_ns,
            percent=whole,
            measured=_measured(CPU_NAMES, measured),
        ),
    )


MEMORY_NAMES: Final = (
    ("memory_rss", "RSS"),
    ("memory_cache", "Cache"),
    ("memory_swap", "Swap"),
    ("memory_usage", "Usage"),
    ("memory_max_usage", "Max Usage"),
)
CPU_NAMES: Final = (
    ("cpu_system_ns", "System Mode"),
    ("cpu_user_ns", "User Mode"),
    ("throttled_periods", "Throttled Periods"),
    ("throttled_ns", "Throttled Time"),
)
"""What drivers call their figures, and what the API calls them."""


def _measured(names: Iterable[tuple[str, str]], measured: frozenset[str]) -> tuple[str, ...]:
    found = [name for field, name in names if field in measured or name in measured]
    return tuple(found) + (("Percent",) if {"System Mode", "User Mode"} & set(found) else ())


def summed(parts: Iterable[ResourceUsage]) -> ResourceUsage:
    """Several tasks together; measured is what any of them measures."""
    every = list(parts)
    memories, cpus = [one.memory_stats for one in every], [one.cpu_stats for one in every]
    return ResourceUsage(
        memory_stats=MemoryStats(
            rss=sum(one.rss for one in memories),
            cache=sum(one.cache for one in memories),
            swap=sum(one.swap for one in memories),
            usage=sum(one.usage for one in memories),
            max_usage=sum(one.max_usage for one in memories),
            measured=_united(one.measured for one in memories),
        ),
        cpu_stats=CpuStats(
            system_mode=round(sum(one.system_mode for one in cpus), 3),
            user_mode=round(sum(one.user_mode for one in cpus), 3),
            total_ticks=round(sum(one.total_ticks for one in cpus), 3),
            throttled_periods=sum(one.throttled_periods for one in cpus),
            throttled_time=sum(one.throttled_time for one in cpus),
            percent=round(sum(one.percent for one in cpus), 3),
            measured=_united(one.measured for one in cpus),
        ),
    )


def _united(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in lists for name in one))
