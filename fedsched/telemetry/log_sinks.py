"""Where log events end up: a stream or a rotated file, as text for people or JSON lines for programs.

A log must never take the server down or grow without bound: a line that cannot be written (disk full, closed pipe) is
counted and dropped, long values are cut, and files rotate. Values are escaped, so that nobody can forge a line or move
an operator's cursor by naming a job cleverly.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from fedsched.telemetry.log import DEBUG, ERROR, INFO, LEVEL_NAMES, TRACE, WARN, Event

VALUE_CHARS_MAX: Final = 4096
ROTATE_BYTES: Final = 64 * 1024 * 1024
ROTATED_FILES_MAX: Final = 4

_COLOURS: Final[Mapping[int, str]] = {TRACE: "90", DEBUG: "90", INFO: "32", WARN: "33", ERROR: "31"}
_RESERVED: Final = ("time", "level", "area", "event")

Formatter = Callable[[Event], str]


def text_line(event: Event, *, colour: bool = False) -> str:
    """`2026-08-21T10:00:01.250Z info  raft leader_elected term=7 took_s=1.2`."""
    level = f"{LEVEL_NAMES[event.level]:5}"
    name = event.name
    if colour:
        level = f"\x1b[{_COLOURS[event.level]}m{level}\x1b[0m"
        name = f"\x1b[1m{name}\x1b[0m"
    head = f"{rfc3339(event.wall)} {level} {event.area} {name}"
    stack = event.fields.get("stack")
    pairs = "".join(f" {key}={_text_value(value)}" for key, value in event.fields.items() if key != "stack")
    tail = "" if stack is None else "".join(f"\n    | {_printable(line)}" for line in str(stack).splitlines())
    return f"{head}{pairs}{tail}\n"


def colour_line(event: Event) -> str:
    return text_line(event, colour=True)


def json_line(event: Event) -> str:
    """One JSON object; a field that would hide `time`, `level`, `area` or `event` gets a trailing underscore."""
    line: dict[str, Any] = {
        "time": rfc3339(event.wall),
        "level": LEVEL_NAMES[event.level],
        "area": event.area,
        "event": event.name,
    }
    for key, value in event.fields.items():
        line[f"{key}_" if key in _RESERVED else key] = _json_value(value)
    return json.dumps(line, separators=(",", ":")) + "\n"


class StreamSink:
    """Lines to an open stream that somebody else owns, such as stderr."""

    def __init__(self, stream: TextIO, form: Formatter) -> None:
        self.lost = 0
        self._stream = stream
        self._form = form

    def write(self, event: Event) -> None:
        try:
            self._stream.write(self._form(event))
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a closed file
            self.lost += 1

    def close(self) -> None:
        """Leave the stream to its owner."""


class FileSink:
    """Lines to a file that is rotated by size: `agent.log`, then `agent.log.1` up to the oldest kept."""

    def __init__(
        self,
        path: Path,
        form: Formatter,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        rotated_files_max: int = ROTATED_FILES_MAX,
    ) -> None:
        self.lost = 0
        self._path = path
        self._form = form
        self._rotate_bytes = rotate_bytes
        self._rotated_files_max = rotated_files_max
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def write(self, event: Event) -> None:
        line = self._form(event).encode()
        try:
            if self._size and self._size + len(line) > self._rotate_bytes:
                self._rotate()
            self._size += os.write(self._fd, line)
        except OSError:
            self.lost += 1

    def reopen(self) -> None:
        """Start writing to whatever is now at the path, for those who rotate from outside."""
        os.close(self._fd)
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _rotate(self) -> None:
        for number in range(self._rotated_files_max, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1) if number > 1 else self._path
            if newer.exists():
                os.replace(newer, older)
        if self._rotated_files_max == 0:
            os.truncate(self._path, 0)
        self.reopen()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def stderr_sink(stream: TextIO, *, as_json: bool = False, no_colour: bool = False) -> StreamSink:
    """The usual choice: JSON if asked for, else text, coloured on a terminal only."""
    if as_json:
        return StreamSink(stream, json_line)
    return StreamSink(stream, colour_line if stream.isatty() and not no_colour else text_line)


def rfc3339(wall: float) -> str:
    """Give UTC with milliseconds: `2026-08-21T10:00:01.250Z`."""
    whole, millis = divmod(int(wall * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{millis:03d}Z"


def _text_value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:.6g}"
        case _:
            return _quoted(_as_text(value))


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # NaN and infinities are no JSON
    return _as_text(value)


def _as_text(value: Any) -> str:
    match value:
        case str():
            text = value
        case bytes():
            text = value[: VALUE_CHARS_MAX // 2].hex()
        case BaseException():
            text = f"{type(value).__name__}: {value}"
        case _:
            text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters)"


def _quoted(text: str) -> str:
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
