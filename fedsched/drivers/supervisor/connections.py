"""A supervisor's side of its control connections: never waits, never keeps much for a peer that does not read.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os
import sys

from fedsched.drivers.supervisor.bare import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket
from fedsched.drivers.supervisor.frames import MAX_PENDING, BadFrame, Frames, encode, peer_uid

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

READ: Final = 64 << 10
MAX_CONTROL: Final = 1 << 20
"""The largest request to a running supervisor: a command with its environment."""
MAX_CONNECTIONS: Final = 64
"""More are refused: an agent uses one, and one for each command inside the task."""


class Connection:
    """One peer. `is_closed` once it is gone or was cut off."""

    __slots__ = ("_frames", "_out", "_socket", "is_attached", "is_closed", "session")

    def __init__(self, connection: socket, frames: Frames | None = None) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frames = frames or Frames(MAX_CONTROL)
        self._out = bytearray()
        self.is_closed = False
        self.is_attached = False
        """Is told about everything that happens."""
        self.session = 0
        """The pid of the command that was started over it."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def receive(self) -> list[dict[str, Any]]:
        """Requests that have come; a peer that is gone or talks nonsense is closed."""
        try:
            data = self._socket.recv(READ)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        try:
            return self._frames.feed(data)
        except BadFrame:
            self.close()
            return []

    def send(self, message: dict[str, Any]) -> None:
        """Send, now or when the peer reads again; one that lets too much pile up is cut off."""
        if self.is_closed:
            return
        self._out += encode(message)
        self.flush()
        if len(self._out) > MAX_PENDING:
            self.close()

    def send_with(self, message: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Send a message with open files; false if that was not possible at once."""
        if self._out or self.is_closed:
            return False
        rights = [(SOL_SOCKET, SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors))]
        data = encode(message)
        try:
            sent = self._socket.sendmsg([data], rights)
        except OSError:
            return False
        self._out += data[sent:]
        return True

    def flush(self) -> None:
        """Send what is left from before, as far as the peer takes it."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._out.clear()
            self._socket.close()


def listen(directory: str, name: str) -> socket:
    """A control socket only its owner may open. Bound relative to its directory: such paths may be long."""
    listener = socket(AF_UNIX, SOCK_STREAM)
    mask = os.umask(0o177)
    os.chdir(directory)
    try:
        listener.bind(name)
    finally:
        os.umask(mask)
        os.chdir("/")
    listener.listen(16)
    listener.setblocking(False)
    return listener


def accept(listener: socket) -> socket | None:
    """The next peer, if it is one of ours."""
    try:
        fd, _ = listener._accept()  # type: ignore[attr-defined]
    except OSError:
        return None
    connection = socket(fileno=fd)
    if peer_uid(connection) in (0, os.geteuid()):
        return connection
    connection.close()
    return None
