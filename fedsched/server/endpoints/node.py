"""Nodes: what their clients say, what people set, and streams of what each should run.

A client proves itself with the secret it made up when it first registered; of that only a hash is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import structs

from fedsched.codec import to_bytes
from fedsched.model.errors import BadRequest
from fedsched.model.evaluation import Evaluation
from fedsched.model.ids import is_node_pool_name, is_uuid, uuid_bytes
from fedsched.model.node import DrainStrategy, Eligibility, Node, NodeStatus
from fedsched.model.node_pool import ALL_POOLS
from fedsched.rpc.method import Method
from fedsched.rpc.methods import node as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.scheduler.computed_class import computed_class
from fedsched.server.alloc_stubs import alloc_stubs
from fedsched.server.desk import Desk
from fedsched.server.duties import Duties
from fedsched.server.leader.client_updates_core import Report, reports_in
from fedsched.server.leader.heartbeats_core import (
    eligibility_needs_evaluations,
    node_evaluations,
    registration_needs_evaluations,
    status_after_beat,
    status_needs_evaluations,
)
from fedsched.server.node_proof import check_secret, known_node, proven_node, secret_hash
from fedsched.server.paging import by_id, by_index, page_of
from fedsched.server.uplinks import Uplinks
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.changes import ALLOCATIONS
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import (
    NodeDrainUpdate,
    NodeDrainWrite,
    NodeEligibilityUpdate,
    NodeRegister,
    NodeStatusUpdate,
    NodeStatusWrite,
)
from fedsched.state.tables.nodes import NodeDeregister, NodeRow
from fedsched.state.waits import allocs_of_node, whole_table

TABLE: Final = "nodes"
NS: Final = 1_000_000_000
SILENT: Final = (NodeStatus.DOWN.value, NodeStatus.DISCONNECTED.value)
REGISTERED: Final = NodeEventWrite(message="Node registered")
REREGISTERED: Final = NodeEventWrite(message="Node re-registered")
RETURNED: Final = NodeEventWrite(message="Node reregistered by heartbeat")
DRAIN_SET: Final = NodeEventWrite(message="Node drain strategy set", subsystem="Drain")
DRAIN_DISABLED: Final = NodeEventWrite(message="Node drain disabled", subsystem="Drain")
ELIGIBLE: Final = NodeEventWrite(message="Node marked as eligible for scheduling")
INELIGIBLE: Final = NodeEventWrite(message="Node marked as ineligible for scheduling")


class NodeEndpoint:
    """Answers `Node.*`."""

    def __init__(self, desk: Desk, duties: Duties, uplinks: Uplinks) -> None:
        self._desk = desk
        self._duties = duties
        self._uplinks = uplinks

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.NODE_REGISTER: self.register,
            methods.NODE_UPDATE_STATUS: self.update_status,
            methods.NODE_UPDATE_ALLOCS: self.update_allocs,
            methods.NODE_REPORTS: self.reports,
            methods.NODE_WATCH: self.watch,
            methods.NODE_DEREGISTER: self.deregister,
            methods.NODE_ELIGIBILITY: self.set_eligibility,
            methods.NODE_DRAIN: self.drain,
            methods.NODE_EVALUATE: self.evaluate,
            methods.NODE_GET: self.get,
            methods.NODE_LIST: self.list,
            methods.NODE_ALLOCS: self.allocations,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.NODE_GET: lambda request, context: look_at_row(self._state, TABLE, request.node_id),
            methods.NODE_LIST: lambda request, context: Looked(self._state.table_index(TABLE), (whole_table(TABLE),)),
            methods.NODE_ALLOCS: self._look_at_allocs,
        }

    async def register(self, request: methods.NodeRegisterRequest, context: CallContext) -> methods.NodeUpdateReply:
        node = _admitted(request.node)
        known = self._state.nodes.get(node.id)
        hashed = secret_hash(node.secret_id)
        if known is not None:
            check_secret(known, node.secret_id)
        bare = structs.replace(
            node, secret_id="", events=(), drain_strategy=None, last_drain=None, create_index=0, modify_index=0
        )
        matters = (
            known is not None
            and known.status == NodeStatus.READY.value
            and registration_needs_evaluations(known.node(), bare)
        )
        evaluations = self._evaluations(node.id) if matters else ()
        event = REGISTERED if known is None else REREGISTERED if known.status in SILENT else _driver_event(known, bare)
        command = NodeRegister(
            id=node.id,
            name=node.name,
            datacenter=node.datacenter,
            node_pool=node.node_pool,
            node_class=node.node_class,
            computed_class=computed_class(node),
            eligibility=node.scheduling_eligibility.value,
            body=to_bytes(structs.replace(bare, computed_class=computed_class(node))),
            create_pool=True,
            secret_hash=hashed,
            event=event,
            evaluations=tuple(map(evaluation_write, evaluations)),
        )
        result = await self._propose(command, context)
        return self._beat(node.id, evaluations, result.index)

    async def update_status(self, request: methods.NodeStatusRequest, context: CallContext) -> methods.NodeUpdateReply:
        row = self._proven(request.node_id, request.secret_id)
        is_ready = request.status is NodeStatus.READY
        status = status_after_beat(self._state, row) if is_ready else request.status
        if status == row.status:
            return self._beat(row.id, (), self._state.index)
        evaluations = self._evaluations(row.id) if status_needs_evaluations(row.status, status) else ()
        update = NodeStatusWrite(id=row.id, status=status.value, event=RETURNED if row.status in SILENT else None)
        command = NodeStatusUpdate(updates=(update,), evaluations=tuple(map(evaluation_write, evaluations)))
        result = await self._propose(command, context)
        return self._beat(row.id, evaluations, result.index)

    async def update_allocs(self, request: methods.NodeReportRequest, context: CallContext) -> methods.NodeWriteReply:
        row = self._proven(request.node_id, request.secret_id)
        report = Report(
            node_id=row.id,
            ids=request.ids,
            statuses=request.statuses,
            healths=request.healths,
            client=request.client,
            client_sizes=request.client_sizes,
        )
        await self._duties.client_updates.report(report)
        index = self._state.index
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        return methods.NodeWriteReply(index=index)

    async def reports(self, request: methods.NodeReportsRequest, context: CallContext) -> methods.NodeReportsReply:
        columns = Report("", request.ids, request.statuses, request.healths, request.client, request.client_sizes)
        refused = await self._duties.client_updates.report_all(reports_in(request.nodes, request.counts, columns))
        index = self._state.index
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        return methods.NodeReportsReply(index=index, refused=b"".join(map(uuid_bytes, refused)))

    async def watch(self, request: methods.NodeWatchRequest, context: CallContext) -> methods.NodeWriteReply:
        row = self._proven(request.node_id, request.secret_id)
        await context.stay(partial(self._uplinks.serve, row.id, row.slot, context.raw_items, context.link))
        return methods.NodeWriteReply(index=self._state.index)

    async def deregister(self, request: methods.NodesRequest, context: CallContext) -> methods.NodeWriteReply:
        if not request.node_ids:
            raise BadRequest("no node is named", hint="give one id or several")
        for node_id in request.node_ids:
            self._known(node_id)
        evaluations = self._evaluations(*request.node_ids)
        command = NodeDeregister(ids=request.node_ids, evaluations=tuple(map(evaluation_write, evaluations)))
        return await self._written(command, evaluations, context)

    async def set_eligibility(
        self, request: methods.NodeEligibilityRequest, context: CallContext
    ) -> methods.NodeWriteReply:
        row = self._known(request.node_id)
        is_eligible = request.eligibility is Eligibility.ELIGIBLE
        comes_back = eligibility_needs_evaluations(row.eligibility, request.eligibility.value)
        evaluations = self._evaluations(row.id) if comes_back else ()
        command = NodeEligibilityUpdate(
            ids=(row.id,),
            eligibility=request.eligibility.value,
            event=ELIGIBLE if is_eligible else INELIGIBLE,
            evaluations=tuple(map(evaluation_write, evaluations)),
        )
        return await self._written(command, evaluations, context)

    async def drain(self, request: methods.NodeDrainRequest, context: CallContext) -> methods.NodeWriteReply:
        row = self._known(request.node_id)
        strategy = self._stamped(request.drain_strategy) if request.drain_strategy else None
        comes_back = strategy is None and request.mark_eligible and row.eligibility != Eligibility.ELIGIBLE.value
        evaluations = self._evaluations(row.id) if comes_back else ()
        update = NodeDrainWrite(
            id=row.id,
            strategy=to_bytes(strategy) if strategy else b"",
            mark_eligible=request.mark_eligible,
            meta=dict(request.meta),
            event=DRAIN_SET if strategy else DRAIN_DISABLED if row.draining else None,
        )
        command = NodeDrainUpdate(updates=(update,), evaluations=tuple(map(evaluation_write, evaluations)))
        return await self._written(command, evaluations, context)

    async def evaluate(self, request: methods.NodeRequest, context: CallContext) -> methods.NodeWriteReply:
        row = self._known(request.node_id)
        evaluations = self._evaluations(row.id)
        if not evaluations:
            return methods.NodeWriteReply(node_modify_index=row.modify_index, index=self._state.index)
        command = EvaluationsUpsert(evaluations=tuple(map(evaluation_write, evaluations)))
        return await self._written(command, evaluations, context)

    async def get(self, request: methods.NodeRequest, context: CallContext) -> methods.NodeGetReply:
        return methods.NodeGetReply(node=structs.replace(self._known(request.node_id).node(), secret_id=""))

    async def list(self, request: methods.NodeListRequest, context: CallContext) -> methods.NodeListReply:
        rows = self._state.nodes.rows
        walk = by_id(rows) if request.node_pool in ("", ALL_POOLS) else by_index(rows, "pool", request.node_pool)
        page, next_token = page_of(walk, request, id_of=lambda row: row.id)
        stubs = tuple(row.node().stub(resources=request.resources, os=request.os) for row in page)
        return methods.NodeListReply(nodes=stubs, next_token=next_token)

    async def allocations(self, request: methods.NodeRequest, context: CallContext) -> methods.NodeAllocsReply:
        row = self._known(request.node_id)
        return methods.NodeAllocsReply(
            allocs=alloc_stubs(self._state, self._state.allocations.slots_of_node(row.slot), resources=True)
        )

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _known(self, node_id: str) -> NodeRow:
        return known_node(self._state, node_id)

    def _proven(self, node_id: str, secret_id: str) -> NodeRow:
        return proven_node(self._state, node_id, secret_id)

    def _evaluations(self, *node_ids: str) -> tuple[Evaluation, ...]:
        """One for every job that these nodes concern."""
        rows = [row for node_id in node_ids if (row := self._state.nodes.get(node_id)) is not None]
        return tuple(node_evaluations(self._state, rows, self._desk.proposals.now_ns(), self._desk.env.new_id))

    def _stamped(self, strategy: DrainStrategy) -> DrainStrategy:
        """With the moment it began and, if it has a deadline, the moment by which all must be gone."""
        now_ns = self._desk.proposals.now_ns()
        by_ns = now_ns + round(strategy.deadline_s * NS) if strategy.deadline_s > 0 else 0
        return structs.replace(strategy, started_at_ns=now_ns, force_deadline_ns=by_ns)

    async def _propose(self, command: Command, context: CallContext) -> Result:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return result

    async def _written(
        self, command: Command, evaluations: tuple[Evaluation, ...], context: CallContext
    ) -> methods.NodeWriteReply:
        result = await self._propose(command, context)
        return methods.NodeWriteReply(
            eval_ids=tuple(one.id for one in evaluations), node_modify_index=result.index, index=result.index
        )

    def _beat(self, node_id: str, evaluations: tuple[Evaluation, ...], index: int) -> methods.NodeUpdateReply:
        row = self._state.nodes.get(node_id)
        return methods.NodeUpdateReply(
            heartbeat_ttl_s=self._duties.heartbeats.beat(node_id),
            status=NodeStatus(row.status) if row else NodeStatus.INITIALIZING,
            eval_ids=tuple(one.id for one in evaluations),
            index=index,
            servers=tuple(server.address for server in self._desk.raft.servers),
            time_ns=self._desk.proposals.now_ns(),
        )

    def _look_at_allocs(self, request: methods.NodeRequest, context: CallContext) -> Looked:
        row = self._state.nodes.get(request.node_id)
        if row is None:
            return look_at_row(self._state, TABLE, request.node_id)
        rows = self._state.allocations.columns.read(self._state.allocations.slots_of_node(row.slot))
        index = int(rows["modify_index"].max()) if len(rows) else self._state.table_index(ALLOCATIONS)
        return Looked(index, (allocs_of_node(row.slot),))


def _admitted(node: Node) -> Node:
    """Refuse what cannot be a node, naming what is wrong."""
    if not is_uuid(node.id):
        raise BadRequest(f"node id {node.id!r} is not a UUID", hint="clients make one up when they first start")
    if not node.name or not node.datacenter:
        raise BadRequest(f"node {node.id!r} has no name or no datacenter", hint="both are needed to place anything")
    if not node.secret_id:
        raise BadRequest(f"node {node.id!r} has no secret", hint="clients make one up when they first start")
    if node.node_pool == ALL_POOLS or not is_node_pool_name(node.node_pool):
        raise BadRequest(f"node pool {node.node_pool!r} cannot hold nodes", hint="`default` always can")
    return node


def _driver_event(known: NodeRow, now: Node) -> NodeEventWrite | None:
    """What a node's people should hear about its drivers: those that work no more, and those that work again."""
    before = known.node().drivers
    moved = [
        name
        for name, info in sorted(now.drivers.items())
        if name in before and before[name].healthy != info.healthy and (info.detected or before[name].detected)
    ]
    if not moved:
        return None
    parts = [
        f"{name} is healthy" if now.drivers[name].healthy else f"{name}: {now.drivers[name].health_description}"
        for name in moved
    ]
    return NodeEventWrite(message=f"Driver health changed: {'; '.join(parts)}"[:500], subsystem="Driver")
