"""Knows what belongs to which run, and removes what a run left behind.

A run is named after the process that owns it: its id and the moment it started, which together name one process and
never another, and a number, since one process may do several runs. Everything made for a run carries that name: its
namespaces in theirs, its processes in an environment variable, which their own children inherit. So nobody has to
report what was made, and nothing is forgotten because its maker died before it could say so.

Only two things are ever removed: what carries the name of one given run, and what carries the name of a run whose owner
is dead. Network interfaces need no removal of their own: each has an end in a namespace and goes with it.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import leash

PROC = Path("/proc")
SPACES = Path("/var/run/netns")
"""Where `ip netns` keeps its names."""

MARK = "FEDSCHED_CHAOS_RUN"
_NAME = re.compile(r"fedsched-chaos-(\d+)-(\d+)-(\d+)(?:-.*)?", re.ASCII)
_NUMBERS = itertools.count(1)

GONE_S = 10.0
"""SIGKILL takes effect at once, unless the process waits for a disk."""


@dataclass(frozen=True)
class Owner:
    """One process, told apart from any other that gets its id later."""

    pid: int
    started: int
    """In clock ticks since this machine started."""

    @property
    def is_alive(self) -> bool:
        """A zombie is dead: it does nothing any more, and may never be waited for."""
        state, started = _stat(self.pid)
        return started == self.started and state not in "ZX"


@dataclass(frozen=True)
class Run:
    """The name that everything of one run carries."""

    owner: Owner
    number: int

    @classmethod
    def mine(cls) -> Run:
        """A new run of this process."""
        return cls(owner_of(os.getpid()), next(_NUMBERS))

    @classmethod
    def parse(cls, text: str) -> Run | None:
        """The run that a namespace or a mark is named after; None if it is none of ours."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        pid, started, number = (int(digits) for digits in found.groups())
        return cls(Owner(pid, started), number)

    @property
    def name(self) -> str:
        return f"fedsched-chaos-{self.owner.pid}-{self.owner.started}-{self.number}"

    @property
    def interface(self) -> str:
        """For an interface of this run: 15 characters are all the kernel has, hence no start time in it."""
        return f"fs{self.owner.pid}x{self.number % 10_000}"

    def space(self, part: str) -> str:
        """The name of a namespace."""
        return f"{self.name}-{part}"

    @property
    def environment(self) -> dict[str, str]:
        """For processes that end by themselves, or with a pipe to this process."""
        return {**os.environ, MARK: self.name}

    @property
    def leash(self) -> list[str]:
        """Words before a command that is to end with this process, whatever happens; see `leash` for the threads."""
        return [sys.executable, "-I", "-S", leash.__file__, str(self.owner.pid), f"{MARK}={self.name}"]


Wanted = Callable[[Run], bool]


@dataclass
class Removed:
    """What a clean-up did, and what it could not do."""

    processes: int = 0
    spaces: int = 0
    left: list[str] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        return not (self.processes or self.spaces or self.left)

    def __str__(self) -> str:
        told = f"killed {self.processes} processes, removed {self.spaces} namespaces"
        return told + (f"; still there: {'; '.join(self.left)}" if self.left else "")


def owner_of(pid: int) -> Owner:
    """This very process, as opposed to later ones with its id."""
    return Owner(pid, _stat(pid)[1])


def spaces_of(wanted: Wanted) -> list[str]:
    """The names of all namespaces of such runs."""
    return [name for name in (sorted(os.listdir(SPACES)) if SPACES.is_dir() else []) if _is_wanted(name, wanted)]


def processes_of(wanted: Wanted) -> list[int]:
    """All processes of such runs: those that carry the mark, and those inside a namespace of such a run."""
    inside = _inodes(wanted)
    return [pid for pid in _pids() if _belongs(pid, wanted, inside)]


def remove(wanted: Wanted, within_s: float = GONE_S) -> Removed:
    """Kill the processes of such runs, then remove their namespaces. Waits until all is gone, or `within_s`."""
    done = Removed()
    deadline = time.monotonic() + within_s
    killed: set[Owner] = set()
    while pids := processes_of(wanted):
        killed.update(_kill(pids, wanted))
        if time.monotonic() > deadline:
            done.left += [f"process {pid}" for pid in pids]
            break
        time.sleep(0.02)
    done.processes = len(killed)
    for space in spaces_of(wanted):
        problem = _delete(space)
        done.spaces += not problem
        done.left += [f"namespace {space}: {problem}"] if problem else []
    return done


def remove_abandoned() -> Removed:
    """Clean up after runs that died together with whatever should have cleaned up after them."""
    return remove(lambda run: not run.owner.is_alive)


def _kill(pids: list[int], wanted: Wanted) -> Iterator[Owner]:
    """A process handle is taken before the last look, so the signal cannot reach a later process of that id."""
    inside = _inodes(wanted)
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if _belongs(pid, wanted, inside):
                    victim = owner_of(pid)
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    yield victim
            finally:
                os.close(handle)


def _belongs(pid: int, wanted: Wanted, inside: set[tuple[int, int]]) -> bool:
    """False for what has ended meanwhile or is another user's."""
    try:
        for variable in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == MARK.encode():
                return _is_wanted(value.decode(errors="replace"), wanted)
        return _inode(PROC / str(pid) / "ns/net") in inside
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _inodes(wanted: Wanted) -> set[tuple[int, int]]:
    """The namespaces of such runs as the kernel tells them apart; never the one we are in, whatever it is named."""
    found = set()
    for name in spaces_of(wanted):
        with suppress(FileNotFoundError):
            found.add(_inode(SPACES / name))
    return found - {_inode(PROC / "self/ns/net")}


def _delete(space: str) -> str:
    """Remove one namespace; why it is still there, or nothing. Somebody else may be doing the same."""
    if shutil.which("ip") is None:
        return "no `ip` command"
    result = subprocess.run(["ip", "netns", "del", space], capture_output=True, text=True, check=False)
    return result.stderr.strip() or "still there" if (SPACES / space).exists() else ""


def _is_wanted(name: str, wanted: Wanted) -> bool:
    run = Run.parse(name)
    return run is not None and wanted(run)


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit() and int(name) != os.getpid())


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _stat(pid: int) -> tuple[str, int]:
    """State and start time of a process; dead and never when there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X", -1
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])
