"""What is inside a saved state: what it is of, and how much of each kind of record, after checking every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from fedsched.codec import STORED_LIMITS, loads
from fedsched.model.errors import BadRequest
from fedsched.raft.snapshot_file import SnapshotReader
from fedsched.state.image import FRAME, FRAME_BYTES_MAX, DamagedImage


@dataclass(frozen=True, slots=True)
class TableContent:
    """How many records of one kind there are, and the bytes they take in the file."""

    name: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """A saved state, as `operator snapshot inspect` shows it."""

    id: str
    size: int
    index: int
    term: int
    version: int
    cluster_id: str
    tables: tuple[TableContent, ...]

    def as_api(self) -> dict[str, Any]:
        stats = [{"Name": one.name, "Count": one.count, "Size": one.size} for one in self.tables]
        return {
            "ID": self.id,
            "Size": self.size,
            "Index": self.index,
            "Term": self.term,
            "Version": self.version,
            "ClusterID": self.cluster_id,
            "Stats": stats,
        }


def content_of(path: str) -> SnapshotContent:
    """Read a saved state to its end; raises if it is damaged or none at all."""
    try:
        with SnapshotReader(Path(path)) as reader:
            tables = tables_of(reader.chunks())
            return SnapshotContent(
                id=reader.meta.id,
                size=reader.size,
                index=reader.header.index,
                term=reader.header.term,
                version=reader.header.schema_version,
                cluster_id=reader.header.cluster_id,
                tables=tables,
            )
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", hint="name a saved state") from error


def tables_of(chunks: Iterable[bytes]) -> tuple[TableContent, ...]:
    """Count the records of an image by kind; kinds without any are left out."""
    counts: dict[str, int] = {}
    sizes: Counter[str] = Counter()
    for payload in _frames(chunks):
        value = loads(payload, STORED_LIMITS)
        match value:
            case {"k": "head", "counts": dict(found)}:
                counts = found
            case {"k": "rows", "t": str(name)}:
                sizes[name] += len(payload)
            case {"k": str(kind), "t": str(name)}:
                sizes[f"{kind}.{name}"] += len(payload)
    return tuple(TableContent(name, count, sizes[name]) for name, count in sorted(counts.items()) if count)


def _frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Put the frames of an image together again; chunks may be cut anywhere."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= FRAME.size:
            length, crc = FRAME.unpack_from(buffer)
            if length > FRAME_BYTES_MAX:
                raise DamagedImage(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are possible")
            if len(buffer) < FRAME.size + length:
                break
            payload = bytes(buffer[FRAME.size : FRAME.size + length])
            del buffer[: FRAME.size + length]
            if crc32(payload) != crc:
                raise DamagedImage("a frame fails its checksum")
            yield payload
    if buffer:
        raise DamagedImage("the image is cut short")
