"""Deployments: read from this server's own state; changed by people through the leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from msgspec import structs

from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.method import Method
from fedsched.rpc.methods import deployment as methods
from fedsched.rpc.methods.rollout import ROLLOUT_UNBLOCK, RolloutUnblockRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.alloc_stubs import alloc_stubs
from fedsched.server.desk import Desk
from fedsched.server.leader.deployment_rules import (
    UNBLOCKED,
    FailDeployment,
    command_of,
    evaluation_for,
    plan_failure,
    plan_health,
    plan_pause,
    plan_promotion,
)
from fedsched.server.paging import Walk, by_id, by_index, of_few, only, page_of
from fedsched.server.region_calls import RegionCalls
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.changes import ALLOCATIONS
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.deployment_updates import DeploymentStatusUpdate, DeploymentStatusWrite
from fedsched.state.tables.deployments import DeploymentRow
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.rollouts import ShareRow
from fedsched.state.waits import allocs_of_job, whole_table

TABLE: Final = "deployments"
UNBLOCK_S: Final = 8.0
"""For the owner of a rollout to decide: shorter than the time in which a call has to be answered."""


class DeploymentEndpoint:
    """Answers `Deployment.*`."""

    def __init__(self, desk: Desk, calls: RegionCalls | None = None) -> None:
        self._desk = desk
        self._calls = calls

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.DEPLOYMENT_LIST: self.list,
            methods.DEPLOYMENT_GET: self.get,
            methods.DEPLOYMENT_ALLOCS: self.allocations,
            methods.DEPLOYMENT_PAUSE: self.pause,
            methods.DEPLOYMENT_PROMOTE: self.promote,
            methods.DEPLOYMENT_FAIL: self.fail,
            methods.DEPLOYMENT_UNBLOCK: self.unblock,
            methods.DEPLOYMENT_HEALTH: self.health,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.DEPLOYMENT_LIST: self._look_at_list,
            methods.DEPLOYMENT_GET: self._look_at_one,
            methods.DEPLOYMENT_ALLOCS: self._look_at_allocs,
        }

    async def list(self, request: methods.DeploymentListRequest, context: CallContext) -> methods.DeploymentListReply:
        namespace = context.meta.namespace or "default"
        page, next_token = page_of(self._wanted(request, namespace), request, id_of=lambda row: row.id)
        return methods.DeploymentListReply(deployments=tuple(row.deployment() for row in page), next_token=next_token)

    def _wanted(self, request: methods.DeploymentListRequest, namespace: str) -> Walk[DeploymentRow]:
        deployments = self._state.deployments
        if namespace == "*":
            return only(by_id(deployments.rows), lambda row: request.job_id in ("", row.job_id))
        if request.job_id:
            return of_few(deployments.of_job(namespace, request.job_id), id_of=lambda row: row.id)
        return by_index(deployments.rows, "namespace", namespace)

    async def get(self, request: methods.DeploymentRequest, context: CallContext) -> methods.DeploymentGetReply:
        return methods.DeploymentGetReply(deployment=self._known(request.deployment_id))

    async def allocations(
        self, request: methods.DeploymentRequest, context: CallContext
    ) -> methods.DeploymentAllocsReply:
        known = self._known(request.deployment_id)
        allocations = self._state.allocations
        slots = allocations.slots_of_job(known.namespace, known.job_id)
        origins = allocations.columns.read(slots)["origin"]
        mine = [ref for ref in np.unique(origins).tolist() if self._deployment_of(ref) == known.id]
        return methods.DeploymentAllocsReply(allocs=alloc_stubs(self._state, slots[np.isin(origins, mine)]))

    async def pause(
        self, request: methods.DeploymentPauseRequest, context: CallContext
    ) -> methods.DeploymentWriteReply:
        effect = plan_pause(self._state, request.deployment_id, request.pause, *self._stamp())
        return await self._propose(command_of(effect), effect.evaluation, context)

    async def promote(
        self, request: methods.DeploymentPromoteRequest, context: CallContext
    ) -> methods.DeploymentWriteReply:
        if request.all == bool(request.groups):
            raise BadRequest("promote either all groups or the ones named", hint="set `all`, or name some groups")
        effect = plan_promotion(self._state, request.deployment_id, request.groups, *self._stamp())
        return await self._propose(command_of(effect), effect.evaluation, context)

    async def fail(self, request: methods.DeploymentRequest, context: CallContext) -> methods.DeploymentWriteReply:
        effect = plan_failure(self._state, request.deployment_id, *self._stamp())
        return await self._propose(command_of(effect), effect.evaluation, context, effect)

    async def unblock(self, request: methods.DeploymentRequest, context: CallContext) -> methods.DeploymentWriteReply:
        known = self._known(request.deployment_id)
        job = self._state.jobs.get(known.namespace, known.job_id)
        row = self._state.deployments.rows.get(known.id)
        if known.status is not DeploymentStatus.BLOCKED or job is None or row is None:
            raise BadRequest(
                f"deployment {known.id!r} is {known.status.value}, not blocked",
                hint="only a deployment that waits for other regions can be unblocked",
            )
        share = self._state.rollouts.share_row(known.namespace, known.job_id)
        if share is not None and share.deployment_id == known.id and self._calls is not None:
            return await self._unblock_part(share, context)
        evaluation = evaluation_for(self._state, row, job, *self._stamp())
        command = DeploymentStatusUpdate(
            updates=(DeploymentStatusWrite(id=known.id, status="unblocking", description=UNBLOCKED),),
            evaluations=(evaluation_write(evaluation),),
        )
        return await self._propose(command, evaluation, context)

    async def _unblock_part(self, share: ShareRow, context: CallContext) -> methods.DeploymentWriteReply:
        """Have the rollout's owner let this region go on: only what it decides is known to all."""
        assert self._calls is not None
        request = RolloutUnblockRequest(rollout_id=share.rollout_id, regions=(self._desk.region,))
        await self._calls.ask(
            share.header().ballot[1] or self._desk.region,
            ROLLOUT_UNBLOCK,
            request,
            within_s=UNBLOCK_S,
            namespace=share.namespace,
            token=context.meta.token,
        )
        index = self._desk.machine.store.index
        return methods.DeploymentWriteReply(deployment_modify_index=index, index=index)

    async def health(
        self, request: methods.DeploymentHealthRequest, context: CallContext
    ) -> methods.DeploymentWriteReply:
        healthy, unhealthy = request.healthy_allocation_ids, request.unhealthy_allocation_ids
        effect = plan_health(self._state, request.deployment_id, healthy, unhealthy, *self._stamp())
        return await self._propose(command_of(effect), effect.evaluation, context, effect.failure)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _known(self, deployment_id: str) -> Deployment:
        found = self._state.deployments.get(deployment_id)
        if found is None:
            raise NotFound(f"deployment {deployment_id!r} not found", hint="`fedsched deployment list` shows them")
        return found

    def _deployment_of(self, ref: int) -> str:
        origin = self._state.allocations.origins.get(ref)
        return origin.deployment_id if origin else ""

    def _stamp(self) -> tuple[int, Callable[[], str]]:
        return self._desk.proposals.now_ns(), self._desk.env.new_id

    async def _propose(
        self,
        command: Command,
        evaluation: Evaluation | None,
        context: CallContext,
        failure: FailDeployment | None = None,
    ) -> methods.DeploymentWriteReply:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        went_back = failure.revert_to if failure is not None and result.value.get("reverted") else None
        return methods.DeploymentWriteReply(
            eval_id=evaluation.id if evaluation else "",
            eval_create_index=result.index if evaluation else 0,
            deployment_modify_index=result.index,
            reverted_job_version=went_back.version if went_back is not None else None,
            index=result.index,
        )

    def _look_at_list(self, request: methods.DeploymentListRequest, context: CallContext) -> Looked:
        return Looked(self._state.table_index(TABLE), (whole_table(TABLE),))

    def _look_at_one(self, request: methods.DeploymentRequest, context: CallContext) -> Looked:
        return look_at_row(self._state, TABLE, request.deployment_id)

    def _look_at_allocs(self, request: methods.DeploymentRequest, context: CallContext) -> Looked:
        row = self._state.deployments.rows.get(request.deployment_id)
        if row is None:
            return look_at_row(self._state, TABLE, request.deployment_id)
        return Looked(self._state.table_index(ALLOCATIONS), (allocs_of_job(row.namespace, row.job_id),))
