"""The region's state as a file: saved for a backup, restored from one."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.rpc.method import Empty, Method, RunsAt, declare
from fedsched.wire.call_state import Flow


class SnapshotReply(Record):
    index: Annotated[int, "The index the state is of."] = 0
    size: Annotated[int, "Bytes streamed."] = 0


SNAPSHOT_SAVE = declare(
    Method(
        "Snapshot.Save",
        Empty,
        SnapshotReply,
        RunsAt.LEADER,
        needs="management",
        flow=Flow.DOWN,
        item=bytes,
        doc="Stream the region's state, as of now.",
    )
)
SNAPSHOT_RESTORE = declare(
    Method(
        "Snapshot.Restore",
        Empty,
        SnapshotReply,
        RunsAt.LEADER,
        needs="management",
        writes=True,
        flow=Flow.UP,
        item=bytes,
        doc="Replace the region's state by one that was saved.",
    )
)
