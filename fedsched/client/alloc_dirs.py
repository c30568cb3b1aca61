"""The directories of one allocation on its host.

    <alloc_dir>/<alloc id>/
      alloc/         shared by the group's tasks: data/ logs/ tmp/
      <task>/        where the task starts: local/ secrets/ private/ tmp/

`secrets` (for the task) and `private` (for the agent) live in memory where the agent may mount, else they are plain
directories. Building is done again after every start of the agent and leaves alone what is there. Each directory
appears with its final mode and owner in one step: a kill between two lines leaves nothing half made. Those of a new
allocation appear all at once.

`logs` belongs to the agent, tasks cannot write there: a log file that a task swaps for a symlink is an old attack.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import trio

from fedsched.client.mounts import mount_memory, mounts_below, unmount, unmount_below
from fedsched.client.paths import (
    READ_DIRECTORY,
    DiskUse,
    Owner,
    PathEscapes,
    directory,
    disk_use,
    exchange,
    remove_tree,
    rename_between,
)
from fedsched.drivers.driver import TaskDirs

T = TypeVar("T")

SHARED: Final = "alloc"
SECRETS_MB: Final = 1
PRIVATE_MB: Final = 1
UNFINISHED: Final = ".new-"
DESTROY_TRIES: Final = 3
"""A lazily unmounted directory may look busy for a moment; so often we unmount and remove again."""

_DIRECTORY_WORK = trio.CapacityLimiter(4)
"""Disk work of directories: more at once only makes the disk seek."""


class TaskPlan(NamedTuple):
    """What is known of a task before its directories are made; see `AllocDirs.build_task`."""

    name: str
    owner: Owner | None = None
    secrets_mb: int = SECRETS_MB
    is_open: bool = False


class AllocDirs:
    """Builds, measures and removes the directories of one allocation."""

    def __init__(self, root: Path) -> None:
        self.root = root

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
        return await _off_loop(self._build_all, tuple(tasks))

    async def build_task(
        self, name: str, *, owner: Owner | None = None, secrets_mb: int = 0, is_open: bool = False
    ) -> bool:
        """Make one task's directories; whether its secrets are in memory only.

        `owner` is the task's user where the agent may hand files over. `is_open`: nobody knows which user the task
        will be (an image decides), so its secrets cannot be one user's; the directory around them is closed to the
        host's users instead, and whoever mounts them into the task does it as root.
        """
        return await _off_loop(self._build_task, entry_name(name), owner, secrets_mb or SECRETS_MB, is_open)

    async def build_lasting(self, tasks: Iterable[str]) -> None:
        """Make only what can be taken over from another allocation."""
        await _off_loop(self._build_lasting, tuple(tasks))

    async def take_over(self, previous: Path, tasks: Iterable[str]) -> list[str]:
        """Take the lasting directories of the allocation before this one (sticky disk); which ones were taken.

        By exchange, in one step each: nothing is copied, and doing it again after a kill changes nothing, because what
        was taken is empty there and no longer empty here.
        """
        return await _off_loop(self._take_over, previous, tuple(tasks))

    async def use(self) -> DiskUse:
        """What it takes on disk; memory file systems do not count."""
        return await _off_loop(disk_use, self.root)

    async def forget_secrets(self, tasks: Iterable[str]) -> None:
        """Let go of what was kept in memory for these tasks, which are over. A new start brings the places back."""
        await _off_loop(self._forget_secrets, tuple(tasks))

    async def destroy(self) -> None:
        """Unmount all below, then remove all. No effect if it is gone already."""
        await _off_loop(self._destroy)

    def _forget_secrets(self, tasks: tuple[str, ...]) -> None:
        for name in tasks:
            dirs = self.task(name)
            unmount(dirs.secrets)
            unmount(dirs.private)

    def _build_all(self, tasks: tuple[TaskPlan, ...]) -> frozenset[str]:
        if not self.root.parent.is_dir():
            self.root.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        with directory(self.root.parent) as parent:
            if self._build_new(parent, tasks):
                return frozenset(task.name for task in tasks)
            make_whole(parent, self.root.name, 0o711)
        self._build_shared()
        return frozenset()

    def _build_new(self, parent: int, tasks: tuple[TaskPlan, ...]) -> bool:
        """All directories under a name that nobody looks at, then the right name; false if there is something."""
        with suppress(FileNotFoundError):
            os.lstat(self.root.name, dir_fd=parent)
            return False
        temporary = f"{UNFINISHED}{os.urandom(8).hex()}"
        os.mkdir(temporary, 0o700, dir_fd=parent)
        top = os.open(temporary, READ_DIRECTORY, dir_fd=parent)
        try:
            for path, mode, owner in _new_directories(tasks):
                os.mkdir(path, 0o700, dir_fd=top)
                if owner is not None and os.geteuid() == 0:
                    os.chown(path, owner.uid, owner.gid, dir_fd=top)
                os.chmod(path, mode, dir_fd=top)
            os.fchmod(top, 0o711)
            rename_between(parent, temporary, parent, self.root.name, replace=False)
            for task in tasks:
                with directory(top, task.name, follow=False) as fd:
                    _mount_secrets(fd, task.owner, task.secrets_mb, task.is_open)
        except OSError as error:
            with suppress(FileNotFoundError):
                remove_tree(self.root.parent, temporary)
            if error.errno != errno.EEXIST:
                raise
            return False
        finally:
            os.close(top)
        return True

    def _build_shared(self) -> None:
        with directory(self.root, follow=False) as root:
            make_whole(root, SHARED, 0o755)
            with directory(root, SHARED, follow=False) as shared:
                make_whole(shared, "data", 0o777)
                make_whole(shared, "logs", 0o755)
                make_whole(shared, "tmp", 0o1777)

    def _build_task(self, name: str, owner: Owner | None, secrets_mb: int, is_open: bool) -> bool:
        with directory(self.root, follow=False) as root:
            make_whole(root, name, 0o700 if is_open else 0o755)
            with directory(root, name, follow=False) as task:
                make_whole(task, "local", 0o777, owner)
                make_whole(task, "tmp", 0o1777)
                make_whole(task, "secrets", 0o700)
                make_whole(task, "private", 0o700)
                return _mount_secrets(task, owner, secrets_mb, is_open)

    def _build_lasting(self, tasks: tuple[str, ...]) -> None:
        with directory(self.root, follow=False) as root:
            for task in tasks:
                make_whole(root, entry_name(task), 0o755)
                with directory(root, task, follow=False) as fd:
                    make_whole(fd, "local", 0o777)

    def _take_over(self, previous: Path, tasks: tuple[str, ...]) -> list[str]:
        lasting = [(SHARED, "data"), *((entry_name(task), "local") for task in tasks)]
        return [f"{above}/{name}" for above, name in lasting if _take(previous, self.root, above, name)]

    def _destroy(self) -> None:
        for attempt in range(DESTROY_TRIES):
            unmount_below(self.root)
            try:
                remove_tree(self.root.parent, self.root.name)
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == DESTROY_TRIES - 1:
                    raise

    def mounts(self) -> list[str]:
        """What is mounted below it now."""
        return mounts_below(self.root)


def entry_name(name: str) -> str:
    """A task's name as a directory; refuses what would be another one."""
    if name in ("", ".", "..", SHARED) or "/" in name or "\0" in name:
        raise PathEscapes(
            f"task name {name[:80]!r} cannot be a directory", hint="no slashes, not 'alloc', not dots only"
        )
    return name


