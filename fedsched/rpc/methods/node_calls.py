"""What is asked of the agent on a node: any server takes the call and passes it on over the node's own link.

Requests name the node, or an allocation on it. Figures, clean-up, restarts and signals are here; files, logs and
terminals, which stream, are in `alloc_access`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from fedsched.model.check import CheckResult
from fedsched.model.declare import EMPTY, Record, StringMap
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


class NodeMetaRequest(Record):
    node_id: str
    meta: Annotated[dict[str, str | None], "What to set; null unsets a key, also one of the node's settings."] = EMPTY


class NodeMetaReply(Record):
    """A node's metadata, and where it comes from."""

    meta: Annotated[StringMap, "What holds: dynamic over static."] = EMPTY
    dynamic: Annotated[dict[str, str | None], "Set at run time; null hides a static key."] = EMPTY
    static: Annotated[StringMap, "From the settings of the node's agent."] = EMPTY


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
NODE_META_READ = _at_node(
    "NodeMeta.Read", NodeRequest, NodeMetaReply, "node:read", "A node's metadata, and its sources."
)
NODE_META_APPLY = _at_node(
    "NodeMeta.Apply", NodeMetaRequest, NodeMetaReply, "node:write", "Change a node's metadata while it runs."
)
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
