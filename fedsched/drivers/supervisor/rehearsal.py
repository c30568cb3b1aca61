"""A task's whole life, played through in the warm process before anybody forks it.

What a program does for the first time fills caches: of types, of attributes, of the interpreter's own instructions. A
supervisor would fill them in memory of its own, page by page, at every launch. Done once before the fork, they are full
and shared: about a sixth fewer pages are copied. If it cannot be done (there is no /bin/true, the disk is full),
launches are slower, and that is all.

Light: this is part of the warm process.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor import state_file
from fedsched.drivers.supervisor.bare import SIG_IGN, SIGCHLD, signal, socket, socketpair
from fedsched.drivers.supervisor.child import LaunchFailed
from fedsched.drivers.supervisor.connections import Connection
from fedsched.drivers.supervisor.frames import Frames, encode
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervise import Supervisor, forget_children

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

TIMES: Final = 16
"""The interpreter adapts code that has run eight times; a few more settle it."""
KEY: Final = "rehearsal"


def rehearse(directory: str, boot_id: str, read_spec: Callable[[socket], LaunchSpec | None]) -> None:
    """Launch, follow and end tasks that do nothing. Children must be waited for by nobody else.

    In a directory of its own: whoever is killed meanwhile must not leave anything that looks like a task.
    """
    stage = f"{directory}/{KEY}"
    try:
        _clear(stage)
        os.makedirs(stage, exist_ok=True)
        for _ in range(TIMES):
            _once(stage, boot_id, read_spec)
    except (OSError, LaunchFailed):
        return
    finally:
        forget_children()
        signal(SIGCHLD, SIG_IGN)
        _clear(stage)


def _once(stage: str, boot_id: str, read_spec: Callable[[socket], LaunchSpec | None]) -> None:
    ours, theirs = socketpair()
    try:
        spec = LaunchSpec(
            key=KEY,
            task_id=KEY,
            directory=stage,
            argv=["/bin/true"],
            env={"PATH": "/bin"},
            log_directory=stage,
            log_name=KEY,
        )
        theirs.send(encode(spec.as_table()))
        told = read_spec(ours)
        assert told is not None
        supervisor = Supervisor(told, boot_id, may_serve_again=True)
        connection = Connection(ours)
        connection.send({"started": supervisor.launch()})
        supervisor.begin(connection)
        while not supervisor.is_over:
            supervisor.step()
        supervisor.end(connection)
        state_file.remove(stage, KEY)
        Frames().feed(theirs.recv(65536))
    finally:
        ours.close()
        theirs.close()


def _clear(stage: str) -> None:
    try:
        for name in os.listdir(stage):
            os.unlink(f"{stage}/{name}")
        os.rmdir(stage)
    except OSError:
        return
