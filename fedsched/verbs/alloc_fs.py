"""`alloc fs`: the files of an allocation, on whichever node they are."""

from __future__ import annotations

import time
from typing import Final

from fedsched.model.alloc import Allocation
from fedsched.model.errors import FedschedError
from fedsched.model.record import to_api
from fedsched.model.units import format_size
from fedsched.rpc.methods.alloc_access import (
    FS_CAT,
    FS_LIST,
    FS_READ_AT,
    FS_STAT,
    FS_STREAM,
    FsFile,
    FsReadRequest,
    FsRequest,
    FsStreamRequest,
)
from fedsched.verbs.alloc_choice import CHOICE, CHOSEN, choose
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.lines import last_lines
from fedsched.verbs.log_follow import PATIENCE_S, PAUSE_S, WEATHER_STATUS
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, Verbs
from fedsched.verbs.view import columns, moment

VERBS = Verbs()

TAIL_LINES: Final = 10
LINE_BYTES: Final = 160
HEAD: Final = ("Mode", "Size", "Modified Time", "Name")


@VERBS.verb(
    "alloc fs",
    "show the files of an allocation",
    doc="Lists a directory of an allocation, or shows what is in a file. Paths are below the allocation's directory;"
    " what tasks keep secret is never shown.",
    flags=(
        Flag("stat", "show what a file is instead of what is in it", bool),
        Flag("f", "go on as the file grows", bool),
        Flag("tail", f"only the end: the last {TAIL_LINES} lines unless -n or -c say otherwise", bool),
        Flag("n", "the last so many lines", int, value="lines"),
        Flag("c", "the last so many bytes", int, value="bytes"),
        Flag("H", "sizes in bytes, for programs", bool),
        JSON,
        *CHOSEN,
    ),
    arguments=(CHOICE, Argument("path", "a file or directory; all of it if left out", optional=True)),
)
def fs(terminal: Terminal, given: Given) -> int:
    for name in ("n", "c"):
        if given[name] is not None and given[name] < 0:
            raise BadUsage(f"flag -{name} {given[name]} is negative")
    alloc = choose(terminal, given)
    path = given["path"] or "/"
    found = _stat(terminal, alloc, path)
    if found.is_dir and not given["stat"]:
        return _list(terminal, given, alloc, path)
    if given["stat"]:
        if not terminal.formatted(given, lambda: to_api(found)):
            terminal.write(columns(HEAD, [_row(found, in_bytes=given["H"])]))
        return OK
    _show(terminal, given, alloc, path, found)
    return OK


def _stat(terminal: Terminal, alloc: Allocation, path: str) -> FsFile:
    if not path.strip("/"):
        return FsFile(name="/", is_dir=True)
    request = FsRequest(alloc_id=alloc.id, path=path)
    return terminal.client.call(FS_STAT, request, namespace=alloc.namespace).file


def _list(terminal: Terminal, given: Given, alloc: Allocation, path: str) -> int:
    request = FsRequest(alloc_id=alloc.id, path=path)
    reply = terminal.client.call(FS_LIST, request, namespace=alloc.namespace)
    if terminal.formatted(given, lambda: [to_api(one) for one in reply.files]):
        return OK
    terminal.write(columns(HEAD, [_row(one, in_bytes=given["H"]) for one in reply.files]))
    if reply.is_cut:
        terminal.warn(f"There are more; only the first {len(reply.files)} are shown")
    return OK


def _row(one: FsFile, *, in_bytes: bool) -> tuple[str, str, str, str]:
    size = str(one.size) if in_bytes else format_size(one.size)
    return one.file_mode, size, moment(one.mod_time_ns), f"{one.name}/" if one.is_dir else one.name


def _show(terminal: Terminal, given: Given, alloc: Allocation, path: str, found: FsFile) -> None:
    at = 0
    lines = given["n"] if given["n"] is not None else TAIL_LINES if given["tail"] else None
    if given["c"] is not None:
        at = max(0, found.size - given["c"])
    elif lines is not None:
        at = _start_of_lines(terminal, alloc, path, found.size, lines)
    if given["f"]:
        _follow(terminal, alloc, path, at)
        return
    request = FsReadRequest(alloc_id=alloc.id, path=path, offset=at)
    _pour(terminal, alloc, request)


def _start_of_lines(terminal: Terminal, alloc: Allocation, path: str, size: int, lines: int) -> int:
    """Where the last so many lines of a file begin."""
    asked = max(LINE_BYTES * lines, 1024)
    while True:
        at = max(0, size - asked)
        request = FsReadRequest(alloc_id=alloc.id, path=path, offset=at, limit=max(1, size - at))
        data = b"".join(terminal.client.download(FS_READ_AT, request))
        found = last_lines(data, lines)
        if len(found) < len(data) or at == 0:
            return at + len(data) - len(found)
        asked *= 4


def _pour(terminal: Terminal, alloc: Allocation, request: FsReadRequest) -> None:
    stream = terminal.client.open_stream(FS_CAT, request, namespace=alloc.namespace)
    while not stream.is_over:
        while (piece := stream.take()) is not None:
            terminal.write_bytes(piece)
        if not stream.is_over:
            terminal.client.wait(1.0)
    stream.reply()


def _follow(terminal: Terminal, alloc: Allocation, path: str, at: int) -> None:
    """Show what is added to a file; when the way to it is lost, go on from there over another one."""
    lost_at: float | None = None
    pause_s = PAUSE_S[0]
    while True:
        try:
            request = FsStreamRequest(alloc_id=alloc.id, path=path, offset=at)
            stream = terminal.client.open_stream(FS_STREAM, request, namespace=alloc.namespace)
            while not stream.is_over:
                while (frame := stream.take()) is not None:
                    lost_at, pause_s = None, PAUSE_S[0]
                    if frame.file:
                        at = frame.offset
                    if frame.file_event:
                        terminal.warn(f"==> {path}: {frame.file_event}")
                    terminal.write_bytes(frame.data)
                if not stream.is_over:
                    terminal.client.wait(1.0)
            stream.reply()
            return
        except FedschedError as error:
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            if error.http_status not in WEATHER_STATUS or now - lost_at > PATIENCE_S:
                raise
            if error.code == "unavailable":
                terminal.client.close()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S[1])
