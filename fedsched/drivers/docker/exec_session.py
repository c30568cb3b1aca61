"""Commands inside a container: output by one connection both ways, and an end when the caller leaves."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineFault
from fedsched.drivers.docker.streams import STDERR, Demultiplexer
from fedsched.drivers.docker.transport import Answer
from fedsched.drivers.driver import DriverError, ExecCommand, ExecOutput, ExecResult

ASK_S: Final = 0.02
ASK_S_MAX: Final = 0.5
END_S: Final = 5.0


class DockerExecSession:
    """A command that runs in a container."""

    def __init__(self, engine: Engine, exec_id: str, answer: Answer, *, is_tty: bool) -> None:
        self._engine = engine
        self._exec_id = exec_id
        self._answer = answer
        self._frames = None if is_tty else Demultiplexer()
        self._ready: deque[ExecOutput] = deque()
        self._sending = trio.Lock()

    async def send_input(self, data: bytes) -> None:
        async with self._sending:
            await self._answer.send(data)

    async def close_input(self) -> None:
        async with self._sending:
            await self._answer.send_eof()

    async def resize(self, height: int, width: int) -> None:
        if not (0 < height < 65536 and 0 < width < 65536):
            raise DriverError(f"a terminal cannot have {height} lines of {width} characters")
        await self._engine.resize_exec(self._exec_id, height, width)

    async def receive(self) -> ExecOutput:
        while not self._ready:
            try:
                data = await self._answer.receive_some()
            except EngineFault as error:
                raise trio.EndOfChannel from error
            if not data:
                raise trio.EndOfChannel
            if self._frames is None:
                return ExecOutput(data)
            self._ready.extend(
                ExecOutput(piece.data, is_stderr=piece.stream == STDERR)
                for piece in self._frames.feed(data)
                if piece.data
            )
        return self._ready.popleft()

    async def wait(self) -> ExecResult:
        delay_s = ASK_S
        while True:
            found = await self._engine.inspect_exec(self._exec_id)
            if not found.running and found.exit_code is not None:
                return ExecResult(exit_code=found.exit_code)
            await trio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, ASK_S_MAX)

    async def end(self, container_id: str) -> None:
        """Kill it if it still runs. Engines have no call for that, but say its process; only local ones can be."""
        found = await self._engine.inspect_exec(self._exec_id)
        if found.running and found.pid > 0:
            await trio.to_thread.run_sync(kill_session, found.pid, container_id)


@asynccontextmanager
async def open_exec(
    engine: Engine, container_id: str, command: ExecCommand, *, takes_input: bool = True
) -> AsyncIterator[DockerExecSession]:
    if not command.argv:
        raise DriverError("there is no command to run")
    body = {
        "AttachStdin": takes_input,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": command.is_tty,
        "Cmd": list(command.argv),
        "Env": [f"{name}={value}" for name, value in sorted(command.env.items())],
    }
    exec_id = await engine.create_exec(container_id, body)
    async with engine.start_exec(exec_id, is_tty=command.is_tty) as answer:
        session = DockerExecSession(engine, exec_id, answer, is_tty=command.is_tty)
        try:
            yield session
        finally:
            with trio.move_on_after(END_S, shield=True):
                # An engine or container that is gone has taken the command with it.
                with suppress(DriverError):
                    await session.end(container_id)


def kill_session(pid: int, container_id: str, proc: Path = Path("/proc")) -> list[int]:
    """Kill a process and all of its session, as far as they belong to the container. Gives those that were killed."""
    leader = _session_of(pid, proc)
    if leader is None:
        return []
    wanted = [pid]
    if leader == pid:
        found = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
        wanted += [one for one in found if one != pid and _session_of(one, proc) == pid]
    return [one for one in wanted if _kill(one, container_id, proc)]


def _session_of(pid: int, proc: Path) -> int | None:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def _kill(pid: int, container_id: str, proc: Path) -> bool:
    """By descriptor, and looked at after that was opened: a number alone may belong to somebody else by now."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if container_id not in (proc / str(pid) / "cgroup").read_text(errors="replace"):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
