"""What the host uses: reads `/proc` and the file systems, and makes rates out of two looks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsched.model.usage import HostCpuStats, HostDiskStats, HostMemoryStats

REAL_FILE_SYSTEMS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay", "jfs"})
"""Those whose room somebody cares about, and that never make us wait for a network."""
DISKS_MAX: Final = 64
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """One core since the host was started, in ticks of the kernel's clock."""

    user: int
    system: int
    idle: int
    total: int


def cpu_times(stat_text: str) -> dict[str, CpuTimes]:
    """Every core's times out of `/proc/stat`."""
    found: dict[str, CpuTimes] = {}
    for line in stat_text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu") or name == "cpu":
            continue
        values = [int(word) for word in rest.split()]
        user, nice, system, idle, wait, irq, soft_irq, steal = (*values, *[0] * 8)[:8]
        busy = user + nice + system + irq + soft_irq + steal
        found[name] = CpuTimes(user + nice, system + irq + soft_irq, idle + wait, busy + idle + wait)
    return found


def cpu_rates(
    before: Mapping[str, CpuTimes], after: Mapping[str, CpuTimes], core_mhz: float
) -> tuple[HostCpuStats, ...]:
    """What each core did between two looks; a core that came or went in between is left out."""
    return tuple(
        _core_rates(name, before[name], after[name], core_mhz)
        for name in sorted(after, key=lambda name: (len(name), name))
        if name in before
    )


def _core_rates(name: str, before: CpuTimes, after: CpuTimes, core_mhz: float) -> HostCpuStats:
    total = after.total - before.total
    if total <= 0:
        return HostCpuStats(cpu=name, idle=100.0)
    share = 100.0 / total
    idle = (after.idle - before.idle) * share
    return HostCpuStats(
        cpu=name,
        user=round((after.user - before.user) * share, 3),
        system=round((after.system - before.system) * share, 3),
        idle=round(idle, 3),
        total_percent=round(100.0 - idle, 3),
        total_ticks=round((100.0 - idle) / 100.0 * core_mhz, 3),
    )


def memory(meminfo_text: str) -> HostMemoryStats:
    """Out of `/proc/meminfo`."""
    found: dict[str, int] = {}
    for line in meminfo_text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * KIB
    total, free = found.get("MemTotal", 0), found.get("MemFree", 0)
    cached = found.get("Buffers", 0) + found.get("Cached", 0) + found.get("SReclaimable", 0)
    return HostMemoryStats(
        total=total, available=found.get("MemAvailable", free), used=max(0, total - free - cached), free=free
    )


def uptime_s(uptime_text: str) -> int:
    """Out of `/proc/uptime`."""
    return int(float(uptime_text.split()[0])) if uptime_text.split() else 0


def mounts(mounts_text: str) -> list[tuple[str, str]]:
    """Device and place of each file system that has room of its own, each device once, out of `/proc/mounts`."""
    found: dict[str, str] = {}
    for line in mounts_text.splitlines():
        words = line.split(" ")
        if len(words) > 2 and words[2] in REAL_FILE_SYSTEMS:
            found.setdefault(_unescaped(words[0]), _unescaped(words[1]))
    return list(found.items())[:DISKS_MAX]


def disk(device: str, place: str | Path) -> HostDiskStats | None:
    """How full a file system is; None if it cannot be asked."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    size, free, available = (found.f_frsize * blocks for blocks in (found.f_blocks, found.f_bfree, found.f_bavail))
    used = size - free
    inodes = found.f_files - found.f_ffree
    return HostDiskStats(
        device=device,
        mountpoint=str(place),
        size=size,
        used=used,
        available=available,
        used_percent=round(100.0 * used / (used + available), 3) if used + available else 0.0,
        inodes_used_percent=round(100.0 * inodes / found.f_files, 3) if found.f_files else 0.0,
    )


def _unescaped(word: str) -> str:
    """Spaces and the like are written as `\\040` there."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, character)
    return word
