"""What a leader offers to workers, its own and those of other servers: one place for both ways in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from fedsched.model.evaluation import Evaluation
from fedsched.server.desk import Desk
from fedsched.server.leader.broker import BrokerService, Handed
from fedsched.server.leader.plan_apply import PlanAnswer, PlanApplier
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.plans import PlanApply


class LeaderWork:
    """Everything here raises `NotLeader` without an office and `NotOutstanding` for a token that holds nothing."""

    def __init__(self, desk: Desk, broker: BrokerService, applier: PlanApplier) -> None:
        self._desk = desk
        self.broker = broker
        self.applier = applier

    async def dequeue(self, types: Sequence[str], *, limit: int, wait_s: float) -> list[Handed]:
        return await self.broker.dequeue(types, limit=limit, wait_s=wait_s)

    def ack(self, evaluation_id: str, token: str) -> None:
        self.broker.ack(evaluation_id, token)

    def nack(self, evaluation_id: str, token: str) -> None:
        self.broker.nack(evaluation_id, token)

    def extend(self, evaluation_id: str, token: str) -> None:
        self.broker.reset_nack(evaluation_id, token)

    async def submit(
        self, evaluation_id: str, token: str, plan: PlanApply, *, priority: int, all_at_once: bool
    ) -> PlanAnswer:
        return await self.applier.submit(evaluation_id, token, plan, priority=priority, all_at_once=all_at_once)

    async def store(self, evaluation_id: str, token: str, evaluations: Sequence[Evaluation], *, ack: bool) -> int:
        """Write evaluations on behalf of the one that the token holds; returns their index."""
        self.broker.check(evaluation_id, token)
        index = 0
        if evaluations:
            now_ns = self._desk.proposals.now_ns()
            writes = tuple(evaluation_write(_stamped(one, now_ns)) for one in evaluations)
            result = await self._desk.proposals.propose(EvaluationsUpsert(evaluations=writes), is_essential=True)
            index = result.index
        if ack:
            self.broker.ack(evaluation_id, token)
        return index


def _stamped(evaluation: Evaluation, now_ns: int) -> Evaluation:
    return structs.replace(evaluation, create_time_ns=evaluation.create_time_ns or now_ns, modify_time_ns=now_ns)
