"""`alloc exec`: a command inside a task, as if one sat in front of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fedsched.rpc.methods.alloc_access import ALLOC_EXEC, AllocExecReply, AllocExecRequest, ExecFrame
from fedsched.sdk.streams import Stream
from fedsched.verbs.alloc_choice import CHOICE, CHOSEN, choose, pick_task
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, Verbs

VERBS = Verbs()

HEARTBEAT_S: Final = 10.0
PIECE_BYTES: Final = 32 * 1024
NO_ESCAPE: Final = "none"


@VERBS.verb(
    "alloc exec",
    "run a command inside a task",
    doc="Runs a command inside a task and exits with its exit code. On a terminal the command gets one too, of the"
    " same size. At the start of a line the escape character and a dot (~.) end the session, twice the escape"
    " character sends it once. Flags after the command's first word are its own; `--` may stand before it.",
    flags=(
        Flag("task", "the task; may be left out if there is only one", value="name"),
        Flag("i", "pass the standard input on", bool, default=True),
        Flag("t", "give the command a terminal; by default if there is one here", bool),
        Flag("e", f"the escape character, or {NO_ESCAPE!r}", default="~", value="char"),
        *CHOSEN,
    ),
    arguments=(CHOICE, Argument("command", "what to run, with its arguments", many=True, raw=True)),
)
def exec_(terminal: Terminal, given: Given) -> int:
    escape = given["e"]
    if escape != NO_ESCAPE and len(escape.encode()) != 1:
        raise BadUsage(f"flag -e {escape!r} is not a single character", hint=f"or {NO_ESCAPE!r}, for no escape at all")
    alloc = choose(terminal, given)
    task = pick_task(alloc, given["task"])
    has_terminal = terminal.stdin.isatty() and terminal.out.isatty()
    is_tty = given["t"] if given.was_said("t") else has_terminal and given["i"]
    if is_tty and not given["i"]:
        raise BadUsage("-t needs -i=true: a terminal without input is none")
    request = AllocExecRequest(alloc_id=alloc.id, task=task, command=tuple(given["command"]), tty=is_tty)
    stream = terminal.client.open_stream(ALLOC_EXEC, request, namespace=alloc.namespace)
    source = _source(terminal) if given["i"] else _Nothing()
    escapes = Escapes(b"" if escape == NO_ESCAPE or not is_tty else escape.encode())
    session = Session(terminal, stream, source, escapes)
    if not (is_tty and has_terminal):
        return session.run()
    with raw_terminal(source.fd), window_changes() as changed:
        return session.run(size_of=source.fd, changed=changed)


class Escapes:
    """Finds the escape character at the start of lines in what is typed."""

    def __init__(self, character: bytes) -> None:
        self._character = character
        self._at_start = True
        self._is_pending = False

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """What of it goes to the command, and whether the session is to end."""
        if not self._character:
            return typed, False
        out = bytearray()
        for at in range(len(typed)):
            one = typed[at : at + 1]
            if self._is_pending:
                self._is_pending = False
                if one == b".":
                    return bytes(out), True
                out += one if one == self._character else self._character + one
            elif self._at_start and one == self._character:
                self._is_pending = True
                continue
            else:
                out += one
            self._at_start = one in b"\r\n"
        return bytes(out), False


class _Nothing:
    """No input at all."""

    fd = -1

    def read(self) -> bytes:
        return b""


class _Text:
    """Input that is there already."""

    fd = -1

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        piece, self._data = self._data[:PIECE_BYTES], self._data[PIECE_BYTES:]
        return piece


class _Descriptor:
    """Input that comes when it comes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read(self) -> bytes:
        try:
            return os.read(self.fd, PIECE_BYTES)
        except OSError:
            return b""  # the terminal has gone


Source = _Nothing | _Text | _Descriptor


def _source(terminal: Terminal) -> Source:
    try:
        return _Descriptor(terminal.stdin.fileno())
    except OSError:
        return _Text(terminal.stdin.read().encode())


class Session:
    """One command under way: what is typed goes up, what it writes comes down, neither waits for the other."""

    def __init__(self, terminal: Terminal, stream: Stream[AllocExecReply], source: Source, escapes: Escapes) -> None:
        self._terminal = terminal
        self._stream = stream
        self._source = source
        self._escapes = escapes
        self._unsent: list[ExecFrame] = []
        self._has_input = True
        self._said_at = time.monotonic()
        self._size = (0, 0)

    def run(self, *, size_of: int = -1, changed: int = -1) -> int:
        """Until the command ends, or the person does."""
        while not self._stream.is_over:
            self._show()
            self._tell_size(size_of)
            if self._may_read and self._source.fd < 0:
                self._read()
            self._say()
            others = [fd for fd in (changed, self._source.fd) if fd >= 0 and (fd == changed or self._may_read)]
            ready = self._terminal.client.wait(self._wait_s, others)
            if changed in ready:
                os.read(changed, 1024)
            if self._source.fd in ready and not self._read():
                self._stream.cancel()
                return FAILED
        return self._stream.reply().exit_code

    @property
    def _may_read(self) -> bool:
        return self._has_input and not self._unsent

    @property
    def _wait_s(self) -> float:
        return max(0.0, self._said_at + HEARTBEAT_S - time.monotonic())

    def _show(self) -> None:
        while (frame := self._stream.take()) is not None:
            if frame.stdout:
                self._terminal.write_bytes(frame.stdout)
            if frame.stderr:
                self._terminal.write_bytes(frame.stderr, to_err=True)

    def _read(self) -> bool:
        """Take what is typed; false if the person wants to end it."""
        data = self._source.read()
        if not data:
            self._has_input = False
            self._unsent.append(ExecFrame(stdin_close=True))
            return True
        data, is_over = self._escapes.take(data)
        if data:
            self._unsent.append(ExecFrame(stdin=data))
        return not is_over

    def _say(self) -> None:
        if not self._unsent and time.monotonic() >= self._said_at + HEARTBEAT_S:
            self._unsent.append(ExecFrame())
        while self._unsent and self._stream.try_send(self._unsent[0]):
            del self._unsent[0]
            self._said_at = time.monotonic()

    def _tell_size(self, fd: int) -> None:
        if fd < 0:
            return
        try:
            found = os.get_terminal_size(fd)
        except OSError:
            return
        if (found.lines, found.columns) != self._size:
            self._size = (found.lines, found.columns)
            self._unsent.append(ExecFrame(height=found.lines, width=found.columns))


@contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Every key goes to the command, Ctrl-C too; the terminal is as before afterwards, whatever happens."""
    import termios
    import tty

    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def window_changes() -> Iterator[int]:
    """A descriptor that has something to read when the window's size changes; -1 where signals cannot be taken."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(number: int, frame: object) -> None:
        try:
            os.write(writing, b"x")
        except BlockingIOError:
            return  # rung often enough

    before = None
    try:
        try:
            before = signal.signal(signal.SIGWINCH, ring)
        except ValueError:  # not the main thread: sizes are compared now and then instead
            yield -1
            return
        yield reading
    finally:
        if before is not None:
            signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)
