"""A region in one object: the real store, fleet and commands, with plans committed as they come.

Every plan is checked by an independent look at whole records: nothing may be promised twice, and what is to stop keeps
its place until its client says that it has, but for what the very same plan stops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.node import Node
from fedsched.scheduler.decision import Attempt, Outcome, Scheduling
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.schedule import scheduler_for
from fedsched.state.apply import ApplyResult, apply
from fedsched.state.commands import Envelope
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import CLIENT_CODES
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import job_register
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlanApply
from tests.overcommit import taken_too_early

NS = 1_000_000_000


class ToyRegion:
    """Applies commands at once; time stands still unless it is moved."""

    def __init__(self, nodes: Iterable[Node] = (), *, now_s: int = 1_000) -> None:
        self.store = Store()
        self.fleet = Fleet.of(self.store)
        self.now_ns = now_s * NS
        self.committed: PlanApply | None = None
        self._numbers = iter(range(1, 1 << 60))
        for node in nodes:
            self.do(node_upsert(node))

    def new_id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._numbers):012x}"

    def do(self, command: Any) -> ApplyResult:
        """Commit a command."""
        done = apply(self.store, self.store.index + 1, Envelope(command=command, time_ns=self.now_ns))
        assert done.result.error() is None, done.result.error()
        self.fleet.note(self.store, done.changes)
        return done

    def register(self, job: Job, *, trigger: Trigger = Trigger.JOB_REGISTER) -> Evaluation:
        """Register a job with its evaluation, which is not run yet."""
        job = replace(canonicalise(job), submit_time_ns=self.now_ns)
        evaluation = Evaluation(
            id=self.new_id(),
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=trigger.value,
            job_id=job.id,
        )
        self.do(job_register(job, evaluation=evaluation_write(evaluation)))
        return self.evaluation(evaluation.id)

    def evaluate(self, job: Job, trigger: Trigger = Trigger.NODE_UPDATE, **fields: Any) -> Evaluation:
        """Another evaluation of a job, not run yet."""
        made = Evaluation(
            id=self.new_id(),
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=trigger.value,
            job_id=job.id,
            **fields,
        )
        self.do(EvaluationsUpsert(evaluations=(evaluation_write(made),)))
        return self.evaluation(made.id)

    def run(self, evaluation: Evaluation) -> list[Attempt]:
        """See an evaluation through; the attempts that it took."""
        scheduling = scheduler_for(evaluation.type)(evaluation, self.new_id)
        attempts: list[Attempt] = []
        while True:
            attempt = self.attempt(scheduling)
            attempts.append(attempt)
            outcome = self.commit(attempt)
            ends = scheduling.heard(outcome, self.now_ns)
            if ends is not None:
                self._store_evaluations(ends)
                return attempts
            assert len(attempts) < 50

    def attempt(self, scheduling: Scheduling) -> Attempt:
        """One attempt, which must leave the fleet as it found it."""
        before = {name: getattr(self.fleet, name).copy() for name in ("occupied_cpu", "occupied_memory", "held_cpu")}
        attempt = scheduling.attempt(self.store, self.fleet, self.now_ns)
        for name, column in before.items():
            assert np.array_equal(getattr(self.fleet, name), column), f"{name} was left changed"
        return attempt

    def commit(self, attempt: Attempt) -> Outcome:
        if attempt.plan is None:
            self._store_evaluations(attempt.ends)
            return Outcome(is_whole=True, is_progress=False)
        ends = tuple(evaluation_write(one) for one in attempt.ends)
        done = self.do(replace(attempt.plan, ends=ends))
        self.committed = attempt.plan
        self.check_nodes()
        return Outcome(is_whole=True, is_progress=True, index=self.store.index, refresh_index=done.changes.index)

    def go(self, job: Job, **fields: Any) -> list[Allocation]:
        """Register a job and run its evaluation; its live allocations afterwards."""
        self.run(self.register(job))
        return self.live(job)

    def report(self, allocs: Iterable[Allocation], status: ClientStatus) -> None:
        """What clients say."""
        known = list(allocs)
        self.do(
            AllocStatusUpdate(
                ids=b"".join(uuid_bytes(one.id) for one in known), statuses=bytes([CLIENT_CODES[status]] * len(known))
            )
        )

    # ------------------------------------------------------------------- looking

    def evaluation(self, evaluation_id: str) -> Evaluation:
        found = self.store.evaluations.get(evaluation_id)
        assert found is not None
        return found

    def evaluations(self, job: Job) -> list[Evaluation]:
        return [row.evaluation() for row in self.store.evaluations.of_job(job.namespace, job.id)]

    def blocked(self, job: Job) -> list[Evaluation]:
        return [one for one in self.evaluations(job) if one.status is EvaluationStatus.BLOCKED]

    def allocs(self, job: Job) -> list[Allocation]:
        return self.store.allocations.records(self.store.allocations.slots_of_job(job.namespace, job.id))

    def live(self, job: Job) -> list[Allocation]:
        return sorted((one for one in self.allocs(job) if not one.is_terminal), key=lambda one: one.name)

    def by_node(self, job: Job, key: Callable[[Allocation], str] = lambda one: one.node_name) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for one in self.live(job):
            counts[key(one)] += 1
        return dict(counts)

    def check_nodes(self) -> None:
        """Nothing was given away by the latest plan that somebody else still holds."""
        assert self.committed is not None
        problems = taken_too_early(self.store, self.committed)
        assert not problems, problems

    def _store_evaluations(self, evaluations: Iterable[Evaluation]) -> None:
        writes = tuple(evaluation_write(one) for one in evaluations)
        if writes:
            self.do(EvaluationsUpsert(evaluations=writes))
