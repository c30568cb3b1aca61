"""A server's snapshots on disk: made, fetched, served, and cleaned up.

A snapshot becomes visible by one rename, when all of it is written and synced. What is half made has a temporary name
and is swept away at the next start; what is half fetched keeps its bytes, so that a long fetch survives a restart. Two
snapshots are kept: should the newest turn out damaged, the older one and a longer piece of log give the same state.

All calls block on the disk; the runner makes them from worker threads, one at a time for each writer or receiver.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsched.model.errors import NotFound, TooLarge
from fedsched.raft.membership import Config
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.snapshot_file import (
    DIGEST_BYTES,
    ChunkWriter,
    DamagedSnapshot,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotReader,
    inspect,
    snapshot_id,
)

__all__ = [
    "DamagedSnapshot",
    "SnapshotHeader",
    "SnapshotInfo",
    "SnapshotReader",
    "SnapshotReceiver",
    "SnapshotStore",
    "SnapshotWriter",
    "UsableSnapshot",
    "inspect",
]

KEEP: Final = 2
SIZE_MAX: Final = 1 << 40
"""No offer is believed that asks for more room than this."""
_ID = re.compile(r"(\d{1,19})-(\d{1,19})-[0-9a-f]{16}")
_SUFFIX, _TEMPORARY, _PARTIAL = ".snapshot", ".tmp", ".partial"


@dataclass(frozen=True, slots=True)
class UsableSnapshot:
    """Which snapshot to start from, and why not a newer one."""

    meta: SnapshotMeta | None
    """None: start from an empty state and the whole log."""
    problems: tuple[str, ...] = ()
    """One sentence for each newer snapshot that could not be used; worth an operator's eye even when all went well."""


