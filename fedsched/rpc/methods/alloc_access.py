"""Into an allocation from outside: its logs, its files, and terminals inside its tasks.

Everything here runs at the node and streams; any server passes it on (see `node_calls`). A reader's place is a file and
a position in it, so that whoever loses its way to the node goes on there through another server.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from fedsched.model.declare import Record, TimeNs
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.wire.call_state import Flow

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)

FILE_TRUNCATED: Final = "file truncated"
FILE_DELETED: Final = "file deleted"
SNAPSHOT_ERROR: Final = ".fedsched-snapshot-error"
"""The last entry of a snapshot that could not be finished; its content says why."""


class LogPlace(Record):
    """A place in a task's log."""

    file: Annotated[int, "The number at the end of the file's name."] = 0
    offset: int = 0


class AllocLogsRequest(Record):
    alloc_id: str
    task: str = ""
    type: Annotated[str, "`stdout` or `stderr`."] = "stdout"
    follow: Annotated[bool, "Go on with what is written from now on."] = False
    origin: Annotated[str, "`start` or `end`: from where `offset` counts."] = "start"
    offset: Annotated[int, "Bytes, over all files together."] = 0
    place: Annotated[LogPlace | None, "Go on exactly here, whatever `origin` says."] = None


class FileFrame(Record):
    """A piece of a file. One without anything in it is a sign of life."""

    file: Annotated[str, "Below the allocation's directory."] = ""
    offset: Annotated[int, "Where in the file the piece ends: the place to go on from."] = 0
    data: bytes = b""
    file_event: Annotated[str, "`file truncated` or `file deleted`, before this piece."] = ""
    missed_files: Annotated[int, "Log files that were rotated away before they were read."] = 0


class StreamReply(Record):
    """How a stream ended."""

    bytes_sent: int = 0


class FsRequest(Record):
    alloc_id: str
    path: Annotated[str, "Below the allocation's directory."] = "/"


class FsReadRequest(Record):
    alloc_id: str
    path: str = ""
    offset: int = 0
    limit: Annotated[int, "Bytes; 0: all there is."] = 0


class FsStreamRequest(Record):
    alloc_id: str
    path: str = ""
    follow: bool = True
    origin: Annotated[str, "`start` or `end`: from where `offset` counts."] = "start"
    offset: int = 0


class FsFile(Record):
    """One entry of a directory."""

    name: str
    is_dir: bool = False
    size: int = 0
    file_mode: Annotated[str, "As `ls -l` shows it."] = ""
    mod_time_ns: TimeNs = 0
    content_type: str = ""


class FsListReply(Record):
    files: tuple[FsFile, ...] = ()
    is_cut: Annotated[bool, "There are more than are shown."] = False


class FsStatReply(Record):
    file: FsFile


class AllocExecRequest(Record):
    alloc_id: str
    task: str = ""
    command: tuple[str, ...] = ()
    tty: bool = False
    user: Annotated[str, "Who asks; filled in by the server that was asked."] = ""


class ExecFrame(Record):
    """What goes either way while a command runs. One without anything in it is a sign of life."""

    stdin: bytes = b""
    stdin_close: bool = False
    height: Annotated[int, "Of the caller's terminal; 0: not said."] = 0
    width: int = 0
    stdout: bytes = b""
    stdout_close: bool = False
    stderr: bytes = b""
    stderr_close: bool = False


class AllocExecReply(Record):
    """How the command ended."""

    exit_code: int = 0
    signal: int = 0


def _streams(
    name: str, request: type[Q], reply: type[R], needs: str, doc: str, *, item: type, flow: Flow = Flow.DOWN
) -> Method[Q, R]:
    return declare(
        Method(name, request, reply, RunsAt.NODE, needs=needs, needs_quorum=False, doc=doc, flow=flow, item=item)
    )


ALLOC_LOGS = _streams(
    "Alloc.Logs", AllocLogsRequest, StreamReply, "read-logs", "What a task wrote, and goes on writing.", item=FileFrame
)
FS_STREAM = _streams(
    "Fs.Stream", FsStreamRequest, StreamReply, "read-fs", "A file of an allocation as it grows.", item=FileFrame
)
FS_CAT = _streams("Fs.Cat", FsReadRequest, StreamReply, "read-fs", "A file of an allocation.", item=bytes)
FS_READ_AT = _streams("Fs.ReadAt", FsReadRequest, StreamReply, "read-fs", "A part of a file.", item=bytes)
FS_SNAPSHOT = _streams(
    "Fs.Snapshot",
    FsRequest,
    StreamReply,
    "read-fs",
    "What a replacement takes over, as a tar archive: shared data and each task's local files.",
    item=bytes,
)
FS_LIST = declare(
    Method(
        "Fs.List",
        FsRequest,
        FsListReply,
        RunsAt.NODE,
        needs="read-fs",
        needs_quorum=False,
        doc="A directory of an allocation.",
    )
)
FS_STAT = declare(
    Method(
        "Fs.Stat",
        FsRequest,
        FsStatReply,
        RunsAt.NODE,
        needs="read-fs",
        needs_quorum=False,
        doc="One file of an allocation.",
    )
)
ALLOC_EXEC = _streams(
    "Alloc.Exec",
    AllocExecRequest,
    AllocExecReply,
    "alloc-exec",
    "Run a command inside a task, with its input, output and terminal.",
    item=ExecFrame,
    flow=Flow.BOTH,
)
