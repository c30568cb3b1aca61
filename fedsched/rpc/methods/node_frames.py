"""The frames of `Node.Watch`; how they are made and read is in `rpc.node_watch`, which commands need not import."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.job import Job


class WatchOrigin(Record):
    """What some allocations have in common."""

    ref: int
    namespace: str = "default"
    job_id: str = ""
    job_create_index: int = 0
    job_version: int = 0
    group: str = ""
    eval_id: str = ""
    deployment_id: str = ""
    shared: Annotated[bytes, "Encoded fields of the allocation record."] = b""


class WatchFrame(Record):
    """What changed for a node. All columns are in the same order."""

    index: int = 0
    is_whole: Annotated[bool, "Forget everything before this."] = False
    jobs: Annotated[tuple[Job, ...], "Versions of jobs that were not sent before."] = ()
    origins: Annotated[tuple[WatchOrigin, ...], "Origins that were not sent before, or are another one now."] = ()
    rows: Annotated[bytes, "One stored record each (see `WATCH_DTYPE`)."] = b""
    own: Annotated[bytes, "Encoded fields of single allocations, one after the other."] = b""
    own_sizes: Annotated[bytes, "Nothing, or 32 bits each."] = b""
    kin: Annotated[bytes, "Nothing, or 32 bytes each: the allocation before it, and the one after."] = b""
    removed: Annotated[bytes, "Ids of allocations that are forgotten."] = b""
