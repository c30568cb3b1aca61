"""`Job.Plan`: a dry run against this server's state, told in the form of the API."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.model.job import Job
from fedsched.rpc.methods.job_extras import JobPlanReply
from fedsched.scheduler.dry_run import dry_run
from fedsched.scheduler.fleet import Fleet
from fedsched.server.leader.periodic_core import next_launch
from fedsched.state.store import State


class DryRuns:
    """Answers what a job would do."""

    def __init__(self, fleet: Callable[[], Fleet], now_ns: Callable[[], int]) -> None:
        self._fleet = fleet
        self._now_ns = now_ns

    def __call__(self, state: State, job: Job, wants_diff: bool) -> JobPlanReply:
        now_ns = self._now_ns()
        found = dry_run(state, self._fleet(), job, now_ns)
        launch = next_launch(job, now_ns) if job.is_periodic else None
        return JobPlanReply(
            annotations=found.annotations,
            failed_tg_allocs=found.failed,
            created_evals=found.created,
            job_modify_index=found.stored.job_modify_index if found.stored is not None else 0,
            next_periodic_launch_ns=launch or 0,
            diff=found.diff() if wants_diff else None,
        )
