"""Making and removing an allocation's directories: the blocking half of `alloc_dirs`, which says what they are.

Plain functions and plain arguments, and no trio: a process beside the agent does most of this (`disk_process`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from fedsched.client.mounts import mount_memory, unmount, unmount_below
from fedsched.client.paths import (
    READ_DIRECTORY,
    Owner,
    PathEscapes,
    directory,
    exchange,
    has_openat2,
    remove_tree,
    rename_between,
)

SHARED: Final = "alloc"
SECRETS_MB: Final = 1
PRIVATE_MB: Final = 1
UNFINISHED: Final = ".new-"
DESTROY_TRIES: Final = 4
"""A lazily unmounted directory may look busy for a moment; so often we unmount and remove again."""


_has_no_umask = False


def drop_umask() -> None:
    """Let directories have the modes they are made with, which saves a call for each. For a process that does nothing
    else."""
    global _has_no_umask
    os.umask(0)
    _has_no_umask = True


class TaskPlan(NamedTuple):
    """What is known of a task before its directories are made; see `AllocDirs.build_task`."""

    name: str
    owner: Owner | None = None
    secrets_mb: int = SECRETS_MB
    is_open: bool = False


def forget_secrets(root: Path, tasks: tuple[str, ...]) -> None:
    """Unmount what was kept in memory for these tasks."""
    for name in tasks:
        unmount(root / entry_name(name) / "secrets")
        unmount(root / entry_name(name) / "private")


def build_all(root: Path, tasks: tuple[TaskPlan, ...]) -> frozenset[str]:
    """Make what all tasks share, and these tasks' own directories if there was nothing yet; whose were made."""
    if not root.parent.is_dir():
        root.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    with directory(root.parent) as parent:
        if _build_new(root, parent, tasks):
            return frozenset(task.name for task in tasks)
        make_whole(parent, root.name, 0o711)
    _build_shared(root)
    return frozenset()


def _build_new(root: Path, parent: int, tasks: tuple[TaskPlan, ...]) -> bool:
    """All directories under a name that nobody looks at, then the right name; false if there is something."""
    with suppress(FileNotFoundError):
        os.lstat(root.name, dir_fd=parent)
        return False
    temporary = f"{UNFINISHED}{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700, dir_fd=parent)
    top = os.open(temporary, READ_DIRECTORY, dir_fd=parent)
    try:
        for path, mode, owner in _new_directories(tasks):
            os.mkdir(path, mode, dir_fd=top)
            if owner is not None and os.geteuid() == 0:
                os.chown(path, owner.uid, owner.gid, dir_fd=top)
            if not _has_no_umask:
                os.chmod(path, mode, dir_fd=top)
        os.fchmod(top, 0o711)
        rename_between(parent, temporary, parent, root.name, replace=False)
        for task in tasks:
            with directory(top, task.name, follow=False) as fd:
                _mount_secrets(fd, task.owner, task.secrets_mb, task.is_open)
    except OSError as error:
        with suppress(FileNotFoundError):
            remove_tree(root.parent, temporary)
        if error.errno != errno.EEXIST:
            raise
        return False
    finally:
        os.close(top)
    return True


def _build_shared(root: Path) -> None:
    with directory(root, follow=False) as top:
        make_whole(top, SHARED, 0o755)
        with directory(top, SHARED, follow=False) as shared:
            make_whole(shared, "data", 0o777)
            make_whole(shared, "logs", 0o755)
            make_whole(shared, "tmp", 0o1777)


def build_task(root: Path, name: str, owner: Owner | None, secrets_mb: int, is_open: bool) -> bool:
    """Make one task's directories; whether its secrets are in memory only."""
    with directory(root, follow=False) as top:
        make_whole(top, name, 0o700 if is_open else 0o755)
        with directory(top, name, follow=False) as task:
            make_whole(task, "local", 0o777, owner)
            make_whole(task, "tmp", 0o1777)
            make_whole(task, "secrets", 0o700)
            make_whole(task, "private", 0o700)
            return _mount_secrets(task, owner, secrets_mb, is_open)


def build_lasting(root: Path, tasks: tuple[str, ...]) -> None:
    """Make only what can be taken over from another allocation."""
    with directory(root, follow=False) as top:
        for task in tasks:
            make_whole(top, entry_name(task), 0o755)
            with directory(top, task, follow=False) as fd:
                make_whole(fd, "local", 0o777)


def take_over(root: Path, previous: Path, tasks: tuple[str, ...]) -> list[str]:
    """Exchange the lasting directories with those of the allocation before; which ones were taken."""
    lasting = [(SHARED, "data"), *((entry_name(task), "local") for task in tasks)]
    return [f"{above}/{name}" for above, name in lasting if _take(previous, root, above, name)]


def destroy(root: Path) -> None:
    """Unmount all below, then remove all."""
    for attempt in range(DESTROY_TRIES):
        if attempt or not has_openat2():  # a removal does not cross mounts: the long list of them is rarely needed
            unmount_below(root)
        try:
            remove_tree(root.parent, root.name)
            break
        except FileNotFoundError:
            break
        except OSError as error:
            if error.errno != errno.EBUSY or attempt == DESTROY_TRIES - 1:
                raise


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
