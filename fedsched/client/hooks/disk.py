"""Keeping an allocation to the disk it asked for, where the operator wants that."""

from __future__ import annotations

from typing import Final

import trio

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.hooks.hook import AllocHook
from fedsched.client.paths import DEPTH_MAX, DiskUse
from fedsched.model.task_state import TaskEvent

EVENT: Final = "Disk Resources Exceeded"
PAUSE_S: Final = 30.0
"""Between two looks. Walking a tree costs the disk something, and a disk is not full at once."""
MB: Final = 1 << 20


class DiskHook(AllocHook):
    """Measures from time to time and kills all tasks of an allocation that has outgrown its ephemeral disk."""

    name = "disk"

    @property
    def is_idle(self) -> bool:
        return not self.alloc.parts.settings.enforce_disk

    async def run(self) -> None:
        while True:
            await trio.sleep(PAUSE_S)
            try:
                reason = excess(await AllocDirs(self.alloc.root).use(), self.alloc.group.ephemeral_disk.size_mb)
            except OSError as error:
                self.alloc.parts.log.warn("disk_not_measured", alloc_id=self.alloc.alloc.id, error=str(error))
                continue
            if reason:
                self._kill(reason)
                return

    def _kill(self, reason: str) -> None:
        limit = self.alloc.group.ephemeral_disk.size_mb * MB
        for task in self.alloc.tasks.values():
            task.actions.emit(TaskEvent(type=EVENT, message=reason, disk_limit=limit))
            task.actions.kill(reason, is_failure=True)


def excess(use: DiskUse, limit_mb: int) -> str:
    """Why this is more than was asked for; empty if it is not."""
    if use.used_bytes > limit_mb * MB:
        return f"{use.used_bytes // MB} MiB are used of {limit_mb} MiB"
    if use.is_too_deep:
        return f"directories are nested more than {DEPTH_MAX} deep, where nothing can be measured"
    return ""
