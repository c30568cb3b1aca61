"""What tasks and the host use, as metrics, where the operator wants that.

Off unless asked for: every running task is several series, which somebody has to store. A round looks at everything
once; rates are over the time since the round before. Series of a task go when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from fedsched.client.context import AllocContext, ClientParts
from fedsched.client.stats import HostFigures, RunningTask, TaskFigures, core_mhz_of
from fedsched.model.usage import HostStats, ResourceUsage
from fedsched.telemetry.metrics import GaugeSpec, Registry, gauge

TASK_LABELS: Final = ("job", "group", "task", "alloc", "namespace", "node")
TASKS_MAX: Final = 4_000
"""Tasks on one host that have series of their own; the others count as one called `other`."""
ROUNDS_FRESH: Final = 3
"""A look this many rounds ago still makes a rate."""


def _of_tasks(name: str, text: str, unit: str = "") -> GaugeSpec:
    return gauge(
        f"client.allocs.{name}",
        text,
        unit=unit,
        labels=TASK_LABELS,
        series_max=TASKS_MAX,
        nomad=f"nomad.client.allocs.{name}",
    )


def _of_host(name: str, text: str, unit: str = "", label: str = "") -> GaugeSpec:
    labels = (label, "node") if label else ("node",)
    return gauge(f"client.host.{name}", text, unit=unit, labels=labels, nomad=f"nomad.client.host.{name}")


MEMORY_RSS: Final = _of_tasks("memory.rss", "memory of a task's own", "bytes")
MEMORY_CACHE: Final = _of_tasks("memory.cache", "files that the kernel keeps in memory for a task", "bytes")
MEMORY_SWAP: Final = _of_tasks("memory.swap", "memory of a task that was swapped out", "bytes")
MEMORY_USAGE: Final = _of_tasks("memory.usage", "memory that counts against a task's limit", "bytes")
MEMORY_MAX: Final = _of_tasks("memory.max_usage", "the most memory that a task has used", "bytes")
CPU_PERCENT: Final = _of_tasks("cpu.total_percent", "processor use of a task; 100 is one core", "percent")
CPU_USER: Final = _of_tasks("cpu.user", "of this, the task's own work", "percent")
CPU_SYSTEM: Final = _of_tasks("cpu.system", "of this, the kernel's work for it", "percent")
CPU_TICKS: Final = _of_tasks("cpu.total_ticks", "processor use of a task in MHz")
CPU_THROTTLED: Final = _of_tasks("cpu.throttled_periods", "periods in which a task was held back by its limit")

HOST_MEMORY: Final = {
    name: _of_host(f"memory.{name}", text, "bytes")
    for name, text in (
        ("total", "memory of the host"),
        ("available", "memory that could be had without swapping"),
        ("used", "memory in use"),
        ("free", "memory that nothing uses"),
    )
}
HOST_CPU: Final = {
    name: _of_host(f"cpu.{name}", text, "percent", "cpu")
    for name, text in (
        ("total_percent", "processor use, by core"),
        ("user", "of this, programs"),
        ("system", "of this, the kernel"),
        ("idle", "the rest"),
    )
}
HOST_DISK: Final = {
    name: _of_host(f"disk.{name}", text, unit, "disk")
    for name, text, unit in (
        ("size", "room on a file system", "bytes"),
        ("used", "of this, in use", "bytes"),
        ("available", "of this, still to be had", "bytes"),
        ("used_percent", "share in use", "percent"),
    )
}
HOST_INODES: Final = _of_host("disk.inodes_percent", "share of a file system's inodes in use", "percent", "disk")
HOST_UPTIME: Final = _of_host("uptime", "time since the host was started", "seconds")

Labels = tuple[str, ...]


def task_values(usage: ResourceUsage) -> dict[GaugeSpec, float]:
    """What one task uses, by metric; only what its driver measures."""
    memory, cpu = usage.memory_stats, usage.cpu_stats
    found = {
        "RSS": (MEMORY_RSS, memory.rss),
        "Cache": (MEMORY_CACHE, memory.cache),
        "Swap": (MEMORY_SWAP, memory.swap),
        "Usage": (MEMORY_USAGE, memory.usage),
        "Max Usage": (MEMORY_MAX, memory.max_usage),
        "Percent": (CPU_PERCENT, cpu.percent),
        "User Mode": (CPU_USER, cpu.user_mode),
        "System Mode": (CPU_SYSTEM, cpu.system_mode),
        "Throttled Periods": (CPU_THROTTLED, cpu.throttled_periods),
    }
    measured = {*memory.measured, *cpu.measured}
    values = {spec: float(value) for name, (spec, value) in found.items() if name in measured}
    return values | ({CPU_TICKS: cpu.total_ticks} if "Percent" in measured else {})


def host_values(stats: HostStats, node: str) -> dict[tuple[GaugeSpec, Labels], float]:
    """What the host uses, by metric and labels."""
    found: dict[tuple[GaugeSpec, Labels], float] = {(HOST_UPTIME, (node,)): float(stats.uptime)}
    for name, spec in HOST_MEMORY.items():
        found[spec, (node,)] = float(getattr(stats.memory, name))
    for core in stats.cpu:
        found |= {(spec, (core.cpu, node)): float(getattr(core, name)) for name, spec in HOST_CPU.items()}
    for disk in stats.disk_stats:
        labels = (disk.device, node)
        found |= {(spec, labels): float(getattr(disk, name)) for name, spec in HOST_DISK.items()}
        found[HOST_INODES, labels] = disk.inodes_used_percent
    return found


class Published:
    """The series of the last round, so that those that are gone can be taken out."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._shown: set[tuple[GaugeSpec, Labels]] = set()

    def show(self, values: Mapping[tuple[GaugeSpec, Labels], float]) -> None:
        for (spec, labels), value in values.items():
            self._metrics.gauges(spec).labels(*labels).set(value)
        for spec, labels in self._shown - values.keys():
            self._metrics.gauges(spec).remove(*labels)
        self._shown = set(values)


