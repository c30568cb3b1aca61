"""An agent's end of a connection to a supervisor: requests, their answers, and what the supervisor tells by itself."""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from fedsched.drivers.driver import DriverError
from fedsched.drivers.supervisor.frames import BadFrame, Frames, encode, peer_uid

READ: Final = 64 << 10


class SupervisorGone(DriverError):
    """The supervisor closed the connection, or cannot be reached."""

    code = "supervisor_gone"


class Refused(DriverError):
    """The supervisor answered with an error."""

    code = "supervisor_refused"


class Control:
    """One connection. `receive` must be run by somebody for requests to be answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._plain = connection
        self._socket = trio.socket.from_stdlib_socket(connection)
        self._frames = Frames()
        self._come: deque[dict[str, Any]] = deque()
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked: dict[int, trio.Event] = {}
        self._sending = trio.Lock()
        self.is_closed = False

    async def next_message(self) -> dict[str, Any]:
        """The next message. Raises `SupervisorGone`."""
        while not self._come:
            try:
                data = await self._socket.recv(READ)
                if not data:
                    raise SupervisorGone("the supervisor closed its connection")
                self._come.extend(self._frames.feed(data))
            except (OSError, BadFrame, trio.ClosedResourceError) as error:
                raise SupervisorGone(f"the supervisor's connection failed: {error}") from error
        return self._come.popleft()

    async def receive(self, tell: Callable[[dict[str, Any]], bool]) -> bool:
        """Hand out answers, and tell all else; until the connection ends, which is false, or the listener has heard
        enough and nobody waits for an answer: then it is true, and the connection is as it was when it was new."""
        is_enough = False
        try:
            while True:
                message = await self.next_message()
                number = message.get("id")
                if number is None:
                    if tell(message):
                        is_enough = not self._asked and not self._come
                        return is_enough
                elif number in self._asked:
                    self._answers[number] = message
                    self._asked.pop(number).set()
        except SupervisorGone:
            return False
        finally:
            if not is_enough:
                self.close()

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Ask and wait for the answer. Raises `Refused`, `SupervisorGone`."""
        number = next(self._numbers)
        event = self._asked[number] = trio.Event()
        try:
            await self.send({"id": number, "op": operation} | arguments)
            await event.wait()
        finally:
            self._asked.pop(number, None)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise SupervisorGone("the supervisor is gone")
        if "error" in answer:
            raise Refused(str(answer["error"]))
        found: dict[str, Any] = answer.get("ok") or {}
        return found

    async def send(self, message: dict[str, Any]) -> None:
        """Send it whole. Raises `SupervisorGone`."""
        await self.send_rest(memoryview(encode(message)))

    async def send_rest(self, data: memoryview) -> None:
        """Send what `send_nowait` could not."""
        async with self._sending:
            if self.is_closed:
                raise SupervisorGone("the supervisor is gone")
            try:
                while data:
                    data = data[await self._socket.send(data) :]
            except (OSError, trio.ClosedResourceError) as error:
                raise SupervisorGone(f"the supervisor does not listen: {error}") from error

    def send_nowait(self, message: dict[str, Any]) -> memoryview:
        """As much as fits at once; returns the rest."""
        return self.send_bytes_nowait(encode(message))

    def send_bytes_nowait(self, message: bytes) -> memoryview:
        """The same for one that is encoded already. Raises `SupervisorGone`."""
        data = memoryview(message)
        try:
            return data[self._plain.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise SupervisorGone(f"the supervisor does not listen: {error}") from error

    async def receive_with_files(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and the open files that came with it."""
        size = socket.CMSG_LEN(3 * 4)
        try:
            data, controls, _, _ = await self._socket.recvmsg(READ, size, socket.MSG_CMSG_CLOEXEC)
        except (OSError, trio.ClosedResourceError) as error:
            raise SupervisorGone(f"the supervisor's connection failed: {error}") from error
        files = [fd for level, kind, found in controls for fd in _descriptors(level, kind, found)]
        try:
            self._come.extend(self._frames.feed(data))
            return await self.next_message(), files
        except BaseException:
            for fd in files:
                os.close(fd)
            raise

    async def send_raw(self, data: bytes) -> None:
        """Bytes that are no message, to the warm process."""
        await self.send_rest(memoryview(data))

    def detach(self) -> socket.socket:
        """The plain socket, which is the caller's now."""
        self.is_closed = True
        return self._plain

    def close(self) -> None:
        """End the connection; everybody who waits for an answer is told."""
        if not self.is_closed:
            self.is_closed = True
            self._socket.close()
            asked, self._asked = self._asked, {}
            for event in asked.values():
                event.set()


def dial(directory: Path, name: str) -> Control:
    """Connect to a supervisor's socket, if it belongs to the same user. Raises `SupervisorGone`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By descriptor: such an address has 107 bytes, and paths may be longer. Local: it never waits for a peer,
            # unless its queue is full.
            connection.connect(f"/proc/self/fd/{folder}/{name}")
        finally:
            os.close(folder)
        if peer_uid(connection) not in (0, os.geteuid()):
            raise SupervisorGone(f"{name} belongs to somebody else")
        return Control(connection)
    except OSError as error:
        connection.close()
        raise SupervisorGone(f"{name} does not answer: {error.strerror}") from error
    except BaseException:
        connection.close()
        raise


def _descriptors(level: int, kind: int, data: bytes) -> list[int]:
    if level != socket.SOL_SOCKET or kind != socket.SCM_RIGHTS:
        return []
    whole = len(data) - len(data) % 4
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, whole, 4)]
