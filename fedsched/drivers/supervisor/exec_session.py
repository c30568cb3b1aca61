"""A command inside a supervised task, as an agent sees it: it holds the command's own pipes or terminal."""

from __future__ import annotations

import errno
import os
import termios
from types import TracebackType
from typing import Any, Final, Self

import trio

from fedsched.drivers.driver import ExecCommand, ExecOutput, ExecResult
from fedsched.drivers.supervisor.control import Control, Refused, SupervisorGone

CHUNK: Final = 32 << 10
DRAIN_S: Final = 2.0
"""How long output is still read after the command's end, if somebody else holds its pipes open."""


class SupervisedSession:
    """See `drivers.driver.ExecSession`. Output waits in the kernel's pipes until somebody receives it."""

    def __init__(self, control: Control, files: list[int], *, is_tty: bool) -> None:
        self._control = control
        self._is_tty = is_tty
        streams = [trio.lowlevel.FdStream(fd) for fd in files]
        self._input: trio.lowlevel.FdStream | None = streams[0]
        self._outputs = {streams[0]: False} if is_tty else {streams[1]: False, streams[2]: True}
        self._streams = streams
        self._sender, self._receiver = trio.open_memory_channel[ExecOutput](0)
        self._ended = trio.Event()
        self._result = ExecResult(exit_code=-1)
        self._is_lost = True

    @classmethod
    async def open(cls, control: Control, command: ExecCommand, height: int, width: int) -> Self:
        """Ask for the command. Raises `Refused` if it cannot be started."""
        request: dict[str, Any] = {"id": 0, "op": "exec", "argv": list(command.argv), "env": dict(command.env)}
        await control.send(request | {"tty": command.is_tty, "height": height, "width": width})
        answer, files = await control.receive_with_files()
        if "error" in answer or len(files) != (1 if command.is_tty else 3):
            for fd in files:
                os.close(fd)
            raise Refused(f"{' '.join(command.argv):.200} did not start: {answer.get('error', 'no files came')}")
        return cls(control, files, is_tty=command.is_tty)

    async def __aenter__(self) -> Self:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._hear_end)
        self._nursery.start_soon(self._read_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._nursery.cancel_scope.cancel()
        try:
            return await self._manager.__aexit__(kind, error, trace)
        finally:
            for stream in self._streams:
                os_close = stream.aclose
                with trio.CancelScope(shield=True) as scope:  # closes at once; the checkpoint inside must not stop us
                    scope.cancel()
                    await os_close()

    async def send_input(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read."""
        if self._input is None:
            return
        try:
            await self._input.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it reads no more: its end, or its own choice

    async def close_input(self) -> None:
        """No more input. A terminal is told by its end-of-file character."""
        stream, self._input = self._input, None
        if stream is None:
            return
        if self._is_tty:
            try:
                await stream.send_all(b"\x04")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
        else:
            await stream.aclose()

    async def resize(self, height: int, width: int) -> None:
        """Another terminal size; nothing happens without a terminal."""
        if self._is_tty and not self._ended.is_set():
            termios.tcsetwinsize(self._streams[0].fileno(), (height, width))
        await trio.lowlevel.checkpoint()

    async def receive(self) -> ExecOutput:
        """The next piece of output; `trio.EndOfChannel` after the last."""
        return await self._receiver.receive()

    async def wait(self) -> ExecResult:
        """How it ended. Raises `SupervisorGone` if nobody knows."""
        await self._ended.wait()
        if self._is_lost:
            raise SupervisorGone("the task's supervisor is gone: how the command ended is not known")
        return self._result

    async def _hear_end(self) -> None:
        try:
            while not self._ended.is_set():
                message = await self._control.next_message()
                if message.get("event") == "exec_ended":
                    self._result = ExecResult(int(message["exit_code"]), int(message["signal"]))
                    self._is_lost = False
                    self._ended.set()
        except SupervisorGone:
            self._ended.set()

    async def _read_all(self) -> None:
        async with self._sender, trio.open_nursery() as nursery:
            for stream, is_stderr in self._outputs.items():
                nursery.start_soon(self._read, stream, is_stderr)
            nursery.start_soon(self._stop_reading, nursery.cancel_scope)

    async def _stop_reading(self, scope: trio.CancelScope) -> None:
        await self._ended.wait()
        scope.deadline = trio.current_time() + DRAIN_S

    async def _read(self, stream: trio.lowlevel.FdStream, is_stderr: bool) -> None:
        while True:
            try:
                data = await stream.receive_some(CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                if self._is_tty and not _is_hangup(error):
                    raise
                return
            if not data:
                return
            await self._sender.send(ExecOutput(bytes(data), is_stderr))


def _is_hangup(error: BaseException) -> bool:
    """A terminal whose other side was closed says EIO, and not end of file."""
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno == errno.EIO
