"""What flows out of an engine, taken apart: lines of JSON, the two outputs in one stream, log entries with their times.

Pure: bytes in, pieces out, never more memory than one line or one head.
"""

from __future__ import annotations

import calendar
import functools
import re
from typing import Any, Final, NamedTuple

import msgspec

from fedsched.drivers.docker.faults import EngineFault, Fault

LINE_BYTES_MAX: Final = 1 << 20
STDOUT: Final = 1
STDERR: Final = 2

_HEAD_BYTES: Final = 8
_OUTPUTS: Final = {b"stdout": STDOUT, b"stderr": STDERR}
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d)) ")
_TIME_BYTES_MAX: Final = 36
_PARTIAL_BYTES: Final = (8192, 16384)
"""Where podman and Docker cut lines that are too long for one entry."""


class JsonLines:
    """Objects, one per line."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._left = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        lines = (self._left + data).split(b"\n")
        self._left = lines.pop()
        if len(self._left) > self._bytes_max:
            raise EngineFault(Fault.TOO_LARGE, f"the engine sent a line of more than {self._bytes_max} bytes")
        return [_object(line) for line in lines if line.strip()]

    def finish(self) -> list[dict[str, Any]]:
        """What stood after the last line end."""
        left, self._left = self._left, b""
        return [_object(left)] if left.strip() else []


class Piece(NamedTuple):
    """A part of one frame. `is_start` marks the first part, which may be empty."""

    stream: int
    data: bytes
    is_start: bool


class Demultiplexer:
    """Splits the engine's frames (one byte stream, three zeros, four bytes length) without ever holding a payload."""

    def __init__(self) -> None:
        self._head = b""
        self._stream = STDOUT
        self._left = 0

    @property
    def is_between_frames(self) -> bool:
        return not self._head and not self._left

    def feed(self, data: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                pieces.append(Piece(self._stream, part, False))
                self._left -= len(part)
                at += len(part)
                continue
            wanted = _HEAD_BYTES - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) == _HEAD_BYTES:
                self._open_frame()
                part = data[at : at + self._left]
                pieces.append(Piece(self._stream, part, True))
                self._left -= len(part)
                at += len(part)
        return pieces

    def _open_frame(self) -> None:
        head, self._head = self._head, b""
        if head[0] > 3 or head[1:4] != b"\0\0\0":
            raise EngineFault(Fault.GARBLED, f"the engine's stream has no frame where one must start: {head.hex()}")
        self._stream = STDERR if head[0] >= STDERR else STDOUT
        self._left = int.from_bytes(head[4:], "big")


class LogPiece(NamedTuple):
    """A part of a log entry, with the time the engine noted for the entry."""

    stream: int
    at_ns: int
    data: bytes


class FramedLog:
    """Log entries of a container without a terminal: one frame each, its time in front."""

    def __init__(self) -> None:
        self._frames = Demultiplexer()
        self._stamp: bytes | None = None
        """The start of a frame until its time is complete."""
        self._at_ns = 0
        self._frame_stream = STDOUT

    def feed(self, data: bytes) -> list[LogPiece]:
        found: list[LogPiece] = []
        for piece in self._frames.feed(data):
            if piece.is_start:
                if self._stamp:
                    raise EngineFault(Fault.GARBLED, f"a log entry without a time: {self._stamp!r:.60}")
                self._stamp = b""
                self._frame_stream = piece.stream
            if self._stamp is None:
                found.append(LogPiece(piece.stream, self._at_ns, piece.data))
                continue
            self._stamp += piece.data
            self._take_stamp(found)
        return found

    def _take_stamp(self, found: list[LogPiece]) -> None:
        assert self._stamp is not None
        stamp = _TIME.match(self._stamp)
        if stamp is None:
            if len(self._stamp) >= _TIME_BYTES_MAX:
                raise EngineFault(Fault.GARBLED, f"a log entry without a time: {self._stamp!r:.60}")
            return
        self._at_ns = _ns(stamp)
        rest = self._stamp[stamp.end() :]
        self._stamp = None
        if rest:
            found.append(LogPiece(self._frame_stream, self._at_ns, rest))


