"""Host volumes: directories that the operator of a node offers by name, at a place inside the task.

A volume is read-only if the operator, the group or the mount says so. A driver with a file system of its own mounts it.
A driver without one cannot mount anything: its task finds a symlink at that place below its own directory (an absolute
destination is taken from there, too), and a volume that must be read-only is refused, because a symlink cannot keep
anybody from writing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import trio

from fedsched.client.hooks.hook import NO_RESULT, HookFailed, HookResult, TaskHook
from fedsched.client.paths import PathEscapes, directory, makedirs_beneath
from fedsched.drivers.driver import FsIsolation, Mount
from fedsched.model.ids import alloc_index
from fedsched.model.node import HostVolumeInfo
from fedsched.model.volume import VolumeMount, VolumeRequest

HOST = "host"
PRIVATE = "private"


class VolumesHook(TaskHook):
    """Finds a task's volumes and hands them to its driver."""

    name = "volumes"

    @property
    def is_idle(self) -> bool:
        return not self.task.task.volume_mounts

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        wanted = self.task.task.volume_mounts
        if not wanted or self.task.task_id:
            return NO_RESULT
        return await trio.to_thread.run_sync(self._mounts, wanted)

    def _mounts(self, wanted: tuple[VolumeMount, ...]) -> HookResult:
        found = [(one, self._mount(one)) for one in wanted]
        if self.task.driver.capabilities.fs_isolation is not FsIsolation.NONE:
            return HookResult(mounts=tuple(mount for _, mount in found))
        for one, mount in found:
            self._link(one, mount)
        return NO_RESULT

    def _mount(self, wanted: VolumeMount) -> Mount:
        request = self.task.alloc.group.volumes.get(wanted.volume)
        if request is None or request.type != HOST:
            raise HookFailed(f"volume {wanted.volume!r} is no host volume of the group", hint="give the group one")
        if (wanted.propagation_mode or PRIVATE) != PRIVATE:
            raise HookFailed(
                f"volume {wanted.volume!r}: propagation_mode = {wanted.propagation_mode!r} is not served here",
                hint="mounts of the host and of the task do not reach one another: private",
            )
        offered = self._offered(request)
        path = Path(offered.path)
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            raise HookFailed(f"host volume {offered.name!r}: {path}: {error.strerror}", is_recoverable=True) from None
        if not is_directory:
            raise HookFailed(f"host volume {offered.name!r}: {path} is no directory", is_recoverable=True)
        return Mount(
            host_path=path,
            task_path=self._inside(wanted),
            is_read_only=offered.read_only or request.read_only or wanted.read_only,
        )

    def _offered(self, request: VolumeRequest) -> HostVolumeInfo:
        source = self.task.environment().text(request.source)
        if request.per_alloc:
            source = f"{source}[{alloc_index(self.task.alloc.alloc.name)}]"
        offered = self.task.parts.node().host_volumes.get(source)
        if offered is None:
            raise HookFailed(f"this node has no host volume {source!r}", hint="client setting host_volume")
        return offered

    def _inside(self, wanted: VolumeMount) -> str:
        """The place inside the task; the parts that are the agent's own cannot be hidden under a volume."""
        place = self.task.environment().text(wanted.destination)
        parts = [part for part in place.split("/") if part not in ("", ".")]
        if not parts or ".." in parts or "\0" in place:
            raise HookFailed(f"volume {wanted.volume!r}: {place[:200]!r} is no place for it", hint='such as "/data"')
        if parts[0] in ("secrets", "private"):
            raise HookFailed(f"volume {wanted.volume!r}: {place[:200]!r} is the agent's", hint="mount it elsewhere")
        return "/" + "/".join(parts)

    def _link(self, wanted: VolumeMount, mount: Mount) -> None:
        if mount.is_read_only:
            raise HookFailed(
                f"volume {wanted.volume!r} is read-only, which driver {self.task.driver.name!r} cannot keep up",
                hint="use a driver with a file system of its own, such as exec or docker",
            )
        above, _, name = mount.task_path.strip("/").rpartition("/")
        try:
            with directory(self.task.dirs.alloc, self.task.name, follow=False) as task:
                makedirs_beneath(task, above or ".")
                with directory(task, above or ".") as parent:
                    _point(parent, name, str(mount.host_path))
        except PathEscapes as error:
            raise HookFailed(f"volume {wanted.volume!r}: {error.message}") from None
        except OSError as error:
            raise HookFailed(f"volume {wanted.volume!r}: {error.strerror}", is_recoverable=True) from None


def _point(parent: int, name: str, target: str) -> None:
    """Make a symlink, or leave the one that is right; anything else in its place is an error."""
    try:
        os.symlink(target, name, dir_fd=parent)
    except FileExistsError:
        found = os.lstat(name, dir_fd=parent)
        if not stat.S_ISLNK(found.st_mode):
            raise
        if os.readlink(name, dir_fd=parent) != target:
            os.unlink(name, dir_fd=parent)
            os.symlink(target, name, dir_fd=parent)