class UsageMetrics:
    """Looks round after round, as long as it runs."""

    def __init__(self, parts: ClientParts, allocs: Callable[[], Iterable[AllocContext]]) -> None:
        settings = parts.settings
        self._parts = parts
        self._allocs = allocs
        self._every_s = settings.collection_interval_s
        fresh_s = ROUNDS_FRESH * self._every_s

        def core_mhz() -> float:
            return core_mhz_of(parts.node())

        self._tasks = TaskFigures(now_ns=parts.now_ns, core_mhz=core_mhz, stale_s=fresh_s, kept_max=TASKS_MAX)
        self._host = HostFigures(settings.alloc_dir, now_ns=parts.now_ns, core_mhz=core_mhz, stale_s=fresh_s)
        self._published = Published(parts.metrics)

    async def run(self) -> None:
        while True:
            try:
                await self.round()
            except OSError as error:
                self._parts.log.warn("usage_not_measured", why=str(error))
            await trio.sleep(self._every_s)

    async def round(self) -> None:
        """Look at everything once and show it."""
        values: dict[tuple[GaugeSpec, Labels], float] = {}
        if self._parts.settings.publish_node_metrics:
            values |= host_values(await self._host.stats(), self._parts.node().name)
        if self._parts.settings.publish_allocation_metrics:
            values |= await self._task_values()
        self._published.show(values)

    async def _task_values(self) -> dict[tuple[GaugeSpec, Labels], float]:
        node = self._parts.node().name
        labels: dict[str, Labels] = {}
        running: list[RunningTask] = []
        for context in self._allocs():
            alloc = context.alloc
            for name, task in context.tasks.items():
                if task.task_id:
                    labels[task.task_id] = (alloc.job_id, alloc.task_group, name, alloc.id, alloc.namespace, node)
                    running.append(RunningTask(task.task_id, task.task_id, task.driver))
        usage = await self._tasks.usage(running)
        return {
            (spec, labels[task_id]): value
            for task_id, one in usage.tasks.items()
            for spec, value in task_values(one.resource_usage).items()
        }
