"""Builders and images for the log store's tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, ServerInfo
from fedsched.raft.messages import HardState, Restored, SnapshotMeta
from fedsched.raft.storage import LogStore, StoreWrite


def an_entry(index: int, term: int = 1, payload: bytes | None = None) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, b"entry %d" % index if payload is None else payload)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(an_entry(index, term) for index in range(first, last + 1))


def a_config(*ids: str) -> Config:
    return Config(frozenset(ids), servers=tuple(ServerInfo(id, f"server-{id}", f"{id}:4647") for id in sorted(ids)))


def a_mark(index: int, term: int = 1) -> SnapshotMeta:
    return SnapshotMeta(f"{index}-{term}-0011223344556677", index, term, a_config("a", "b", "c"), 1, 1000, b"d" * 32)


def a_write(
    *append: Entry, hard_state: HardState | None = None, reset: SnapshotMeta | None = None, number: int = 1
) -> StoreWrite:
    return StoreWrite(number, hard_state, reset, append)


@dataclass(frozen=True)
class Image:
    """The bytes of a store's files at one moment, as a crash would leave them."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, directory: Path) -> Image:
        return cls({path.name: path.read_bytes() for path in sorted(directory.iterdir())})

    def with_file(self, name: str, data: bytes) -> Image:
        return Image({**self.files, name: data})

    def put(self, directory: Path) -> None:
        """Make the directory hold exactly this image."""
        for path in directory.iterdir():
            if path.name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


def recovered(directory: Path, page_bytes: int = 512) -> Restored:
    """What a fresh start finds in this directory."""
    store = LogStore(directory / "log.db", page_bytes=page_bytes, recycle_wal=False)
    try:
        return store.recover()
    finally:
        store.close()


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory where syncs cost nothing, if the machine has one: for tests that start a store thousands of times."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="fedsched-test-", dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
