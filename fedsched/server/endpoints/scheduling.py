"""What workers of other servers ask of this one while it leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedsched.codec import STORED_LIMITS, from_bytes
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import scheduling as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.leader.work import LeaderWork
from fedsched.state.tables.plans import PlanApply

HAND_OUT_MAX: Final = 64
WAIT_MAX_S: Final = 8.0
"""Shorter than the time in which a call has to be answered at all."""


class SchedulingEndpoint:
    """Answers `Eval.Dequeue`, `Eval.Ack` and what else belongs to them, `Plan.Submit`."""

    def __init__(self, work: LeaderWork) -> None:
        self._work = work

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.EVAL_DEQUEUE: self.dequeue,
            methods.EVAL_ACK: self.ack,
            methods.EVAL_NACK: self.nack,
            methods.EVAL_EXTEND: self.extend,
            methods.EVAL_UPDATE: self.update,
            methods.PLAN_SUBMIT: self.submit,
        }

    async def dequeue(
        self, request: methods.EvaluationDequeueRequest, context: CallContext
    ) -> methods.EvaluationDequeueReply:
        limit = max(1, min(request.limit, HAND_OUT_MAX))
        wait_s = max(0.0, min(request.wait_s, WAIT_MAX_S))
        handed = await self._work.dequeue(request.types, limit=limit, wait_s=wait_s)
        return methods.EvaluationDequeueReply(
            evaluations=tuple(
                methods.EvaluationHandedOut(
                    eval_id=one.delivery.ticket.id,
                    token=one.delivery.token,
                    type=one.delivery.ticket.type,
                    wait_index=one.wait_index,
                )
                for one in handed
            )
        )

    async def ack(self, request: methods.EvaluationTokenRequest, context: CallContext) -> Empty:
        self._work.ack(request.eval_id, request.token)
        return Empty()

    async def nack(self, request: methods.EvaluationTokenRequest, context: CallContext) -> Empty:
        self._work.nack(request.eval_id, request.token)
        return Empty()

    async def extend(self, request: methods.EvaluationTokenRequest, context: CallContext) -> Empty:
        self._work.extend(request.eval_id, request.token)
        return Empty()

    async def update(
        self, request: methods.EvaluationUpdateRequest, context: CallContext
    ) -> methods.EvaluationUpdateReply:
        index = await self._work.store(request.eval_id, request.token, request.evaluations, ack=request.ack)
        return methods.EvaluationUpdateReply(index=index)

    async def submit(self, request: methods.PlanSubmitRequest, context: CallContext) -> methods.PlanSubmitReply:
        answer = await self._work.submit(
            request.eval_id,
            request.token,
            from_bytes(request.plan, PlanApply, STORED_LIMITS),
            priority=request.priority,
            all_at_once=request.all_at_once,
        )
        outcome = answer.outcome
        return methods.PlanSubmitReply(
            is_whole=outcome.is_whole,
            is_progress=outcome.is_progress,
            refresh_index=outcome.refresh_index,
            index=outcome.index,
            is_acked=answer.is_acked,
            rejected_nodes=answer.rejected_nodes,
        )
