"""The form of a snapshot file, which is also the archive that operators save and restore.

    magic | header frame | chunk frames | end mark, counts | BLAKE2b-256 of everything before it

A frame is `u32 length | u32 crc | bytes`, at most 256 KiB; the top bit of the length says that the chunk goes on in the
next frame. So a reader never trusts, nor holds, more than one chunk at a time, and damage is found where it is. What a
chunk means is the state machine's business.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from fedsched.codec import cbor
from fedsched.model.errors import FedschedError
from fedsched.raft.membership import Config, decode_config, encode_config
from fedsched.raft.messages import SnapshotMeta

FORMAT_VERSION: Final = 1
MAGIC: Final = b"FSSNAP"
FRAME_BYTES_MAX: Final = 256 * 1024
CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Twice the largest log payload: a chunk holds at least one record of the state, whatever its size."""
DIGEST_BYTES: Final = 32
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""Written back in steps, so that the log's syncs never queue behind one enormous flush."""

_START = struct.Struct(">6sH")
_FRAME = struct.Struct(">II")
_COUNTS = struct.Struct(">QQ")
_MORE = 1 << 31
_FOOTER_BYTES = _FRAME.size + _COUNTS.size + DIGEST_BYTES


class DamagedSnapshot(FedschedError):
    """A snapshot file that is not what was written, or not one at all."""

    code = "damaged_snapshot"


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """What a snapshot says of itself."""

    cluster_id: str
    index: int
    term: int
    config: Config
    config_index: int
    schema_version: int
    """Of the chunks inside; older readers refuse newer ones."""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot file, read and verified to its last byte."""

    header: SnapshotHeader
    meta: SnapshotMeta
    chunks: int
    payload_bytes: int


class ChunkWriter:
    """Writes one snapshot file. It is whole, digest included, only after `end`; making it visible is up to others."""

    def __init__(self, file: BinaryIO, header: SnapshotHeader) -> None:
        self._file = file
        self._header = header
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._size = 0
        self._unsynced = 0
        self._chunks = 0
        self._payload_bytes = 0
        self._put(_START.pack(MAGIC, FORMAT_VERSION))
        self._frames(_header_bytes(header))

    def write(self, chunk: bytes) -> None:
        if not 0 < len(chunk) <= CHUNK_BYTES_MAX:
            raise ValueError(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {len(chunk)}")
        self._frames(chunk)
        self._chunks += 1
        self._payload_bytes += len(chunk)

    def end(self) -> SnapshotMeta:
        """Write the footer and sync."""
        self._put(_frame_head(0, b"") + _COUNTS.pack(self._chunks, self._payload_bytes))
        digest = self._digest.digest()
        self._put(digest)
        self._sync()
        return meta_of(self._header, self._size, digest)

    def _frames(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        for at in range(0, len(view), FRAME_BYTES_MAX):
            part = view[at : at + FRAME_BYTES_MAX]
            more = _MORE if at + FRAME_BYTES_MAX < len(view) else 0
            self._put(_frame_head(len(part) | more, part))
            self._put(part)

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_EVERY_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0


class SnapshotReader:
    """One open snapshot file: raw bytes for a peer, verified chunks for a restore. Blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.header = self._read_header()
            self.digest = os.pread(self._file.fileno(), DIGEST_BYTES, self.size - DIGEST_BYTES)
            self.meta = meta_of(self.header, self.size, self.digest)
        except BaseException:
            self._file.close()
            raise

    def read(self, offset: int, n: int) -> bytes:
        """Raw bytes of the file, fewer than `n` only at its end. May be called while `chunks` is going on."""
        return os.pread(self._file.fileno(), n, offset)

    def chunks(self) -> Iterator[bytes]:
        """The chunks in order, each checked; ends only if the whole file is what was written.

        Raises `DamagedSnapshot` otherwise, perhaps after some chunks: a restore takes effect only when this has ended.
        """
        walk = _Walk(self._path, self._file, self.size)
        walk.start()
        walk.chunk()
        while (chunk := walk.chunk()) is not None:
            yield chunk
        walk.end()

    def verify(self) -> SnapshotInfo:
        """Read everything once."""
        count = payload_bytes = 0
        for chunk in self.chunks():
            count += 1
            payload_bytes += len(chunk)
        return SnapshotInfo(self.header, self.meta, count, payload_bytes)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_header(self) -> SnapshotHeader:
        if self.size < _START.size + _FRAME.size + _FOOTER_BYTES:
            raise _damage(self._path, f"{self.size} bytes are too few for a snapshot")
        walk = _Walk(self._path, self._file, self.size)
        walk.start()
        raw = walk.chunk()
        if raw is None:
            raise _damage(self._path, "there is no header")
        return _header_from_bytes(self._path, raw)


