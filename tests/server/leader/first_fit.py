"""The simplest scheduler there is: what a job lacks goes to the first nodes with room, what is too much is stopped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import structs

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.ids import uuid_bytes
from fedsched.scheduler.decision import Attempt, Outcome
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.plan_build import PlanBuilder
from fedsched.state.store import State
from tests.server.leader.site import shared

ATTEMPTS = 5


class FirstFit:
    """Works on one evaluation. `amounts` is what each allocation is given."""

    def __init__(self, evaluation: Evaluation, new_id: Callable[[], str], *, cpu: int = 500) -> None:
        self.evaluation = evaluation
        self.new_id = new_id
        self.cpu = cpu
        self.fruitless = 0

    def attempt(self, state: State, fleet: Fleet, now_ns: int) -> Attempt:
        evaluation = self.evaluation
        job = state.jobs.get(evaluation.namespace, evaluation.job_id)
        builder = PlanBuilder(
            job,
            namespace=evaluation.namespace,
            job_id=evaluation.job_id,
            evaluation_id=evaluation.id,
            snapshot_index=state.index,
        )
        live = [
            record
            for record in state.allocations.records(
                state.allocations.slots_of_job(evaluation.namespace, evaluation.job_id)
            )
            if record.desired_status == "run" and not record.client_status.is_terminal
        ]
        wanted = 0 if job is None or job.stop else job.task_groups[0].count
        if live[wanted:]:
            builder.stop((record.id for record in live[wanted:]), desired=2)
        missing = max(0, wanted - len(live))
        slots = self._slots(fleet, missing)
        if slots:
            assert job is not None
            taken = {int(record.name.rpartition("[")[2][:-1]) for record in live}
            free = [index for index in range(wanted) if index not in taken][: len(slots)]
            ids = b"".join(uuid_bytes(self.new_id()) for _ in slots)
            builder.place_many(
                job.task_groups[0].name, ids, np.array(slots), np.array(free), shared(cpu=self.cpu, disk_mb=0)
            )
        left = missing - len(slots)
        return Attempt(plan=builder.build(), ends=self._ends(left), priority=evaluation.priority)

    def heard(self, outcome: Outcome, now_ns: int) -> tuple[Evaluation, ...] | None:
        if outcome.is_whole:
            return ()
        self.fruitless = 0 if outcome.is_progress else self.fruitless + 1
        if self.fruitless < ATTEMPTS:
            return None
        blocked = self._blocked(Trigger.MAX_PLAN_ATTEMPTS)
        failed = structs.replace(self.evaluation, status=EvaluationStatus.FAILED, blocked_eval=blocked.id)
        return (failed, blocked)

    def _slots(self, fleet: Fleet, count: int) -> list[int]:
        found: list[int] = []
        for slot in np.flatnonzero(fleet.ready).tolist():
            room = int((fleet.cap_cpu[slot] - fleet.occupied_cpu[slot]) // self.cpu)
            found += [slot] * min(room, count - len(found))
        return found

    def _ends(self, left: int) -> tuple[Evaluation, ...]:
        evaluation = self.evaluation
        if evaluation.status is EvaluationStatus.BLOCKED and left:
            return (evaluation,)
        done = structs.replace(evaluation, status=EvaluationStatus.COMPLETE)
        if not left:
            return (done,)
        blocked = self._blocked(Trigger.QUEUED_ALLOCS)
        failed = {"group": AllocMetric(coalesced_failures=left - 1)}
        return (structs.replace(done, blocked_eval=blocked.id, failed_tg_allocs=failed), blocked)

    def _blocked(self, trigger: Trigger) -> Evaluation:
        evaluation = self.evaluation
        return Evaluation(
            id=self.new_id(),
            namespace=evaluation.namespace,
            job_id=evaluation.job_id,
            type=evaluation.type,
            priority=evaluation.priority,
            triggered_by=trigger.value,
            status=EvaluationStatus.BLOCKED,
            previous_eval=evaluation.id,
        )
