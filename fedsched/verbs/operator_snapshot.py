"""`operator snapshot ...`: the region's state in a file, its content, and the way back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from fedsched.model.errors import BadRequest, FedschedError
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.snapshot import SNAPSHOT_RESTORE, SNAPSHOT_SAVE
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import columns, pairs

VERBS = Verbs()
CHUNK_BYTES: Final = 128 * 1024


class SnapshotTrouble(FedschedError):
    """A snapshot that did not arrive whole, or a file that cannot be used for one."""

    code = "snapshot_trouble"


@VERBS.verb(
    "operator snapshot save",
    "save the region's state to a file",
    doc="Saves the region's state, as of now, to a file that `operator snapshot restore` takes. The file appears only"
    " when it is complete, and holds secrets: keep it safe.",
    flags=(Flag("stale", "let any server give what it has, even without a leader", bool),),
    arguments=(Argument("file", "where to; backup-<time>.snap if left out", optional=True),),
)
def save(terminal: Terminal, given: Given) -> int:
    path = given["file"] or f"backup-{terminal.now_ns() // 10**9}.snap"
    if os.path.exists(path):
        raise SnapshotTrouble(f"{path} exists already", hint="name another file, or move that one away")
    partial = f"{path}.partial"
    try:
        _receive(terminal, partial, is_stale=given["stale"])
        _check(partial)
        os.replace(partial, path)
    except OSError as error:
        raise SnapshotTrouble(f"{path} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    terminal.say(f"State file written to {path}")
    return OK


@VERBS.verb(
    "operator snapshot inspect",
    "show what a saved state is of, after checking it",
    doc="Reads a saved state to its last byte, checks it, and shows what it says of itself. Talks to nobody.",
    flags=(JSON, TEMPLATE),
    arguments=(Argument("file", "the saved state"),),
    is_remote=False,
)
def inspect(terminal: Terminal, given: Given) -> int:
    from fedsched.model.units import format_size
    from fedsched.verbs.snapshot_content import content_of

    content = content_of(given["file"])
    if terminal.formatted(given, content.as_api):
        return OK
    head = [
        ("ID", content.id),
        ("Size", content.size),
        ("Index", content.index),
        ("Term", content.term),
        ("Version", content.version),
    ]
    terminal.write(pairs(head))
    terminal.say()
    rows = [(one.name, one.count, format_size(one.size)) for one in content.tables]
    total = ("Total", sum(one.count for one in content.tables), format_size(sum(one.size for one in content.tables)))
    terminal.write(columns(("Type", "Count", "Size"), [*rows, ("----", "----", "----"), total]))
    return OK


@VERBS.verb(
    "operator snapshot restore",
    "replace the region's state by a saved one",
    doc="Replaces the whole state of the region by a saved one. Everything registered since it was saved is gone from"
    " the region's memory afterwards.",
    flags=(Flag("yes", "do not ask", bool),),
    arguments=(Argument("file", "the saved state"),),
)
def restore(terminal: Terminal, given: Given) -> int:
    path = given["file"]
    _check(path)
    is_sure = given["yes"] or not terminal.stdin.isatty()
    if not is_sure and not terminal.confirm(f"Are you sure you want to replace the state of the region by {path}?"):
        terminal.say("Cancelled")
        return OK
    reply = terminal.client.upload(SNAPSHOT_RESTORE, Empty(), _pieces(path))
    terminal.say(f"Snapshot Restored (index {reply.index})")
    return OK


def _receive(terminal: Terminal, partial: str, *, is_stale: bool) -> None:
    stream = terminal.client.download(SNAPSHOT_SAVE, Empty(), stale=is_stale)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    size = 0
    with open(fd, "wb") as file:
        for piece in stream:
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    reply = stream.reply()
    if reply.size and reply.size != size:
        raise SnapshotTrouble(f"{size} of {reply.size} bytes arrived", hint="try again")


def _check(path: str) -> None:
    """Read it all once: better to find damage now than in the night it is needed."""
    from fedsched.raft.snapshot_file import inspect as verify

    try:
        verify(path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", hint="name a saved state") from error


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece
