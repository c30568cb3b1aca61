"""Nodes: hosts that allocations run on, what their clients report, and how people set them aside."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import AllocListStub
from fedsched.model.declare import Record, StringMap
from fedsched.model.node import DrainStrategy, Eligibility, Node, NodeListStub, NodeStatus
from fedsched.model.record import EMPTY
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest
from fedsched.wire.call_state import Flow


class NodeRegisterRequest(Record):
    node: Annotated[Node, "With the secret that the client proves itself with from then on."]


class NodeUpdateReply(Record):
    """What a node's client is told when it registers or gives a sign of life."""

    heartbeat_ttl_s: Annotated[float, "Within how long the next sign of life is expected."] = 0.0
    status: Annotated[NodeStatus, "What the servers take the node for."] = NodeStatus.INITIALIZING
    eval_ids: tuple[str, ...] = ()
    index: int = 0
    servers: Annotated[tuple[str, ...], "The server ports of the region, as its servers know them."] = ()
    time_ns: Annotated[int, "The leader's wall clock."] = 0


class NodeStatusRequest(Record):
    """A sign of life."""

    node_id: str
    secret_id: str = ""
    status: NodeStatus = NodeStatus.READY


class NodeReportRequest(Record):
    """What a client says about its allocations, in columns as the log has them."""

    node_id: str
    secret_id: str = ""
    ids: Annotated[bytes, "16 bytes each."] = b""
    statuses: Annotated[bytes, "One code each."] = b""
    healths: Annotated[bytes, "Nothing, or one code each; 0 says nothing."] = b""
    client: Annotated[bytes, "Encoded fields of each allocation, one after the other."] = b""
    client_sizes: Annotated[bytes, "Nothing, or 32 bits each: how long its fields are."] = b""


class NodeReportsRequest(Record):
    """What the clients of one server have said in the last moment."""

    nodes: Annotated[bytes, "The reporting nodes' ids, 16 bytes each."] = b""
    counts: Annotated[bytes, "How many of the allocations below are of each of them, 32 bits each."] = b""
    ids: Annotated[bytes, "16 bytes each."] = b""
    statuses: Annotated[bytes, "One code each."] = b""
    healths: Annotated[bytes, "Nothing, or one code each; 0 says nothing."] = b""
    client: Annotated[bytes, "Encoded fields of each allocation, one after the other."] = b""
    client_sizes: Annotated[bytes, "Nothing, or 32 bits each: how long its fields are."] = b""


class NodeReportsReply(Record):
    index: int = 0
    refused: Annotated[bytes, "Ids of the nodes whose reports were not taken: they have to come back first."] = b""


class NodeRequest(Record):
    node_id: str


class NodesRequest(Record):
    node_ids: tuple[str, ...] = ()


class NodeEligibilityRequest(Record):
    node_id: str
    eligibility: Eligibility


class NodeDrainRequest(Record):
    node_id: str
    drain_strategy: Annotated[DrainStrategy | None, "None ends the drain."] = None
    mark_eligible: Annotated[bool, "With the end: take allocations again."] = False
    meta: StringMap = EMPTY


class NodeWriteReply(Record):
    eval_ids: tuple[str, ...] = ()
    node_modify_index: int = 0
    index: int = 0


class NodeGetReply(Record):
    node: Node


class NodeListRequest(ListRequest):
    resources: Annotated[bool, "Include what each node has."] = False
    os: Annotated[bool, "Include each node's operating system."] = False
    node_pool: str = ""


class NodeListReply(ListReply):
    nodes: tuple[NodeListStub, ...] = ()


class NodeAllocsReply(Record):
    allocs: tuple[AllocListStub, ...] = ()


NODE_REGISTER = writes(
    "Node.Register", NodeRegisterRequest, NodeUpdateReply, "", "A client says what its host is and has."
)
NODE_UPDATE_STATUS = writes(
    "Node.UpdateStatus", NodeStatusRequest, NodeUpdateReply, "", "A client's sign of life; says when the next is due."
)
NODE_REPORTS = writes(
    "Node.Reports", NodeReportsRequest, NodeReportsReply, "server", "A server passes on what its clients report."
)
NODE_UPDATE_ALLOCS = writes(
    "Node.UpdateAllocs", NodeReportRequest, NodeWriteReply, "", "A client reports on its allocations."
)
NODE_DEREGISTER = writes(
    "Node.Deregister", NodesRequest, NodeWriteReply, "node:write", "Forget nodes, and move what ran there."
)
NODE_ELIGIBILITY = writes(
    "Node.UpdateEligibility",
    NodeEligibilityRequest,
    NodeWriteReply,
    "node:write",
    "Let a node take new allocations, or no more.",
)
NODE_DRAIN = writes(
    "Node.UpdateDrain", NodeDrainRequest, NodeWriteReply, "node:write", "Empty a node, or stop emptying it."
)
NODE_EVALUATE = writes(
    "Node.Evaluate", NodeRequest, NodeWriteReply, "node:write", "Evaluate every job that a node concerns."
)
NODE_GET = reads("Node.Get", NodeRequest, NodeGetReply, "node:read", "One node.")
NODE_LIST = reads("Node.List", NodeListRequest, NodeListReply, "node:read", "Nodes in short, by id.")
NODE_ALLOCS = reads("Node.Allocations", NodeRequest, NodeAllocsReply, "node:read", "The allocations on a node.")


class NodeWatchRequest(Record):
    node_id: str
    secret_id: str = ""


NODE_WATCH = declare(
    Method(
        "Node.Watch",
        NodeWatchRequest,
        NodeWriteReply,
        RunsAt.ANY_SERVER,
        needs="",
        flow=Flow.BOTH,
        item=bytes,
        doc="What a node should run, now and whenever it changes; and, the other way, what became of it.",
    )
)
