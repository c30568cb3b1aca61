"""A simulated daemon's snapshot files, in memory; the face of `SnapshotStore` as far as the runner looks at it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Self

from fedsched.codec import cbor
from fedsched.model.errors import NotFound
from fedsched.raft.membership import Config
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.snapshot_file import DIGEST_BYTES, DamagedSnapshot, snapshot_id
from fedsched.raft.snapshots import KEEP


@dataclass(frozen=True, slots=True)
class MemoryFile:
    meta: SnapshotMeta
    data: bytes


class MemorySnapshots:
    """One directory of snapshots. A file is there, and survives a power cut, once its writer has finished."""

    def __init__(self, *, keep: int = KEEP, by_arrival: bool = False) -> None:
        self._keep = keep
        self._by_arrival = by_arrival
        self.directory = "memory"
        self.cluster_id = ""
        self.partial: tuple[str, bytearray] = ("", bytearray())
        """The id of what is being fetched, and what has arrived of it."""
        self._files: dict[str, MemoryFile] = {}

    def create(self, index: int, term: int, config: Config, config_index: int, schema_version: int = 1) -> MemoryWriter:
        return MemoryWriter(self, SnapshotMeta("", index, term, config, config_index))

    def list(self) -> list[SnapshotMeta]:
        """Newest first."""
        metas = [file.meta for file in self._files.values()]
        return sorted(metas, key=lambda meta: (meta.index, meta.term, meta.id), reverse=True)

    def latest(self) -> SnapshotMeta | None:
        metas = self.list()
        return metas[0] if metas else None

    def usable(self, log_prev_index: int) -> SnapshotMeta | None:
        """The newest one, which the log must reach."""
        newest = self.latest()
        if (newest.index if newest else 0) < log_prev_index:
            raise DamagedSnapshot(f"the log begins after {log_prev_index} and no snapshot reaches it")
        return newest

    def open(self, snapshot_id: str) -> MemoryReader:
        file = self._files.get(snapshot_id)
        if file is None:
            raise NotFound(f"there is no snapshot {snapshot_id!r} here")
        return MemoryReader(file)

    def receive(self, meta: SnapshotMeta) -> MemoryReceiver:
        if self.partial[0] != meta.id:
            self.partial = (meta.id, bytearray())
        return MemoryReceiver(self, meta, self.partial[1])

    def publish(self, file: MemoryFile) -> None:
        self._files.pop(file.meta.id, None)
        self._files[file.meta.id] = file
        newest_first = [each.meta for each in reversed(self._files.values())] if self._by_arrival else self.list()
        for old in newest_first[self._keep :]:
            del self._files[old.id]

    def power_cut(self, rng: random.Random) -> None:
        """Of a half-fetched file any prefix may be left."""
        snapshot_id, data = self.partial
        self.partial = (snapshot_id, data[: rng.randrange(0, len(data) + 1)])


class MemoryWriter:
    def __init__(self, store: MemorySnapshots, header: SnapshotMeta) -> None:
        self._store = store
        self._header = header
        self._chunks: list[bytes] = []

    def write(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> SnapshotMeta:
        header = self._header
        data = cbor.dumps([self._store.cluster_id, *self._chunks])
        digest = blake2b(data, digest_size=DIGEST_BYTES).digest()
        meta = SnapshotMeta(
            snapshot_id(header.index, header.term, digest),
            header.index,
            header.term,
            header.config,
            header.config_index,
            len(data),
            digest,
        )
        self._store.publish(MemoryFile(meta, data))
        return meta

    def abort(self) -> None:
        self._chunks.clear()


class MemoryReader:
    def __init__(self, file: MemoryFile) -> None:
        self.meta = file.meta
        self._data = file.data

    def read(self, offset: int, n: int) -> bytes:
        return self._data[offset : offset + n]

    def chunks(self) -> Iterator[bytes]:
        return iter(cbor.loads(self._data)[1:])

    def close(self) -> None:
        """Nothing to let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class MemoryReceiver:
    def __init__(self, store: MemorySnapshots, meta: SnapshotMeta, data: bytearray) -> None:
        self._store = store
        self._meta = meta
        self._data = data
        self.offset = len(data)

    def write(self, data: bytes) -> None:
        self._data += data
        self.offset += len(data)

    def finish(self) -> SnapshotMeta:
        """Verify the whole and make it visible; what is wrong is thrown away."""
        if len(self._data) < self._meta.size:
            raise DamagedSnapshot(f"snapshot {self._meta.id} ends after {len(self._data)} of {self._meta.size} bytes")
        if blake2b(self._data, digest_size=DIGEST_BYTES).digest() != self._meta.digest:
            self._data.clear()
            raise DamagedSnapshot(f"snapshot {self._meta.id} is not what was offered")
        self._store.publish(MemoryFile(self._meta, bytes(self._data)))
        self._store.partial = ("", bytearray())
        return self._meta

    def close(self) -> None:
        """The bytes stay for the next attempt."""
