"""What a supervisor leaves on disk about itself and its task: a table, told line by line.

The file is made before anything else, so its name is a claim: whoever creates it first, a supervisor that is about to
launch or an agent that wants to be sure that nothing will be, has decided it for both. It is not synced: after a power
cut the boot id differs and nothing it says counts any more.

Every line is a table of what is new; together they are the state. A line counts when its end is there. The kernel shows
a file's new length after the bytes that made it longer, and a supervisor that is killed, or a disk that is full, may
leave a line without an end: so a reader sees a whole line or none of it, without a second file and a rename. That
matters because a second file would cost a disk more than all else that is done for a task (ext4 looks long for a place
for new files where many were deleted lately).

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor.frames import BadFrame, from_json, to_json

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Any, Final

SUFFIX: Final = ".state"
SOCKET: Final = ".sock"
SPARE: Final = ".spare-"
MAX_STATE: Final = 1 << 20


class StateFile:
    """A state file of our own, still being told."""

    __slots__ = ("_end", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = 0

    def add(self, news: dict[str, Any]) -> None:
        """Add what is new. Raises `OSError`, and then readers see nothing of it; it may be tried again."""
        data = to_json(news) + b"\n"
        at = self._end
        while data:
            written = os.pwrite(self._fd, data, at)
            at += written
            data = data[written:]
        self._end = at

    def close(self) -> None:
        """There is nothing more to tell."""
        os.close(self._fd)


def claim(directory: str, key: str, table: dict[str, Any], spare: str = "") -> StateFile | None:
    """Create the file with `table` in it, out of a spare one if that is there; None if it exists."""
    if spare:
        file = _reopen(f"{directory}/{spare}")
        if file is not None:
            try:
                return _claim_with(file, f"{directory}/{spare}", f"{directory}/{key}{SUFFIX}", table)
            except FileNotFoundError:
                pass  # an agent that has just begun swept it away: make one
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = StateFile(os.open(f"{directory}/{key}{SUFFIX}", flags, 0o600))
    except FileExistsError:
        return None
    try:
        file.add(table)
    except BaseException:
        file.close()
        raise
    return file


def _reopen(path: str) -> StateFile | None:
    try:
        return StateFile(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return None


def _claim_with(file: StateFile, spare: str, path: str, table: dict[str, Any]) -> StateFile | None:
    """The spare file says all of it before it gets the name that counts."""
    try:
        file.add(table)
        os.link(spare, path)
    except FileExistsError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    try:
        os.unlink(spare)
    except FileNotFoundError:
        return file  # swept away by an agent that has just begun; the name that counts is there
    return file


def put_by(directory: str, key: str, spare: str) -> None:
    """Keep the file of one that was acknowledged for another: a name that nobody looks for.

    A file system has less to do for it than for a file removed and another one made.
    """
    for end in (SOCKET, f"{SUFFIX}~"):
        try:
            os.unlink(f"{directory}/{key}{end}")
        except FileNotFoundError:
            continue
    os.rename(f"{directory}/{key}{SUFFIX}", f"{directory}/{spare}")


def sweep_spares(directory: str) -> None:
    """Remove those of an agent that is gone."""
    for name in os.listdir(directory):
        if name.startswith(SPARE):
            os.unlink(f"{directory}/{name}")


def read(directory: str, key: str) -> dict[str, Any] | None:
    """What it says; None if there is none; an empty table if it cannot be read (a claim being written, or damage)."""
    try:
        with open(f"{directory}/{key}{SUFFIX}", "rb") as file:
            first, *rest = file.read(MAX_STATE + 1).split(b"\n")
        table = from_json(first.rstrip(b" "))  # a supervisor of an older version wrote one line, padded, without an end
        for line in rest[:-1]:
            table |= from_json(line)
    except FileNotFoundError:
        return None
    except (OSError, BadFrame):
        return {}
    return table


def remove(directory: str, key: str) -> None:
    """All files of one supervisor; the state goes last, so that an interrupted removal is found again."""
    for end in (SOCKET, f"{SUFFIX}~", SUFFIX):
        try:
            os.unlink(f"{directory}/{key}{end}")
        except FileNotFoundError:
            continue


def keys(directory: str) -> list[str]:
    """All supervisors that left a state file."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
