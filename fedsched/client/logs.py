"""Reads what tasks write, as far as it is there and as it comes: `Alloc.Logs` and `Fs.Stream` on the node.

Nothing is kept in memory for a reader but the piece it is being sent: the files are the buffer, and a reader that does
not read simply stays where it is. What it has not read when files are rotated away it does not get, and is told so.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final, Protocol

import trio

from fedsched.client.file_wakes import Bell, FileWakes
from fedsched.client.files import CHUNK_BYTES, AllocFiles
from fedsched.client.log_core import DONE, LogCore, Open, Read, Say, first_place
from fedsched.model.errors import BadRequest, NotFound
from fedsched.rpc.methods.alloc_access import FILE_DELETED, FILE_TRUNCATED, FileFrame, FsStreamRequest, LogPlace

PIECES: Final = 4
"""Frames read at once, in one visit to a thread."""
HEARTBEAT_S: Final = 1.0
GATHER_S: Final = 0.05
"""What comes in small pieces is gathered for so long, so that a busy task does not make a frame of every line."""
LOGS: Final = "alloc/logs"
DIGITS_MAX: Final = 15
"""Of a file's number; nobody rotates that often."""
TRIES: Final = 20
"""How often a file that vanishes while it is opened is looked for again before others get a turn."""
STREAMS: Final = ("stdout", "stderr")
READERS: Final = trio.CapacityLimiter(16)
"""Threads that read files for callers from outside: a slow disk must not take all threads of the agent."""

Send = Callable[[FileFrame], Awaitable[bool]]
"""Waits for the reader's credit; false if nobody wants more."""


class Source(Protocol):
    """A file or a row of files that is read piece by piece. Blocks: used in a thread."""

    def pieces(self) -> tuple[list[FileFrame], bool]:
        """What there is now, a few frames at most, and whether that was all for ever."""

    def directory(self) -> int:
        """A descriptor of where it lies."""

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""

    def close(self) -> None: ...


