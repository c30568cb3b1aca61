"""The machine's files, for the file functions of a job file that a person reads with the command line."""

from __future__ import annotations

import os
from pathlib import Path


class DiskFiles:
    """Reads what the user running the command may read; relative paths count from the job file's directory."""

    def read(self, path: str, directory: str, limit: int) -> bytes:
        with (Path(directory) / path).open("rb") as file:
            found = file.read(limit + 1)
        if len(found) > limit:
            raise OSError(f"larger than {limit} bytes")
        return found

    def exists(self, path: str, directory: str) -> bool:
        found = Path(directory) / path
        if found.exists() and not found.is_file():
            raise OSError("not a file")
        return found.is_file()

    def under(self, path: str, directory: str, limit: int) -> list[str]:
        root = Path(directory) / path
        found: list[str] = []
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                found.append((Path(folder) / name).relative_to(root).as_posix())
                if len(found) > limit:
                    raise OSError(f"more than {limit} files below")
        return found

    def absolute(self, path: str) -> str:
        return os.path.abspath(path)

    def home(self) -> str:
        return str(Path.home())
