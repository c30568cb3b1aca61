"""`u32 length | frame`, again and again: how frames follow each other on a stream and inside a websocket message."""

from __future__ import annotations

import struct
from typing import Final

from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import Parts

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">I")


def pack(frames: list[Parts]) -> bytes:
    """All frames, each behind its length, in one piece."""
    pieces: list[bytes] = []
    for head, payload in frames:
        pieces += (_LENGTH.pack(len(head) + len(payload)), head, payload)
    return b"".join(pieces)


def unpack(data: bytes | bytearray, bytes_max: int) -> tuple[list[bytes], int]:
    """The frames that are here in full, and how many bytes they take.

    A frame over `bytes_max` is a `ProtocolViolation` only when it comes first: until those before it are dealt with,
    the limit may rise.
    """
    frames: list[bytes] = []
    at, end = 0, len(data)
    with memoryview(data) as view:
        while end - at >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > bytes_max:
                if frames:
                    break
                raise ProtocolViolation(f"frame of {length} bytes, at most {bytes_max} are taken here")
            stop = at + LENGTH_BYTES + length
            if stop > end:
                break
            frames.append(bytes(view[at + LENGTH_BYTES : stop]))
            at = stop
    return frames, at


def batches(frames: list[Parts], bytes_max: int) -> list[bytes]:
    """The frames packed into as few pieces as fit under `bytes_max`; a frame larger than that gets its own."""
    pieces: list[bytes] = []
    batch: list[Parts] = []
    size = 0
    for parts in frames:
        length = LENGTH_BYTES + len(parts[0]) + len(parts[1])
        if batch and size + length > bytes_max:
            pieces.append(pack(batch))
            batch, size = [], 0
        batch.append(parts)
        size += length
    if batch:
        pieces.append(pack(batch))
    return pieces
