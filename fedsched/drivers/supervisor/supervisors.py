"""All supervised tasks of one directory: launched through its warm process, found again by their state files."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

import fedsched
from fedsched.drivers.driver import DriverError, TaskUnknown
from fedsched.drivers.supervisor import leftovers, processes, state_file, warm
from fedsched.drivers.supervisor.control import Control, SupervisorGone, dial
from fedsched.drivers.supervisor.frames import STAYS, encode
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.removals import Removals
from fedsched.drivers.supervisor.supervised_task import SupervisedTask, attach

LAUNCHES_AT_ONCE: Final = 16
START_S: Final = 30.0
"""A process that is told what to launch says within this what became of it."""
ATTACH_S: Final = 10.0
TRIES: Final = 3
NOTE_S: Final = 3600.0
RETIRE_S: Final = 5.0
FREE_MAX: Final = 2 * LAUNCHES_AT_ONCE
"""Supervisors whose task has ended and that wait for another; more are let go."""
FREE_S: Final = warm.FREE_S / 2
"""One that has waited longer may be about to leave."""
FREE_SPEC_MAX: Final = 64 << 10
"""Bytes of a launch that a supervisor which was used before is given: what it reads, it keeps room for."""
STARTER: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from fedsched.drivers.supervisor.warm import start; start()"
)

Tell = Callable[[str, str], None]
"""Task id and what is to be said about it."""


class LaunchError(DriverError):
    """The task's process could not be made."""

    code = "launch"


