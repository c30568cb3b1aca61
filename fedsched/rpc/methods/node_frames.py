"""What goes to and fro on `Node.Watch`; how frames are made and read is in `rpc.node_watch`, which commands need not
import."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record


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
    jobs: Annotated[tuple[bytes, ...], "Versions of jobs that were not sent before, encoded."] = ()
    origins: Annotated[tuple[bytes, ...], "Origins that were not sent before, or are another one now, encoded."] = ()
    rows: Annotated[bytes, "One stored record each (see `WATCH_DTYPE`)."] = b""
    own: Annotated[bytes, "Encoded fields of single allocations, one after the other."] = b""
    own_sizes: Annotated[bytes, "Nothing, or 32 bits each."] = b""
    kin: Annotated[bytes, "Nothing, or 32 bytes each: the allocation before it, and the one after."] = b""
    removed: Annotated[bytes, "Ids of allocations that are forgotten."] = b""
    written: Annotated[int, "The reports up to this number are in the log; 0 says nothing."] = 0
    pace_ms: Annotated[int, "For how long to gather changes before the next report; 0 says nothing."] = 0


class NodeReport(Record):
    """What a client says about its allocations, in columns as the log has them."""

    number: Annotated[int, "Counts up from 1 on each stream."] = 0
    ids: Annotated[bytes, "16 bytes each."] = b""
    statuses: Annotated[bytes, "One code each."] = b""
    healths: Annotated[bytes, "Nothing, or one code each; 0 says nothing."] = b""
    client: Annotated[bytes, "Encoded fields of each allocation, one after the other."] = b""
    client_sizes: Annotated[bytes, "Nothing, or 32 bits each: how long its fields are."] = b""
