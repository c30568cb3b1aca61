"""Looks at a SQLite write-ahead log before SQLite does, and tells a torn tail from damage.

SQLite stops reading its WAL at the first frame whose checksum is off and says nothing: right for a write that a power
cut tore, wrong for a flipped bit in the middle, where everything acknowledged after it would be forgotten in silence.
One group commit is never written before the one ahead of it is synced. So a bad frame with the beginning of a *later*
group behind it lies in a group that was acknowledged: that is damage, and the server must not start. A bad frame in the
last group is a torn write, and SQLite's cut is right.

The layout (32-byte header, then 24-byte frame headers before pages, chained checksum) is the documented file format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoint number, two salts, two checksums
_FRAME = struct.Struct(">IIIIII")  # page number, database size if a commit, two salts, two checksums
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683


@dataclass(frozen=True, slots=True)
class WalFindings:
    """What the file holds. Frames of earlier generations (recycled space) count as absent."""

    frames_valid: int = 0
    damaged_at: int | None = None
    """Byte offset of a bad frame that was acknowledged; None when the file is whole or merely torn at its end."""


def check_wal(data: bytes) -> WalFindings:
    """Judge the bytes of a WAL file as a crash left it. A missing or headless file is an empty one."""
    if len(data) < _HEADER.size:
        return WalFindings()
    magic, _, page_bytes, _, salt1, salt2, sum1, sum2 = _HEADER.unpack_from(data)
    order = {_MAGIC_LITTLE: "<", _MAGIC_BIG: ">"}.get(magic)
    if order is None or _chain(data[:24], order, (0, 0)) != (sum1, sum2) or page_bytes < 512:
        return WalFindings()
    stride = _FRAME.size + page_bytes
    sums = (sum1, sum2)
    valid = 0
    for at in range(_HEADER.size, len(data) - stride + 1, stride):
        *_, frame_salt1, frame_salt2, want1, want2 = _FRAME.unpack_from(data, at)
        sums = _chain(data[at : at + 8] + data[at + _FRAME.size : at + stride], order, sums)
        if (frame_salt1, frame_salt2) != (salt1, salt2) or sums != (want1, want2):
            is_damage = _a_later_group_begins(data, at, stride, (salt1, salt2))
            return WalFindings(valid, at if is_damage else None)
        valid += 1
    return WalFindings(valid)


def _a_later_group_begins(data: bytes, bad: int, stride: int, salts: tuple[int, int]) -> bool:
    """Whether a frame of this generation stands behind a commit frame that stands at or behind the bad one."""
    committed = False
    for is_commit in _generation(data, bad, stride, salts):
        if committed:
            return True
        committed = is_commit
    return False


def _generation(data: bytes, start: int, stride: int, salts: tuple[int, int]) -> Iterator[bool]:
    """For every later frame with the right salts: whether it ends a commit. Commit marks stay seen, gaps allowed."""
    committed = False
    for at in range(start, len(data) - _FRAME.size + 1, stride):
        _, size, salt1, salt2, _, _ = _FRAME.unpack_from(data, at)
        if (salt1, salt2) == salts:
            committed = committed or size != 0
            yield committed


def _chain(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """The WAL's running checksum over 32-bit words, two at a time."""
    s1, s2 = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for i in range(0, len(words), 2):
        s1 = (s1 + words[i] + s2) & 0xFFFFFFFF
        s2 = (s2 + words[i + 1] + s1) & 0xFFFFFFFF
    return s1, s2
