"""A command that is only pretended, inside a task that is."""

from __future__ import annotations

import trio

from fedsched.drivers.driver import DriverError, ExecOutput, ExecResult
from fedsched.drivers.mock_life import Script

_QUEUED_MAX = 64
"""Pieces on their way in either direction; a sender waits beyond that."""


class MockSession:
    """Plays a script; with `echo_input` it writes back what it reads until there is no more."""

    def __init__(self, script: Script, *, is_tty: bool) -> None:
        self._script = script
        self._is_tty = is_tty
        self._input_in, self._input_out = trio.open_memory_channel[bytes](_QUEUED_MAX)
        self._output_in, self._output_out = trio.open_memory_channel[ExecOutput](_QUEUED_MAX)
        self._over = trio.Event()
        self.size = (0, 0)

    async def run(self) -> None:
        script = self._script
        try:
            await self._say(script.stdout, script.stdout_repeat, script.stdout_every_s, is_stderr=False)
            await self._say(script.stderr, script.stderr_repeat, script.stderr_every_s, is_stderr=not self._is_tty)
            if script.echoes:
                await self._echo()
            await trio.sleep(script.run_for_s)
        except trio.BrokenResourceError:
            return
        finally:
            self._output_in.close()
            self._over.set()

    async def send_input(self, data: bytes) -> None:
        try:
            await self._input_in.send(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise DriverError("the command takes no more input") from None

    async def close_input(self) -> None:
        self._input_in.close()

    async def resize(self, height: int, width: int) -> None:
        self.size = (height, width)

    async def receive(self) -> ExecOutput:
        return await self._output_out.receive()

    async def wait(self) -> ExecResult:
        await self._over.wait()
        return script_result(self._script)

    async def _say(self, text: str, repeat: int, every_s: float, *, is_stderr: bool) -> None:
        if not text:
            return
        for number in range(1 + repeat):
            if number:
                await trio.sleep(every_s)
            await self._output_in.send(ExecOutput(text.encode(), is_stderr))

    async def _echo(self) -> None:
        async for data in self._input_out:
            said, ends, _ = data.partition(b"\x04") if self._is_tty else (data, b"", b"")
            if said:
                await self._output_in.send(ExecOutput(said))
            if ends:
                return


def script_result(script: Script) -> ExecResult:
    code = script.exit_code or (128 + script.exit_signal if script.exit_signal else 0)
    return ExecResult(code, script.exit_signal)
