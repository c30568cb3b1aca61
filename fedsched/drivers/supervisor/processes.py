"""Which process is which: pids are reused, so a process is known by pid, start time and boot.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor.bare import SIGKILL

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_own_start = (0, 0)
"""Which process this is, and when it began."""
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Tells one run of this host's kernel from another."""
    return read_small(BOOT_ID_FILE).decode().strip()


def start_time(pid: int) -> int:
    """When a process began, in ticks since boot; 0 if there is none (a zombie counts as none)."""
    text = read_small(f"/proc/{pid}/stat", 512)
    fields = text[text.rfind(b")") + 2 :].split(None, 20)
    return 0 if len(fields) < 20 or fields[0] in (b"Z", b"X") else int(fields[19])


def own_start_time() -> int:
    """The same for this process: asked for once."""
    global _own_start
    if _own_start[0] != os.getpid():
        _own_start = os.getpid(), start_time(os.getpid())
    return _own_start[1]


def is_running(pid: int, started: int) -> bool:
    """Is that very process still there?"""
    return pid > 0 and started > 0 and start_time(pid) == started


def descendants(root: int) -> list[int]:
    """All processes below `root`, parents first; found by looking at every process of the host."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += below
    return found


def send(pid: int, number: int) -> bool:
    """Signal a process; false if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send_group(group: int, number: int) -> bool:
    """Signal a process group; false if nobody is in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True


def kill_each(pids: Iterable[int]) -> int:
    """End all of them at once; says how many were there."""
    return sum(send(pid, SIGKILL) for pid in pids)


def group_pids(path: str) -> list[int]:
    """Who is in a cgroup, its own groups included."""
    try:
        has_groups = os.stat(path).st_nlink > 2
    except OSError:
        return []
    if not has_groups:  # nearly always, and a walk would look at each of the kernel's files
        return _procs(path)
    return [pid for folder, _, _ in os.walk(path) for pid in _procs(folder)]


def _procs(folder: str) -> list[int]:
    """Those in one group. However many there are: a short answer would leave somebody alive."""
    try:
        fd = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    found = b""
    try:
        while data := os.read(fd, 65536):
            found += data
    except OSError:
        return []  # the group is being removed: nobody is in it
    finally:
        os.close(fd)
    return [int(line) for line in found.split() if line != b"0"]


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def stat_fields(pid: int) -> list[str] | None:
    """What follows the name in /proc/<pid>/stat; None if there is no such process."""
    text = read_small(f"/proc/{pid}/stat")
    return text[text.rindex(b")") + 2 :].decode().split() if b")" in text else None


def read_small(path: str, most: int = 4096) -> bytes:
    """A small file of the kernel's; nothing if it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)
