"""Namespaces and node pools: sets of jobs and sets of nodes."""

from __future__ import annotations

from fedsched.model.declare import Record
from fedsched.model.namespace import Namespace
from fedsched.model.node import NodeListStub
from fedsched.model.node_pool import NodePool
from fedsched.model.summary import JobListStub
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class NameRequest(Record):
    name: str


class PlaceWriteReply(Record):
    index: int = 0


class NamespaceListReply(ListReply):
    namespaces: tuple[Namespace, ...] = ()


class NamespaceGetReply(Record):
    namespace: Namespace


class NamespaceUpsertRequest(Record):
    namespace: Namespace


class NodePoolListReply(ListReply):
    node_pools: tuple[NodePool, ...] = ()


class NodePoolGetReply(Record):
    node_pool: NodePool


class NodePoolUpsertRequest(Record):
    node_pool: NodePool


class NodePoolNodesReply(Record):
    nodes: tuple[NodeListStub, ...] = ()


class NodePoolJobsReply(Record):
    jobs: tuple[JobListStub, ...] = ()


NAMESPACE_LIST = reads("Namespace.List", ListRequest, NamespaceListReply, "", "Namespaces, by name.")
NAMESPACE_GET = reads("Namespace.Get", NameRequest, NamespaceGetReply, "", "One namespace.")
NAMESPACE_UPSERT = writes(
    "Namespace.Upsert", NamespaceUpsertRequest, PlaceWriteReply, "operator:write", "Make or change a namespace."
)
NAMESPACE_DELETE = writes(
    "Namespace.Delete", NameRequest, PlaceWriteReply, "operator:write", "Forget a namespace without jobs."
)
NODE_POOL_LIST = reads("NodePool.List", ListRequest, NodePoolListReply, "node:read", "Node pools, by name.")
NODE_POOL_GET = reads("NodePool.Get", NameRequest, NodePoolGetReply, "node:read", "One node pool.")
NODE_POOL_NODES = reads("NodePool.Nodes", NameRequest, NodePoolNodesReply, "node:read", "The nodes of a pool.")
NODE_POOL_JOBS = reads("NodePool.Jobs", NameRequest, NodePoolJobsReply, "read-job", "The jobs that ask for a pool.")
NODE_POOL_UPSERT = writes(
    "NodePool.Upsert", NodePoolUpsertRequest, PlaceWriteReply, "operator:write", "Make or change a node pool."
)
NODE_POOL_DELETE = writes(
    "NodePool.Delete", NameRequest, PlaceWriteReply, "operator:write", "Forget a node pool that nothing uses."
)
