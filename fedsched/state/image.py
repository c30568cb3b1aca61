"""The whole state as bytes and back: what a snapshot file holds.

A stream of frames, each `length | CRC | value`: a head (format, schema, index, digests), then the rows of each table,
then the columns with what lies beside them, then an end with counts and a BLAKE2 digest over all that came before.
The stream is cut into chunks of at most 256 KiB; nobody may rely on where. Every step, on either side, handles one
chunk and stays far below the few milliseconds that an event loop can spare, whatever the size of the state.

Rows name their fields and columns their layout, so an image of an older version is read by name: what is new gets its
default. An image of a newer schema is refused before anything is built. The restored store is a new one; the old one
stays untouched until the caller swaps them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

import numpy as np
from msgspec import structs

from fedsched.codec import STORED_LIMITS, CodecError, dumps, from_builtins, loads
from fedsched.model.errors import FedschedError
from fedsched.state.columns import Columns, ColumnsReader, Rows, copied, picked, raw
from fedsched.state.store import SCHEMA_VERSION, Snapshot, Store
from fedsched.state.table import TableReader
from fedsched.state.tables.allocations import COLD_CRCS

FORMAT: Final = 1
CHUNK_BYTES_MAX: Final = 256 * 1024
FRAME: Final = struct.Struct(">II")
FRAME_BYTES_MAX: Final = STORED_LIMITS.bytes_max
ROWS_PER_FRAME: Final = 128
"""About 18 values each: half a millisecond to encode."""
BULK_BYTES: Final = 192 * 1024
"""Columns and cold bytes per frame; with its head a frame then fits a chunk."""
EMPTY_DIGEST: Final = "0"
LAYOUT: Final = re.compile(r"[<|][iu][1248]")


class DamagedImage(FedschedError):
    """An image that cannot be restored: cut short, changed, or of another make."""

    code = "damaged_image"
    http_status = 500


class NewerImage(FedschedError):
    """An image of a newer version than this code."""

    code = "newer_image"
    http_status = 500


def save(snapshot: Snapshot) -> Iterator[bytes]:
    """The chunks of this snapshot's image. Each step is short; the store may go on changing in between."""
    whole = blake2b(digest_size=32)
    for payload in _payloads(snapshot):
        frame = FRAME.pack(len(payload), crc32(payload)) + payload
        whole.update(frame)
        yield from _cut(frame)
    payload = dumps({"k": "end", "digest": whole.digest()})
    yield FRAME.pack(len(payload), crc32(payload)) + payload


