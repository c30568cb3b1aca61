"""A task with its supervisor, as an agent sees it: over a connection while there is one, by its state file if not."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio

from fedsched.drivers.driver import ExecCommand, ExitResult, TaskUnknown
from fedsched.drivers.supervisor import leftovers, processes, state_file
from fedsched.drivers.supervisor.control import Control, Refused, SupervisorGone, dial
from fedsched.drivers.supervisor.exec_session import SupervisedSession
from fedsched.drivers.supervisor.frames import SPOKEN, STAYS
from fedsched.drivers.supervisor.removals import Removals

LOST: Final = "its supervisor was killed, and what was left of the task with it: how it ended is not known"
STOP_GRACE_S: Final = 20.0
"""Beyond a stop's own time: processes may take 15 s to vanish after SIGKILL, and 2 s of output are drained."""


class SupervisedTask:
    """One task. Made by `Supervisors`, which runs `follow` for as long as the agent lives."""

    def __init__(
        self,
        directory: Path,
        key: str,
        table: Mapping[str, Any],
        control: Control | None,
        tell: Callable[[str], None],
        removals: Removals,
        give_back: Callable[[Control], None] | None = None,
    ) -> None:
        """`give_back` takes the connection to a supervisor that is free for another task."""
        self.directory = directory
        self.key = key
        self.table = dict(table)
        self._control = control
        self._tell = tell
        self._removals = removals
        self._give_back = give_back
        self._ended = trio.Event()
        self.result: ExitResult | None = None
        if table.get("result"):
            self._finish(table["result"])

    @property
    def task_id(self) -> str:
        return str(self.table.get("task_id", ""))

    @property
    def pid(self) -> int:
        """The task's own process."""
        return int(self.table["child"][0])

    @property
    def supervisor_pid(self) -> int:
        return int(self.table["supervisor"][0])

    @property
    def started_at_ns(self) -> int:
        return int(self.table.get("started_at_ns", 0))

    @property
    def cgroups(self) -> list[str]:
        return list(self.table.get("cgroups") or ())

    async def follow(self) -> None:
        """Hear what the supervisor says, until the task's end is known. A supervisor that cut us off is dialled again;
        one that is dead has what it left cleared away."""
        while True:
            if self._control is not None:
                control = self._control
                if await control.receive(self._heard) and self._give_back is not None:
                    self._give_back(control)
                self._control = None
            if self._ended.is_set():
                return
            found = await trio.to_thread.run_sync(state_file.read, str(self.directory), self.key)
            if found and found.get("result"):
                self._finish(found["result"])
            elif processes.is_running(*self.table["supervisor"]):
                await self._dial_again()
            else:
                await trio.to_thread.run_sync(leftovers.clear, self.table)
                self._finish({"exit_code": 0, "signal": int(signal.SIGKILL), "error": LOST})

    async def wait(self) -> ExitResult:
        """How it ended, once it has."""
        await self._ended.wait()
        assert self.result is not None
        return self.result

    async def stop(self, signal_number: int, timeout_s: float) -> None:
        """Signal it, and kill all of it after the time. Returns when it is dead; the supervisor sees to it even if
        this agent dies meanwhile. Raises `SupervisorGone` if that takes far too long."""
        with trio.move_on_after(timeout_s + STOP_GRACE_S):
            while not self._ended.is_set():
                try:
                    await self._ask("stop", signal=signal_number, timeout=timeout_s)
                    await self._ended.wait()
                except SupervisorGone:
                    await trio.sleep(0.05)  # `follow` finds out what became of it
            return
        raise SupervisorGone(f"task {self.task_id} is still there {STOP_GRACE_S:.0f} s after it was killed")

    async def signal(self, number: int) -> None:
        """Signal the task's own process."""
        await self._ask("signal", signal=number)

    async def set_log_limits(self, max_files: int, max_file_bytes: int) -> None:
        """Other limits for its log files from now on."""
        await self._ask("update", max_files=max_files, max_file_bytes=max_file_bytes)

    async def ping(self) -> dict[str, Any]:
        """What the supervisor says about itself, its version included."""
        return await self._ask("ping")

    async def acknowledge(self) -> None:
        """Its end is stored elsewhere now: what is left of it goes. Raises `Refused` if it has not ended."""
        if not self._ended.is_set():
            raise Refused(f"task {self.task_id} has not ended")
        control = self._control
        if control is not None and not control.is_closed and self.table.get("version") == STAYS:
            with suppress(SupervisorGone):  # gone before it could say so: what it left is removed below
                await control.ask("acknowledge")
                control.close()
                return
            control.close()
        await self._removals.remove(self.key, self.table)

    @asynccontextmanager
    async def open_session(
        self, command: ExecCommand, height: int = 24, width: int = 80
    ) -> AsyncIterator[SupervisedSession]:
        """Run a command inside the task; leaving the block ends it."""
        if self._ended.is_set():
            raise TaskUnknown(f"task {self.task_id} has ended: no command can run inside it")
        await self._ask("door")
        control = dial(self.directory, self.key + state_file.SOCKET)
        try:
            session = await SupervisedSession.open(control, command, height, width)
            async with session:
                yield session
        finally:
            control.close()

    async def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        control = self._control
        if self._ended.is_set():
            raise Refused(f"task {self.task_id} has ended")
        if control is None:
            raise SupervisorGone(f"the supervisor of {self.task_id} is not connected")
        return await control.ask(operation, **arguments)

    async def _dial_again(self) -> None:
        try:
            self._control = dial(self.directory, self.key + state_file.SOCKET)
            self.table |= await attach(self._control)
            if self.table.get("result"):
                self._finish(self.table["result"])
        except SupervisorGone:
            self._control = None
            await trio.sleep(0.1)

    def _heard(self, message: Mapping[str, Any]) -> bool:
        """Something happened; true if the supervisor is free for another task, and we have somebody who gives it one.
        Otherwise it closes the connection, or waits to be acknowledged."""
        match message.get("event"):
            case "ended":
                self._finish(message["result"])
                return bool(message.get("is_free")) and self._give_back is not None
            case "dropped":
                self._tell(f"{message['bytes']} bytes of its output were dropped: the disk did not take them")
        return False

    def _finish(self, result: Mapping[str, Any]) -> None:
        if self.result is None:
            self.result = ExitResult(
                exit_code=int(result.get("exit_code", 0)),
                signal=int(result.get("signal", 0)),
                oom_killed=bool(result.get("oom_killed", False)),
                error=str(result.get("error", "")),
                finished_at_ns=int(result.get("finished_at_ns", 0)),
            )
        self._ended.set()


async def attach(control: Control) -> dict[str, Any]:
    """Introduce ourselves on a new connection; what the supervisor says about its task. Raises `SupervisorGone`."""
    await control.send({"id": 0, "op": "attach"})
    message = await control.next_message()
    table: dict[str, Any] = message.get("ok") or {}
    if table.get("version") not in SPOKEN:
        raise SupervisorGone(f"the supervisor speaks version {table.get('version')}, we {sorted(SPOKEN)}")
    if table.get("phase") != "ended":
        table["result"] = None  # it may know how the task's process ended, but not all of its output is written
    return table