class Supervisors:
    """Launches and finds supervised tasks. `run` must be running: it hears what supervisors say."""

    def __init__(
        self, directory: Path, tell: Tell | None = None, *, isolates: bool = False, python: str = sys.executable
    ) -> None:
        self.directory = directory
        self._isolates = isolates
        self._tell = tell
        self._python = python
        self._nursery: trio.Nursery | None = None
        self._limit = trio.CapacityLimiter(LAUNCHES_AT_ONCE)
        self._warm: socket.socket | None = None
        self._warming = trio.Lock()
        self._removals = Removals(str(directory))
        self._followed_tasks: dict[str, SupervisedTask] = {}
        """Those whose end we wait for, by key."""
        self._free: deque[tuple[float, Control]] = deque()
        """Since when, and how to reach them; the one that was used last is last, and is used first."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Tasks and their supervisors run on."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(self.directory, 0o700)
        await trio.to_thread.run_sync(self._sweep_notes)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._drop_warm()
            self._drop_free()

    async def launch(self, spec: LaunchSpec) -> SupervisedTask:
        """Start a task; returns when it has been executed and its state is on disk. Raises `LaunchError`."""
        async with self._limit:
            spec.spare = self._removals.take_spare()
            try:
                return await self._launch(spec)
            except BaseException:
                self._drop_spare(spec)
                raise

    async def _launch(self, spec: LaunchSpec) -> SupervisedTask:
        tries = 0
        while tries < TRIES:
            control = await self._hand_to_free(spec)
            is_new = control is None
            if control is None:
                tries += 1
                control = await self._hand_over(spec)
            try:
                with trio.fail_after(START_S):
                    answer = await control.next_message()
            except SupervisorGone:
                control.close()
                await self._after_silence(spec, is_new=is_new)
                self._drop_spare(spec)
                continue
            except BaseException:
                control.close()
                raise
            if "error" in answer:
                control.close()
                raise LaunchError(str(answer["error"]))
            return self._followed(spec.key, answer["started"], control)
        raise LaunchError(f"the process that launches tasks was killed {TRIES} times while {spec.task_id} was started")

    def _drop_spare(self, spec: LaunchSpec) -> None:
        """Nobody may use it any more: who knows what became of it."""
        if spec.spare:
            with suppress(FileNotFoundError):
                os.unlink(self.directory / spec.spare)
            spec.spare = ""

    async def find(self, key: str, *, may_be_starting: bool = True) -> SupervisedTask:
        """A task that was launched before, perhaps by another agent, perhaps ended since.

        Raises `TaskUnknown` if it was never launched (and never will be: a launch under way is stopped), if the host
        was started anew, or if its supervisor is dead without a word about its end; what such a one left is removed.
        Only if it `may_be_starting` still is a note left that keeps it from being launched later.
        """
        directory = str(self.directory)
        if (followed := self._followed_tasks.get(key)) is not None:
            return followed  # its supervisor talks to us already, and opens its door to nobody else
        table = await trio.to_thread.run_sync(self._settled_state, key, may_be_starting)
        if table is None:
            raise TaskUnknown(f"{key} was never started")
        if table.get("boot_id") not in (None, processes.boot_id()):
            await trio.to_thread.run_sync(leftovers.remove, directory, key, table)
            raise TaskUnknown(f"{key} ran before this host was started anew")
        if table.get("result") and table.get("version") != STAYS:
            return SupervisedTask(self.directory, key, table, None, self._teller(key), self._removals)
        try:
            with trio.move_on_after(ATTACH_S):
                return await self._attach(key, table)
        except SupervisorGone:
            pass
        table = await trio.to_thread.run_sync(state_file.read, directory, key) or table
        if table.get("result"):
            return SupervisedTask(self.directory, key, table, None, self._teller(key), self._removals)
        if _is_alive(table):
            raise DriverError(f"the supervisor of {key} does not answer", is_recoverable=True)
        await trio.to_thread.run_sync(leftovers.clear, table)
        await trio.to_thread.run_sync(leftovers.remove, directory, key, table)
        raise TaskUnknown(f"the supervisor of {key} is dead; what was left of its task was killed")

    async def undo(self, key: str) -> None:
        """Whatever came of a launch that nobody wants any more: afterwards nothing of it is there."""
        try:
            task = await self.find(key)
        except TaskUnknown:
            return
        await task.stop(int(signal.SIGKILL), 0.0)
        await task.acknowledge()

    async def retire(self) -> None:
        """End the warm process and return when it is gone; it is started again when needed. Supervisors of tasks stay,
        those without one go."""
        self._drop_free()
        try:
            control = dial(self.directory, warm.NAME)
        except SupervisorGone:
            return
        try:
            with suppress(SupervisorGone), trio.move_on_after(RETIRE_S):
                await control.next_message()
                await control.send_raw(warm.RETIRE)
                await control.next_message()  # it has nothing to say: this is the end of its connection
        finally:
            control.close()
            self._drop_warm()

    def keys(self) -> list[str]:
        """All tasks that left something here."""
        return state_file.keys(str(self.directory))

    def task_ids(self) -> list[str]:
        """The ids of all tasks that were launched here and are not gone. Blocking."""
        tables = [state_file.read(str(self.directory), key) or {} for key in self.keys()]
        return sorted(str(table["task_id"]) for table in tables if table.get("task_id"))

    async def _attach(self, key: str, table: dict[str, Any]) -> SupervisedTask:
        """Connect to a supervisor, once it is certain that it is the one the state file speaks of."""
        if table and not _is_alive(table):
            raise SupervisorGone(f"the supervisor of {key} is dead")
        control = await self._dial(key, table)
        try:
            found = await attach(control)
        except BaseException:
            control.close()
            raise
        return self._followed(key, found, control)

    async def _dial(self, key: str, table: dict[str, Any]) -> Control:
        """A supervisor opens its socket when it sees that its agent is gone: that may be just now."""
        while True:
            try:
                return dial(self.directory, key + state_file.SOCKET)
            except SupervisorGone:
                found = await trio.to_thread.run_sync(state_file.read, str(self.directory), key)
                if not _is_alive(table) or (found and found.get("result")):
                    raise
                await trio.sleep(0.01)

    def _followed(self, key: str, table: dict[str, Any], control: Control) -> SupervisedTask:
        teller = self._teller(str(table.get("task_id", key)))
        task = SupervisedTask(self.directory, key, table, control, teller, self._removals, self._take_back)
        if self._nursery is None:
            control.close()
            raise DriverError("the driver is being stopped", is_recoverable=True)
        self._followed_tasks[key] = task
        self._nursery.start_soon(self._follow, task)
        return task

    async def _follow(self, task: SupervisedTask) -> None:
        try:
            await task.follow()
        finally:
            if self._followed_tasks.get(task.key) is task:
                del self._followed_tasks[task.key]

    def _teller(self, task_id: str) -> Callable[[str], None]:
        def tell(message: str) -> None:
            if self._tell is not None:
                self._tell(task_id, message)

        return tell

    def _settled_state(self, key: str, may_be_starting: bool) -> dict[str, Any] | None:
        """What the state file says once a launch that is under way is over. Blocking."""
        directory = str(self.directory)
        if may_be_starting:
            note = state_file.claim(directory, key, {"phase": "never", "claimed_at": time.time()})
            if note is not None:
                note.close()
                return None
        give_up = time.monotonic() + ATTACH_S
        while True:
            table = state_file.read(directory, key)
            if table is None or table.get("phase") == "never":
                return None
            is_settled = table.get("phase") in ("running", "ended") or (table and not _is_alive(table))
            if is_settled or time.monotonic() > give_up:
                return table
            time.sleep(0.01)

    def _sweep_notes(self) -> None:
        """Notes against a launch go when no warm process can still have it in its queue. Spare files go at once."""
        state_file.sweep_spares(str(self.directory))
        for key in self.keys():
            table = state_file.read(str(self.directory), key) or {}
            if table.get("phase") == "never" and time.time() - float(table.get("claimed_at") or 0) > NOTE_S:
                state_file.remove(str(self.directory), key)

    async def _after_silence(self, spec: LaunchSpec, *, is_new: bool) -> None:
        """A launch ended without a word: either it never began, and may be tried again, or its supervisor died."""
        directory = str(self.directory)
        if is_new:
            self._drop_warm()
        else:
            self._drop_free()  # if one of them left, so may have others
        table = await trio.to_thread.run_sync(state_file.read, directory, spec.key)
        if table is None:
            return
        await trio.to_thread.run_sync(leftovers.clear, table)
        await trio.to_thread.run_sync(leftovers.remove, directory, spec.key, table)
        raise LaunchError(f"the supervisor of {spec.task_id} was killed while it started", is_recoverable=True)

    def _take_back(self, control: Control) -> None:
        """A supervisor is free for another task: it is kept for a moment."""
        if self._nursery is None:
            control.close()
            return
        self._free.append((trio.current_time(), control))
        self._drop_free(FREE_MAX)

    def _drop_free(self, most: int = 0) -> None:
        """Let go of all but so many; whose connection ends, goes."""
        while len(self._free) > most:
            self._free.popleft()[1].close()

    async def _hand_to_free(self, spec: LaunchSpec) -> Control | None:
        """Give a task to a supervisor that is free; None if there is none, or the task is not for one of them."""
        while self._free and trio.current_time() - self._free[0][0] > FREE_S:
            self._free.popleft()[1].close()
        if not self._free or spec.isolation is not None:
            return None
        message = encode(spec.as_table())
        if len(message) > FREE_SPEC_MAX:
            return None
        _, control = self._free.pop()
        try:
            with suppress(SupervisorGone):  # told by the silence that follows
                rest = control.send_bytes_nowait(message)
                if rest:
                    await control.send_rest(rest)
        except BaseException:
            control.close()
            raise
        return control

    async def _hand_over(self, spec: LaunchSpec) -> Control:
        """Send one end of a new connection to the warm process and the spec into the other."""
        ours, theirs = socket.socketpair()
        try:
            control = Control(ours)
            rest = control.send_nowait(spec.as_table())
            for _ in range(TRIES):
                warm_socket = await self._warm_socket()
                try:
                    socket.send_fds(warm_socket, [warm.LAUNCH], [theirs.fileno()])
                    break
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(warm_socket)
                except OSError:
                    self._drop_warm()
            else:
                raise LaunchError("the process that launches tasks does not stay alive", is_recoverable=True)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        with suppress(SupervisorGone):  # told by the silence that follows
            await control.send_rest(rest)
        return control

    async def _warm_socket(self) -> socket.socket:
        if self._warm is None:
            async with self._warming:
                if self._warm is None:
                    self._warm = await self._open_warm()
        return self._warm

    def _drop_warm(self) -> None:
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    async def _open_warm(self) -> socket.socket:
        """Connect to the warm process; start it if there is none, replace it if it is another version's."""
        for _ in range(TRIES):
            try:
                control = dial(self.directory, warm.NAME)
            except SupervisorGone:
                await self._start_warm()
                continue
            try:
                with trio.fail_after(ATTACH_S):
                    hello = await control.next_message()
                if hello.get("version") == warm.VERSION:
                    return control.detach()
                await control.send_raw(warm.RETIRE)
            except (SupervisorGone, trio.TooSlowError):
                continue
            finally:
                control.close()
            await trio.sleep(0.05)
        raise LaunchError(
            f"no process to launch tasks from could be started in {self.directory}",
            hint=f"{self.directory}/errors.log may say why",
            is_recoverable=True,
        )

    async def _start_warm(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        root = str(Path(fedsched.__file__).parents[1])
        command = [
            self._python,
            "-I",
            "-S",
            "-E",
            "-c",
            STARTER,
            str(self.directory),
            "isolating" if self._isolates else "plain",
            root,
        ]
        lock = await trio.to_thread.run_sync(self._lock_warm)
        try:
            # Somebody else of this agent may have started it while we waited.
            dial(self.directory, warm.NAME).close()
            return
        except SupervisorGone:
            await self._run_starter(command)
        finally:
            os.close(lock)

    def _lock_warm(self) -> int:
        """One at a time starts a warm process. Blocking."""
        lock = os.open(self.directory / "warm.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    async def _run_starter(self, command: list[str]) -> None:
        done = await trio.run_process(
            command, check=False, capture_stderr=True, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/", env={}
        )
        if done.returncode:
            raise LaunchError(
                f"the process that launches tasks did not start: {done.stderr.decode(errors='replace')[-500:]}"
            )


def _is_alive(table: dict[str, Any]) -> bool:
    match table.get("supervisor"):
        case [int(pid), int(started)]:
            return processes.is_running(pid, started)
        case _:
            return False
