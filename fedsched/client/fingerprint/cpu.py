"""Processors: how many cores, how fast, and how they sit together."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Final

from fedsched.client.fingerprint.found import Fingerprinter, Found, Host, numbers_in
from fedsched.model.node_resources import CPUCore, CPUTopology, NodeCPU, Processors

GUESS_MHZ: Final = 1_000
"""For processors that do not say how fast they are."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "s390x": "s390x"}
CPUS: Final = "/sys/devices/system/cpu"
NODES: Final = "/sys/devices/system/node"


class Arch(Fingerprinter):
    name = "arch"

    def find(self, host: Host) -> Found:
        machine = platform.machine()
        return Found(attributes={"cpu.arch": ARCHITECTURES.get(machine, machine)})


class Cpu(Fingerprinter):
    name = "cpu"

    def find(self, host: Host) -> Found:
        settings = host.settings
        cores = _cores(host)
        kept = set(numbers_in(settings.reserved.cores))
        total = settings.cpu_total_compute or sum(core.base_speed for core in cores)
        per_core = total // len(cores) if cores else 0
        reserved = settings.reserved.cpu + per_core * len(kept & {core.id for core in cores})
        offered = tuple(core.id for core in cores if core.id not in kept)
        attributes = {
            "cpu.numcores": str(len(cores)),
            "cpu.totalcompute": str(total),
            "cpu.usablecompute": str(max(0, total - reserved)),
            "cpu.reservablecores": str(len(offered)),
            **_speeds(cores),
            **_numa(host),
        }
        model = _model(host)
        if model:
            attributes["cpu.modelname"] = model
        topology = CPUTopology(
            cores=tuple(_with_disable(core, core.id in kept) for core in cores),
            nodes=tuple(sorted({core.node_id for core in cores})),
            override_total_compute=settings.cpu_total_compute,
            override_withold_compute=settings.reserved.cpu,
        )
        return Found(
            attributes=attributes,
            cpu=NodeCPU(cpu_shares=total, total_cpu_cores=len(cores), reservable_cpu_cores=offered),
            processors=Processors(topology=topology),
        )


def _cores(host: Host) -> list[CPUCore]:
    online = numbers_in(host.text(f"{CPUS}/online"))
    if host.root == Path("/"):
        allowed = os.sched_getaffinity(0)
        online = tuple(number for number in online if number in allowed) or tuple(sorted(allowed))
    by_cpu = {number: node for node in _numa_nodes(host) for number in _cpus_of_node(host, node)}
    said = _speeds_in_cpuinfo(host)
    slowest_of_kind = _core_types(host)
    return [
        CPUCore(
            id=number,
            node_id=by_cpu.get(number, 0),
            socket_id=_number(host.text(f"{CPUS}/cpu{number}/topology/physical_package_id")),
            grade=number not in slowest_of_kind,
            base_speed=_speed(host, number) or said.get(number, 0) or GUESS_MHZ,
            max_speed=_number(host.text(f"{CPUS}/cpu{number}/cpufreq/cpuinfo_max_freq")) // 1000,
            guess_speed=0,
        )
        for number in online
    ]


def _speed(host: Host, number: int) -> int:
    """What the core runs at for sure; its best moment only if nothing else is known."""
    for file in ("base_frequency", "cpuinfo_max_freq"):
        speed = _number(host.text(f"{CPUS}/cpu{number}/cpufreq/{file}"))
        if speed:
            return speed // 1000
    return 0


def _speeds_in_cpuinfo(host: Host) -> dict[int, int]:
    found: dict[int, int] = {}
    number = -1
    for line in host.text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "processor":
            number = _number(value.strip())
        elif key.strip() == "cpu MHz" and number >= 0:
            found[number] = round(float(value)) if re.fullmatch(r"\s*[\d.]+\s*", value) else 0
    return found


def _core_types(host: Host) -> set[int]:
    """Cores of the slower kind, where a processor has two."""
    return set(numbers_in(host.text("/sys/devices/cpu_atom/cpus")))


def _model(host: Host) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", host.text("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else ""


def _speeds(cores: list[CPUCore]) -> dict[str, str]:
    fast = [core for core in cores if core.grade]
    slow = [core for core in cores if not core.grade]
    if not (fast and slow):
        return {"cpu.frequency": str(max((core.base_speed for core in cores), default=0))}
    return {
        "cpu.frequency.performance": str(max(core.base_speed for core in fast)),
        "cpu.frequency.efficiency": str(max(core.base_speed for core in slow)),
        "cpu.numcores.performance": str(len(fast)),
        "cpu.numcores.efficiency": str(len(slow)),
    }


def _numa(host: Host) -> dict[str, str]:
    nodes = _numa_nodes(host)
    found = {"numa.node.count": str(len(nodes) or 1)}
    return found | {f"numa.node{node}.cores": host.text(f"{NODES}/node{node}/cpulist") for node in nodes}


def _numa_nodes(host: Host) -> tuple[int, ...]:
    return numbers_in(host.text(f"{NODES}/online"))


def _cpus_of_node(host: Host, node: int) -> tuple[int, ...]:
    return numbers_in(host.text(f"{NODES}/node{node}/cpulist"))


def _with_disable(core: CPUCore, is_disabled: bool) -> CPUCore:
    return CPUCore(
        id=core.id,
        node_id=core.node_id,
        socket_id=core.socket_id,
        grade=core.grade,
        disable=is_disabled,
        base_speed=core.base_speed,
        max_speed=core.max_speed,
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
