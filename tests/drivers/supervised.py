"""What tests of supervised tasks share: nothing of theirs may be left behind."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from fedsched.drivers.supervisor import processes, state_file, warm
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervisors import Supervisors

T = TypeVar("T")
PATIENCE_S = 30.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NUMBERS = itertools.count(1)


class Host:
    """A place where supervised tasks run."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "tasks"
        self.logs = place / "logs"
        self.logs.mkdir(exist_ok=True)
        self.said: list[tuple[str, str]] = []

    def spec(self, script: str | list[str], **fields: Any) -> LaunchSpec:
        """A task that runs a shell script (or the command in a list), under a key that no other test uses."""
        number = next(_NUMBERS)
        given: dict[str, Any] = {
            "key": f"task.{number}",
            "task_id": f"alloc/task/{number}",
            "directory": str(self.directory),
            "argv": ["/bin/sh", "-c", script] if isinstance(script, str) else script,
            "env": {"PATH": PATH},
            "log_directory": str(self.logs),
            "log_name": f"task{number}",
        }
        return LaunchSpec(**(given | fields))

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Supervisors]:
        """An agent's side, until the block is left. Tasks run on."""
        supervisors = Supervisors(self.directory, lambda task_id, text: self.said.append((task_id, text)))
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisors.run)
            yield supervisors
            nursery.cancel_scope.cancel()

    def log(self, spec: LaunchSpec, stream: str = "stdout") -> str:
        files = sorted(self.logs.glob(f"{spec.log_name}.{stream}.*"), key=lambda path: int(path.suffix[1:]))
        return "".join(path.read_text() for path in files)

    async def logged(self, spec: LaunchSpec, wanted: str) -> str:
        """The log, as soon as the wanted text is in it."""
        while wanted not in (text := self.log(spec)):
            await trio.sleep(0.01)
        return text


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def within_time() -> T:
        with trio.fail_after(PATIENCE_S):
            return await scenario()

    return trio.run(within_time)


async def gone(pid: int) -> None:
    """Returns when there is no such process."""
    while processes.start_time(pid):
        await trio.sleep(0.01)


def processes_of(directory: Path) -> list[int]:
    """The warm process of a directory and all supervisors forked from it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(directory) in words:
                found.append(int(name))
    return found


def left_alive(directory: Path) -> list[int]:
    """Those that are still there when processes that were told to go had time for it."""
    give_up = time.monotonic() + 5
    while (alive := processes_of(directory)) and time.monotonic() < give_up:
        time.sleep(0.01)
    return alive


def retire(directory: Path) -> None:
    """End the warm process, and fail if any supervisor or state is left."""
    if not (directory / warm.NAME).exists():
        return
    every = {key: state_file.read(str(directory), key) or {} for key in state_file.keys(str(directory))}
    left = [key for key, table in every.items() if table.get("phase") != "never"]
    errors = (directory / "errors.log").read_text()
    with socket.socket(socket.AF_UNIX) as connection:
        here = os.getcwd()
        os.chdir(directory)
        try:
            connection.connect(warm.NAME)
            connection.recv(4096)  # its greeting
            connection.send(warm.RETIRE)
        except OSError:
            pass  # killed by the test itself
        finally:
            os.chdir(here)
    alive = left_alive(directory)
    assert errors == "", errors
    assert left == [], f"not acknowledged: {left}"
    assert alive == [], "supervisors are left"
