"""`Job.Plan`: a dry run against this server's state, told in the form of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fedsched.model.job import Job
from fedsched.model.periodic import next_launch
from fedsched.rpc.methods.job_extras import JobPlanReply
from fedsched.scheduler.dry_run import dry_run_in_pieces
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.server.pieces import in_turns
from fedsched.state.store import Store

UNTRIED: Final = 'Jobs of type "{type}" have a scheduler of their own, which cannot be tried on this server'


class DryRuns:
    """Answers what a job would do."""

    def __init__(
        self,
        fleet: Callable[[], Fleet],
        now_ns: Callable[[], int],
        schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
    ) -> None:
        self._fleet = fleet
        self._now_ns = now_ns
        self._schedulers = schedulers

    async def __call__(self, store: Store, job: Job, wants_diff: bool) -> JobPlanReply:
        now_ns = self._now_ns()
        found = await in_turns(dry_run_in_pieces(store, self._fleet(), job, now_ns, self._schedulers))
        launch = next_launch(job, now_ns) if job.is_periodic else None
        return JobPlanReply(
            annotations=found.annotations,
            failed_tg_allocs=found.failed,
            created_evals=found.created,
            job_modify_index=found.stored.job_modify_index if found.stored is not None else 0,
            next_periodic_launch_ns=launch or 0,
            diff=found.diff() if wants_diff else None,
            warnings=() if found.is_tried else (UNTRIED.format(type=job.type),),
        )
