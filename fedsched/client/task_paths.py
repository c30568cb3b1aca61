"""Paths that a job names for its task, as paths below the allocation's directory.

A job may write `local/x`, `../alloc/data/x`, `${NOMAD_TASK_DIR}/x` or, for a task with a file system of its own,
`/local/x`. What comes out is relative to the allocation's directory and is opened with `open_beneath`: this module says
what is meant, that one sees to it that nothing else is reached.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fedsched.client.context import TaskContext
from fedsched.client.paths import PathEscapes
from fedsched.drivers.driver import FsIsolation

INSIDE: Final = {"/alloc": "alloc", "/local": "{task}/local", "/secrets": "{task}/secrets"}
PRIVATE: Final = "private"
LOGS: Final = ("alloc", "logs")


def client_path(task: TaskContext, text: str) -> str:
    """What a job's path (with `${...}`) means, relative to the allocation's directory. It may still lead out."""
    path = task.environment().text(text)
    host = str(task.dirs.alloc)
    if path == host or path.startswith(f"{host}/"):
        return path[len(host) :].lstrip("/") or "."
    if task.driver.capabilities.fs_isolation is not FsIsolation.NONE:
        for inside, meant in INSIDE.items():
            if path == inside or path.startswith(f"{inside}/"):
                return f"{meant.format(task=task.name)}{path[len(inside) :]}"
    return f"{task.name}/{path.lstrip('/')}"


def refuse_reserved(fd: int, alloc: Path) -> None:
    """`PathEscapes` for a handle of something that is the agent's own: private directories and logs.

    Asked of the handle, not of the path: whatever way led there. `alloc` is the allocation's directory.
    """
    real = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), os.path.realpath(alloc)).split("/")
    if real[1:2] == [PRIVATE] or tuple(real[:2]) == LOGS:
        raise PathEscapes(f"{'/'.join(real)[:200]!r} belongs to the agent", hint="use local/, secrets/ or alloc/data/")