class SnapshotStore:
    """The snapshot directory of one server.

    `cluster_id` goes into what is made here, and what is fetched must carry it; it may be set later, when a new server
    learns which cluster it belongs to.
    """

    def __init__(
        self, directory: Path | str, *, cluster_id: str = "", keep: int = KEEP, by_arrival: bool = False
    ) -> None:
        """The newest `keep` are kept: those of the highest index, or `by_arrival` those that came here last."""
        self.directory = Path(directory)
        self.cluster_id = cluster_id
        self._keep = keep
        self._by_arrival = by_arrival
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def create(
        self, index: int, term: int, config: Config, config_index: int, schema_version: int = 1
    ) -> SnapshotWriter:
        """Begin a snapshot of the state after `index`."""
        header = SnapshotHeader(self.cluster_id, index, term, config, config_index, schema_version)
        return SnapshotWriter(self, header)

    def list(self) -> list[SnapshotMeta]:
        """The visible snapshots, newest first, by their headers alone. Damaged ones are left out; see `usable`."""
        metas = []
        for path in self._paths():
            with suppress(DamagedSnapshot, FileNotFoundError), SnapshotReader(path) as reader:
                if reader.meta.id == path.stem:
                    metas.append(reader.meta)
        return metas

    def latest(self) -> SnapshotMeta | None:
        metas = self.list()
        return metas[0] if metas else None

    def open(self, snapshot_id: str) -> SnapshotReader:
        """A reader of the snapshot with this id; deleting the snapshot meanwhile does not disturb it."""
        path = self._path(snapshot_id)
        try:
            reader = SnapshotReader(path)
        except FileNotFoundError:
            raise NotFound(
                f"there is no snapshot {snapshot_id!r} here", hint="it may have been replaced by a newer one"
            ) from None
        if reader.meta.id != snapshot_id:
            reader.close()
            raise DamagedSnapshot(f"snapshot {path} calls itself {reader.meta.id}", hint="do not restore it")
        return reader

    def usable(self, log_prev_index: int) -> UsableSnapshot:
        """The newest snapshot that is whole and that the log joins on to; every candidate is read to its last byte.

        `log_prev_index` is the index just before the log's first entry. Raises `DamagedSnapshot` when the log has been
        shortened and no snapshot reaches it: then the server's state cannot be rebuilt from this disk.
        """
        problems: list[str] = []
        for path in self._paths():
            index = _index_of(path)
            if index < log_prev_index:
                problems.append(f"{path.name}: the log begins after {log_prev_index} and no longer reaches back to it")
                continue
            try:
                info = inspect(path)
            except DamagedSnapshot as error:
                problems.append(error.message)
                continue
            if info.meta.id != path.stem:
                problems.append(f"{path.name}: it is really {info.meta.id}")
                continue
            if self.cluster_id and info.header.cluster_id != self.cluster_id:
                problems.append(f"{path.name}: it belongs to cluster {info.header.cluster_id!r}")
                continue
            return UsableSnapshot(info.meta, tuple(problems))
        if log_prev_index:
            raise DamagedSnapshot(
                f"the log begins after {log_prev_index} and no snapshot in {self.directory} reaches it"
                + "".join(f"; {problem}" for problem in problems),
                hint="wipe the data directory and let the server rejoin as a new one",
            )
        return UsableSnapshot(None, tuple(problems))

    def receive(self, meta: SnapshotMeta) -> SnapshotReceiver:
        """Begin, or go on, fetching the snapshot a leader offers. Bytes of any other half-fetched one are dropped."""
        return SnapshotReceiver(self, meta)

    def _paths(self) -> tuple[Path, ...]:
        """Visible snapshot files, newest first."""
        found = [path for path in self.directory.glob(f"*{_SUFFIX}") if _ID.fullmatch(path.stem)]
        found.sort(key=lambda path: (*map(int, path.stem.split("-")[:2]), path.stem), reverse=True)
        return tuple(found)

    def _path(self, snapshot_id: str, suffix: str = _SUFFIX) -> Path:
        """Ids come from the network too: nothing but an id of ours may become a file name."""
        if not _ID.fullmatch(snapshot_id):
            raise NotFound(f"{snapshot_id[:80]!r} is not the id of a snapshot")
        return self.directory / f"{snapshot_id}{suffix}"

    def _sweep(self) -> None:
        """Remove what a crash left half made, and all half-fetched snapshots but the newest."""
        for path in self.directory.glob(f"*{_TEMPORARY}"):
            path.unlink()
        partials = sorted(self.directory.glob(f"*{_PARTIAL}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in partials[:-1]:
            path.unlink()

    def _publish(self, temporary: Path, meta: SnapshotMeta) -> None:
        """Make a whole, synced file visible, durably; then let go of the oldest ones."""
        published = self._path(meta.id)
        if self._by_arrival:
            os.utime(temporary)  # it may have lain here for long, all fetched but never finished
        temporary.rename(published)
        self._sync_directory()
        for path in self._superfluous(published):
            with suppress(FileNotFoundError):
                path.unlink()
        self._sync_directory()

    def _superfluous(self, published: Path) -> tuple[Path, ...]:
        paths = self._paths()
        if (
            self._by_arrival
        ):  # clocks are coarse, and may be set back: what has just come is the newest whatever they say
            paths = tuple(sorted(paths, key=lambda path: (path == published, path.stat().st_mtime_ns), reverse=True))
        return paths[self._keep :]

    def _sync_directory(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class SnapshotWriter:
    """A snapshot in the making. Ends with `finish` or `abort`."""

    def __init__(self, store: SnapshotStore, header: SnapshotHeader) -> None:
        self._store = store
        self._temporary = store.directory / f"{header.index}-{header.term}{_TEMPORARY}"
        self._file = self._temporary.open("wb")
        self._chunks = ChunkWriter(self._file, header)

    def write(self, chunk: bytes) -> None:
        self._chunks.write(chunk)

    def finish(self) -> SnapshotMeta:
        """Sync, make visible, and let older ones go. On return the snapshot survives a power cut."""
        meta = self._chunks.end()
        self._file.close()
        self._store._publish(self._temporary, meta)
        return meta

    def abort(self) -> None:
        """Drop it. Harmless after `finish`."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class SnapshotReceiver:
    """A snapshot being fetched. `offset` says from where on bytes are still missing."""

    def __init__(self, store: SnapshotStore, meta: SnapshotMeta) -> None:
        if meta.id != snapshot_id(meta.index, meta.term, meta.digest) or len(meta.digest) != DIGEST_BYTES:
            raise DamagedSnapshot(f"the offer of snapshot {meta.id[:80]!r} contradicts itself")
        if meta.size > SIZE_MAX:
            raise TooLarge(f"a snapshot of {meta.size} bytes is offered, at most {SIZE_MAX} are taken")
        self._store = store
        self._meta = meta
        self._path = store._path(meta.id, _PARTIAL)
        for other in store.directory.glob(f"*{_PARTIAL}"):
            if other != self._path:
                other.unlink()
        self._file = self._path.open("ab")
        self.offset = self._file.tell()
        if self.offset > meta.size:
            self._start_over()

    def write(self, data: bytes) -> None:
        """The next bytes, from `offset` on; `TooLarge` if they go beyond the offered size."""
        if self.offset + len(data) > self._meta.size:
            raise TooLarge(f"more than the {self._meta.size} bytes offered for snapshot {self._meta.id} arrived")
        self._file.write(data)
        self.offset += len(data)

    def finish(self) -> SnapshotMeta:
        """Verify everything, then make it visible. What fails the test is thrown away, to be fetched from the start."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._start_over()  # a second sync of the same bytes could "succeed" on pages the kernel has dropped
            raise
        if self.offset < self._meta.size:
            raise DamagedSnapshot(
                f"snapshot {self._meta.id} ends after {self.offset} of {self._meta.size} bytes",
                hint="the fetch goes on from there",
            )
        try:
            self._verify()
        except DamagedSnapshot:
            self._start_over()
            raise
        self._file.close()
        self._store._publish(self._path, self._meta)
        return self._meta

    def close(self) -> None:
        """Stop for now; the bytes stay, for the next attempt."""
        self._file.close()

    def _verify(self) -> None:
        info = inspect(self._path)
        if info.meta != self._meta:
            raise DamagedSnapshot(f"snapshot {self._path} is {info.meta.id}, not what was offered")
        theirs, ours = info.header.cluster_id, self._store.cluster_id
        if ours and theirs != ours:
            raise DamagedSnapshot(f"snapshot {self._path} belongs to cluster {theirs!r}, not {ours!r}")

    def _start_over(self) -> None:
        self._file.truncate(0)
        self.offset = 0


def _index_of(path: Path) -> int:
    return int(path.stem.split("-", 1)[0])
