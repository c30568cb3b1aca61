"""Commands that people run inside tasks: a driver's session at one end, the caller's frames at the other.

A session ends when the command does, when the caller is gone (its link, or its signs of life), when the task ends, or
with the agent. Who ran what is an audit event at its start and at its end. How many there are at once is bounded, and
an operator can forbid them altogether.
"""

from __future__ import annotations

from typing import Final, Protocol

import trio

from fedsched.drivers.driver import Driver, DriverError, ExecCommand, ExecOutput, ExecResult, ExecSession
from fedsched.model.errors import BadRequest, Busy, FedschedError, Unavailable
from fedsched.rpc.methods.alloc_access import AllocExecReply, AllocExecRequest, ExecFrame
from fedsched.telemetry.log import Logger
from fedsched.wire.groups import open_plain_nursery

SESSIONS_MAX: Final = 50
WORDS_MAX: Final = 1024
COMMAND_BYTES_MAX: Final = 128 * 1024
SILENCE_S: Final = 60.0
"""A caller gives a sign of life every 10 s; one that has not for so long is gone."""
TASK_GONE_S: Final = 2.0
"""How long a session may outlive its task: as long as it takes to pass on the last output."""
PIECE_BYTES: Final = 64 * 1024
SIZE_MAX: Final = 10_000
"""Lines or columns of a terminal; what is beyond is no terminal."""


class ExecRefused(FedschedError):
    """This node does not run commands for callers from outside."""

    code = "exec_refused"
    http_status = 403


class Frames(Protocol):
    """The caller's end: frames either way."""

    async def send(self, item: object) -> bool: ...

    async def receive(self) -> ExecFrame: ...


class ExecSessions:
    """All sessions of one client."""

    def __init__(self, log: Logger, *, is_disabled: bool = False) -> None:
        self._log = log
        self._is_disabled = is_disabled
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    async def run(
        self, driver: Driver, task_id: str, request: AllocExecRequest, env: dict[str, str], frames: Frames
    ) -> AllocExecReply:
        """Run one command to its end."""
        self._check(driver, task_id, request)
        self._count += 1
        self._number += 1
        log = self._log.bind(session=self._number, alloc_id=request.alloc_id, task=request.task, user=request.user)
        log.info("exec_started", command=" ".join(request.command)[:1024], tty=request.tty)
        outcome = "cut off"
        try:
            command = ExecCommand(argv=request.command, is_tty=request.tty, env=env)
            reply = await _Session(driver, task_id, command, frames).run()
            outcome = f"exit code {reply.exit_code}"
            return reply
        except FedschedError as error:
            outcome = error.message
            raise
        finally:
            self._count -= 1
            log.info("exec_ended", outcome=outcome)

    def _check(self, driver: Driver, task_id: str, request: AllocExecRequest) -> None:
        if self._is_disabled:
            raise ExecRefused(
                "this node runs no commands for callers from outside",
                hint="its operator has set client.disable_remote_exec",
            )
        if not driver.capabilities.exec:
            raise BadRequest(f"driver {driver.name} runs no commands inside its tasks")
        if not request.command or not request.command[0]:
            raise BadRequest("command is not present", hint="say what to run")
        size = sum(len(word.encode("utf-8", "surrogatepass")) for word in request.command)
        if len(request.command) > WORDS_MAX or size > COMMAND_BYTES_MAX or any("\0" in one for one in request.command):
            raise BadRequest(
                f"a command of {len(request.command)} words and {size} bytes is too long, or holds a NUL",
                hint=f"at most {WORDS_MAX} words and {COMMAND_BYTES_MAX} bytes",
            )
        if not task_id:
            raise BadRequest(f"task {request.task!r} is not running", hint="`fedsched alloc status` shows what is")
        if self._count >= SESSIONS_MAX:
            raise Busy(f"{self._count} sessions are open on this node, that is the limit", hint="try again later")


class _Session:
    """One of them while it runs."""

    def __init__(self, driver: Driver, task_id: str, command: ExecCommand, frames: Frames) -> None:
        self._driver = driver
        self._task_id = task_id
        self._command = command
        self._frames = frames
        self._why_cut = ""

    async def run(self) -> AllocExecReply:
        result: ExecResult | None = None
        async with open_plain_nursery() as watch:
            watch.start_soon(self._end_with_task, watch.cancel_scope)
            opened = self._driver.exec_session(self._task_id, self._command)
            async with opened as session, open_plain_nursery() as nursery:
                nursery.start_soon(self._input, session, watch.cancel_scope)
                await self._output(session)
                result = await session.wait()
                nursery.cancel_scope.cancel("the command ended")
            watch.cancel_scope.cancel("the command ended")
        if result is None:
            raise Unavailable(f"the session was ended: {self._why_cut}", hint="nobody knows how the command ended")
        code = result.exit_code or (128 + result.signal if result.signal else 0)
        return AllocExecReply(exit_code=code, signal=result.signal)

    async def _output(self, session: ExecSession) -> None:
        """Pass on what the command writes, as fast as the caller takes it."""
        while True:
            try:
                output = await session.receive()
            except trio.EndOfChannel:
                break
            for frame in _frames_of(output):
                await self._frames.send(frame)
        if not self._command.is_tty:
            await self._frames.send(ExecFrame(stderr_close=True))
        await self._frames.send(ExecFrame(stdout_close=True))

    async def _input(self, session: ExecSession, scope: trio.CancelScope) -> None:
        """Pass on what the caller says, until it says no more or falls silent."""
        is_open = True
        while True:
            frame = None
            with trio.move_on_after(SILENCE_S):
                try:
                    frame = await self._frames.receive()
                except trio.EndOfChannel:
                    frame = ExecFrame(stdin_close=True)
            if frame is None:
                self._why_cut = f"its caller was silent for {SILENCE_S:g} s"
                scope.cancel("silent caller")
                return
            if frame.height > 0 and frame.width > 0 and self._command.is_tty:
                await session.resize(min(frame.height, SIZE_MAX), min(frame.width, SIZE_MAX))
            if is_open:
                is_open = await _give(session, frame)
            if frame.stdin_close:
                return

    async def _end_with_task(self, scope: trio.CancelScope) -> None:
        try:
            await self._driver.wait_task(self._task_id)
        except DriverError:
            return  # nobody can say when it ends: the session has its other ends
        await trio.sleep(TASK_GONE_S)
        self._why_cut = "its task ended"
        scope.cancel("the task ended")


async def _give(session: ExecSession, frame: ExecFrame) -> bool:
    """Hand input to the command; whether it may take more. One that has closed its input is none of our trouble."""
    try:
        if frame.stdin:
            await session.send_input(frame.stdin)
        if frame.stdin_close:
            await session.close_input()
    except (DriverError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        return False
    return True


def _frames_of(output: ExecOutput) -> list[ExecFrame]:
    pieces = [output.data[at : at + PIECE_BYTES] for at in range(0, len(output.data), PIECE_BYTES)]
    return [ExecFrame(stderr=piece) if output.is_stderr else ExecFrame(stdout=piece) for piece in pieces]
