"""Decides which bytes of a rotated log come next. Pure: it is told which files there are and how long the open one is.

A log is a row of files, `web.stdout.0`, `.1`, and so on. Only the newest grows; once a newer one is there the older are
complete; the oldest vanish. A reader has a **place**: the number of a file and a position in it. It moves on to the
next file only when the present ones were listed before the length of its own was taken, so that nothing that was
written in between is left out. What is open stays readable after it was removed; a reader that comes too late for whole
files goes on with the oldest there is and says how many it missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.alloc_access import FILE_DELETED, FILE_TRUNCATED, LogPlace

START: Final = "start"
END: Final = "end"
ORIGINS: Final = (START, END)


@dataclass(frozen=True, slots=True)
class Open:
    """Go on with this file."""

    file: int
    offset: int
    missed: int = 0
    event: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """Read so much of the open file, from here."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Say:
    """Nothing to read, but something happened to the open file."""

    event: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing new yet."""


@dataclass(frozen=True, slots=True)
class Done:
    """There will be nothing more."""


Step = Open | Read | Say | Wait | Done
WAIT: Final = Wait()
DONE: Final = Done()


def first_place(sizes: Mapping[int, int], origin: str, offset: int) -> LogPlace:
    """Where to begin: so many bytes after the start of the oldest file, or before the end of the newest."""
    if origin not in ORIGINS:
        raise BadRequest(f"origin {origin[:40]!r} is neither start nor end", hint="origin must be start or end")
    if offset < 0:
        raise BadRequest(f"offset {offset} is negative", hint="it counts from the start, or back from the end")
    files = sorted(sizes)
    if not files:
        return LogPlace()
    left = offset if origin == START else max(0, sum(sizes.values()) - offset)
    for file in files[:-1]:
        if left < sizes[file]:
            return LogPlace(file=file, offset=left)
        left -= sizes[file]
    return LogPlace(file=files[-1], offset=min(left, sizes[files[-1]]))


class LogCore:
    """One reader of one log.

    `end` is where a reader that does not follow stops: what was written when it began.
    """

    def __init__(self, place: LogPlace, *, end: LogPlace | None) -> None:
        self.place = place
        self._end = end
        self._is_open = False
        self._said_deleted = False

    @property
    def is_following(self) -> bool:
        return self._end is None

    def step(self, present: Sequence[int], size: int | None, *, is_deleted: bool = False, read_max: int = 1) -> Step:
        """What to do next.

        `present` are the files there are, in order; `size` is how long the open one is, taken after they were listed
        (None: none is open), `is_deleted` whether it has no name any more.
        """
        if self._end is not None and (self.place.file, self.place.offset) >= (self._end.file, self._end.offset):
            return DONE
        if not self._is_open or size is None:
            return self._open_first(present)
        place = self.place
        if size < place.offset:
            return self._take(Open(place.file, 0, event=FILE_TRUNCATED))
        if size > place.offset:
            stop = self._end.offset if self._end is not None and self._end.file == place.file else size
            return Read(place.offset, min(size, stop, place.offset + read_max) - place.offset)
        later = [file for file in present if file > place.file]
        if later:
            return self._take(Open(later[0], 0, missed=later[0] - place.file - 1))
        if self._end is not None:
            return DONE
        if is_deleted and not self._said_deleted:
            self._said_deleted = True
            return Say(FILE_DELETED)
        return WAIT

    def has_read(self, size: int) -> None:
        """So much was read where `Read` said."""
        self.place = LogPlace(file=self.place.file, offset=self.place.offset + size)

    def lost(self) -> None:
        """The file that was to be opened is gone."""
        self._is_open = False

    def _open_first(self, present: Sequence[int]) -> Step:
        place = self.place
        if not present:
            return WAIT if self.is_following else DONE
        if place.file > present[-1]:  # not the log that this place was in: it begins anew
            return self._take(Open(present[0], 0, event=FILE_TRUNCATED))
        file = next(file for file in present if file >= place.file)
        if file == place.file:
            return self._take(Open(file, place.offset))
        return self._take(Open(file, 0, missed=file - place.file))

    def _take(self, step: Open) -> Open:
        self.place = LogPlace(file=step.file, offset=step.offset)
        self._is_open = True
        self._said_deleted = False
        return step
