"""What a node should run, as it travels: columns, and everything that several allocations share only once.

A frame says what changed since the frame before. What allocations of one placement have in common (an *origin*: job,
version, group, resources) is sent when the first of them is, and so is each version of a job. A frame that is `whole`
starts over: what it does not name, the servers have forgotten.

A frame travels as one or more items of the stream, since an item has a limit and a job may be large: the first byte of
each says whether more of the frame follows.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from msgspec import structs

from fedsched.codec import CodecError, Limits, from_bytes
from fedsched.codec.pieces import array, byte_string, mapping, text, uint
from fedsched.model.alloc import Allocation
from fedsched.model.ids import uuid_text
from fedsched.model.job import Job
from fedsched.rpc.methods.node_frames import WatchFrame, WatchOrigin
from fedsched.state.fields import pack, unpack
from fedsched.state.tables.alloc_columns import to_allocation
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.wire.limits import DATA_BYTES_MAX

K = TypeVar("K")
V = TypeVar("V")

WATCH_DTYPE = np.dtype(
    [
        ("id", "<u8", (2,)),
        ("origin", "<i4"),
        ("name_index", "<i4"),
        ("desired", "<u1"),
        ("client_status", "<u1"),
        ("health", "<u1"),
        ("spare", "<u1"),
        ("flags", "<u4"),
        ("create_index", "<i8"),
        ("modify_index", "<i8"),
        ("alloc_modify_index", "<i8"),
        ("create_time", "<i8"),
        ("modify_time", "<i8"),
    ]
)
"""Like the stored columns, without what only servers need."""


FRAME_MAX: Final = 3_000
"""Allocations in one frame; a whole frame with fewer is all there is."""
KNOWN_MAX: Final = 32
"""Origins and job versions that both ends remember as sent, the last ones; one that was forgotten is sent again."""
LAST: Final = b"\x00"
MORE: Final = b"\x01"
ITEM_BYTES: Final = DATA_BYTES_MAX - 1
FRAME_BYTES_MAX: Final = 64 << 20
FRAME_LIMITS: Final = Limits(bytes_max=FRAME_BYTES_MAX, depth_max=4, nodes_max=400_000)
JOB_LIMITS: Final = Limits(bytes_max=FRAME_BYTES_MAX, nodes_max=2_000_000)
_KEYS: Final = {
    name: text(name)
    for name in (
        *("Index", "IsWhole", "Jobs", "Origins", "Rows", "Own", "OwnSizes"),
        *("Kin", "Removed", "Written", "PaceMs"),
    )
}
_TRUE: Final = b"\xf5"


def frame_items(
    index: int,
    *,
    is_whole: bool = False,
    jobs: list[bytes],
    origins: list[bytes],
    rows: bytes = b"",
    own: bytes = b"",
    own_sizes: bytes = b"",
    kin: bytes = b"",
    removed: bytes = b"",
    written: int = 0,
    pace_ms: int = 0,
) -> list[bytes]:
    """A `WatchFrame` as it travels, put together from parts that are encoded once for many nodes."""
    pairs = [(_KEYS["Index"], uint(index))]
    if is_whole:
        pairs.append((_KEYS["IsWhole"], _TRUE))
    if jobs:
        pairs.append((_KEYS["Jobs"], array([byte_string(job) for job in jobs])))
    if origins:
        pairs.append((_KEYS["Origins"], array([byte_string(origin) for origin in origins])))
    columns = (("Rows", rows), ("Own", own), ("OwnSizes", own_sizes), ("Kin", kin), ("Removed", removed))
    pairs += [(_KEYS[name], byte_string(data)) for name, data in columns if data]
    pairs += [(_KEYS[name], uint(number)) for name, number in (("Written", written), ("PaceMs", pace_ms)) if number]
    data = mapping(pairs)
    if len(data) <= ITEM_BYTES:
        return [LAST + data]
    parts = [data[at : at + ITEM_BYTES] for at in range(0, len(data), ITEM_BYTES)]
    return [*(MORE + part for part in parts[:-1]), LAST + parts[-1]]


class FrameReader:
    """Puts frames together from the items of one stream."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, item: bytes) -> WatchFrame | None:
        """The frame that this item completes."""
        self._size += len(item)
        if self._size > FRAME_BYTES_MAX:
            raise CodecError(f"a frame of more than {FRAME_BYTES_MAX} bytes for one node")
        if item[:1] == MORE:
            self._parts.append(item[1:])
            return None
        data = b"".join([*self._parts, item[1:]])
        self._parts, self._size = [], 0
        return from_bytes(data, WatchFrame, FRAME_LIMITS)


