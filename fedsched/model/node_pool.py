"""A node pool: a set of nodes that jobs ask for by name."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import EMPTY, Index, Record, Seconds, StringMap
from fedsched.model.scheduler_config import SchedulerAlgorithm

ALL_POOLS = "all"
"""The pool that contains every node; jobs may ask for it, nodes may not be in it."""


class NodePoolScheduler(Record):
    """Scheduler settings that differ in this pool."""

    scheduler_algorithm: SchedulerAlgorithm | None = None
    memory_oversubscription_enabled: bool | None = None


class NodePool(Record):
    """A set of nodes."""

    name: str
    description: str = ""
    meta: StringMap = EMPTY
    scheduler_configuration: NodePoolScheduler | None = None
    node_identity_ttl_s: Annotated[Seconds, "How long a node's identity holds."] = 86400.0
    hash: bytes = b""
    create_index: Index = 0
    modify_index: Index = 0
