"""Where mock tasks live while no agent is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fedsched.codec import CodecError, from_bytes, to_bytes
from fedsched.drivers.mock_life import MockTask


class MockPlace(Protocol):
    """Holds mock tasks by id, and how often each task of an allocation was started."""

    def load(self, task_id: str) -> MockTask | None: ...

    def save(self, task: MockTask) -> None: ...

    def remove(self, task_id: str) -> None: ...

    def ids(self) -> list[str]:
        """All tasks that it holds."""

    def count_start(self, name: str) -> int:
        """One start more of `<alloc id>/<task>`; says how many that makes."""


class MemoryPlace:
    """A host that exists only in this process: hand the same one to the driver that follows."""

    def __init__(self) -> None:
        self.tasks: dict[str, MockTask] = {}
        self.starts: dict[str, int] = {}

    def load(self, task_id: str) -> MockTask | None:
        return self.tasks.get(task_id)

    def save(self, task: MockTask) -> None:
        self.tasks[task.id] = task

    def remove(self, task_id: str) -> None:
        self.tasks.pop(task_id, None)

    def ids(self) -> list[str]:
        return sorted(self.tasks)

    def count_start(self, name: str) -> int:
        self.starts[name] = self.starts.get(name, 0) + 1
        return self.starts[name]


class FilePlace:
    """One small file per task, each replaced as a whole, so that the next agent finds them."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root

    def load(self, task_id: str) -> MockTask | None:
        return self._read(self._path(task_id, "task"))

    def ids(self) -> list[str]:
        tasks = [self._read(path) for path in sorted(self._root.glob("*.task"))]
        return [task.id for task in tasks if task is not None]

    def save(self, task: MockTask) -> None:
        self._put(self._path(task.id, "task"), to_bytes(task))

    def remove(self, task_id: str) -> None:
        self._path(task_id, "task").unlink(missing_ok=True)

    def count_start(self, name: str) -> int:
        path = self._path(name, "starts")
        count = 1 + (int(path.read_text() or 0) if path.exists() else 0)
        self._put(path, str(count).encode())
        return count

    @staticmethod
    def _read(path: Path) -> MockTask | None:
        try:
            return from_bytes(path.read_bytes(), MockTask)
        except (FileNotFoundError, CodecError):
            return None

    def _path(self, name: str, kind: str) -> Path:
        return self._root / f"{name.replace('/', '.')}.{kind}"

    @staticmethod
    def _put(path: Path, content: bytes) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)


def place_from(config: Mapping[str, object]) -> MockPlace:
    """The place that an agent's settings name: `state_dir`, or only this process."""
    state_dir = config.get("state_dir")
    return FilePlace(Path(str(state_dir))) if state_dir else MemoryPlace()
