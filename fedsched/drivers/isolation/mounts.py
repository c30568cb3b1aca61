"""The files a task sees: its own directory as the root, parts of the host read-only, and the kernel's filesystems.

Built in a fresh mount namespace by a process that is already in the task's pid namespace. The task's directory may hold
anything a former run of the task left there, so no step follows a symbolic link inside it. No mount but those of single
devices lets device files work, and none honours set-user-id bits: a task that may make device files has no use of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from fedsched.drivers.isolation import kernel
from fedsched.drivers.isolation.kernel import NODEV, NOEXEC, NOSUID, RDONLY, IsolationFailed

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
SHM_BYTES = 64 << 20
MASKED = (
    *("proc/kcore", "proc/keys", "proc/timer_list", "proc/sched_debug", "proc/latency_stats", "proc/kmsg"),
    *("proc/kallsyms", "proc/kpagecount", "proc/kpageflags", "proc/acpi", "proc/scsi", "proc/asound"),
    *("sys/firmware", "sys/kernel/debug", "sys/kernel/tracing", "private"),
)
"""Nothing is seen here: what names kernel memory, hardware or keys, and the agent's own files of the task."""
READ_ONLY = ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs")
_SEALED = NOSUID | NODEV | NOEXEC


def build(isolation: Mapping[str, Any]) -> None:
    """Make the task's tree and make it the root of this mount namespace."""
    former = os.umask(0o022)
    try:
        kernel.make_mounts_private()
        # All of it is taken before the root covers its own place: what is mounted below that is out of sight then.
        system = [(mount, _take(mount)) for mount in isolation["mounts"]]
        late = [(mount, _take(mount)) for mount in isolation["late_mounts"]]
        root = _attach_root(isolation)
        for mount, taken in system:
            _bind(root, mount, taken)
        _kernel_filesystems(root, isolation)
        devices = _devices(root, isolation)
        for mount, taken in late:
            _bind(root, mount, taken)
        kernel.set_attributes(devices, RDONLY, "/dev", is_recursive=False)
        os.close(devices)
        _seal(root)
        if isolation["pivots"]:
            kernel.pivot_to(root)
        else:
            kernel.move_root_to(root)
        os.close(root)
    finally:
        os.umask(former)


