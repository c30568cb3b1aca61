"""Where a worker gets its evaluations from and brings them back to: this server's own office, or the leader's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fedsched.codec import to_bytes
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.caller import Caller
from fedsched.rpc.methods import scheduling as methods
from fedsched.scheduler.decision import Outcome
from fedsched.server.leader.plan_apply import PlanAnswer
from fedsched.server.leader.work import LeaderWork
from fedsched.state.tables.plans import PlanApply


class Assignment(NamedTuple):
    """One evaluation to work on."""

    evaluation_id: str
    token: str
    type: str
    wait_index: int


class WorkSource(Protocol):
    """What a worker needs of a leader. `NotOutstanding` says that the evaluation is no longer the worker's."""

    async def dequeue(self, types: Sequence[str], *, wait_s: float) -> Assignment | None:
        """The next evaluation of these types; None if none came up in time."""

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        """Have a plan committed, as far as it still holds."""

    async def store(self, assignment: Assignment, evaluations: Sequence[Evaluation], *, ack: bool) -> None:
        """Write evaluations, and say that this one is done if it is."""

    async def ack(self, assignment: Assignment) -> None:
        """The evaluation is done."""

    async def nack(self, assignment: Assignment) -> None:
        """Somebody else should try."""


class OwnOffice:
    """This server leads: nothing is encoded, nothing travels."""

    def __init__(self, work: LeaderWork) -> None:
        self._work = work

    async def dequeue(self, types: Sequence[str], *, wait_s: float) -> Assignment | None:
        for handed in await self._work.dequeue(types, limit=1, wait_s=wait_s):
            ticket = handed.delivery.ticket
            return Assignment(ticket.id, handed.delivery.token, ticket.type, handed.wait_index)
        return None

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        return await self._work.submit(
            assignment.evaluation_id, assignment.token, plan, priority=priority, all_at_once=all_at_once
        )

    async def store(self, assignment: Assignment, evaluations: Sequence[Evaluation], *, ack: bool) -> None:
        await self._work.store(assignment.evaluation_id, assignment.token, evaluations, ack=ack)

    async def ack(self, assignment: Assignment) -> None:
        self._work.ack(assignment.evaluation_id, assignment.token)

    async def nack(self, assignment: Assignment) -> None:
        self._work.nack(assignment.evaluation_id, assignment.token)


class LeaderElsewhere:
    """Another server leads: the same over the wire. Dispatch finds it, also when it changes."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def dequeue(self, types: Sequence[str], *, wait_s: float) -> Assignment | None:
        request = methods.EvaluationDequeueRequest(types=tuple(types), limit=1, wait_s=wait_s)
        reply, _ = await self._caller.call(methods.EVAL_DEQUEUE, request)
        for one in reply.evaluations:
            return Assignment(one.eval_id, one.token, one.type, one.wait_index)
        return None

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        request = methods.PlanSubmitRequest(
            eval_id=assignment.evaluation_id,
            token=assignment.token,
            plan=to_bytes(plan),
            priority=priority,
            all_at_once=all_at_once,
        )
        reply, _ = await self._caller.call(methods.PLAN_SUBMIT, request)
        outcome = Outcome(reply.is_whole, reply.is_progress, reply.refresh_index, reply.index)
        return PlanAnswer(outcome, is_acked=reply.is_acked, rejected_nodes=reply.rejected_nodes)

    async def store(self, assignment: Assignment, evaluations: Sequence[Evaluation], *, ack: bool) -> None:
        request = methods.EvaluationUpdateRequest(
            eval_id=assignment.evaluation_id, token=assignment.token, evaluations=tuple(evaluations), ack=ack
        )
        await self._caller.call(methods.EVAL_UPDATE, request)

    async def ack(self, assignment: Assignment) -> None:
        await self._caller.call(methods.EVAL_ACK, self._token(assignment))

    async def nack(self, assignment: Assignment) -> None:
        await self._caller.call(methods.EVAL_NACK, self._token(assignment))

    def _token(self, assignment: Assignment) -> methods.EvaluationTokenRequest:
        return methods.EvaluationTokenRequest(eval_id=assignment.evaluation_id, token=assignment.token)
