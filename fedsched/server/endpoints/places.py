"""Namespaces and node pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.ids import is_namespace_name, is_node_pool_name
from fedsched.model.namespace import Namespace
from fedsched.model.node_pool import ALL_POOLS, NodePool
from fedsched.model.summary import job_stub
from fedsched.rpc.method import Method
from fedsched.rpc.methods import places as methods
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.paging import by_id, page_of
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.namespaces import (
    BUILT_IN_POOLS,
    NamespaceDelete,
    NamespaceRow,
    NamespaceUpsert,
    NodePoolDelete,
    NodePoolRow,
    NodePoolUpsert,
)
from fedsched.state.waits import whole_table

DESCRIPTION_MAX: Final = 256
NAMESPACES: Final = "namespaces"
POOLS: Final = "node_pools"
_ABOUT: Final = {"default": "Default node pool", "all": "Node pool with all nodes in the cluster"}
T = TypeVar("T", Namespace, NodePool)


def namespace_of(row: NamespaceRow) -> Namespace:
    """The whole record of a namespace."""
    known = from_bytes(row.body, Namespace, STORED_LIMITS) if row.body else Namespace(name=row.name)
    about = row.description or ("Default shared namespace" if row.name == "default" else "")
    return _indexed(structs.replace(known, description=about), row)


def node_pool_of(row: NodePoolRow) -> NodePool:
    """The whole record of a node pool."""
    known = from_bytes(row.body, NodePool, STORED_LIMITS) if row.body else NodePool(name=row.name)
    about = row.description or _ABOUT.get(row.name, "")
    return _indexed(structs.replace(known, description=about), row)


class PlacesEndpoint:
    """Answers `Namespace.*` and `NodePool.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.NAMESPACE_LIST: self.namespaces,
            methods.NAMESPACE_GET: self.namespace,
            methods.NAMESPACE_UPSERT: self.upsert_namespace,
            methods.NAMESPACE_DELETE: self.delete_namespace,
            methods.NODE_POOL_LIST: self.node_pools,
            methods.NODE_POOL_GET: self.node_pool,
            methods.NODE_POOL_NODES: self.nodes,
            methods.NODE_POOL_JOBS: self.jobs,
            methods.NODE_POOL_UPSERT: self.upsert_pool,
            methods.NODE_POOL_DELETE: self.delete_pool,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.NAMESPACE_LIST: lambda request, context: self._table(NAMESPACES),
            methods.NAMESPACE_GET: lambda request, context: look_at_row(self._state, NAMESPACES, request.name),
            methods.NODE_POOL_LIST: lambda request, context: self._table(POOLS),
            methods.NODE_POOL_GET: lambda request, context: look_at_row(self._state, POOLS, request.name),
        }

    async def namespaces(self, request: ListRequest, context: CallContext) -> methods.NamespaceListReply:
        rows, token = page_of(by_id(self._state.places.namespaces), request, id_of=lambda row: row.name)
        return methods.NamespaceListReply(namespaces=tuple(map(namespace_of, rows)), next_token=token)

    async def namespace(self, request: methods.NameRequest, context: CallContext) -> methods.NamespaceGetReply:
        row = self._state.places.namespaces.get(request.name)
        if row is None:
            raise NotFound(f"namespace {request.name!r} not found", hint="`fedsched namespace list` shows them")
        return methods.NamespaceGetReply(namespace=namespace_of(row))

    async def upsert_namespace(
        self, request: methods.NamespaceUpsertRequest, context: CallContext
    ) -> methods.PlaceWriteReply:
        wanted = request.namespace
        if not is_namespace_name(wanted.name):
            raise BadRequest(f"invalid namespace name {wanted.name!r}", hint="1 to 128 letters, digits and dashes")
        _check_description(wanted.description)
        command = NamespaceUpsert(name=wanted.name, description=wanted.description, body=_body(wanted))
        return await self._propose(command, context)

    async def delete_namespace(self, request: methods.NameRequest, context: CallContext) -> methods.PlaceWriteReply:
        return await self._propose(NamespaceDelete(name=request.name), context)

    async def node_pools(self, request: ListRequest, context: CallContext) -> methods.NodePoolListReply:
        rows, token = page_of(by_id(self._state.places.node_pools), request, id_of=lambda row: row.name)
        return methods.NodePoolListReply(node_pools=tuple(map(node_pool_of, rows)), next_token=token)

    async def node_pool(self, request: methods.NameRequest, context: CallContext) -> methods.NodePoolGetReply:
        return methods.NodePoolGetReply(node_pool=node_pool_of(self._pool(request.name)))

    async def nodes(self, request: methods.NameRequest, context: CallContext) -> methods.NodePoolNodesReply:
        self._pool(request.name)
        nodes = self._state.nodes.rows
        rows = nodes.scan() if request.name == ALL_POOLS else nodes.by("pool", request.name)
        return methods.NodePoolNodesReply(nodes=tuple(row.node().stub() for row in rows))

    async def jobs(self, request: methods.NameRequest, context: CallContext) -> methods.NodePoolJobsReply:
        self._pool(request.name)
        jobs = self._state.jobs
        rows = jobs.scan() if request.name in BUILT_IN_POOLS else jobs.rows.by("pool", request.name)
        found = (jobs.of_row(row) for row in rows if row.node_pool == request.name)
        return methods.NodePoolJobsReply(jobs=tuple(job_stub(job, None) for job in found))

    async def upsert_pool(
        self, request: methods.NodePoolUpsertRequest, context: CallContext
    ) -> methods.PlaceWriteReply:
        wanted = request.node_pool
        if not is_node_pool_name(wanted.name):
            hint = "1 to 128 letters, digits, dashes and underscores"
            raise BadRequest(f"invalid node pool name {wanted.name!r}", hint=hint)
        _check_description(wanted.description)
        command = NodePoolUpsert(name=wanted.name, description=wanted.description, body=_body(wanted))
        return await self._propose(command, context)

    async def delete_pool(self, request: methods.NameRequest, context: CallContext) -> methods.PlaceWriteReply:
        return await self._propose(NodePoolDelete(name=request.name), context)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _pool(self, name: str) -> NodePoolRow:
        row = self._state.places.node_pools.get(name)
        if row is None:
            raise NotFound(f"node pool {name!r} not found", hint="`fedsched node pool list` shows them")
        return row

    def _table(self, table: str) -> Looked:
        return Looked(self._state.table_index(table), (whole_table(table),))

    async def _propose(self, command: Command, context: CallContext) -> methods.PlaceWriteReply:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return methods.PlaceWriteReply(index=result.index)


def _indexed(known: T, row: NamespaceRow | NodePoolRow) -> T:
    return structs.replace(known, name=row.name, create_index=row.create_index, modify_index=row.modify_index)


def _body(wanted: Namespace | NodePool) -> bytes:
    return to_bytes(structs.replace(wanted, create_index=0, modify_index=0))


def _check_description(text: str) -> None:
    if len(text) > DESCRIPTION_MAX:
        raise BadRequest(f"the description has {len(text)} characters", hint=f"at most {DESCRIPTION_MAX}")
