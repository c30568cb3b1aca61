"""What a node should run, as it travels: columns, and everything that several allocations share only once.

A frame says what changed since the frame before. What allocations of one placement have in common (an *origin*: job,
version, group, resources) is sent when the first of them is, and so is each version of a job. A frame that is `whole`
starts over: what it does not name, the servers have forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import structs

from fedsched.model.alloc import Allocation
from fedsched.model.ids import uuid_text
from fedsched.model.job import Job
from fedsched.rpc.methods.node_frames import WatchFrame, WatchOrigin
from fedsched.state.fields import pack, unpack
from fedsched.state.tables.alloc_columns import to_allocation
from fedsched.state.tables.alloc_origins import OriginRow

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
        for job in frame.jobs:
            self._jobs[(job.namespace, job.id, job.create_index, job.version)] = job
        for one in frame.origins:
            self._origins[one.ref] = _origin_row(one)
        for at in range(0, len(frame.removed), 16):
            self.allocations.pop(uuid_text(frame.removed[at : at + 16]), None)
        changed = self._read(frame)
        self.allocations |= {one.id: one for one in changed}
        self.index = max(self.index, frame.index)
        return changed

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
