"""What hosts and tasks use at one moment, as the API shows it: figures for people and dashboards, never stored."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from fedsched.model.declare import EMPTY, Record, TimeNs


class MemoryStats(Record):
    """Memory in bytes; only what `measured` names means something."""

    rss: int = field(default=0, name="RSS")
    cache: int = 0
    swap: int = 0
    mapped_file: int = 0
    usage: int = 0
    max_usage: int = 0
    kernel_usage: int = 0
    kernel_max_usage: int = 0
    measured: tuple[str, ...] = ()


class CpuStats(Record):
    """Processor time between two looks; only what `measured` names means something."""

    system_mode: Annotated[float, "Percent of one core."] = 0.0
    user_mode: Annotated[float, "Percent of one core."] = 0.0
    total_ticks: Annotated[float, "MHz."] = 0.0
    throttled_periods: int = 0
    throttled_time: Annotated[int, "Nanoseconds."] = 0
    percent: Annotated[float, "Of one core; several cores make more than 100."] = 0.0
    measured: tuple[str, ...] = ()


class ResourceUsage(Record):
    """What something uses of its host."""

    memory_stats: MemoryStats = MemoryStats()
    cpu_stats: CpuStats = field(default=CpuStats(), name="CpuStats")


class TaskResourceUsage(Record):
    """What one task uses, and when that was."""

    resource_usage: ResourceUsage = ResourceUsage()
    timestamp_ns: TimeNs = 0
    pids: Annotated[dict[str, ResourceUsage], "What single processes use, where the driver knows."] = EMPTY


class AllocResourceUsage(Record):
    """One allocation: the sum of its tasks, and each of them."""

    resource_usage: ResourceUsage = ResourceUsage()
    tasks: dict[str, TaskResourceUsage] = EMPTY
    timestamp_ns: TimeNs = 0


class HostMemoryStats(Record):
    """Bytes."""

    total: int = 0
    available: int = 0
    used: int = 0
    free: int = 0


class HostCpuStats(Record):
    """One core, in percent, between two looks."""

    cpu: str = ""
    user: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    total_percent: float = 0.0
    total_ticks: Annotated[float, "MHz."] = 0.0


class HostDiskStats(Record):
    """One file system, in bytes."""

    device: str = ""
    mountpoint: str = ""
    size: int = 0
    used: int = 0
    available: int = 0
    used_percent: float = 0.0
    inodes_used_percent: float = 0.0


class HostStats(Record):
    """What a host is doing."""

    memory: HostMemoryStats = HostMemoryStats()
    cpu: tuple[HostCpuStats, ...] = ()
    disk_stats: tuple[HostDiskStats, ...] = ()
    alloc_dir_stats: HostDiskStats = HostDiskStats()
    uptime: Annotated[int, "Seconds since the host was started."] = 0
    cpu_ticks_consumed: Annotated[float, "MHz."] = 0.0
    timestamp_ns: TimeNs = 0
