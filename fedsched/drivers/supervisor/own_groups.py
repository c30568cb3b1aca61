"""Being in a task's cgroups for the moment of its start.

A process begins in the groups of whoever starts it. A supervisor that steps into the groups of its task, starts it and
steps back needs no copy of itself in between, and a copy costs more than starting the task does. It steps in only where
the way back is open before the first step; where it is not, the copy is made.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

MEMBERS: Final = "cgroup.procs"
THREADS: Final = "tasks"
"""Its namesake for single threads in v1. A process with one thread is the same in both, and for a thread that moves
itself the kernel need not hold up every fork of the host meanwhile."""
MYSELF: Final = b"0"
MEMBERSHIP: Final = "/proc/self/cgroup"
CLIMB_MAX: Final = 64
_known: dict[str, str] = {}
"""Our own group by the root of its hierarchy. It is that of the process which forked us, and nobody moves us."""


_roots: dict[str, tuple[str, str]] = {}
"""By the place where tasks have their groups: the root of the hierarchy, and the file that members are written to."""
_homes: dict[str, int] = {}
"""Our own groups, open for stepping back, by root; those of the process `_homes_of`."""
_homes_of = 0


class NoWayBack(Exception):
    """This process is still in groups of its task. It must end."""


def spawn_inside(groups: Sequence[str], spawn: Callable[[], int]) -> int | None:
    """What `spawn` returns, called inside the groups; None, with nothing done, if we could not step back.

    Raises what `spawn` raises, `OSError` if a group cannot be entered, `NoWayBack`.
    """
    back = _way_back(groups)
    if back is None:
        return None
    stuck: OSError | None = None
    try:
        for group in groups:
            enter(group)
        return spawn()
    finally:
        for fd in back:
            try:
                os.write(fd, MYSELF)
            except OSError as error:
                stuck = error
        if stuck is not None:
            raise NoWayBack(f"a supervisor cannot leave the cgroups of its task: {stuck.strerror}") from stuck


def enter(group: str) -> None:
    """Step into it; for processes with one thread. Raises `OSError`."""
    fd = os.open(f"{group}/{_place(group)[1]}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, MYSELF)
    finally:
        os.close(fd)


def forget_homes() -> None:
    """Let go of what is kept open."""
    while _homes:
        os.close(_homes.popitem()[1])


def _way_back(groups: Sequence[str]) -> list[int] | None:
    """Our own groups, open for stepping back. They stay open: one process starts many tasks."""
    try:
        return [_home(*_place(group)) for group in groups]
    except (OSError, LookupError):
        return None


def _home(root: str, members: str) -> int:
    global _homes_of
    if _homes_of != os.getpid():
        forget_homes()
        _homes_of = os.getpid()
    if root not in _homes:
        _homes[root] = os.open(f"{own_group(root)}/{members}", os.O_WRONLY | os.O_CLOEXEC)
    return _homes[root]


def _place(group: str) -> tuple[str, str]:
    """Its hierarchy's root and the members' file, looked for once for all groups that lie side by side: a mount does
    not move."""
    above = os.path.dirname(group)
    if above not in _roots:
        root = root_of(group)
        _roots[above] = root, MEMBERS if _is_unified(root) or not os.path.exists(f"{root}/{THREADS}") else THREADS
    return _roots[above]


def root_of(group: str) -> str:
    """Where its hierarchy is mounted."""
    here, device = group, os.stat(group).st_dev
    for _ in range(CLIMB_MAX):
        above = os.path.dirname(here)
        if above == here or os.stat(above).st_dev != device:
            return here
        here = above
    raise LookupError(f"{group} has no root")


def own_group(root: str) -> str:
    """The group of this process in the hierarchy that is mounted there. Raises `LookupError` if it has none."""
    if root not in _known:
        with open(MEMBERSHIP) as file:
            lines = file.read().splitlines()
        _known[root] = root + _within(lines, root).rstrip("/")
    return _known[root]


def _within(lines: list[str], root: str) -> str:
    """The path in the hierarchy: by its controllers, which name the mount, or as the only one there is (v2)."""
    wanted = set(os.path.basename(root).split(","))
    is_unified = _is_unified(root)
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if (is_unified and not controllers) or (controllers and wanted <= set(controllers.split(","))):
            return path
    raise LookupError(f"this process is in no group of {root}")


def _is_unified(root: str) -> bool:
    return os.path.exists(f"{root}/cgroup.controllers")
