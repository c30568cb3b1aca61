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
MYSELF: Final = b"0"
MEMBERSHIP: Final = "/proc/self/cgroup"
CLIMB_MAX: Final = 64
_known: dict[str, str] = {}
"""Our own group by the root of its hierarchy. It is that of the process which forked us, and nobody moves us."""


_roots: dict[str, str] = {}
"""The root of a hierarchy by the place where tasks have their groups."""


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
            _write(f"{group}/{MEMBERS}")
        return spawn()
    finally:
        for fd in back:
            try:
                os.write(fd, MYSELF)
            except OSError as error:
                stuck = error
            os.close(fd)
        if stuck is not None:
            raise NoWayBack(f"a supervisor cannot leave the cgroups of its task: {stuck.strerror}") from stuck


def _way_back(groups: Sequence[str]) -> list[int] | None:
    """Our own groups, open for stepping back."""
    found: list[int] = []
    try:
        homes = [own_group(_root_above(group)) for group in groups]
        found.extend(os.open(f"{home}/{MEMBERS}", os.O_WRONLY | os.O_CLOEXEC) for home in homes)
    except (OSError, LookupError):
        for fd in found:
            os.close(fd)
        return None
    return found


def _root_above(group: str) -> str:
    """The same as `root_of`, looked for once for all groups that lie side by side: a mount does not move."""
    above = os.path.dirname(group)
    if above not in _roots:
        _roots[above] = root_of(group)
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
    is_unified = os.path.exists(f"{root}/cgroup.controllers")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if (is_unified and not controllers) or (controllers and wanted <= set(controllers.split(","))):
            return path
    raise LookupError(f"this process is in no group of {root}")


def _write(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, MYSELF)
    finally:
        os.close(fd)
