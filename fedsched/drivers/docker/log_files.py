"""A container's output as the rotated files that every task has, with a note beside them of how far it was read.

Everything here waits for the disk: the follower calls it from a thread, one call at a time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from fedsched.drivers.docker.labels import HandleState
from fedsched.drivers.docker.log_places import STREAMS, LogNote, LogPlaces, Place
from fedsched.drivers.docker.streams import STDERR, STDOUT, LogPiece
from fedsched.drivers.supervisor.log_writer import RotatedLog

NOTE_NAME: Final = "container-log.json"
UNNOTED_BYTES_MAX: Final = 1 << 20
"""So much may be written without a note before an unfinished line is written out for the sake of one."""
_NAMES: Final = {STDOUT: "stdout", STDERR: "stderr"}


class LogFiles:
    """Both outputs of one container. Opened once, closed once."""

    def __init__(self, handle: HandleState) -> None:
        self._note_path = Path(handle.private_dir) / NOTE_NAME
        self._directory = os.open(handle.logs_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._stems = {stream: f"{handle.task}.{name}" for stream, name in _NAMES.items()}
        note = self._read_note(handle.container_id)
        beyond = {stream: self._beyond(stream, note.place(stream)) for stream in STREAMS} if note else {}
        self._logs = {
            stream: RotatedLog(self._directory, stem, handle.max_files, handle.max_file_bytes)
            for stream, stem in self._stems.items()
        }
        self.places = LogPlaces(note or LogNote(handle.container_id), beyond)
        self._unnoted = 0
        self.note_error = ""
        if note is None:
            self._write_note()

    @property
    def has_held(self) -> bool:
        """Is a part of a line kept back, which `settle` should write out soon?"""
        return any(log.has_held for log in self._logs.values())

    @property
    def dropped(self) -> int:
        return sum(log.dropped for log in self._logs.values())

    def write(self, pieces: Sequence[LogPiece], offset: int = 0) -> None:
        """Put down what is new of these; `offset` is where the engine's file goes on behind them."""
        fresh: dict[int, list[bytes]] = {stream: [] for stream in STREAMS}
        for piece in pieces:
            if data := self.places.take(piece):
                fresh[piece.stream].append(data)
        for stream, data_list in fresh.items():
            data = b"".join(data_list)
            if data:
                self._logs[stream].write(self._directory, data)
                self._unnoted += len(data)
        self.places.offset = offset
        if self._unnoted > UNNOTED_BYTES_MAX:
            self.settle()
        elif self._unnoted and not self.has_held:
            self._write_note()

    def settle(self) -> None:
        """Write out what was kept back, and note where we are."""
        for log in self._logs.values():
            log.flush(self._directory)
        self._write_note()

    def close(self) -> None:
        self.settle()
        for log in self._logs.values():
            log.close(self._directory)
        os.close(self._directory)

    def _read_note(self, container_id: str) -> LogNote | None:
        """The note about this very container; another's, or one that cannot be read, is as good as none."""
        try:
            note = msgspec.json.decode(self._note_path.read_bytes(), type=LogNote)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return note if note.container_id == container_id else None

    def _write_note(self) -> None:
        if not self.places.is_caught_up:
            return
        note = self.places.note({stream: (log.index, log.size) for stream, log in self._logs.items()})
        fresh = self._note_path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(note))
            fresh.replace(self._note_path)
        except OSError as error:
            self.note_error = f"{self._note_path}: {error.strerror}"
            return
        self._unnoted = 0

    def _beyond(self, stream: int, place: Place) -> int:
        """How much the files of an output have beyond a place."""
        total, start = 0, self._stems[stream] + "."
        for name in os.listdir(self._directory):
            end = name.removeprefix(start)
            if end == name or not (end.isascii() and end.isdigit() and len(end) <= 9) or int(end) < place.index:
                continue
            found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                total += found.st_size - (place.size if int(end) == place.index else 0)
        return max(0, total)
