"""Follows a container's log into its files, over cuts, restarts of the engine and of the agent.

Docker's log is asked for at the engine. Podman's is read from the file where it writes it, if that can be opened: what
its service gives to followers has holes once the container has ended, and times to whole seconds only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import trio

from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineRefused
from fedsched.drivers.docker.labels import HandleState
from fedsched.drivers.docker.log_files import LogFiles
from fedsched.drivers.docker.records import ContainerDetails
from fedsched.drivers.docker.streams import FileLog, FramedLog, PlainLog
from fedsched.drivers.docker.transport import Answer
from fedsched.drivers.driver import DriverError
from fedsched.drivers.supervisor.log_writer import FLUSH_S
from fedsched.telemetry.log import Logger

RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 10.0
LOOK_S: Final = 0.02
LOOK_S_MAX: Final = 0.25
"""How often a file is looked at: soon after it grew, less often while it is quiet."""
LAST_S: Final = 1.0
"""So long after a container's end an engine may take to end the log; then it is read to its end without following."""
READ_BYTES: Final = 256 << 10
WRITERS: Final = trio.CapacityLimiter(8)
"""Threads that write logs of containers: a slow disk holds up the logs, never the agent."""


class LogFollower:
    """One container's log. `done` is set once all of it is in the files, or nothing more can be had."""

    def __init__(self, engine: Engine, handle: HandleState, log: Logger) -> None:
        self._engine = engine
        self._handle = handle
        self._log = log
        self._has_ended = False
        self._reading = trio.CancelScope()
        self.done = trio.Event()

    def container_ended(self) -> None:
        """Nothing is written to its log any more."""
        self._has_ended = True
        self._reading.deadline = trio.current_time() + LAST_S

    async def run(self) -> None:
        try:
            files = await trio.to_thread.run_sync(LogFiles, self._handle, limiter=WRITERS)
        except OSError as error:
            self._log.warn("container_log_not_opened", task_id=self._handle.task_id, error=str(error))
            self.done.set()
            return
        try:
            await self._follow(files)
        finally:
            files.close()
            if files.note_error or files.dropped:
                self._log.warn(
                    "container_log_incomplete",
                    task_id=self._handle.task_id,
                    dropped_bytes=files.dropped,
                    error=files.note_error,
                )
            self.done.set()

    async def _follow(self, files: LogFiles) -> None:
        delay_s = RETRY_S
        while True:
            try:
                if await self._follow_once(files):
                    return
                delay_s = RETRY_S
            except EngineRefused as error:
                if error.status < 500 or error.status == 501:
                    if error.status != 404:
                        self._log.warn("container_log_refused", task_id=self._handle.task_id, error=str(error))
                    return
            except DriverError as error:
                self._log.debug("container_log_cut", task_id=self._handle.task_id, error=str(error))
            files.places.rewind()
            await trio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)

    async def _follow_once(self, files: LogFiles) -> bool:
        """Read as long as it goes; True if that was all there will ever be."""
        found = await self._engine.inspect(self._handle.container_id)
        fd = _open_log(found) if self._engine.is_podman else -1
        if fd >= 0:
            try:
                await self._copy_file(fd, files)
            finally:
                os.close(fd)
            return True
        # Asked before reading: after the end, one more reading without waiting has everything.
        is_over = found.state.has_ended
        since_s = files.places.since_s()
        limit_s = LAST_S if self._has_ended and not is_over else float("inf")
        with trio.CancelScope(deadline=trio.current_time() + limit_s) as self._reading:
            async with self._engine.logs(self._handle.container_id, since_s, follow=not is_over) as answer:
                await self._copy(answer, files)
        return is_over and not self._reading.cancelled_caught

    async def _copy(self, answer: Answer, files: LogFiles) -> None:
        decoder = PlainLog() if self._handle.is_tty and not _is_framed(answer) else FramedLog()
        while True:
            data: bytes | None = None
            with trio.move_on_after(FLUSH_S if files.has_held else float("inf")):
                data = await answer.receive_some()
            if data is None:
                await trio.to_thread.run_sync(files.settle, limiter=WRITERS)
                continue
            if not data:
                return
            pieces = decoder.feed(data)
            if pieces:
                await trio.to_thread.run_sync(files.write, pieces, limiter=WRITERS)

    async def _copy_file(self, fd: int, files: LogFiles) -> None:
        start = files.places.offset
        files.places.expect_next()
        os.lseek(fd, start, os.SEEK_SET)
        decoder = FileLog()
        delay_s, quiet_s, read = LOOK_S, 0.0, start
        while True:
            has_ended = self._has_ended
            if os.fstat(fd).st_size > read:
                data = await trio.to_thread.run_sync(os.read, fd, READ_BYTES, limiter=WRITERS)
                read += len(data)
                pieces = decoder.feed(data)
                await trio.to_thread.run_sync(files.write, pieces, start + decoder.taken, limiter=WRITERS)
                delay_s, quiet_s = LOOK_S, 0.0
                continue
            if has_ended and quiet_s >= FLUSH_S:
                return
            if files.has_held and quiet_s >= FLUSH_S:
                await trio.to_thread.run_sync(files.settle, limiter=WRITERS)
            await trio.sleep(delay_s)
            quiet_s += delay_s
            delay_s = LOOK_S if self._has_ended else min(delay_s * 2, LOOK_S_MAX)


def _open_log(found: ContainerDetails) -> int:
    """The engine's own file; below 0 if there is none to be read from here."""
    path = Path(found.log_path)
    if not found.log_path or not path.is_absolute() or path.name != "ctr.log":
        return -1
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1


def _is_framed(answer: Answer) -> bool:
    return "multiplexed" in answer.headers.get("content-type", "")
