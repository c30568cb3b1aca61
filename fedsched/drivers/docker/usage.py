"""An engine's measurements in the driver's own terms."""

from __future__ import annotations

from msgspec import structs

from fedsched.drivers.docker.records import StatsSample
from fedsched.drivers.driver import ResourceUse

_MEMORY = {
    "memory_rss": ("rss", "anon"),
    "memory_cache": ("cache", "file"),
    "memory_swap": ("swap",),
}
"""Field -> its names in the older and the newer cgroups."""


def resource_use(sample: StatsSample, now_ns: int) -> ResourceUse:
    """What was measured. Podman leaves out most about memory."""
    memory, cpu = sample.memory_stats, sample.cpu_stats
    stats = memory.stats or {}
    found = {
        field: stats[name] for field, names in _MEMORY.items() for name in names if isinstance(stats.get(name), int)
    }
    found |= {"cpu_system_ns": cpu.cpu_usage.usage_in_kernelmode, "cpu_user_ns": cpu.cpu_usage.usage_in_usermode}
    if memory.usage:
        found["memory_usage"] = memory.usage
    if memory.max_usage:
        found["memory_max_usage"] = memory.max_usage
    if cpu.throttling_data is not None:
        found["throttled_periods"] = cpu.throttling_data.throttled_periods
        found["throttled_ns"] = cpu.throttling_data.throttled_time
    return structs.replace(ResourceUse(timestamp_ns=now_ns, measured=tuple(sorted(found))), **found)
