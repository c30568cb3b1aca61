"""What operators of a region set and set going: how it schedules, and cleaning up."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.forms import reads, writes


class SchedulerConfigReply(Record):
    scheduler_config: SchedulerConfiguration


class SchedulerConfigSetRequest(Record):
    scheduler_config: SchedulerConfiguration
    check_and_set: Annotated[bool, "Only if nobody has set it since `check_index`."] = False
    check_index: int = 0


class SchedulerConfigSetReply(Record):
    updated: bool = False
    index: int = 0


class SystemReply(Record):
    index: int = 0


SCHEDULER_GET_CONFIG = reads(
    "Operator.SchedulerGetConfig", Empty, SchedulerConfigReply, "operator:read", "How the region schedules."
)
SCHEDULER_SET_CONFIG = writes(
    "Operator.SchedulerSetConfig",
    SchedulerConfigSetRequest,
    SchedulerConfigSetReply,
    "operator:write",
    "Change how the region schedules.",
)
SYSTEM_GC = writes("System.Gc", Empty, SystemReply, "operator:write", "Forget at once whatever nobody needs any more.")
SYSTEM_RECONCILE = writes(
    "System.ReconcileSummaries", Empty, SystemReply, "operator:write", "Count the summaries of all jobs anew."
)
