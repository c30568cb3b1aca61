"""Was a container's process killed for lack of memory? Podman does not always say so, the kernel does.

The container's cgroup is gone moments after its end, so it is watched while it lives: by an eventfd on hosts with the
older cgroups, by inotify on `memory.events` with the newer ones.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

import trio

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
_IN_MODIFY: Final = 0x2
_EVENTS_MAX: Final = 4096


class OomWatch:
    """Watches one container's memory. `found` turns true when the kernel has killed something in it."""

    def __init__(self, pid: int, container_id: str, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self.found = False
        self._count = 0
        self._fd = -1
        self._is_eventfd = False
        self._path: Path | None = None
        try:
            self._open(pid, container_id, proc, cgroups)
        except OSError:
            self.close()  # over already, or not ours to see: the engine's flag remains

    @property
    def is_watching(self) -> bool:
        return self._fd >= 0

    async def run(self) -> None:
        while self._fd >= 0 and not self.found:
            await trio.lowlevel.wait_readable(self._fd)
            self.look()

    def look(self) -> None:
        """Take note of what has happened so far.

        The older cgroups tell of a lack of memory before they count the kill: once told, every look reads the count.
        """
        if self._fd < 0 or self.found or not (self._has_news() or self._count):
            return
        assert self._path is not None
        try:
            self.found = _oom_kills(self._path) > 0
        except OSError:
            # Gone: its removal is one event, so another one was a lack of memory; either may come a moment later than
            # the files go. inotify tells less.
            self.found = self._is_eventfd and self._count > 1
            if not self._is_eventfd:
                self.close()

    def close(self) -> None:
        """Not while `run` waits elsewhere: cancel that first."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, pid: int, container_id: str, proc: Path, cgroups: Path) -> None:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if container_id not in path:
                continue
            if "memory" in controllers.split(","):
                self._open_old(cgroups / "memory" / path.lstrip("/"))
                return
            if not controllers and (cgroups / path.lstrip("/") / "memory.events").exists():
                self._open_new(cgroups / path.lstrip("/"))
                return

    def _open_old(self, directory: Path) -> None:
        self._path = directory / "memory.oom_control"
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_eventfd = True
        control = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            (directory / "cgroup.event_control").write_text(f"{self._fd} {control}")
        finally:
            os.close(control)

    def _open_new(self, directory: Path) -> None:
        self._path = directory / "memory.events"
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(self._path), _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def _has_news(self) -> bool:
        try:
            news = os.read(self._fd, _EVENTS_MAX if not self._is_eventfd else 8)
        except BlockingIOError:
            return False
        if self._is_eventfd:
            self._count += int.from_bytes(news, "little")
        return True


def _oom_kills(path: Path) -> int:
    """The number that both kinds of file have in a line `oom_kill <n>`."""
    for line in path.read_text().splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return 0
