"""A client agent that kills itself with -9 at a chosen step, for `tests.kills`; else it is `fedsched` as it is.

    FEDSCHED_KILL_AT=put_task:after:3   right after the third write about a task is on disk
    FEDSCHED_KILL_AT=start_task:before:1
    FEDSCHED_LOG_FILE_BYTES=65536       log files of this size, which no job file can ask for

Steps are those at which a client leaves something behind that the next agent must understand: writes to its journal,
and what it asks of drivers. The product knows nothing of this: the functions are wrapped here, in this process only.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedsched.client import task_config
from fedsched.client.journal import Journal
from fedsched.drivers.driver import LogLimits
from fedsched.drivers.raw_exec import RawExecDriver

AT = "FEDSCHED_KILL_AT"
LOG_FILE_BYTES = "FEDSCHED_LOG_FILE_BYTES"
STEPS: dict[str, tuple[type, str]] = {
    "put_alloc": (Journal, "put_alloc"),
    "put_task": (Journal, "put_task"),
    "put_alloc_state": (Journal, "put_alloc_state"),
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
    real: Callable[..., Any] = getattr(owner, method)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def wrapped(*args: Any, **fields: Any) -> Any:
        if side == "before":
            count()
        result = await real(*args, **fields)
        if side == "after":
            count()
        return result

    setattr(owner, method, wrapped)


def shrink_logs(size: int) -> None:
    """Let log files be this small."""
    real = task_config.LogLimits

    def small(*args: Any, **fields: Any) -> LogLimits:
        return replace(real(*args, **fields), max_file_bytes=size)

    task_config.LogLimits = small  # type: ignore[assignment, misc]


def main() -> int:
    if size := os.environ.get(LOG_FILE_BYTES):
        shrink_logs(int(size))
    if what := os.environ.get(AT):
        plant(what)
    from fedsched.cli.main import main as fedsched

    return fedsched()


if __name__ == "__main__":
    sys.exit(main())
