"""Log entries and the exact bytes they have on disk and on the wire.

A record is `crc | index | term | kind | length | payload`. The payload is opaque and is encoded once, by whoever
proposed it; the same bytes then travel and are stored everywhere. The CRC is made once too and covers everything after
itself, so damage in memory, in transit or on disk is found by the next one to read the record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct(">IQQBI")  # crc, index, term, kind, payload length
RECORD_OVERHEAD = HEADER.size
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""Larger plans are split by whoever makes them; one record must never hold up a heartbeat for long."""


class EntryKind(IntEnum):
    """What an entry asks for. A server that meets a kind it does not know stops instead of skipping it."""

    EMPTY = 0
    """A new leader's first entry; it commits what earlier terms left behind."""
    COMMAND = 1
    CONFIG = 2
    RESTORE = 3
    """Replaces the whole state by an image that a quorum holds on disk; the payload only names it."""


class Entry(NamedTuple):
    """One record of the replicated log."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    kind: EntryKind
    payload: bytes


class DamagedRecord(Exception):
    """Bytes that are not the record that was written."""


def pack(entry: Entry) -> bytes:
    """The record of one entry, CRC included."""
    body = HEADER.pack(0, entry.index, entry.term, entry.kind, len(entry.payload))[4:] + entry.payload
    return zlib.crc32(body).to_bytes(4, "big") + body


def unpack(data: bytes | memoryview) -> list[Entry]:
    """All entries of back-to-back records; raises `DamagedRecord` unless every byte is accounted for."""
    view = memoryview(data)
    entries: list[Entry] = []
    at, end = 0, len(view)
    while at < end:
        if end - at < RECORD_OVERHEAD:
            raise DamagedRecord(f"record header cut short at byte {at} of {end}")
        crc, index, term, kind, length = HEADER.unpack_from(view, at)
        stop = at + RECORD_OVERHEAD + length
        if length > PAYLOAD_BYTES_MAX or stop > end:
            there = end - at - RECORD_OVERHEAD
            raise DamagedRecord(f"record {index} at byte {at} says {length} bytes, {there} are there")
        if zlib.crc32(view[at + 4 : stop]) != crc:
            raise DamagedRecord(f"record at byte {at} (index {index} if that is true) fails its checksum")
        try:
            known = EntryKind(kind)
        except ValueError:
            raise DamagedRecord(f"record {index} is of kind {kind}, which this version does not know") from None
        entries.append(Entry(index, term, known, bytes(view[at + RECORD_OVERHEAD : stop])))
        at = stop
    return entries


def packed_size(entries: Iterable[Entry]) -> int:
    """How many bytes `pack` would make of these entries."""
    return sum(RECORD_OVERHEAD + len(entry.payload) for entry in entries)