class LogSource:
    """One output of one task, over all its rotated files."""

    def __init__(self, files: AllocFiles, task: str, kind: str) -> None:
        self._files = files
        self._prefix = f"{task}.{kind}."
        self._stack = ExitStack()
        self._directory = -1
        self._fd = -1
        self._closing = ExitStack()
        self._core = LogCore(LogPlace(), end=None)
        self._pending = FileFrame()
        """What is said with the next piece: a new file's name, what happened before."""

    def open(self, *, follow: bool, origin: str, offset: int, place: LogPlace | None) -> None:
        """Find the place to begin. `BadRequest` for one that makes no sense."""
        if place is not None and (place.file < 0 or place.offset < 0):
            raise BadRequest(f"there is no place {place.file}, {place.offset} in a log", hint="both count from 0")
        handle = self._stack.enter_context(self._files.open(LOGS, follow=False))
        self._directory = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, self._directory)
        sizes = self._sizes()
        first = first_place(sizes, origin, offset)
        last = max(sizes, default=0)
        end = None if follow else LogPlace(file=last, offset=sizes.get(last, 0))
        self._core = LogCore(place or first, end=end)

    @property
    def prefix(self) -> str:
        return self._prefix

    def directory(self) -> int:
        return self._directory

    def pieces(self) -> tuple[list[FileFrame], bool]:
        frames: list[FileFrame] = []
        tries = TRIES
        while len(frames) < PIECES and tries:
            present = self._present()
            size, is_deleted = self._length()
            step = self._core.step(present, size, is_deleted=is_deleted, read_max=CHUNK_BYTES)
            match step:
                case Open():
                    tries -= not self._open(step)
                case Read(offset=offset, size=wanted):
                    data = os.pread(self._fd, wanted, offset)
                    self._core.has_read(len(data))
                    if data:
                        frames.append(self._frame(data=data))
                case Say(event=event):
                    frames.append(self._frame(event=event))
                case _:
                    return self._with_news(frames), step is DONE
        return frames, False

    def close(self) -> None:
        self._let_go()
        self._stack.close()

    def _with_news(self, frames: list[FileFrame]) -> list[FileFrame]:
        """What happened is told also when there is nothing to read yet."""
        if self._pending.file_event or self._pending.missed_files:
            frames.append(self._frame())
        return frames

    def _frame(self, *, data: bytes = b"", event: str = "") -> FileFrame:
        place, pending, self._pending = self._core.place, self._pending, FileFrame()
        return FileFrame(
            file=f"{LOGS}/{self._prefix}{place.file}",
            offset=place.offset,
            data=data,
            file_event=event or pending.file_event,
            missed_files=pending.missed_files,
        )

    def _open(self, step: Open) -> bool:
        self._let_go()
        event = step.event or (FILE_DELETED if step.missed else "")
        self._pending = FileFrame(
            file_event=event or self._pending.file_event, missed_files=step.missed + self._pending.missed_files
        )
        try:
            path = f"{LOGS}/{self._prefix}{step.file}"
            self._fd = self._closing.enter_context(self._files.regular(path, follow=False))
            return True
        except (NotFound, BadRequest):
            self._core.lost()  # rotated away, or replaced by something else, between the listing and here
            return False

    def _let_go(self) -> None:
        self._closing.close()
        self._fd = -1

    def _length(self) -> tuple[int | None, bool]:
        if self._fd < 0:
            return None, False
        found = os.fstat(self._fd)
        return found.st_size, found.st_nlink == 0

    def _present(self) -> list[int]:
        return sorted(self._sizes_of(with_sizes=False))

    def _sizes(self) -> dict[int, int]:
        return self._sizes_of(with_sizes=True)

    def _sizes_of(self, *, with_sizes: bool) -> dict[int, int]:
        sizes: dict[int, int] = {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                number = entry.name[len(self._prefix) :]
                if not entry.name.startswith(self._prefix) or not _is_number(number):
                    continue
                if entry.is_file(follow_symlinks=False):  # whatever else a task puts there is no part of its log
                    sizes[int(number)] = self._size(entry.name) if with_sizes else 0
        return sizes

    def _size(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and str(int(text)) == text


class FileSource:
    """One file, as it grows."""

    def __init__(self, files: AllocFiles, request: FsStreamRequest) -> None:
        self._stack = ExitStack()
        self._path = request.path.lstrip("/")
        above, _, self._name = self._path.rpartition("/")
        self._fd = self._stack.enter_context(files.regular(request.path))
        handle = self._stack.enter_context(files.open(above))
        self._directory = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, self._directory)
        size = os.fstat(self._fd).st_size
        self._at = first_place({0: size}, request.origin, request.offset).offset
        self._end = None if request.follow else size

    @property
    def prefix(self) -> str:
        return self._name

    def directory(self) -> int:
        return self._directory

    def pieces(self) -> tuple[list[FileFrame], bool]:
        frames: list[FileFrame] = []
        while len(frames) < PIECES:
            found = os.fstat(self._fd)
            if found.st_size < self._at:
                self._at = 0
                frames.append(FileFrame(file=self._path, file_event=FILE_TRUNCATED))
                continue
            stop = found.st_size if self._end is None else min(found.st_size, self._end)
            data = os.pread(self._fd, max(0, min(CHUNK_BYTES, stop - self._at)), self._at)
            if not data:
                if self._end is None and found.st_nlink == 0:
                    frames.append(FileFrame(file=self._path, offset=self._at, file_event=FILE_DELETED))
                    return frames, True
                return frames, self._end is not None
            self._at += len(data)
            frames.append(FileFrame(file=self._path, offset=self._at, data=data))
        return frames, False

    def close(self) -> None:
        self._stack.close()


async def stream(source: Source, wakes: FileWakes, send: Send) -> int:
    """Send what a source has until it is done or nobody wants more; how many bytes of it went out."""
    with wakes.bell(source.directory(), source.prefix) as bell:
        sent = 0
        while True:
            frames, is_done = await trio.to_thread.run_sync(source.pieces, limiter=READERS)
            for frame in frames:
                sent += len(frame.data)
                if not await send(frame):
                    return sent
            if is_done:
                return sent
            if not frames:
                if not await _wait(bell, send):
                    return sent
            elif sum(len(frame.data) for frame in frames) < CHUNK_BYTES:
                await trio.sleep(GATHER_S)


async def _wait(bell: Bell, send: Send) -> bool:
    """Wait for news, with a sign of life every second; false if nobody listens any more."""
    while True:
        with trio.move_on_after(HEARTBEAT_S):
            await bell.wait()
            return True
        if not await send(FileFrame()):
            return False
