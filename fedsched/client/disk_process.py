"""A process beside the agent that does small pieces of disk work for it: an allocation's directories and mounts.

Each such piece is dozens of calls to the kernel. In a thread of the agent each of them lets go of the interpreter and
asks for it back, which keeps the event loop waiting more than the work itself would (measured: a third more tasks per
second with this process). Here a piece costs the agent its share of one message, and whatever is asked for while the
process is busy goes along with the next.

The process has nothing to lose. If it dies, what it had not answered is done in a thread, which is harmless since every
piece may be done twice, and another process is started a while later. It ends when the agent's end of the socket does;
the next agent's process waits for that (a lock on the directory), so that two of them never work at the same time.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import trio

from fedsched.client.disk_child import HEAD, MESSAGE_MAX, Answer, frame
from fedsched.telemetry.log import Logger

T = TypeVar("T")

BATCH_MAX: Final = 32
"""Pieces in one message: the first of them waits for the last."""
START_AGAIN_S: Final = 10.0
END_S: Final = 5.0
READ: Final = 64 << 10
PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[2])
STARTER: Final = "import sys; sys.path.insert(0, sys.argv[2]); from fedsched.client.disk_child import main; main()"


class DiskProcess:
    """Asks the process, one message at a time. While there is none, work is done in threads."""

    def __init__(self, directory: Path, log: Logger) -> None:
        """Its lock is kept in `directory`, which has to be there when it runs."""
        self._lock = directory / "disk.lock"
        self._log = log
        self._asked: deque[_Piece] = deque()
        self._wake = trio.Event()
        self.is_up = False

    async def do(self, function: Callable[..., T], *arguments: object) -> T:
        """What a function of a module returns or raises. Like work in a thread it is not called off once begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.is_up:
            return await trio.to_thread.run_sync(function, *arguments)
        piece = _Piece(function, arguments)
        self._asked.append(piece)
        self._wake.set()
        with trio.CancelScope(shield=True):  # as long as the work takes: whoever goes on finds it done
            await piece.done.wait()
        is_good, value = piece.answer
        if is_good:
            return cast(T, value)
        raise value

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; what was asked for by then is done."""
        task_status.started()
        while True:
            process: subprocess.Popen[bytes] | None = None
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    process = await trio.to_thread.run_sync(self._start, theirs)
                connection = trio.socket.from_stdlib_socket(ours)
                self.is_up = True
                await self._serve(connection)
                self._log.warn("disk_process_gone", hint="its work is done in threads for a while")
            except OSError as error:
                self._log.warn("disk_process_not_started", why=str(error), hint="its work is done in threads")
            finally:
                self.is_up = False
                ours.close()
                with trio.CancelScope(shield=True):
                    await self._finish(list(self._asked))
                    self._asked.clear()
                    if process is not None:
                        await trio.to_thread.run_sync(_reap, process)
            await trio.sleep(START_AGAIN_S)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", "-c", STARTER, str(self._lock), PACKAGE_ROOT]
        return subprocess.Popen(words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        """Ask until there is nobody to be asked; a batch that was sent is waited for."""
        while True:
            while not self._asked:
                self._wake = trio.Event()
                await self._wake.wait()
            batch = [self._asked.popleft() for _ in range(min(len(self._asked), BATCH_MAX))]
            with trio.CancelScope(shield=True):
                answers = await _exchange(connection, batch)
            if answers is None:
                self._asked.extendleft(reversed(batch))
                return
            for piece, answer in zip(batch, answers, strict=True):
                piece.answer = answer
                piece.done.set()

    async def _finish(self, pieces: list[_Piece]) -> None:
        """Do these in a thread."""
        for piece in pieces:
            try:
                piece.answer = True, await trio.to_thread.run_sync(piece.function, *piece.arguments)
            except Exception as error:
                piece.answer = False, error
            piece.done.set()


class _Piece:
    """One call, and what came of it once it is done."""

    __slots__ = ("answer", "arguments", "done", "function")

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.done = trio.Event()
        self.answer: Answer


async def _exchange(connection: trio.socket.SocketType, batch: list[_Piece]) -> list[Answer] | None:
    """Send, and wait for the answers; None if the other side is gone."""
    data = memoryview(frame([(piece.function, piece.arguments) for piece in batch]))
    found = bytearray()
    try:
        while data:
            data = data[await connection.send(data) :]
        while len(found) < HEAD or len(found) < HEAD + int.from_bytes(found[:HEAD], "big"):
            more = await connection.recv(READ)
            if not more or len(found) > MESSAGE_MAX:
                return None
            found += more
    except OSError:
        return None
    answers: list[Answer] = pickle.loads(memoryview(found)[HEAD:])
    return answers


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Its socket is closed: it ends after what it is doing."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
