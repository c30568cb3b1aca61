"""Commands inside a running task: the supervisor starts them and hands their pipes or terminal over.

What a command reads and writes never passes through here: the caller gets the open files themselves. The connection
is the session: when it closes, the command is killed; when the command ends, the connection says how.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor import processes
from fedsched.drivers.supervisor.bare import SIGKILL
from fedsched.drivers.supervisor.child import launch_command
from fedsched.drivers.supervisor.connections import Connection

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Any, Final

    from fedsched.drivers.supervisor.supervise import Supervisor

MAX_SESSIONS: Final = 32


class Sessions:
    """All commands inside one task."""

    def __init__(self, owner: Supervisor) -> None:
        self._owner = owner
        self._running: dict[int, Connection] = {}

    def start(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        """Start a command. Its answer carries its files: stdin, stdout, stderr; or the terminal alone."""
        if connection.session:
            raise ValueError("this connection has had its command")
        if len(self._running) >= MAX_SESSIONS:
            raise ValueError(f"{MAX_SESSIONS} commands run inside this task already")
        argv = [str(word) for word in request["argv"]]
        if not argv:
            raise ValueError("an empty command")
        spec = self._owner.spec
        env = spec.env | {str(name): str(value) for name, value in dict(request.get("env") or {}).items()}
        is_tty = bool(request.get("tty"))
        theirs, ours = _terminal(request) if is_tty else _pipes()
        try:
            pid = launch_command(spec, self._owner.jail, self._owner.child, argv, env, theirs, is_tty)
            self._running[pid] = connection
            connection.session = pid
            if not connection.send_with({"id": request.get("id"), "ok": {"pid": pid}}, ours):
                connection.close()
            return None
        finally:
            for fd in {*theirs, *ours}:
                os.close(fd)

    def end(self) -> None:
        """The task is over: nothing keeps its supervisor any more."""
        del self._owner

    def ended(self, pid: int, status: int) -> None:
        """A process was reaped; if it was a command, its caller is told."""
        connection = self._running.pop(pid, None)
        if connection is None:
            return
        code = os.waitstatus_to_exitcode(status)
        ended = {"exit_code": code if code >= 0 else 128 - code, "signal": max(0, -code)}
        self._owner.tell(connection, {"event": "exec_ended"} | ended)

    def close(self, connection: Connection) -> None:
        """The caller is gone: so is the command."""
        if self._running.get(connection.session) is connection:
            processes.send_group(connection.session, SIGKILL)


def _pipes() -> tuple[tuple[int, int, int], list[int]]:
    stdin, to_stdin = os.pipe()
    from_stdout, stdout = os.pipe()
    from_stderr, stderr = os.pipe()
    return (stdin, stdout, stderr), [to_stdin, from_stdout, from_stderr]


def _terminal(request: dict[str, Any]) -> tuple[tuple[int, int, int], list[int]]:
    import termios

    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (int(request.get("height") or 24), int(request.get("width") or 80)))
    return (slave, slave, slave), [master]