class PlainLog:
    """Log entries of a container with a terminal: no frames, a time in front of every line.

    Lines that were cut into several entries have further times inside: they are recognised at the lengths at which
    engines cut.
    """

    def __init__(self) -> None:
        self._left = b""
        self._at_ns = 0
        self._entry_bytes = -1
        """Of the entry under way; below 0: none is."""

    def feed(self, data: bytes) -> list[LogPiece]:
        self._left += data
        found: list[LogPiece] = []
        while self._left and self._advance(found):
            pass
        return found

    def _advance(self, found: list[LogPiece]) -> bool:
        """Take one step; False: more bytes are needed."""
        if self._entry_bytes < 0 or self._entry_bytes in _PARTIAL_BYTES:
            stamp = _TIME.match(self._left)
            if stamp is not None:
                self._at_ns = _ns(stamp)
                self._left = self._left[stamp.end() :]
                self._entry_bytes = 0
                return True
            if len(self._left) < _TIME_BYTES_MAX and b"\n" not in self._left:
                return False
            if self._entry_bytes < 0:
                raise EngineFault(Fault.GARBLED, f"a log line without a time: {self._left!r:.60}")
        self._take(found)
        return True

    def _take(self, found: list[LogPiece]) -> None:
        end = self._left.find(b"\n") + 1
        stop = next((size for size in _PARTIAL_BYTES if size > self._entry_bytes), 0)
        room = stop - self._entry_bytes if stop else len(self._left)
        size = min(end or len(self._left), room)
        found.append(LogPiece(STDOUT, self._at_ns, self._left[:size]))
        is_line_over = bool(end) and size == end
        self._left = self._left[size:]
        self._entry_bytes = -1 if is_line_over else self._entry_bytes + size


class FileLog:
    """Entries as podman writes them into a file: time, output, `F` or `P` (no line end), text.

    `taken` counts the bytes of the entries that were given out, so that a reader can begin again right behind them.
    """

    def __init__(self) -> None:
        self._left = b""
        self.taken = 0

    def feed(self, data: bytes) -> list[LogPiece]:
        lines = (self._left + data).split(b"\n")
        self._left = lines.pop()
        if len(self._left) > LINE_BYTES_MAX:
            raise EngineFault(Fault.TOO_LARGE, f"the log has a line of more than {LINE_BYTES_MAX} bytes")
        return [self._piece(line) for line in lines]

    def _piece(self, line: bytes) -> LogPiece:
        stamp = _TIME.match(line)
        output, _, rest = line[stamp.end() :].partition(b" ") if stamp else (b"", b"", b"")
        tag, space, text = rest[:1], rest[1:2], rest[2:]
        if stamp is None or output not in _OUTPUTS or tag not in (b"F", b"P") or space != b" ":
            raise EngineFault(Fault.GARBLED, f"the log has an entry of another kind: {line!r:.80}")
        self.taken += len(line) + 1
        return LogPiece(_OUTPUTS[output], _ns(stamp), text + b"\n" if tag == b"F" else text)


def time_ns(text: str) -> int:
    """A moment as engines write it, in nanoseconds; 0 for their way to say never, and for nonsense."""
    stamp = _TIME.match(text.encode("utf-8", "replace") + b" ")
    try:
        return max(0, _ns(stamp)) if stamp else 0
    except EngineFault:
        return 0


def _ns(stamp: re.Match[bytes]) -> int:
    whole = _second(stamp[0][:19])
    if stamp[2]:
        offset = int(stamp[3]) * 3600 + int(stamp[4]) * 60
        whole -= offset if stamp[2] == b"+" else -offset
    return whole * 1_000_000_000 + int((stamp[1] or b"0").ljust(9, b"0"))


@functools.lru_cache(maxsize=16)
def _second(text: bytes) -> int:
    """Entries come thousands to a second: the same second is worked out once."""
    year, month, day, hour, minute, second = (int(number) for number in re.split(rb"[-T:]", text))
    try:
        return calendar.timegm((year, month, day, hour, minute, second))
    except ValueError as error:
        raise EngineFault(Fault.GARBLED, f"the engine wrote a time that is none: {text!r}") from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFault(Fault.GARBLED, f"the engine sent a line that is not JSON: {line!r:.80}") from error
    if not isinstance(found, dict):
        raise EngineFault(Fault.GARBLED, f"the engine sent a line that is not an object: {line!r:.80}")
    return found
