"""A few bytes beside the log that name the last group acknowledged.

Set after every sync, never synced itself except at checkpoints: so it costs next to nothing, survives any crash of the
process, and after a power cut it may be old but never ahead of the truth. A log that ends before the mark has lost what
it promised, whatever the reason: a damaged page, a write-ahead log cut short, an older copy of the file.

The file is mapped: a plain write would touch the file's times and so, now and then, wait for the file system's journal.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path
from typing import Final

SIZE: Final = 4096
_MAGIC: Final = b"FSMK"
_SLOT: Final = 16


class AckedMark:
    """The mark file of one log. Blocking; used by the thread that owns the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def open(self) -> int:
        """The sequence number of the last acknowledged group. A mark that is missing or damaged knows of none."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(fd).st_size < SIZE:
                os.pwrite(fd, bytes(SIZE - os.fstat(fd).st_size), os.fstat(fd).st_size)
                os.fsync(fd)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        return max(_decode(self._map[:_SLOT]), _decode(self._map[_SLOT : 2 * _SLOT]))

    def set(self, sequence: int) -> None:
        """The two slots take turns: a crash in the middle of one leaves the other."""
        assert self._map is not None
        at = (sequence & 1) * _SLOT
        self._map[at : at + _SLOT] = _encode(sequence)

    def sync(self) -> None:
        assert self._map is not None
        self._map.flush()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None


def _encode(sequence: int) -> bytes:
    body = _MAGIC + sequence.to_bytes(8, "big")
    return body + zlib.crc32(body).to_bytes(4, "big")


def _decode(slot: bytes) -> int:
    sequence = int.from_bytes(slot[4:12], "big")
    return sequence if slot == _encode(sequence) else 0
