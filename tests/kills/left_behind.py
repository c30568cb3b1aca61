"""What a host still holds of a run: processes by a mark in their environment, mounts and cgroups by their path."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "FEDSCHED_KILLS_MARK"


def processes(mark: str, directory: Path | None = None) -> dict[int, str]:
    """Processes that carry the mark in their environment or name the directory, with their command lines.

    Zombies carry nothing any more; this process itself does not count.
    """
    wanted = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environ = Path("/proc", entry, "environ").read_bytes()
            command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in environ.split(b"\0") or (directory is not None and f"{directory}/" in command):
            found[int(entry)] = command
    return found


def mounts(below: Path) -> list[str]:
    """Mount points inside a directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for line in lines if (point := line.split()[4]).startswith(f"{below}/")]


def cgroups(name: str) -> list[str]:
    """Task groups below the parent of this name, in any hierarchy."""
    found = []
    for parent in Path("/sys/fs/cgroup").rglob(name):
        found += [str(path) for path in parent.rglob("*") if path.is_dir()]
    return found
