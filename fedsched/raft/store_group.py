"""What one group commit writes: several numbered writes, folded into the rows of one transaction."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from fedsched.codec import cbor
from fedsched.raft.entry import Entry, pack
from fedsched.raft.messages import HardState, SnapshotMeta
from fedsched.raft.wire import meta_to_bytes

HARD_STATE: Final = 1
BASE: Final = 2
SNAPSHOT: Final = 3
META_NAMES: Final = {HARD_STATE: "term and vote", BASE: "the beginning of the log", SNAPSHOT: "the snapshot mark"}
"""The rows of the meta table; all of them exist from the store's first moment."""

PAGE_BYTES: Final = 4096
"""Of the database, for estimates only."""
SEQUENCE_MAX: Final = 2**62
"""Group sequence numbers rise by one per commit; a number beyond this is damage, not age."""

_SEAL = struct.Struct(">IQ")  # crc of the row's key and all that follows, sequence number of the group


class BadSeal(Exception):
    """A meta row that is not what was written."""


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """One numbered write, as the core's effects ask for it."""

    number: int
    hard_state: HardState | None = None
    reset: SnapshotMeta | None = None
    """Drop the whole log and go on from this snapshot, before `append`."""
    append: tuple[Entry, ...] = ()
    """Whatever the log holds from the first one's index on is cut off first."""


class Group:
    """The sum of several writes, as one transaction will carry it out: cut, then insert, then the meta rows."""

    def __init__(self, sequence: int, prev_index: int, last_index: int) -> None:
        self.sequence = sequence
        self.prev_index = prev_index
        self.last_index = last_index
        self.delete_from: int | None = None
        """Entries on disk from here on go before the new ones are inserted."""
        self._entries: list[tuple[int, int, bytes]] = []
        self.meta: dict[int, bytes] = {}
        self._bytes = 0

    def add(self, write: StoreWrite) -> None:
        if write.reset is not None:
            self._reset(write.reset)
        if write.append:
            self._append(write.append)
        if write.hard_state is not None:
            self._put(HARD_STATE, hard_state_body(write.hard_state))

    @property
    def wal_bytes(self) -> int:
        """What this group adds to the WAL, about: pages are written whole."""
        return self._bytes + 2 * PAGE_BYTES

    @property
    def is_empty(self) -> bool:
        return not (self._entries or self.meta)

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Index, sequence number, record. Only the last row names its group: a log ending in another lost some."""
        if not self._entries:
            return []
        index, _, record = self._entries[-1]
        return [*self._entries[:-1], (index, self.sequence, record)]

    def _reset(self, snapshot: SnapshotMeta) -> None:
        self._cut(0)
        self._put(BASE, base_body(snapshot.index, snapshot.term))
        self._put(SNAPSHOT, meta_to_bytes(snapshot))
        self.prev_index = self.last_index = snapshot.index

    def _append(self, entries: tuple[Entry, ...]) -> None:
        first = entries[0].index
        if not self.prev_index < first <= self.last_index + 1:
            raise ValueError(f"entry {first} cannot follow a log of {self.prev_index + 1} to {self.last_index}")
        if first <= self.last_index:
            self._cut(first)
        for entry in entries:
            record = pack(entry)
            self._entries.append((entry.index, 0, record))
            self._bytes += len(record) * 4 // 3
        self.last_index = entries[-1].index

    def _cut(self, first: int) -> None:
        if self._entries and first >= self._entries[0][0]:
            del self._entries[first - self._entries[0][0] :]
        else:
            self._entries.clear()
            self.delete_from = first if self.delete_from is None else min(first, self.delete_from)

    def _put(self, key: int, body: bytes) -> None:
        self.meta[key] = body


def hard_state_body(state: HardState) -> bytes:
    return cbor.dumps([state.term, state.vote, state.commit])


def base_body(index: int, term: int) -> bytes:
    """Index and term of the entry just before the first one kept."""
    return cbor.dumps([index, term])


def seal(key: int, sequence: int, body: bytes) -> bytes:
    """A meta row's value. The key is under the checksum too: one row can never pass for another."""
    rest = sequence.to_bytes(8, "big") + body
    return zlib.crc32(rest, zlib.crc32(bytes([key]))).to_bytes(4, "big") + rest


def unseal(key: int, value: object) -> tuple[int, bytes]:
    """The sequence number and the body of a meta row; raises `BadSeal`."""
    if isinstance(value, bytes) and len(value) >= _SEAL.size:
        _, sequence = _SEAL.unpack_from(value)
        body = value[_SEAL.size :]
        if value == seal(key, sequence, body):
            return sequence, body
    raise BadSeal(f"{META_NAMES[key]} fails its checksum")
