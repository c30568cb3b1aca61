"""What a supervised task uses: asked from its cgroups if it has any, else added up over its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from fedsched.drivers.driver import ResourceUse
from fedsched.drivers.supervisor import processes

TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
MEMORY: Final = ("RSS", "Cache", "Usage", "Max Usage")
CPU: Final = ("System Mode", "User Mode")
THROTTLED: Final = ("Throttled Periods", "Throttled Time")


def usage(groups: Sequence[str], supervisor_pid: int) -> ResourceUse:
    """Measure now. Blocking, but only as long as the kernel takes to write a few lines."""
    for path in groups:
        if os.path.exists(f"{path}/memory.current"):
            return _v2(path)
    place = {name: path for path in groups for name in _V1_FILES if os.path.exists(f"{path}/{name}")}
    if "memory.usage_in_bytes" in place:
        return _v1(groups, place)
    return _tree(processes.descendants(supervisor_pid))


def _v2(path: str) -> ResourceUse:
    memory, cpu = _pairs(f"{path}/memory.stat"), _pairs(f"{path}/cpu.stat")
    return ResourceUse(
        timestamp_ns=time.time_ns(),
        memory_rss=memory.get("anon", 0),
        memory_cache=memory.get("file", 0),
        memory_swap=_number(f"{path}/memory.swap.current"),
        memory_usage=_number(f"{path}/memory.current"),
        memory_max_usage=_number(f"{path}/memory.peak"),
        cpu_system_ns=cpu.get("system_usec", 0) * 1000,
        cpu_user_ns=cpu.get("user_usec", 0) * 1000,
        throttled_periods=cpu.get("nr_throttled", 0),
        throttled_ns=cpu.get("throttled_usec", 0) * 1000,
        pids=tuple(processes.group_pids(path)),
        measured=(*MEMORY, "Swap", *CPU, *THROTTLED),
    )


def _v1(groups: Sequence[str], place: Mapping[str, str]) -> ResourceUse:
    memory = _pairs(f"{place['memory.usage_in_bytes']}/memory.stat")
    accounting = _pairs(f"{place['cpuacct.stat']}/cpuacct.stat") if "cpuacct.stat" in place else {}
    throttled = _pairs(f"{place['cpu.stat']}/cpu.stat") if "cpu.stat" in place else {}
    return ResourceUse(
        timestamp_ns=time.time_ns(),
        memory_rss=memory.get("total_rss", memory.get("rss", 0)),
        memory_cache=memory.get("total_cache", memory.get("cache", 0)),
        memory_swap=memory.get("total_swap", memory.get("swap", 0)),
        memory_usage=_number(f"{place['memory.usage_in_bytes']}/memory.usage_in_bytes"),
        memory_max_usage=_number(f"{place['memory.usage_in_bytes']}/memory.max_usage_in_bytes"),
        cpu_system_ns=accounting.get("system", 0) * TICK_NS,
        cpu_user_ns=accounting.get("user", 0) * TICK_NS,
        throttled_periods=throttled.get("nr_throttled", 0),
        throttled_ns=throttled.get("throttled_time", 0),
        pids=tuple(processes.group_pids(place["memory.usage_in_bytes"])),
        measured=(*MEMORY, "Swap", *(CPU if accounting else ()), *(THROTTLED if throttled else ())),
    )


_V1_FILES: Final = ("memory.usage_in_bytes", "cpuacct.stat", "cpu.stat")


def _tree(pids: Sequence[int]) -> ResourceUse:
    rss = system = user = 0
    found = []
    for pid in pids:
        fields = processes.stat_fields(pid)
        if fields is not None:
            found.append(pid)
            user += int(fields[11])
            system += int(fields[12])
            rss += int(fields[21]) * PAGE
    return ResourceUse(
        timestamp_ns=time.time_ns(),
        memory_rss=rss,
        cpu_system_ns=system * TICK_NS,
        cpu_user_ns=user * TICK_NS,
        pids=tuple(found),
        measured=("RSS", *CPU),
    )


def _pairs(path: str) -> dict[str, int]:
    try:
        with open(path) as file:
            words = [line.split() for line in file]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