class Restorer:
    """Builds a store from the chunks of an image. `feed` them in order, then `finish`; any error is final."""

    def __init__(self) -> None:
        self._store = Store(is_empty=True)
        self._buffer = bytearray()
        self._whole = blake2b(digest_size=32)
        self._head: dict[str, Any] | None = None
        self._layouts: dict[str, np.dtype[np.void]] = {}
        self._counts: dict[str, int] = {}
        self._is_complete = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes in. Raises `DamagedImage` or `NewerImage`."""
        self._buffer += chunk
        while len(self._buffer) >= FRAME.size:
            length, crc = FRAME.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise DamagedImage(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are possible")
            if len(self._buffer) < FRAME.size + length:
                return
            frame = bytes(self._buffer[: FRAME.size + length])
            del self._buffer[: FRAME.size + length]
            payload = frame[FRAME.size :]
            if crc32(payload) != crc:
                raise DamagedImage("a frame fails its checksum", hint="fetch or save the image again")
            self._take(frame, payload)

    def finish(self) -> Store:
        """The restored store, once it is known to be whole and equal to the one that was saved."""
        if not self._is_complete or self._head is None or self._buffer:
            raise DamagedImage("the image is cut short", hint="fetch or save it again")
        store = self._store
        if self._counts != self._head["counts"]:
            raise DamagedImage(f"the image holds {self._counts}, it should hold {self._head['counts']}")
        parts = {name: f"{part:x}" for name, part in store.digest_parts().items()}
        saved = {**dict.fromkeys(parts, EMPTY_DIGEST), **self._head["digests"]}  # a table it did not know is empty
        if parts != saved:
            odd = sorted(name for name, part in saved.items() if parts.get(name) != part)
            raise DamagedImage(f"restored tables differ from the saved ones: {', '.join(odd) or 'there are more'}")
        return store

    def _take(self, frame: bytes, payload: bytes) -> None:
        if self._is_complete:
            raise DamagedImage("the image goes on after its end")
        try:
            value = loads(payload, STORED_LIMITS)
            kind = value["k"]
            if kind == "end":
                self._end(value["digest"])
                return
            self._whole.update(frame)
            if self._head is None:
                self._begin(value)
            elif kind == "rows":
                self._rows(value["t"], value["f"], value["r"])
            elif kind == "columns":
                self._columns(value["t"], value["s"], value["b"])
            elif kind == "cold":
                self._cold(value["t"], value["s"], value["v"])
            else:
                raise DamagedImage(f"unknown kind of frame {kind!r}")
        except (CodecError, KeyError, TypeError, ValueError, AssertionError, IndexError, OverflowError) as error:
            raise DamagedImage(f"the image does not fit together: {error}") from error

    def _begin(self, head: dict[str, Any]) -> None:
        if head["k"] != "head" or head["format"] != FORMAT:
            raise NewerImage(f"image of format {head.get('format')!r}, this version reads {FORMAT}")
        if head["schema"] > SCHEMA_VERSION:
            raise NewerImage(
                f"image of schema {head['schema']}, this version reads up to {SCHEMA_VERSION}",
                hint="restore it with the fedsched that saved it, or a newer one",
            )
        self._head = head
        self._counts = dict.fromkeys(head["counts"], 0)
        self._layouts = {name: _dtype(layout) for name, layout in head["layouts"].items()}
        self._store.index = int(head["index"])
        self._store.time_ns = int(head["time_ns"])
        self._store.table_indexes = {str(name): int(index) for name, index in head["table_indexes"].items()}

    def _end(self, digest: bytes) -> None:
        if self._whole.digest() != digest:
            raise DamagedImage("the image's digest does not match", hint="fetch or save the image again")
        self._is_complete = True

    def _rows(self, name: str, fields: list[str], rows: list[list[Any]]) -> None:
        table = self._store.tables()[name]
        for values in rows:
            row = from_builtins(dict(zip(fields, values, strict=True)), table.row)
            table.put(row)
            if name == "alloc_origins":
                self._store.allocations.live_origins.adopt(row)
            elif name == "alloc_groups":
                self._store.allocations.adopt_group(row)
        self._counts[name] += len(rows)

    def _columns(self, name: str, start: int, data: bytes) -> None:
        columns = self._store.columns()[name]
        found = np.frombuffer(data, dtype=self._layouts[name])
        rows = _as_layout(found, columns.dtype)
        used = np.flatnonzero(rows["used"])
        if not len(used):
            return
        slots = used + start
        rows = picked(rows, used)
        columns.claim_exactly(slots)
        columns.write(slots, rows)
        self._counts[f"columns.{name}"] += len(slots)
        if name == "allocations":
            self._store.allocations.adopt(slots, rows)
        elif name == "alloc_counts":
            self._store.allocations.adopt_counts(slots, rows)

    def _cold(self, name: str, slots: list[int], values: list[bytes]) -> None:
        part = COLD_NAMES.index(name)
        rows = self._store.allocations.live.read(np.array(slots, dtype=np.int64))
        if [crc32(value) or 1 for value in values] != rows[COLD_CRCS[part]].tolist():
            raise DamagedImage(f"{name}: bytes beside allocations do not match them")
        self._store.allocations.live_cold[part].put(slots, values)
        self._counts[f"cold.{name}"] += len(slots)


COLD_NAMES: Final = ("alloc_plan", "alloc_desired", "alloc_client", "alloc_kin")


def _payloads(snapshot: Snapshot) -> Iterator[bytes]:
    store = snapshot.store
    past = snapshot.lease.past
    tables = {name: table.view(past) for name, table in store.tables().items()}
    columns = {name: (live, live.view(past)) for name, live in store.columns().items()}
    yield dumps(_head(snapshot, tables, columns))
    for name, table in tables.items():
        yield from _row_payloads(name, table)
    for name, (_, view) in columns.items():
        for payload, rows, start in _column_payloads(name, view):
            yield payload
            if name == "allocations":
                yield from _cold_payloads(snapshot, rows, start)


def _head(
    snapshot: Snapshot,
    tables: dict[str, TableReader[Any]],
    columns: Mapping[str, tuple[Columns, ColumnsReader]],
) -> dict[str, Any]:
    counts = {name: len(table) for name, table in tables.items()}
    counts |= {f"columns.{name}": count for name, count in snapshot.column_counts.items()}
    counts |= {f"cold.{name}": count for name, count in snapshot.cold_counts.items()}
    return {
        "k": "head",
        "format": FORMAT,
        "schema": SCHEMA_VERSION,
        "index": snapshot.index,
        "time_ns": snapshot.time_ns,
        "cluster_id": snapshot.meta.cluster_id,
        "table_indexes": snapshot.table_indexes,
        "layouts": {name: _layout(live.dtype) for name, (live, _) in columns.items()},
        "counts": counts,
        "digests": {name: f"{part:x}" for name, part in snapshot.digest_parts.items()},
    }


def _row_payloads(name: str, table: TableReader[Any]) -> Iterator[bytes]:
    fields = list(table.row.__struct_fields__)
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in table.scan():
        values = structs.astuple(row)
        batch.append(values)
        size += sum(len(value) for value in values if isinstance(value, bytes | str))
        if len(batch) == ROWS_PER_FRAME or size > BULK_BYTES // 2:
            yield dumps({"k": "rows", "t": name, "f": fields, "r": batch})
            batch, size = [], 0
    if batch:
        yield dumps({"k": "rows", "t": name, "f": fields, "r": batch})


def _column_payloads(name: str, view: ColumnsReader) -> Iterator[tuple[bytes, Rows, int]]:
    step = BULK_BYTES // view.dtype.itemsize
    for start in range(0, view.high, step):
        rows = view.read(np.arange(start, min(start + step, view.high), dtype=np.int64))
        yield dumps({"k": "columns", "t": name, "s": start, "b": rows.tobytes()}), rows, start


def _cold_payloads(snapshot: Snapshot, rows: Rows, start: int) -> Iterator[bytes]:
    for name, crc_field, part in zip(COLD_NAMES, COLD_CRCS, snapshot.allocations.cold, strict=True):
        slots: list[int] = []
        values: list[bytes] = []
        size = 0
        for slot in (np.flatnonzero(rows[crc_field]) + start).tolist():
            value = part.get(slot)
            assert value is not None, f"allocation in slot {slot} lost its {name}"
            slots.append(slot)
            values.append(value)
            size += len(value) + 16
            if size > BULK_BYTES // 2:
                yield dumps({"k": "cold", "t": name, "s": slots, "v": values})
                slots, values, size = [], [], 0
        if slots:
            yield dumps({"k": "cold", "t": name, "s": slots, "v": values})


def _cut(frame: bytes) -> Iterator[bytes]:
    for at in range(0, len(frame), CHUNK_BYTES_MAX):
        yield frame[at : at + CHUNK_BYTES_MAX]


def _layout(dtype: np.dtype[np.void]) -> list[list[Any]]:
    """Name, form and length of each field, in order."""
    assert dtype.names is not None
    found = []
    for name in dtype.names:
        field = dtype.fields[name][0]  # type: ignore[index]
        base, shape = field.subdtype if field.subdtype is not None else (field, ())
        found.append([name, base.str, list(shape)])
    return found


def _dtype(layout: list[list[Any]]) -> np.dtype[np.void]:
    for _, form, shape in layout:
        if not LAYOUT.fullmatch(form) or len(shape) > 1 or any(not 0 < length <= 64 for length in shape):
            raise DamagedImage(f"a column of form {form!r} {shape!r}")
    return np.dtype([(name, form, tuple(shape)) for name, form, shape in layout])


def _as_layout(rows: Rows, dtype: np.dtype[np.void]) -> Rows:
    """The same records in our layout; fields that we do not know are dropped, those they did not know are zero."""
    if rows.dtype == dtype:
        return copied(rows)
    ours = np.zeros(len(rows), dtype=dtype)
    for name in dtype.names or ():
        if name in (rows.dtype.names or ()):
            ours[name] = rows[name]
    return raw(ours).view(dtype)
