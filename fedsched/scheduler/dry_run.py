"""What registering a job would do: the very scheduler, on the state as it is, with nothing written.

The job takes the place that the stored one has for a moment, as the version it would become. One attempt is made with
an evaluation that nobody stores, and what it decided is told instead of committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.diff import JobDiff, diff_jobs
from fedsched.model.diff_annotations import annotated
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import Job
from fedsched.model.plan import PlanAnnotations
from fedsched.scheduler.effort import read_nodes
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.generic import GenericScheduling
from fedsched.scheduler.pieces import Pieces, at_once
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.state.store import State, Store
from fedsched.state.tables.jobs import spec_bytes
from fedsched.state.tables.plans import PlanApply

DRY_ID = "00000000-0000-4000-8000-000000000000"


class DryRun(NamedTuple):
    """What would happen."""

    plan: PlanApply | None
    annotations: PlanAnnotations
    failed: dict[str, AllocMetric]
    created: tuple[Evaluation, ...]
    stored: Job | None
    """The job as it is now."""
    job: Job
    """The job as it would be."""
    is_tried: bool = True
    """Whether its scheduler could be asked; otherwise nothing is known of where it would go."""

    def diff(self) -> JobDiff:
        """What would differ, with what each change leads to."""
        return annotated(diff_jobs(self.stored, self.job), self.stored, self.job, self.annotations)


def dry_run(
    state: State, fleet: Fleet, job: Job, now_ns: int, schedulers: Mapping[str, MakeScheduling] = BUILT_IN
) -> DryRun:
    """Try an admitted job. Periodic and parameterized jobs are only templates: nothing is placed for them.

    A scheduler of somebody's own can be tried if it is made of ours, and enabled on this server.
    """
    return at_once(_dry_run(state, fleet, job, now_ns, schedulers, may_pause=False))


def dry_run_in_pieces(
    store: Store, fleet: Fleet, job: Job, now_ns: int, schedulers: Mapping[str, MakeScheduling] = BUILT_IN
) -> Pieces[DryRun]:
    """The same with pauses if it will be long: it then looks at copies of its own."""
    return (yield from _dry_run(store, fleet, job, now_ns, schedulers, may_pause=True))


def _dry_run(
    state: State,
    fleet: Fleet,
    job: Job,
    now_ns: int,
    schedulers: Mapping[str, MakeScheduling],
    *,
    may_pause: bool,
) -> Pieces[DryRun]:
    stored = state.jobs.get(job.namespace, job.id)
    job = _as_registered(state, stored, job)
    made = schedulers.get(job.type) or BUILT_IN.get(job.type)
    if job.is_periodic or job.is_parameterized:
        return DryRun(None, PlanAnnotations(), {}, (), stored, job)
    evaluation = Evaluation(
        id=DRY_ID,
        namespace=job.namespace,
        priority=job.priority,
        type=job.type,
        triggered_by=Trigger.JOB_REGISTER.value,
        job_id=job.id,
        job_modify_index=job.job_modify_index,
        annotate_plan=True,
        create_time_ns=now_ns,
    )
    numbers = count(1)
    scheduling = made(evaluation, lambda: f"{next(numbers):08x}-0000-4000-8000-000000000000") if made else None
    if not isinstance(scheduling, GenericScheduling):
        return DryRun(None, PlanAnnotations(), {}, (), stored, job, is_tried=False)
    view = state.view_with(evaluation, job)
    if may_pause and isinstance(state, Store) and scheduling.is_long(view, fleet):
        yield from read_nodes(state, fleet, job)
        state, fleet = state.snapshot(), fleet.copy()
        attempt = yield from scheduling.steps_on(state.view_with(evaluation, job), state, fleet, now_ns)
    else:
        attempt = scheduling.attempt_on(view, state, fleet, now_ns)
    annotations = PlanAnnotations(desired_tg_updates=attempt.desired, preempted_allocs=attempt.preempted)
    created = tuple(one for one in attempt.ends if one.id != DRY_ID and one.status is EvaluationStatus.BLOCKED)
    failed = dict(attempt.ends[0].failed_tg_allocs) if attempt.ends else {}
    return DryRun(attempt.plan, annotations, failed, created, stored, job)


def _as_registered(state: State, stored: Job | None, job: Job) -> Job:
    """The job with the version and indexes that it would get."""
    if stored is None:
        index = state.index + 1
        return replace(job, version=0, create_index=index, modify_index=index, job_modify_index=index)
    if spec_bytes(job) == spec_bytes(stored):
        return stored
    return replace(
        job,
        version=stored.version + 1,
        create_index=stored.create_index,
        modify_index=stored.modify_index + 1,
        job_modify_index=stored.job_modify_index + 1,
    )
