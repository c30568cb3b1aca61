"""Control groups of tasks: which kind this host has, what a task's groups are to hold, what they say about its use.

A host has the unified hierarchy (v2), one hierarchy per controller (v1; a hybrid with an empty unified tree counts as
that), or none that we may write to; then tasks run without limits, and are told apart by their process tree alone.
Groups are made and removed by a task's supervisor: here it is only decided what they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

from fedsched.drivers.driver import TaskLimits

ROOT: Final = Path("/sys/fs/cgroup")
MB: Final = 1 << 20
V1_CONTROLLERS: Final[tuple[str, ...]] = ("cpu", "cpuacct", "memory", "pids", "cpuset")
V2_CONTROLLERS: Final[tuple[str, ...]] = ("cpu", "memory", "pids", "cpuset")
SHARES_MIN: Final = 2
SHARES_MAX: Final = 262_144
WEIGHT_MAX: Final = 10_000


class CgroupMode(StrEnum):
    V1 = "v1"
    V2 = "v2"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """What a supervisor makes for one task."""

    paths: tuple[str, ...] = ()
    """One per hierarchy."""
    files: tuple[tuple[str, str], ...] = ()
    """What is written into them, in this order."""
    kill: str = ""
    """The one of `paths` whose members are the task's processes."""
    oom_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cgroups:
    """The groups of this host that tasks can have."""

    mode: CgroupMode
    parent: str = "fedsched.slice"
    hierarchies: Mapping[str, Path] = field(default_factory=dict)
    """Controller -> where its tree begins. The same place for all of them in v2."""
    reason: str = ""
    """Why there are none."""
    _files: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Of all tasks' groups, as far as they were seen."""

    @cached_property
    def _above(self) -> Mapping[str, str]:
        """Controller -> the group that those of all tasks are in."""
        return {controller: str(root / self.parent) for controller, root in self.hierarchies.items()}

    def _has(self, controller: str, file: str) -> bool:
        """Whether groups of this host have such a file. Once seen, it stays."""
        if file not in self._files and os.path.exists(f"{self._above[controller]}/{file}"):
            self._files.add(file)
        return file in self._files

    def prepare(self) -> None:
        """Make the groups that all tasks share. Raises `OSError` if that is not allowed."""
        match self.mode:
            case CgroupMode.V1:
                for controller, root in self.hierarchies.items():
                    (root / self.parent).mkdir(exist_ok=True)
                    if controller == "cpuset":
                        _inherit_cpuset(root, root / self.parent)
            case CgroupMode.V2:
                root = next(iter(self.hierarchies.values()))
                for place in (root, root / self.parent, root / self.parent / "share", root / self.parent / "reserve"):
                    place.mkdir(exist_ok=True)
                    for controller in self.hierarchies:
                        _try_write(place / "cgroup.subtree_control", f"+{controller}")

    def group(self, name: str, limits: TaskLimits) -> TaskGroup:
        """What one task gets; nothing without cgroups."""
        match self.mode:
            case CgroupMode.V1:
                return self._v1(name, limits)
            case CgroupMode.V2:
                return self._v2(name, limits)
            case _:
                return TaskGroup()

    def override(self, paths: Mapping[str, str]) -> TaskGroup:
        """Groups that the operator made, by controller (v1), or the one under the empty name (v2)."""
        if self.mode is CgroupMode.NONE:
            return TaskGroup()
        found = tuple(
            str(self.hierarchies.get(controller, next(iter(self.hierarchies.values()))) / path.lstrip("/"))
            for controller, path in sorted(paths.items())
        )
        return TaskGroup(paths=found)

    def _v1(self, name: str, limits: TaskLimits) -> TaskGroup:
        places = {
            controller: f"{above}/{name}"
            for controller, above in self._above.items()
            if controller != "cpuset" or limits.cores
        }
        files: list[tuple[str, str]] = []
        if "cpu" in places and limits.cpu_mhz:
            files.append((f"{places['cpu']}/cpu.shares", str(_clamp(limits.cpu_mhz, SHARES_MIN, SHARES_MAX))))
        if "memory" in places and limits.memory_mb:
            hard = hard_limit_mb(limits)
            if hard:
                files.append((f"{places['memory']}/memory.limit_in_bytes", str(hard * MB)))
                if self._has("memory", "memory.swappiness"):
                    # Else the limit only slows: what is beyond it goes to disk.
                    files.append((f"{places['memory']}/memory.swappiness", "0"))
            if hard != limits.memory_mb:
                files.append((f"{places['memory']}/memory.soft_limit_in_bytes", str(limits.memory_mb * MB)))
        if "pids" in places and limits.pids_max:
            files.append((f"{places['pids']}/pids.max", str(limits.pids_max)))
        if "cpuset" in places:
            nodes = _read(Path(self._above["cpuset"]) / "cpuset.mems")
            files.append((f"{places['cpuset']}/cpuset.cpus", _cores(limits.cores)))
            files.append((f"{places['cpuset']}/cpuset.mems", nodes or "0"))
        kill = places.get("pids") or next(iter(places.values()), "")
        ooms = (f"{places['memory']}/memory.oom_control",) if "memory" in places else ()
        return TaskGroup(tuple(dict.fromkeys(places.values())), tuple(files), kill, ooms)

    def _v2(self, name: str, limits: TaskLimits) -> TaskGroup:
        above = next(iter(self._above.values()))
        place = f"{above}/{'reserve' if limits.cores else 'share'}/{name}.scope"
        files: list[tuple[str, str]] = []
        if "cpu" in self.hierarchies and limits.cpu_mhz:
            files.append((f"{place}/cpu.weight", str(cpu_weight(limits.cpu_mhz))))
        if "memory" in self.hierarchies and limits.memory_mb:
            hard = hard_limit_mb(limits)
            files.append((f"{place}/memory.max", str(hard * MB) if hard else "max"))
            if hard and self._has("memory", "memory.swap.max"):
                files.append((f"{place}/memory.swap.max", "0"))
            if hard != limits.memory_mb:
                files.append((f"{place}/memory.low", str(limits.memory_mb * MB)))
            files.append((f"{place}/memory.oom.group", "1"))
        if "pids" in self.hierarchies and limits.pids_max:
            files.append((f"{place}/pids.max", str(limits.pids_max)))
        if "cpuset" in self.hierarchies and limits.cores:
            files.append((f"{place}/cpuset.cpus", _cores(limits.cores)))
        return TaskGroup((place,), tuple(files), place, (f"{place}/memory.events",))


