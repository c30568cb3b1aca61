"""A task's output as files of bounded size, `<name>.<n>`, n counting up; the oldest go.

A file ends at the end of a line if one is found within `WINDOW` of its size. To find one, the last, unfinished line is
kept back while the file is within the window, for `FLUSH_S` at most: a line is split only if it is longer than the
window or if its writer pauses in the middle of it just there. File n is complete once n + 1 exists.

A task is never blocked by its logs: what the disk does not take is dropped and counted. The directory belongs to the
task as well, so a name there is never trusted: no link is followed, and only plain files with one name are continued.

Light: this is part of every supervisor. Also used by drivers that get their output from elsewhere.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Final

WINDOW: Final = 32 << 10
FLUSH_S: Final = 0.1
TRIES: Final = 64
"""How many planted names are stepped over before output is dropped."""


class RotatedLog:
    """One stream of one task. `directory` is a descriptor that stays the caller's."""

    __slots__ = ("_at_line_start", "_fd", "_held", "_name", "dropped", "index", "max_bytes", "max_files", "size")

    def __init__(
        self, directory: int, name: str, max_files: int, max_bytes: int, names: list[str] | None = None
    ) -> None:
        """`names` is what is in the directory, if the caller looked already."""
        self._name = name
        self._fd = -1
        self._held = b""
        self._at_line_start = True
        self.index = 0
        self.size = 0
        self.dropped = 0
        """Bytes that no file could take."""
        self.set_limits(max_files, max_bytes)
        self._continue(directory, os.listdir(directory) if names is None else names)

    def set_limits(self, max_files: int, max_bytes: int) -> None:
        """Other limits from now on; files beyond them go at the next rotation."""
        self.max_files = max(1, max_files)
        self.max_bytes = max(1, max_bytes)

    @property
    def has_held(self) -> bool:
        """Does a `flush` have to come within `FLUSH_S`?"""
        return bool(self._held)

    def write(self, directory: int, data: bytes) -> None:
        """Take all of `data`, or drop it. Never raises."""
        if self._held:
            data, self._held = self._held + data, b""
        while data:
            data = self._step(directory, data)

    def flush(self, directory: int) -> None:
        """Write what was kept back, even if its line has no end yet."""
        data, self._held = self._held, b""
        while data:
            room = self.max_bytes - self.size
            if room <= 0:
                self._rotate(directory)
                continue
            self._put(directory, data[:room])
            data = data[room:]

    def close(self, directory: int) -> None:
        """Flush, and let go of the file."""
        self.flush(directory)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _step(self, directory: int, data: bytes) -> bytes:
        """Write as much as belongs into the current file; returns what is left for the next step."""
        room = self.max_bytes - self.size
        if room <= 0:
            self._rotate(directory)
            return data
        window = max(0, room - WINDOW)
        if len(data) <= window:
            self._put(directory, data)
            return b""
        cut = data.rfind(b"\n", window, room) + 1
        if len(data) <= room:
            # The end of the last line may be on its way: what is complete is written, the rest waits for it.
            cut = cut or window
            self._put(directory, data[:cut])
            self._held = data[cut:]
            return b""
        if not cut and not (self._at_line_start and self.size and not window):
            cut = room
        self._put(directory, data[:cut])
        self._rotate(directory)
        return data[cut:]

    def _put(self, directory: int, data: bytes) -> None:
        if not data:
            return
        if self._fd < 0:
            self._create(directory)
        written = 0
        try:
            while self._fd >= 0 and written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError:
            pass  # full, over quota, read-only: counted below, tried again with the next output
        self.size += written
        self.dropped += len(data) - written
        if written:
            self._at_line_start = data.endswith(b"\n", 0, written)

    def _rotate(self, directory: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.index += 1
        self.size = 0
        self._at_line_start = True
        self._create(directory)
        self._prune(directory)

    def _create(self, directory: int) -> None:
        """Open a new file; a name that is taken is stepped over. Without success output is dropped until the next."""
        for _ in range(TRIES):
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._file(self.index), flags, 0o644, dir_fd=directory)
            except FileExistsError:
                self.index += 1
                continue
            except OSError:
                pass
            return

    def _continue(self, directory: int, names: list[str]) -> None:
        indexes = self._indexes(names)
        self.index = max(indexes, default=-1)
        if self.index < 0 or not self._reopen(directory):
            self.index += 1
            self.size = 0
            self._create(directory)
        if indexes:
            self._prune(directory)

    def _reopen(self, directory: int) -> bool:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._file(self.index), flags, dir_fd=directory)
        except OSError:
            return False
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size >= self.max_bytes:
            os.close(fd)
            return False
        self._fd, self.size = fd, found.st_size
        self._at_line_start = not self.size or os.pread(fd, 1, self.size - 1) == b"\n"
        return True

    def _prune(self, directory: int) -> None:
        try:
            names = os.listdir(directory)
        except OSError:
            return
        for index in self._indexes(names):
            if index <= self.index - self.max_files:
                try:
                    os.unlink(self._file(index), dir_fd=directory)
                except OSError:
                    continue  # a directory planted there, or gone already

    def _indexes(self, names: list[str]) -> list[int]:
        start = self._name + "."
        ends = [name[len(start) :] for name in names if name.startswith(start)]
        return [int(end) for end in ends if end.isascii() and end.isdigit() and len(end) <= 9]

    def _file(self, index: int) -> str:
        return f"{self._name}.{index}"
