"""Service and batch jobs: the life of one evaluation, from its first attempt to its end."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec.structs import replace

from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import JobType
from fedsched.scheduler.decision import Attempt, Outcome
from fedsched.scheduler.effort import LONG_US, effort_us, read_nodes
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.pieces import Pieces, at_once
from fedsched.scheduler.run import DRY_PLACEMENTS_MAX, LOOKS_MAX, PLACEMENTS_MAX, NewId, Run
from fedsched.scheduler.triggers import refused
from fedsched.state.store import EvaluationView, State, Store

ATTEMPTS: Final = {
    JobType.SERVICE.value: 5,
    JobType.BATCH.value: 2,
    JobType.SYSTEM.value: 5,
    JobType.SYSBATCH.value: 2,
}
"""Attempts in a row that may come to nothing before an evaluation gives up."""
GAVE_UP: Final = "maximum attempts reached ({attempts})"
BLOCKED_TO_PLACE: Final = "created to place remaining allocations"
BLOCKED_BY_ATTEMPTS: Final = "created due to placement conflicts"


class GenericScheduling:
    """One evaluation of a service or batch job."""

    run_type: ClassVar[type[Run]] = Run

    def __init__(self, evaluation: Evaluation, new_id: NewId) -> None:
        self.evaluation = evaluation
        self.new_id = new_id
        self._limit = ATTEMPTS.get(evaluation.type, ATTEMPTS[JobType.SERVICE.value])
        self._attempts = 0
        self._blocked_id = ""
        self._has_more = False

    def attempt(self, state: State, fleet: Fleet, now_ns: int) -> Attempt:
        return at_once(self._attempt(state, fleet, now_ns, may_pause=False))

    def attempt_in_pieces(self, store: Store, fleet: Fleet, now_ns: int) -> Pieces[Attempt]:
        """The same with pauses if it will be long. It then looks at the state and the fleet as they were at its start,
        in copies of its own; a short one has no pause and needs none."""
        return (yield from self._attempt(store, fleet, now_ns, may_pause=True))

    def _attempt(self, state: State, fleet: Fleet, now_ns: int, *, may_pause: bool) -> Pieces[Attempt]:
        failed = refused(self.evaluation)
        if failed is not None:
            return Attempt(None, (failed,))
        view = state.view_for(self.evaluation.id)
        if view is not None and may_pause and isinstance(state, Store) and self.is_long(view, fleet):
            yield from read_nodes(state, fleet, view.job)
            state, fleet = state.snapshot(), fleet.copy()
            view = state.view_for(self.evaluation.id)
            yield
            if view is not None:
                return (yield from self.steps_on(view, state, fleet, now_ns))
        if view is None:
            return Attempt(None, (replace(self.evaluation, status=EvaluationStatus.CANCELLED),))
        return self.attempt_on(view, state, fleet, now_ns)

    def is_long(self, view: EvaluationView, fleet: Fleet) -> bool:
        """Whether an attempt would hold up others for too long."""
        is_dry = self.evaluation.annotate_plan
        most = (DRY_PLACEMENTS_MAX, DRY_PLACEMENTS_MAX) if is_dry else (PLACEMENTS_MAX, LOOKS_MAX)
        return effort_us(view, fleet, placements_max=most[0], looks_max=most[1]) > LONG_US

    def attempt_on(self, view: EvaluationView, state: State, fleet: Fleet, now_ns: int) -> Attempt:
        """An attempt with a job that need not be the stored one: a dry run."""
        return at_once(self._steps(self.make_run(state, fleet, view, now_ns), view))

    def steps_on(self, view: EvaluationView, state: State, fleet: Fleet, now_ns: int) -> Pieces[Attempt]:
        """The same with pauses; nobody else may change the state or the fleet that it is given."""
        run = self.make_run(state, fleet, view, now_ns)
        run.pauses = True
        return (yield from self._steps(run, view))

    def _steps(self, run: Run, view: EvaluationView) -> Pieces[Attempt]:
        try:
            yield from run.steps()
        finally:
            if not run.pauses:  # its fleet goes with it
                run.close()
        self._has_more = run.has_more
        ends = () if run.has_more else self.ends(run)
        return Attempt(
            plan=run.builder.build(),
            ends=ends,
            reblock=bool(ends) and ends[0].status is EvaluationStatus.BLOCKED,
            priority=self.evaluation.priority,
            all_at_once=view.job.all_at_once if view.job is not None else False,
            desired={name: group.desired for name, group in run.wanted.groups.items()},
            preempted=run.evictions.stubs(),
        )

    def make_run(self, state: State, fleet: Fleet, view: EvaluationView, now_ns: int) -> Run:
        return self.run_type(self.evaluation, self.new_id, state, fleet, view, now_ns)

    def heard(self, outcome: Outcome, now_ns: int) -> tuple[Evaluation, ...] | None:
        if outcome.is_whole and not self._has_more:
            return ()
        self._attempts = 0 if outcome.is_progress else self._attempts + 1
        if self._attempts < self._limit:
            return None
        blocked = replace(
            self.follow_up(EvaluationStatus.BLOCKED, Trigger.MAX_PLAN_ATTEMPTS, BLOCKED_BY_ATTEMPTS),
            escaped_computed_class=True,
        )
        failed = replace(
            self.evaluation,
            status=EvaluationStatus.FAILED,
            status_description=GAVE_UP.format(attempts=self._limit),
            blocked_eval=blocked.id,
        )
        return (failed, blocked)

    def ends(self, run: Run) -> tuple[Evaluation, ...]:
        """How the evaluation ends if all of the plan is committed."""
        own = replace(
            self.evaluation,
            failed_tg_allocs=run.failed,
            queued_allocations=run.queued,
            deployment_id=run.deployment_id or self.evaluation.deployment_id,
        )
        if not run.failed:
            return (replace(own, status=EvaluationStatus.COMPLETE, status_description=""),)
        classes = run.field.eligibility.classes() if run.field is not None else None
        knows = {"class_eligibility": classes or {}, "escaped_computed_class": classes is None}
        if self.evaluation.status is EvaluationStatus.BLOCKED:
            return (replace(own, **knows),)
        if run.waits_for_follow_up:
            return (replace(own, status=EvaluationStatus.COMPLETE, status_description=""),)
        blocked = self.follow_up(EvaluationStatus.BLOCKED, Trigger.QUEUED_ALLOCS, BLOCKED_TO_PLACE)
        blocked = replace(blocked, queued_allocations=run.queued, failed_tg_allocs=run.failed, **knows)
        done = replace(own, status=EvaluationStatus.COMPLETE, status_description="", blocked_eval=blocked.id)
        return (done, blocked)

    def follow_up(self, status: EvaluationStatus, trigger: Trigger, words: str) -> Evaluation:
        """Another evaluation of the job that goes on from this one; the same one however often it is asked for."""
        self._blocked_id = self._blocked_id or self.new_id()
        own = self.evaluation
        return Evaluation(
            id=self._blocked_id,
            namespace=own.namespace,
            priority=own.priority,
            type=own.type,
            triggered_by=trigger.value,
            job_id=own.job_id,
            job_modify_index=own.job_modify_index,
            status=status,
            status_description=words,
            previous_eval=own.id,
        )
