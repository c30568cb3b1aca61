"""A task's standard output and error: two pipes into two rotated logs.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os
from time import monotonic

from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.log_writer import FLUSH_S, RotatedLog

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Any, Final

CHUNK: Final = 64 << 10
TELL_DROPPED_S: Final = 60.0
STREAMS: Final = ("stdout", "stderr")
FOREVER: Final = float("inf")


class Output:
    """Owns the reading ends and the files. Without a log directory, output goes nowhere and there are no pipes."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._directory = -1
        self._logs: dict[str, RotatedLog] = {}
        self._pipes: dict[int, RotatedLog] = {}
        self._flush_at = FOREVER
        self._told_dropped = 0
        self._told_dropped_at = -FOREVER

    def open(self) -> tuple[int, int, int]:
        """Make files and pipes; returns the three streams for the task, the caller closes them."""
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        spec = self._spec
        if not spec.log_directory:
            return nothing, nothing, nothing
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._directory = os.open(spec.log_directory, flags)
        names = os.listdir(self._directory)
        ends = []
        for stream in STREAMS:
            name = f"{spec.log_name}.{stream}"
            self._logs[stream] = RotatedLog(self._directory, name, spec.max_files, spec.max_file_bytes, names)
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._pipes[reading] = self._logs[stream]
            ends.append(writing)
        return nothing, ends[0], ends[1]

    def pipes(self) -> list[int]:
        return list(self._pipes)

    @property
    def is_open(self) -> bool:
        """May more output come?"""
        return bool(self._pipes)

    def pump(self, fd: int) -> bool:
        """Move what is there; false at its end."""
        log = self._pipes[fd]
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        log.write(self._directory, data)
        if log.has_held:
            self._flush_at = min(self._flush_at, monotonic() + FLUSH_S)
        return True

    def close_pipe(self, fd: int) -> None:
        """This stream has ended."""
        log = self._pipes.pop(fd)
        os.close(fd)
        log.close(self._directory)

    def close(self) -> None:
        """Take what is still in the pipes, then end both."""
        for fd in self.pipes():
            for _ in range(64):  # as much as the kernel lets a pipe hold, and not what somebody goes on writing
                before = self._logs_size()
                if not self.pump(fd) or self._logs_size() == before:
                    break
            self.close_pipe(fd)
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
        self._flush_at = FOREVER

    def set_limits(self, max_files: int, max_file_bytes: int) -> None:
        """Other limits from now on."""
        for log in self._logs.values():
            log.set_limits(max_files, max_file_bytes)

    def on_time(self, now: float) -> None:
        """Write unfinished lines that have waited long enough."""
        if now >= self._flush_at:
            self._flush_at = FOREVER
            for log in self._pipes.values():
                log.flush(self._directory)

    def wake_at(self) -> float:
        """When `on_time` next has something to do."""
        return self._flush_at

    def newly_dropped(self, now: float) -> int:
        """Bytes dropped since this was asked last; once a minute at most."""
        dropped = sum(log.dropped for log in self._logs.values())
        new = dropped - self._told_dropped
        if not new or now - self._told_dropped_at < TELL_DROPPED_S:
            return 0
        self._told_dropped, self._told_dropped_at = dropped, now
        return new

    def report(self) -> dict[str, Any]:
        """Where each log stands: number of the newest file, its size, bytes dropped."""
        return {stream: [log.index, log.size, log.dropped] for stream, log in self._logs.items()}

    def _logs_size(self) -> int:
        return sum(log.size + log.dropped + log.index for log in self._logs.values())
