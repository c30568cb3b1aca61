"""What is asked of the agent on a node: any server takes the call and passes it on over the node's own link.

Requests name the node, or an allocation on it. Figures, clean-up, restarts and signals are here; files, logs and
terminals, which stream, are in `alloc_access`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from fedsched.model.check import CheckResult
from fedsched.model.declare import EMPTY, Record
from fedsched.model.usage import AllocResourceUsage, HostStats, ResourceUsage
from fedsched.rpc.method import Empty, Method, RunsAt, declare
from fedsched.rpc.methods.node import NodeRequest

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)


class AllocRestartRequest(Record):
    alloc_id: str
    task: Annotated[str, "Empty: every task that runs."] = ""
    all_tasks: Annotated[bool, "Also those that are over: the whole allocation runs anew."] = False


class AllocSignalRequest(Record):
    alloc_id: str
    task: Annotated[str, "Empty: every task that runs."] = ""
    signal: Annotated[str, "Such as `SIGHUP`; empty is `SIGINT`."] = ""


class AllocChecksRequest(Record):
    alloc_id: str


class AllocChecksReply(Record):
    checks: Annotated[dict[str, CheckResult], "By their ids."] = EMPTY


class AllocStatsRequest(Record):
    alloc_id: str
    task: Annotated[str, "Only this one."] = ""


class AllocStatsReply(Record):
    usage: AllocResourceUsage = AllocResourceUsage()


class NodeStatsReply(Record):
    stats: HostStats = HostStats()
    allocations: Annotated[ResourceUsage, "What all tasks on the node use together."] = ResourceUsage()


class AllocGcRequest(Record):
    alloc_id: str


class GcReply(Record):
    collected: Annotated[int, "Allocations that were removed from the node."] = 0


class NodeHasLinkReply(Record):
    """What a server knows of a node's link."""

    has_link: bool = False
    silent_s: Annotated[float, "How long ago anything came over it."] = 0.0


def _at_node(name: str, request: type[Q], reply: type[R], needs: str, doc: str) -> Method[Q, R]:
    return declare(Method(name, request, reply, RunsAt.NODE, needs=needs, needs_quorum=False, doc=doc))


NODE_HAS_LINK = declare(
    Method(
        "Node.HasLink",
        NodeRequest,
        NodeHasLinkReply,
        RunsAt.THIS_AGENT,
        needs="server",
        needs_quorum=False,
        doc="Whether this server holds the link of a node's client.",
    )
)
NODE_STATS = _at_node("Node.Stats", NodeRequest, NodeStatsReply, "node:read", "What a host uses just now.")
NODE_GC = _at_node("Node.Gc", NodeRequest, GcReply, "node:write", "Remove finished allocations from a node.")
ALLOC_STATS = _at_node("Alloc.Stats", AllocStatsRequest, AllocStatsReply, "read-job", "What an allocation uses.")
ALLOC_CHECKS = _at_node(
    "Alloc.Checks", AllocChecksRequest, AllocChecksReply, "read-job", "How an allocation's service checks went."
)
ALLOC_RESTART = _at_node(
    "Alloc.Restart", AllocRestartRequest, Empty, "alloc-lifecycle", "Restart an allocation's tasks where they are."
)
ALLOC_SIGNAL = _at_node("Alloc.Signal", AllocSignalRequest, Empty, "alloc-lifecycle", "Send a signal to tasks.")
ALLOC_GC = _at_node(
    "Alloc.Gc", AllocGcRequest, GcReply, "alloc-lifecycle", "Remove one finished allocation from its node."
)
