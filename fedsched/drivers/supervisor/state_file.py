"""What a supervisor leaves on disk about itself and its task; its end is put there as a whole, by rename.

The file is made before anything else, so its name is a claim: whoever creates it first, a supervisor that is about to
launch or an agent that wants to be sure that nothing will be, has decided it for both. It is not synced: after a power
cut the boot id differs and nothing it says counts any more.

A claim is filled in where it is, by one small write: nobody was told anything yet, whoever reads half of it reads
again, and a second file per launch would cost a disk more than all else that is done for it (ext4 looks long for a
place for new files where many were deleted lately).

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
MAX_STATE: Final = 1 << 20
ONE_WRITE: Final = 4096
"""Within a page, a write is done or not begun, whoever is killed."""


def claim(directory: str, key: str, table: dict[str, Any]) -> bool:
    """Create the file with `table` in it; false if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(f"{directory}/{key}{SUFFIX}", flags, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(fd, to_json(table))
    finally:
        os.close(fd)
    return True


def fill_in(directory: str, key: str, table: dict[str, Any]) -> None:
    """Put `table` in the place of a claim of our own."""
    data = to_json(table)
    if len(data) > ONE_WRITE:
        replace(directory, key, table)
        return
    fd = os.open(f"{directory}/{key}{SUFFIX}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, data.ljust(os.fstat(fd).st_size))
    finally:
        os.close(fd)


def replace(directory: str, key: str, table: dict[str, Any]) -> None:
    """Put `table` in its place."""
    path = f"{directory}/{key}{SUFFIX}"
    fd = os.open(f"{path}~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        data = to_json(table)
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.rename(f"{path}~", path)


def read(directory: str, key: str) -> dict[str, Any] | None:
    """What it says; None if there is none; an empty table if it cannot be read (a claim being written, or damage)."""
    try:
        with open(f"{directory}/{key}{SUFFIX}", "rb") as file:
            return from_json(file.read(MAX_STATE + 1).rstrip(b" "))
    except FileNotFoundError:
        return None
    except (OSError, BadFrame):
        return {}


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
