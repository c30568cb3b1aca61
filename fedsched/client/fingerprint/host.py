"""The host itself: memory, system, kernel features, disk, and the agent that runs on it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import socket
from pathlib import Path
from typing import Final

from fedsched.client.fingerprint.found import Fingerprinter, Found, Host
from fedsched.model.node import HostVolumeInfo
from fedsched.model.node_resources import NodeDisk, NodeMemory

MB: Final = 1 << 20
NOMAD_VERSION: Final = "1.10.0"
"""Job files ask for a version of Nomad; this is the one whose job files this agent runs."""
SYS_LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_VERSION: Final = 1
UNKNOWN_SIGNALS: Final = frozenset({"SIGRTMIN", "SIGRTMAX", "SIGCLD", "SIGPOLL", "SIGSTKFLT"})
"""Other names for signals that are listed already, and those nobody sends by name."""


class Memory(Fingerprinter):
    name = "memory"

    def find(self, host: Host) -> Found:
        found = re.search(r"^MemTotal:\s+(\d+) kB$", host.text("/proc/meminfo"), re.MULTILINE)
        total = int(found[1]) * 1024 if found else 0
        if host.settings.memory_total_mb:
            total = host.settings.memory_total_mb * MB
        return Found(attributes={"memory.totalbytes": str(total)}, memory=NodeMemory(memory_mb=total // MB))


class System(Fingerprinter):
    name = "host"

    def find(self, host: Host) -> Found:
        about = _os_release(host)
        attributes = {
            "os.name": about.get("ID", platform.system().lower()),
            "os.version": about.get("VERSION_ID", ""),
            "kernel.name": platform.system().lower(),
            "kernel.version": platform.release(),
            "kernel.arch": platform.machine(),
            "unique.hostname": socket.gethostname(),
            "unique.host_id": host.text("/etc/machine-id"),
        }
        return Found(attributes={name: value for name, value in attributes.items() if value})


class Signals(Fingerprinter):
    name = "signal"

    def find(self, host: Host) -> Found:
        names = sorted(one.name for one in signal.Signals if one.name not in UNKNOWN_SIGNALS)
        return Found(attributes={"os.signals": ",".join(names)})


class Cgroups(Fingerprinter):
    name = "cgroup"

    def find(self, host: Host) -> Found:
        """A v2 tree beside v1 controllers has none of its own: such hosts count as v1."""
        base = host.root / "sys/fs/cgroup"
        if (base / "cgroup.controllers").is_file():
            return Found(attributes={"os.cgroups.version": "2"})
        v1 = any((base / controller).is_dir() for controller in ("memory", "cpu", "cpuset", "pids"))
        return Found(attributes={"os.cgroups.version": "1"} if v1 else {})


class Landlock(Fingerprinter):
    name = "landlock"

    def find(self, host: Host) -> Found:
        abi = landlock_abi()
        return Found(attributes={"kernel.landlock": f"v{abi}"} if abi > 0 else {})


def landlock_abi() -> int:
    """The version of landlock that this kernel has; 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION)
    return max(0, int(found))


class Storage(Fingerprinter):
    name = "storage"
    is_reloadable = True

    def find(self, host: Host) -> Found:
        path = host.settings.alloc_dir
        while not path.exists() and path != path.parent:
            path = path.parent
        use = os.statvfs(path)
        total = use.f_blocks * use.f_frsize
        if host.settings.disk_total_mb:
            total = host.settings.disk_total_mb * MB
        attributes = {"unique.storage.volume": _volume_of(host, path), "unique.storage.bytestotal": str(total)}
        return Found(attributes=attributes, disk=NodeDisk(disk_mb=total // MB))


class AgentFacts(Fingerprinter):
    name = "agent"

    def find(self, host: Host) -> Found:
        attributes = {
            "fedsched.version": host.version,
            "nomad.version": NOMAD_VERSION,
            "nomad.revision": f"fedsched-{host.version}",
            "nomad.service_discovery": "true",
        }
        if host.settings.http_address:
            attributes["unique.advertise.address"] = host.settings.http_address
        return Found(attributes=attributes)


class HostVolumes(Fingerprinter):
    """Directories that jobs may ask for by name; one whose path is not there (yet) is not offered."""

    name = "host_volume"
    period_s = 30.0
    is_reloadable = True

    def find(self, host: Host) -> Found:
        found = {
            name: HostVolumeInfo(name=name, path=volume.path, read_only=volume.read_only)
            for name, volume in sorted(host.settings.host_volumes.items())
            if Path(volume.path).exists()
        }
        return Found(host_volumes=found)


def _os_release(host: Host) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (host.text("/etc/os-release") or host.text("/usr/lib/os-release")).splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip().strip("\"'")
    return found


def _volume_of(host: Host, path: Path) -> str:
    """The device that a path is on, as the mount table names it."""
    best, device = "", str(path)
    resolved = str(path.resolve())
    for line in host.text("/proc/self/mounts").splitlines():
        parts = line.split(" ")
        if len(parts) < 2:
            continue
        place = parts[1].replace("\\040", " ")
        is_above = resolved == place or resolved.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= len(best):
            best, device = place, parts[0]
    return device