def detect(root: Path = ROOT, *, parent: str = "fedsched.slice") -> Cgroups:
    """What this host has, as far as we may use it."""
    if not root.is_dir():
        return Cgroups(CgroupMode.NONE, parent, reason=f"there is no {root}")
    if (root / "cgroup.controllers").exists():
        there = _read(root / "cgroup.controllers").split()
        found = {controller: root for controller in V2_CONTROLLERS if controller in there}
        mode = CgroupMode.V2
    else:
        found = {name: root / name for name in V1_CONTROLLERS if (root / name / "cgroup.procs").exists()}
        mode = CgroupMode.V1
    if not found:
        return Cgroups(CgroupMode.NONE, parent, reason=f"no controllers are mounted under {root}")
    closed = [str(place) for place in found.values() if not os.access(place, os.W_OK)]
    if closed:
        return Cgroups(CgroupMode.NONE, parent, reason=f"{closed[0]} is not writable")
    return Cgroups(mode, parent, found)


def hard_limit_mb(limits: TaskLimits) -> int:
    """The most memory a task may have; 0 is no limit."""
    if limits.memory_max_mb < 0:
        return 0
    return max(limits.memory_max_mb, limits.memory_mb)


def cpu_weight(mhz: int) -> int:
    """The v2 weight that stands to others as the v1 shares would (1 to 10,000 for 2 to 262,144)."""
    shares = _clamp(mhz, SHARES_MIN, SHARES_MAX)
    return _clamp(1 + (shares - SHARES_MIN) * (WEIGHT_MAX - 1) // (SHARES_MAX - SHARES_MIN), 1, WEIGHT_MAX)


def _inherit_cpuset(root: Path, place: Path) -> None:
    """A new v1 cpuset holds nothing, and nobody can be put into it, before these are set."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not _read(place / name):
            _try_write(place / name, _read(root / name))


def _cores(cores: tuple[int, ...]) -> str:
    return ",".join(map(str, sorted(cores)))


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _try_write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError:
        return  # a controller that cannot be handed down is missed when a limit is written, with its name