def _attach_root(isolation: Mapping[str, Any]) -> int:
    path = isolation["root"]
    # Somebody who is not root may not leave out mounts that root made below: they could hide something.
    root = kernel.clone_tree(path, is_recursive=isolation["is_rootless"])
    kernel.set_attributes(root, NOSUID | NODEV, path)
    target = kernel.step(f"open {path}", os.open, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.attach(root, target, path)
    os.close(target)
    return root


def _take(mount: Mapping[str, Any]) -> int:
    taken = kernel.clone_tree(mount["source"])
    attributes = NOSUID | NODEV | (RDONLY if mount["is_read_only"] else 0) | (NOEXEC if mount["is_no_exec"] else 0)
    kernel.set_attributes(taken, attributes, mount["target"])
    return taken


def _bind(root: int, mount: Mapping[str, Any], taken: int) -> None:
    _attach_at(root, taken, mount["target"], is_file=not stat.S_ISDIR(os.fstat(taken).st_mode))
    os.close(taken)


def _attach_at(root: int, mount: int, where: str, *, is_file: bool = False) -> None:
    target = make_target(root, where, is_file=is_file)
    try:
        kernel.attach(mount, target, where)
    finally:
        os.close(target)


def make_target(root: int, where: str, *, is_file: bool = False) -> int:
    """Open the place below the root where something will be mounted, and make it if it is missing."""
    names = [name for name in where.split("/") if name]
    if not names or ".." in names or "." in names:
        raise IsolationFailed(f"cannot mount at {where}: not a path below the task's root")
    here = os.dup(root)
    for depth, name in enumerate(names):
        try:
            _make(here, name, is_file=is_file and depth == len(names) - 1, where=where)
            deeper = kernel.open_beneath(here, name)
        finally:
            os.close(here)
        here = deeper
    return here


def _make(parent: int, name: str, *, is_file: bool, where: str) -> None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        if is_file:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(kernel.step(f"make {where}", lambda: os.open(name, flags, 0o644, dir_fd=parent)))
        else:
            kernel.step(f"make {where}", lambda: os.mkdir(name, 0o755, dir_fd=parent))
        return
    except OSError as error:
        raise IsolationFailed(f"cannot mount at {where}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise IsolationFailed(f"cannot mount at {where}: {name} is a symbolic link in the task's directory")


def _kernel_filesystems(root: int, isolation: Mapping[str, Any]) -> None:
    proc = kernel.new_filesystem("proc", {"hidepid": "invisible"}, _SEALED)
    _attach_at(root, proc, "/proc")
    os.close(proc)
    if isolation["is_rootless"]:
        system = kernel.clone_tree("/sys")
        kernel.set_attributes(system, _SEALED | RDONLY, "/sys")
    else:
        system = kernel.new_filesystem("sysfs", {}, _SEALED | RDONLY)
    _attach_at(root, system, "/sys")
    os.close(system)


def _devices(root: int, isolation: Mapping[str, Any]) -> int:
    """A small /dev; returns its mount, which still can be written to."""
    options = {"mode": "755", "size": "64k", "nr_inodes": "256"}
    devices = kernel.new_filesystem("tmpfs", options, NOSUID | NODEV | NOEXEC)
    _attach_at(root, devices, "/dev")
    for name in DEVICES:
        device = kernel.clone_tree(f"/dev/{name}", is_recursive=False)
        kernel.set_attributes(device, NOSUID | NOEXEC, f"/dev/{name}")
        _attach_at(devices, device, name, is_file=True)
        os.close(device)
    for name, target in DEVICE_LINKS.items():
        os.symlink(target, name, dir_fd=devices)
    terminals = {"ptmxmode": "0666", "mode": "0620"}
    if not isolation["is_rootless"]:
        terminals["gid"] = "5"
    pts = kernel.new_filesystem("devpts", terminals, NOSUID | NOEXEC)
    _attach_at(devices, pts, "pts")
    os.close(pts)
    if isolation["has_own_ipc"]:
        shm = kernel.new_filesystem("tmpfs", {"mode": "1777", "size": str(SHM_BYTES)}, _SEALED)
    else:
        shm = kernel.clone_tree("/dev/shm")
        kernel.set_attributes(shm, _SEALED, "/dev/shm")
    _attach_at(devices, shm, "shm")
    os.close(shm)
    return devices


def _seal(root: int) -> None:
    """Hide or freeze single paths. Those that this kernel does not have are no loss."""
    for path in READ_ONLY:
        if _exists(root, path):
            frozen = kernel.clone_tree("", directory=kernel.open_beneath(root, path))
            kernel.set_attributes(frozen, RDONLY | _SEALED, f"/{path}")
            _attach_at(root, frozen, path)
    for path in MASKED:
        status = _exists(root, path)
        if status is not None:
            _mask(root, path, is_directory=stat.S_ISDIR(status.st_mode))


def _mask(root: int, path: str, *, is_directory: bool) -> None:
    if is_directory:
        nothing = kernel.new_filesystem("tmpfs", {"mode": "555", "size": "4k", "nr_inodes": "2"}, _SEALED | RDONLY)
    else:
        nothing = kernel.clone_tree("/dev/null", is_recursive=False)
        kernel.set_attributes(nothing, NOSUID | NOEXEC | RDONLY, f"/{path}")
    _attach_at(root, nothing, path)
    os.close(nothing)


def _exists(root: int, path: str) -> os.stat_result | None:
    try:
        opened = kernel.open_beneath(root, path)
    except IsolationFailed:
        return None
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)
