"""Files of templates: where they are read from and written to, always inside the allocation's directory.

Everything here blocks and runs in a worker thread. Paths are resolved when they are used, through directory handles: a
task that swaps a directory for a symlink gains nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsched.client.context import TaskContext
from fedsched.client.paths import Owner, PathEscapes, open_beneath, write_file_beneath
from fedsched.client.task_paths import refuse_reserved
from fedsched.drivers.driver import FsIsolation
from fedsched.model.errors import BadRequest
from fedsched.template.errors import Wrong

FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRoot:
    """How the paths of one task are read."""

    alloc: Path
    task: str
    """Name of the task's directory."""
    sees_own_root: bool
    """The task sees `/local`, `/secrets` and `/alloc` instead of the host's paths."""
    is_open: bool = False
    """The operator lets templates leave the allocation's directory."""

    @staticmethod
    def of(task: TaskContext) -> FileRoot:
        return FileRoot(
            alloc=task.dirs.alloc,
            task=task.dirs.task.name,
            sees_own_root=task.driver.capabilities.fs_isolation is not FsIsolation.NONE,
            is_open=task.parts.settings.template.disable_file_sandbox,
        )

    def place(self, path: str) -> tuple[Path, str]:
        """The directory that must not be left, and the path below it. A path is relative to the task's directory."""
        if "\0" in path or not path:
            raise BadRequest(f"{path[:60]!r} is no path")
        if not path.startswith("/"):
            return self.alloc, f"{self.task}/{path}"
        own = f"{self.alloc}/"
        if path.startswith(own):
            return self.alloc, path[len(own) :]
        if self.sees_own_root:
            first, _, rest = path[1:].partition("/")
            if first == "alloc":
                return self.alloc, f"alloc/{rest}"
            if first in ("local", "secrets", "tmp"):
                return self.alloc, f"{self.task}/{first}/{rest}"
        if self.is_open:
            return Path("/"), path[1:]
        return self.alloc, f"{self.task}/{path.lstrip('/')}"


def read_text(root: FileRoot, path: str) -> str:
    """The content of a file inside the allocation's directory; `Wrong` says why not."""
    try:
        where, relative = root.place(path)
        fd = open_beneath(where, relative, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, PathEscapes, BadRequest) as error:
        raise Wrong(f"{path[:200]!r} cannot be read: {_reason(error)}") from None
    try:
        refuse_reserved(fd, root.alloc)
        data = _content(fd)
    except (OSError, PathEscapes) as error:
        raise Wrong(f"{path[:200]!r} cannot be read: {_reason(error)}") from None
    finally:
        os.close(fd)
    if len(data) > FILE_BYTES_MAX:
        raise Wrong(f"{path[:200]!r} has more than {FILE_BYTES_MAX} bytes", is_limit=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Wrong(f"{path[:200]!r} is not UTF-8 text") from None


def read_known(root: FileRoot, path: str) -> bytes | None:
    """What is there now, for comparison; None for nothing, or nothing that we could have written."""
    try:
        where, relative = root.place(path)
        fd = open_beneath(where, relative, os.O_RDONLY | os.O_NONBLOCK, follow=False)
    except (OSError, PathEscapes, BadRequest):
        return None
    try:
        return _content(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def write_rendered(root: FileRoot, path: str, data: bytes, mode: int, owner: Owner | None) -> None:
    """Put a rendered file in its place in one step; raises `BadRequest` naming the destination."""
    try:
        where, relative = root.place(path)
        write_file_beneath(where, relative, data, mode, owner, guard=lambda fd: refuse_reserved(fd, root.alloc))
    except PathEscapes as error:
        raise BadRequest(
            f"template destination {path[:200]!r} leaves the allocation's directory: {_reason(error)}"
        ) from None
    except OSError as error:
        raise BadRequest(f"template destination {path[:200]!r} cannot be written: {_reason(error)}") from None


def _content(fd: int) -> bytes:
    """All of a file, up to one byte more than may be."""
    data = bytearray()
    while len(data) <= FILE_BYTES_MAX and (piece := os.read(fd, FILE_BYTES_MAX + 1 - len(data))):
        data += piece
    return bytes(data)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "message", "") or str(error)
