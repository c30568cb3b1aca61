"""The directories of one allocation on its host.

    <alloc_dir>/<alloc id>/
      alloc/         shared by the group's tasks: data/ logs/ tmp/
      <task>/        where the task starts: local/ secrets/ private/ tmp/

`secrets` (for the task) and `private` (for the agent) live in memory where the agent may mount, else they are plain
directories. Building is done again after every start of the agent and leaves alone what is there. Each directory
appears with its final mode and owner in one step: a kill between two lines leaves nothing half made. Those of a new
allocation appear all at once.

What is done to the disk is in `alloc_dir_work`; most of it is done by the client's `DiskProcess`, if it has one.

`logs` belongs to the agent, tasks cannot write there: a log file that a task swaps for a symlink is an old attack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import trio

from fedsched.client import alloc_dir_work as work
from fedsched.client.alloc_dir_work import (
    SECRETS_MB,
    SHARED,
    UNFINISHED,
    TaskPlan,
    entry_name,
    make_whole,
    sweep,
)
from fedsched.client.disk_process import DiskProcess
from fedsched.client.mounts import mounts_below
from fedsched.client.paths import DiskUse, Owner, disk_use
from fedsched.drivers.driver import TaskDirs

__all__ = ["SECRETS_MB", "SHARED", "UNFINISHED", "AllocDirs", "TaskPlan", "entry_name", "make_whole", "sweep"]

T = TypeVar("T")

_DIRECTORY_WORK: Final = trio.CapacityLimiter(4)
"""Disk work of directories in threads: more at once only makes the disk seek."""


class AllocDirs:
    """Builds, measures and removes the directories of one allocation."""

    def __init__(self, root: Path, disk: DiskProcess | None = None) -> None:
        self.root = root
        self._disk = disk

    @property
    def shared(self) -> Path:
        return self.root / SHARED

    def task(self, name: str) -> TaskDirs:
        """Where one task's files are, built or not."""
        task = self.root / entry_name(name)
        return TaskDirs(
            alloc=self.root,
            shared=self.shared,
            task=task,
            local=task / "local",
            secrets=task / "secrets",
            private=task / "private",
            logs=self.shared / "logs",
        )

    async def build(self, tasks: Iterable[TaskPlan] = ()) -> frozenset[str]:
        """Make what all tasks share, and these tasks' own directories if there was nothing yet; whose were made."""
        plans = tuple(tasks)
        for plan in plans:
            entry_name(plan.name)
        return frozenset(await self._do(work.build_all, plans))

    async def build_task(
        self, name: str, *, owner: Owner | None = None, secrets_mb: int = 0, is_open: bool = False
    ) -> bool:
        """Make one task's directories; whether its secrets are in memory only.

        `owner` is the task's user where the agent may hand files over. `is_open`: nobody knows which user the task
        will be (an image decides), so its secrets cannot be one user's; the directory around them is closed to the
        host's users instead, and whoever mounts them into the task does it as root.
        """
        return await self._do(work.build_task, entry_name(name), owner, secrets_mb or SECRETS_MB, is_open)

    async def build_lasting(self, tasks: Iterable[str]) -> None:
        """Make only what can be taken over from another allocation."""
        await _off_loop(work.build_lasting, self.root, tuple(tasks))

    async def take_over(self, previous: Path, tasks: Iterable[str]) -> list[str]:
        """Take the lasting directories of the allocation before this one (sticky disk); which ones were taken.

        By exchange, in one step each: nothing is copied, and doing it again after a kill changes nothing, because what
        was taken is empty there and no longer empty here.
        """
        return await _off_loop(work.take_over, self.root, previous, tuple(tasks))

    async def use(self) -> DiskUse:
        """What it takes on disk; memory file systems do not count."""
        return await _off_loop(disk_use, self.root)

    async def forget_secrets(self, tasks: Iterable[str]) -> None:
        """Let go of what was kept in memory for these tasks, which are over. A new start brings the places back."""
        await self._do(work.forget_secrets, tuple(entry_name(task) for task in tasks))

    async def destroy(self) -> None:
        """Unmount all below, then remove all. No effect if it is gone already."""
        await self._do(work.destroy)

    def mounts(self) -> list[str]:
        """What is mounted below it now."""
        return mounts_below(self.root)

    async def _do(self, function: Callable[..., T], *arguments: object) -> T:
        if self._disk is None:
            return await _off_loop(function, self.root, *arguments)
        return await self._disk.do(function, self.root, *arguments)


async def _off_loop(function: Callable[..., T], *arguments: object) -> T:
    return await trio.to_thread.run_sync(function, *arguments, limiter=_DIRECTORY_WORK)
