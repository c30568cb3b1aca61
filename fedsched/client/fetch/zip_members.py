"""Zip archives as members. Python's reader finds the entries; what they unpack to is counted by us as it comes."""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, Final

from fedsched.client.fetch.limits import BadArchive, Budget
from fedsched.client.fetch.members import Content, Member, MemberKind

LINK_MAX: Final = 4096
ENTRY_BYTES: Final = 46
"""The least that one entry takes in the directory of a zip file."""
DIRECTORY_MAX_FACTOR: Final = 16
"""How much longer than that an entry may be on average, with its name and comment."""
ENCRYPTED: Final = 1


def zip_members(source: BinaryIO, size: int, budget: Budget, entries_max: int) -> Iterator[Member]:
    """The members of a zip file, in the order of its directory."""
    budget.consumed = lambda: size
    _check_directory(source, entries_max)
    with _proper_zip(), zipfile.ZipFile(source) as archive:
        for entry in archive.infolist():
            budget.entry()
            yield from _member(archive, entry, budget)


@contextmanager
def _proper_zip() -> Iterator[None]:
    """Whatever Python's reader stumbles over is the archive's fault; errors of the disk stay what they are."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, struct.error, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise BadArchive(f"the archive is not proper zip: {error}") from None


class _Inside:
    """The bytes of one entry, counted."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._file = file
        self._budget = budget

    def read(self, count: int) -> bytes:
        with _proper_zip():
            data = self._file.read(count)
        self._budget.take(len(data))
        return data


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: Budget) -> Iterator[Member]:
    # Not `entry.filename`: Python cuts it at a NUL and turns backslashes around. What was written is what we judge.
    name = entry.orig_filename
    unix = entry.external_attr >> 16
    kind = stat.S_IFMT(unix)
    mode = stat.S_IMODE(unix) or 0o644
    if entry.flag_bits & ENCRYPTED:
        raise BadArchive(f"{name[:200]!r} in the archive is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Python unpacks the others without a bound on what one piece becomes.
        raise BadArchive(f"{name[:200]!r} in the archive is compressed in another way than deflate")
    if name.endswith("/"):
        yield Member(name, MemberKind.DIRECTORY, mode if unix else 0o755)
        return
    if kind not in (0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
        raise BadArchive(f"{name[:200]!r} in the archive is neither a file, a directory nor a link")
    if kind == stat.S_IFDIR:
        yield Member(name, MemberKind.DIRECTORY, mode)
        return
    with archive.open(entry) as file:
        stream = _Inside(file, budget)
        if kind == stat.S_IFLNK:
            target = stream.read(LINK_MAX + 1)
            if len(target) > LINK_MAX:
                raise BadArchive(f"the link {name[:200]!r} in the archive has an impossible target")
            yield Member(name, MemberKind.SYMLINK, target=os.fsdecode(target))
        else:
            yield Member(name, MemberKind.FILE, mode, data=Content(stream, None, name))


def _check_directory(source: BinaryIO, entries_max: int) -> None:
    """Python reads the whole directory into memory: look at how large it is first."""
    source.seek(0, os.SEEK_END)
    end = source.tell()
    source.seek(max(0, end - 65_557))
    tail = source.read(65_557)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise BadArchive("the archive is not proper zip: it has no directory")
    size = int.from_bytes(tail[at + 12 : at + 16], "little")
    most = max(entries_max, 16) * ENTRY_BYTES * DIRECTORY_MAX_FACTOR
    if size == 0xFFFFFFFF or size > most:
        raise BadArchive(
            f"the archive's directory takes {size} bytes, at most {most} are read"
            " (artifact.decompression_file_count_limit)"
        )
    source.seek(0)
