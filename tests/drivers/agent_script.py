"""An agent's side in a process of its own, to be killed: launches tasks and says what it is about to do.

    python agent_script.py DIRECTORY LOGS COUNT

Prints `intend KEY` before and `started KEY` after each launch, then waits to be killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervisors import Supervisors


async def main(directory: str, logs: str, count: int, script: str) -> None:
    supervisors = Supervisors(Path(directory))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisors.run)

        async def launch(number: int) -> None:
            key = f"killed.{number}"
            print("intend", key, flush=True)
            spec = LaunchSpec(
                key=key,
                task_id=key,
                directory=directory,
                argv=["/bin/sh", "-c", script],
                env={"PATH": "/bin:/usr/bin", "NUMBER": str(number)},
                log_directory=logs,
                log_name=key,
            )
            task = await supervisors.launch(spec)
            print("started", key, task.pid, flush=True)

        for number in range(count):
            nursery.start_soon(launch, number)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