def make_whole(parent: int, name: str, mode: int, owner: Owner | None = None) -> None:
    """Make a directory that has its mode and owner from its first moment; one that is there stays as it is."""
    with suppress(FileNotFoundError):
        os.close(os.open(name, READ_DIRECTORY, dir_fd=parent))
        return
    temporary = f"{UNFINISHED}{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700, dir_fd=parent)
    fd = os.open(temporary, READ_DIRECTORY, dir_fd=parent)
    try:
        if owner is not None and os.geteuid() == 0:
            os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, mode)
        rename_between(parent, temporary, parent, name, replace=False)
    except OSError as error:
        os.rmdir(temporary, dir_fd=parent)
        if error.errno != errno.EEXIST:
            raise
    finally:
        os.close(fd)


def _new_directories(tasks: tuple[TaskPlan, ...]) -> Iterator[tuple[str, int, Owner | None]]:
    """Path, mode and owner of everything below a new allocation's directory, each after the one it is in."""
    yield SHARED, 0o755, None
    yield f"{SHARED}/data", 0o777, None
    yield f"{SHARED}/logs", 0o755, None
    yield f"{SHARED}/tmp", 0o1777, None
    for task in tasks:
        name = entry_name(task.name)
        yield name, 0o700 if task.is_open else 0o755, None
        yield f"{name}/local", 0o777, task.owner
        yield f"{name}/tmp", 0o1777, None
        yield f"{name}/secrets", 0o700, None
        yield f"{name}/private", 0o700, None


def _mount_secrets(task: int, owner: Owner | None, secrets_mb: int, is_open: bool) -> bool:
    """Put what a task keeps in memory onto its places; whether that was possible."""
    if os.geteuid() != 0:
        return False
    is_memory = mount_memory(task, "secrets", secrets_mb, 0o700)
    is_memory = mount_memory(task, "private", PRIVATE_MB, 0o700) and is_memory
    if is_open or owner is not None:
        _hand_over(task, "secrets", 0o777 if is_open else 0o700, owner)
    return is_memory


def sweep(alloc_dir: Path) -> None:
    """Remove what an agent that was killed has left unfinished. Blocking; only before anything is built."""
    for name in os.listdir(alloc_dir):
        if name.startswith(UNFINISHED):
            remove_tree(alloc_dir, name)


def _hand_over(parent: int, name: str, mode: int, owner: Owner | None) -> None:
    with directory(parent, name, follow=False) as fd:
        if owner is not None:
            os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, mode)


def _take(previous: Path, root: Path, above: str, name: str) -> bool:
    try:
        with directory(previous, above, follow=False) as source, directory(root, above, follow=False) as target:
            if _is_empty(source, name) or not _is_empty(target, name):
                return False
            exchange(source, name, target, name)
            return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_empty(parent: int, name: str) -> bool:
    with directory(parent, name, follow=False) as fd:
        return not os.listdir(fd)


async def _off_loop(function: Callable[..., T], *arguments: object) -> T:
    return await trio.to_thread.run_sync(function, *arguments, limiter=_DIRECTORY_WORK)
