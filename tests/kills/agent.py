"""A client agent that kills itself with -9 at a chosen step, for `tests.kills`; else it is `fedsched` as it is.

    FEDSCHED_KILL_AT=put_task:after:3   right after the third write about a task is on disk
    FEDSCHED_KILL_AT=start_task:before:1
    FEDSCHED_LOG_FILE_BYTES=65536       log files of this size, which no job file can ask for
    FEDSCHED_READ_AHEAD_WHEN=/some/file a planted bug: while the file is there, logs are read whether or not somebody
                                        takes them

Steps are those at which a client leaves something behind that the next agent must understand: writes to its journal,
and what it asks of drivers. The product knows nothing of this: the functions are wrapped here, in this process only.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from fedsched.client import access, logs, task_config
from fedsched.client.file_wakes import FileWakes
from fedsched.client.journal import ALLOC, LOCAL, TASK, Journal
from fedsched.client.journal_store import JournalStore, Put
from fedsched.drivers.driver import LogLimits
from fedsched.drivers.raw_exec import RawExecDriver
from fedsched.rpc.methods.alloc_access import FileFrame

AT = "FEDSCHED_KILL_AT"
LOG_FILE_BYTES = "FEDSCHED_LOG_FILE_BYTES"
READ_AHEAD_WHEN = "FEDSCHED_READ_AHEAD_WHEN"
STEPS: dict[str, tuple[type, str]] = {
    "put_alloc": (JournalStore, ALLOC),
    "put_task": (JournalStore, TASK),
    "put_alloc_state": (JournalStore, LOCAL),
    "forget": (Journal, "forget"),
    "start_task": (RawExecDriver, "start_task"),
    "recover_task": (RawExecDriver, "recover_task"),
    "stop_task": (RawExecDriver, "stop_task"),
    "destroy_task": (RawExecDriver, "destroy_task"),
}
SIDES = ("before", "after")


def plant(what: str) -> None:
    """Let the process die at the step that `what` names."""
    name, side, number = what.split(":")
    owner, method = STEPS[name]
    left = int(number)

    def count(times: int = 1) -> None:
        nonlocal left
        left -= times
        if times and left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if owner is JournalStore:
        plant_in_store(method, side, count)
        return
    real: Callable[..., Any] = getattr(owner, method)

    async def wrapped(*args: Any, **fields: Any) -> Any:
        if side == "before":
            count()
        result = await real(*args, **fields)
        if side == "after":
            count()
        return result

    setattr(owner, method, wrapped)


def plant_in_store(kind: str, side: str, count: Callable[[int], None]) -> None:
    """Around the transaction that the rows of this kind are in: what is written together lives or dies together."""
    real = JournalStore.write

    def wrapped(self: JournalStore, puts: Iterable[Put]) -> None:
        rows = list(puts)
        times = sum(row.kind == kind and row.body is not None for row in rows)
        if side == "before":
            count(times)
        real(self, rows)
        if side == "after":
            count(times)

    JournalStore.write = wrapped  # type: ignore[method-assign]


def shrink_logs(size: int) -> None:
    """Let log files be this small."""
    real = task_config.LogLimits

    def small(*args: Any, **fields: Any) -> LogLimits:
        return replace(real(*args, **fields), max_file_bytes=size)

    task_config.LogLimits = small  # type: ignore[assignment, misc]


def read_ahead(when: Path) -> None:
    """Let a reader of logs that begins while the file is there be one for whom everything is kept in memory."""
    real = access.stream

    async def planted(source: logs.Source, wakes: FileWakes, send: logs.Send) -> int:
        if not os.path.exists(when):  # noqa: ASYNC240 - a look at a small file, in a test
            return await real(source, wakes, send)
        kept: deque[FileFrame] = deque()

        async def fill() -> None:
            while True:
                frames, _ = await trio.to_thread.run_sync(source.pieces, limiter=logs.READERS)
                kept.extend(frames)
                await trio.sleep(0 if frames else 0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            while await send(kept.popleft() if kept else FileFrame()):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        return 0

    access.stream = planted


def main() -> int:
    if size := os.environ.get(LOG_FILE_BYTES):
        shrink_logs(int(size))
    if what := os.environ.get(AT):
        plant(what)
    if when := os.environ.get(READ_AHEAD_WHEN):
        read_ahead(Path(when))
    from fedsched.cli.main import main as fedsched

    return fedsched()


if __name__ == "__main__":
    sys.exit(main())