def inspect(path: Path | str) -> SnapshotInfo:
    """Everything a snapshot or archive says of itself, after verifying every byte of it."""
    with SnapshotReader(Path(path)) as reader:
        return reader.verify()


def meta_of(header: SnapshotHeader, size: int, digest: bytes) -> SnapshotMeta:
    return SnapshotMeta(
        id=snapshot_id(header.index, header.term, digest),
        index=header.index,
        term=header.term,
        config=header.config,
        config_index=header.config_index,
        size=size,
        digest=digest,
    )


def snapshot_id(index: int, term: int, digest: bytes) -> str:
    """Names content: two servers' snapshots of one index have one id only if they are byte for byte equal."""
    return f"{index}-{term}-{digest[:8].hex()}"


class _Walk:
    """One pass over a file, hashing as it goes."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._left = size
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._chunks = -1  # the header is the first, and not counted
        self._payload_bytes = 0
        file.seek(0)

    def start(self) -> None:
        magic, version = _START.unpack(self._take(_START.size))
        if magic != MAGIC:
            raise _damage(self._path, "this is not a snapshot")
        if version != FORMAT_VERSION:
            raise _damage(self._path, f"snapshot format {version} is not known here, only {FORMAT_VERSION}")

    def chunk(self) -> bytes | None:
        """The next chunk; None at the end mark."""
        parts: list[bytes] = []
        size = 0
        while True:
            head = self._take(_FRAME.size)
            word, _ = _FRAME.unpack(head)
            length = word & ~_MORE
            at = self._file.tell()
            if length > FRAME_BYTES_MAX or size + length > CHUNK_BYTES_MAX:
                raise _damage(self._path, f"a frame of {length} bytes at byte {at} is over the limit")
            part = self._take(length)
            if _frame_head(word, part) != head:
                raise _damage(self._path, f"the frame at byte {at} fails its checksum")
            if word == 0 and not parts:
                return None
            if length == 0:
                raise _damage(self._path, f"an empty frame at byte {at}")
            parts.append(part)
            size += length
            if not word & _MORE:
                self._chunks += 1
                self._payload_bytes += size if self._chunks else 0
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> None:
        counts = _COUNTS.unpack(self._take(_COUNTS.size))
        digest = self._digest.digest()
        if self._take(DIGEST_BYTES) != digest or self._left:
            raise _damage(self._path, "the file as a whole fails its digest")
        if counts != (self._chunks, self._payload_bytes):
            raise _damage(self._path, f"{counts[0]} chunks were written, {self._chunks} are there")

    def _take(self, n: int) -> bytes:
        data = self._file.read(n)
        if len(data) != n:
            raise _damage(self._path, f"the file ends in the middle of something, after {self._file.tell()} bytes")
        self._left -= n
        self._digest.update(data)
        return data


def _frame_head(word: int, part: bytes | memoryview) -> bytes:
    raw = word.to_bytes(4, "big")
    return raw + zlib.crc32(part, zlib.crc32(raw)).to_bytes(4, "big")


def _header_bytes(header: SnapshotHeader) -> bytes:
    return cbor.dumps(
        [
            header.cluster_id,
            header.index,
            header.term,
            encode_config(header.config),
            header.config_index,
            header.schema_version,
        ]
    )


def _header_from_bytes(path: Path, raw: bytes) -> SnapshotHeader:
    try:
        fields: Any = cbor.loads(raw)
        match fields:
            case [str(cluster_id), int(index), int(term), bytes(config), int(config_index), int(schema)]:
                return SnapshotHeader(cluster_id, index, term, decode_config(config), config_index, schema)
    except cbor.CodecError as error:
        raise _damage(path, f"its header cannot be read: {error}") from error
    raise _damage(path, "its header has a form not known here")


def _damage(path: Path, what: str) -> DamagedSnapshot:
    return DamagedSnapshot(f"snapshot {path}: {what}", hint="use another snapshot; this one must not be restored")
