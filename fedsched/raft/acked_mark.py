"""A few bytes beside the log that name the last group acknowledged.

Written after every sync, never synced itself except at checkpoints: so it costs one small write, survives any crash of
the process, and after a power cut it may be old but never ahead of the truth. A log that ends before the mark has lost
what it promised, whatever the reason: a damaged page, a write-ahead log cut short, an older copy of the file.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_MAGIC = b"FSMK"


class AckedMark:
    """The mark file of one log. Blocking; used by the thread that owns the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def open(self) -> int:
        """The sequence number of the last acknowledged group. A mark that is missing or damaged knows of none."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        data = os.pread(self._fd, 64, 0)
        sequence = int.from_bytes(data[4:12], "big")
        return sequence if data == _encode(sequence) else 0

    def set(self, sequence: int) -> None:
        os.pwrite(self._fd, _encode(sequence), 0)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _encode(sequence: int) -> bytes:
    body = _MAGIC + sequence.to_bytes(8, "big")
    return body + zlib.crc32(body).to_bytes(4, "big")
