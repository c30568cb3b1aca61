"""What shall be isolated from a task and how, decided by the agent and written down for the task's supervisor."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedsched.drivers.driver import DriverError, TaskConfig
from fedsched.drivers.isolation import kernel, seccomp
from fedsched.drivers.isolation.capabilities import TaskCapabilities
from fedsched.drivers.isolation.users import TaskUser

CHROOT_ENV: Final[Mapping[str, str]] = {
    path: path
    for path in (
        *("/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr"),
        *("/run/resolvconf", "/run/systemd/resolve"),
    )
}
"""What tasks see of the host: host path to path inside. A host that lacks one does without."""
WRITABLE: Final = ("/alloc", "/local", "/secrets", "/tmp", "/dev", "/proc")
_TAKEN: Final = ("/", "/proc", "/sys", "/dev", "/private")

_WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 1, 1 << 14, 1 << 15
_CHANGE_DIRECTORY: Final = sum(1 << bit for bit in (4, 5, 6, 7, 8, 9, 10, 11, 12))
_REFER: Final = 1 << 13
_ABSTRACT_SOCKETS: Final = 1


@dataclass(frozen=True, slots=True)
class Bind:
    """A path of the host inside the task."""

    source: str
    target: str
    is_read_only: bool = True
    is_no_exec: bool = False

    def encode(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "is_read_only": self.is_read_only,
            "is_no_exec": self.is_no_exec,
        }


@dataclass(frozen=True, slots=True)
class IsolationPlan:
    """All that `enter` needs to know."""

    root: Path
    user: TaskUser
    capabilities: TaskCapabilities
    system: tuple[Bind, ...] = ()
    """Below everything else."""
    binds: tuple[Bind, ...] = ()
    """Above the kernel's filesystems: the allocation's directories, volumes."""
    has_own_pids: bool = True
    has_own_ipc: bool = True
    network_namespace: Path | None = None
    hostname: str = ""
    pivots: bool = True
    work_dir: str = "/"
    filters_system_calls: bool = True
    uses_landlock: bool = False
    is_rootless: bool = False

    def encode(self) -> dict[str, Any]:
        bounding, ambient = self.capabilities.masks
        return {
            "root": str(self.root),
            "uid": self.user.uid,
            "gid": self.user.gid,
            "bounding": bounding,
            "ambient": ambient,
            "mounts": [bind.encode() for bind in self.system],
            "late_mounts": [bind.encode() for bind in self.binds],
            "has_own_pids": self.has_own_pids,
            "has_own_ipc": self.has_own_ipc,
            "network": str(self.network_namespace or ""),
            "hostname": self.hostname,
            "pivots": self.pivots,
            "work_dir": self.work_dir,
            "seccomp": seccomp.build(self.capabilities.bounding).hex() if self.filters_system_calls else "",
            "landlock": landlock_rules(self.binds, kernel.landlock_version()) if self.uses_landlock else None,
            "is_rootless": self.is_rootless,
        }


def system_binds(chroot_env: Mapping[str, str]) -> tuple[Bind, ...]:
    """Those of the host's paths that exist, outermost first."""
    found = [Bind(source, target_path(target)) for source, target in chroot_env.items() if os.path.exists(source)]
    return tuple(sorted(found, key=lambda bind: bind.target.count("/")))


def task_binds(config: TaskConfig) -> tuple[Bind, ...]:
    """The allocation's directories, then what volumes bring, outermost first."""
    own = [
        Bind(str(config.dirs.shared), "/alloc", is_read_only=False),
        Bind(str(config.dirs.secrets), "/secrets", is_read_only=False, is_no_exec=True),
    ]
    if config.dirs.local != config.dirs.task / "local":
        own.append(Bind(str(config.dirs.local), "/local", is_read_only=False))
    extra = [
        Bind(str(mount.host_path), target_path(mount.task_path), is_read_only=mount.is_read_only)
        for mount in config.mounts
    ]
    return (*own, *sorted(extra, key=lambda bind: bind.target.count("/")))


def network_binds(config: TaskConfig, system: Iterable[Bind]) -> tuple[Bind, ...]:
    """The network's files over those of the host. Where the host has a link, as resolvers like to make them, the file
    goes to where the link leads: nothing can be mounted on a link."""
    found = []
    for mount in config.network_files:
        there = host_path(mount.task_path, config.dirs.task, system)
        target = os.path.realpath(there) if there and os.path.islink(there) else mount.task_path
        found.append(Bind(str(mount.host_path), target_path(target)))
    return tuple(found)


def target_path(written: str) -> str:
    """Check where something is to be mounted inside a task."""
    path = posixpath.normpath("/" + written.lstrip("/"))
    if "\0" in written or ".." in written.split("/"):
        raise DriverError(f"cannot mount at {written!r:.120}: the path leaves the task's root")
    if path in _TAKEN or path.startswith(("/proc/", "/sys/")):
        raise DriverError(f"cannot mount at {written!r:.120}: that place is the kernel's or the agent's own")
    return path


def find_command(command: str, config: TaskConfig, system: Iterable[Bind]) -> str:
    """The path inside the task that a command's name means: below local/, below the task's directory, or in PATH."""
    if "\0" in command or not command:
        raise DriverError(f"{command!r:.80} is not a command")
    binds = (*system, *task_binds(config))
    if command.startswith("/"):
        return command
    for base, inside in ((config.dirs.local, "/local"), (config.dirs.task, "")):
        if os.path.lexists(base / command):
            return posixpath.normpath(f"{inside}/{command}")
    searched = [] if "/" in command else _search_path(config.env)
    for directory in searched:
        path = posixpath.join(directory, command)
        host = host_path(path, config.dirs.task, binds)
        if host and os.path.lexists(host):
            return path
    raise DriverError(
        f"no command {command!r:.80} inside the task",
        hint=f"looked in /local, / and {':'.join(searched) or 'nowhere else'} as the task sees them",
    )


def host_path(path: str, root: Path, binds: Iterable[Bind]) -> str:
    """Where on the host a path inside a task is, by name alone; links are not followed."""
    best: Bind | None = None
    for bind in binds:
        if path == bind.target or path.startswith(bind.target.rstrip("/") + "/"):
            best = bind if best is None or len(bind.target) >= len(best.target) else best
    return best.source + path[len(best.target) :] if best else str(root) + path


def landlock_rules(binds: Iterable[Bind], version: int) -> dict[str, Any]:
    """Writing only where a task has something to write; reading is left to the mounts. Raises without Landlock."""
    if version < 2:
        raise DriverError("this kernel has no Landlock to restrict tasks with", hint="set landlock = false for exec")
    on_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    everything = on_files | _CHANGE_DIRECTORY | _REFER
    paths: list[list[Any]] = [[path, everything] for path in WRITABLE]
    paths += [
        [bind.target, everything if os.path.isdir(bind.source) else on_files]
        for bind in binds
        if not bind.is_read_only and bind.target not in WRITABLE
    ]
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    return {"handled": everything, "scoped": _ABSTRACT_SOCKETS if version >= 6 else 0, "size": size, "paths": paths}


def _search_path(env: Mapping[str, str]) -> list[str]:
    default = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    return [one for one in (env.get("PATH") or default).split(":") if one.startswith("/")]