def watch_rows(rows: Any) -> bytes:
    """The part of stored records that travels."""
    found = np.zeros(len(rows), dtype=WATCH_DTYPE)
    for name in WATCH_DTYPE.names or ():
        if name != "spare":
            found[name] = rows[name]
    return found.tobytes()


def pack_own(values: list[bytes]) -> tuple[bytes, bytes]:
    """Fields of single allocations; nothing at all if none has any."""
    return pack(values) if any(values) else (b"", b"")


class WatchedAllocations:
    """What a client knows from the frames so far."""

    def __init__(self, node_id: str, node_name: str = "") -> None:
        self._node = (node_id, node_name)
        self._origins: dict[int, OriginRow] = {}
        self._jobs: dict[tuple[str, str, int, int], Job] = {}
        self.allocations: dict[str, Allocation] = {}
        self.index = 0

    def take(self, frame: WatchFrame) -> list[Allocation]:
        """Take a frame in; gives the allocations that are new or changed, with their job."""
        if frame.is_whole:
            self._origins.clear()
            self._jobs.clear()
            self.allocations.clear()
        for job in (from_bytes(data, Job, JOB_LIMITS) for data in frame.jobs):
            _put_last(self._jobs, (job.namespace, job.id, job.create_index, job.version), job)
        for one in (from_bytes(data, WatchOrigin, FRAME_LIMITS) for data in frame.origins):
            _put_last(self._origins, one.ref, _origin_row(one))
        for at in range(0, len(frame.removed), 16):
            self.allocations.pop(uuid_text(frame.removed[at : at + 16]), None)
        changed = self._read(frame)
        self.allocations |= {one.id: one for one in changed}
        self.index = max(self.index, frame.index)
        self._forget()
        return changed

    def _forget(self) -> None:
        """Keep no more origins than servers rely on, and the jobs of those."""
        for ref in list(self._origins)[:-KNOWN_MAX]:
            del self._origins[ref]
        used = {origin.version_key for origin in self._origins.values()}
        for key in list(self._jobs)[:-KNOWN_MAX]:
            if key not in used:
                del self._jobs[key]

    def _read(self, frame: WatchFrame) -> list[Allocation]:
        rows = np.frombuffer(frame.rows, dtype=WATCH_DTYPE)
        own = unpack(frame.own, frame.own_sizes) or [b""] * len(rows)
        found = []
        for at, row in enumerate(rows):
            origin = self._origins[int(row["origin"])]
            kin = frame.kin[32 * at : 32 * at + 32]
            node_id, node_name = self._node
            alloc = to_allocation(row, origin, node_id=node_id, node_name=node_name, cold=(own[at],), kin=kin)
            found.append(_with_job(alloc, self._jobs.get(origin.version_key)))
        return found


def _put_last(kept: dict[K, V], key: K, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value


def _with_job(alloc: Allocation, job: Job | None) -> Allocation:
    return structs.replace(alloc, job=job)


def _origin_row(one: WatchOrigin) -> OriginRow:
    return OriginRow(
        ref=one.ref,
        namespace=one.namespace,
        job_id=one.job_id,
        job_create_index=one.job_create_index,
        job_version=one.job_version,
        group=one.group,
        evaluation_id=one.eval_id,
        group_slot=0,
        deployment_id=one.deployment_id,
        shared=one.shared,
    )
