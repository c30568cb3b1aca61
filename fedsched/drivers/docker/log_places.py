"""Where the reading of a container's log stands, so that it goes on after any cut without a gap or a repeat.

The engine can only be asked for entries from some second on. So for each output we note the time of the newest entry
taken and how many bytes of that very time were taken: podman gives whole seconds only, thousands of entries to one. On
resuming, older entries are dropped and so many bytes passed over.

A note is older than the log files when an agent was killed between writing one and the other. What the files have
beyond the note is passed over as well: the bytes that follow a place are always the same bytes.

A log that is read as a file needs none of this: there, a place is an offset.

Times may step back with the host's clock. An entry counts as at least as new as the one before it of its output, and
the lowest time seen since the newest is kept: from there on is asked. Only a step of more than `MARGIN_S` that happens
while nobody reads costs entries: they look older than what was read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fedsched.drivers.docker.streams import STDERR, STDOUT, LogPiece

NS: Final = 1_000_000_000
STREAMS: Final = (STDOUT, STDERR)
MARGIN_S: Final = 2
"""The two outputs are stamped apart from each other: an entry may be a little older than one that stands before it."""


class Place(msgspec.Struct, frozen=True):
    """Where one output stands, and how far its files went at that moment."""

    at_ns: int = 0
    count: int = 0
    index: int = 0
    """The file, and its size."""
    size: int = 0


class LogNote(msgspec.Struct, frozen=True):
    """What is kept on disk."""

    container_id: str
    high_ns: int = 0
    low_ns: int = 0
    offset: int = 0
    """In the engine's own file, if that is what is read."""
    stdout: Place = Place()
    stderr: Place = Place()

    def place(self, stream: int) -> Place:
        return self.stdout if stream == STDOUT else self.stderr


class _Track:
    """One output: what of it was taken, and what must be passed over first."""

    def __init__(self, place: Place, beyond: int) -> None:
        self.at_ns = place.at_ns
        self.count = place.count
        self.beyond = beyond
        self.rewind()

    def expect_next(self) -> None:
        """Nothing will come again."""
        self._again = 0
        self._is_reached = True

    def rewind(self) -> None:
        """Entries from some time before the place on will come again."""
        self._floor_ns = self.at_ns
        self._again = self.count
        self._is_reached = not self.at_ns

    def take(self, at_ns: int, data: bytes) -> bytes:
        if not self._is_reached:
            if at_ns < self._floor_ns:
                return b""
            self._is_reached = True
        if at_ns > self._floor_ns:
            self._again = 0  # all of the place's own time has gone by, as far as the engine still had it
        if self._again:
            passed = min(self._again, len(data))
            self._again -= passed
            data = data[passed:]
        if data:
            if at_ns > self.at_ns:
                self.at_ns, self.count = at_ns, 0
            self.count += len(data)
        passed = min(self.beyond, len(data))
        self.beyond -= passed
        return data[passed:]


class LogPlaces:
    """Takes entries in the order in which the engine gives them, and says what is new."""

    def __init__(self, note: LogNote, beyond: dict[int, int]) -> None:
        self._container_id = note.container_id
        self._high_ns = note.high_ns
        self._low_ns = note.low_ns
        self.offset = note.offset
        self._tracks = {stream: _Track(note.place(stream), beyond.get(stream, 0)) for stream in STREAMS}

    @property
    def is_caught_up(self) -> bool:
        """Do the files hold nothing that was not taken? Only then a note may be made."""
        return not any(track.beyond for track in self._tracks.values())

    def since_s(self) -> int:
        """The second from which to ask."""
        return max(0, self._low_ns // NS - MARGIN_S)

    def rewind(self) -> None:
        """The stream was cut, and will be read again from `since_s`."""
        for track in self._tracks.values():
            track.rewind()

    def expect_next(self) -> None:
        """The reading goes on exactly where it was, at `offset`."""
        for track in self._tracks.values():
            track.expect_next()

    def take(self, piece: LogPiece) -> bytes:
        """The part of it that was not there before."""
        track = self._tracks[piece.stream]
        was = track.at_ns, track.count
        fresh = track.take(piece.at_ns, piece.data)
        if (track.at_ns, track.count) != was:
            if piece.at_ns > self._high_ns:
                self._high_ns = self._low_ns = piece.at_ns
            self._low_ns = min(self._low_ns, piece.at_ns)
        return fresh

    def note(self, files: dict[int, tuple[int, int]]) -> LogNote:
        """What to keep, given how far the files of each output go."""
        places = {stream: Place(track.at_ns, track.count, *files[stream]) for stream, track in self._tracks.items()}
        return LogNote(self._container_id, self._high_ns, self._low_ns, self.offset, places[STDOUT], places[STDERR])
