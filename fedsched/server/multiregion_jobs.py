"""Jobs of several regions, where they are handed in: brought to the region that drives them, tried, stopped.

A job whose regions follow one another gets a rollout, begun in its owner region's log. Jobs without deployments (batch,
sysbatch), and those that only launch others (periodic, parameterized), have nothing to wait for: they are registered in
all regions at once, and the reply says what each region made of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from fedsched.drivers.content_checks import CONTENT
from fedsched.federation.multiregion import (
    has_deployments,
    job_for_region,
    left_regions,
    multiregion_problems,
    owner_of,
    region_names,
)
from fedsched.federation.rollout_rules import begin
from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.job_problems import problems
from fedsched.model.problem import InvalidJob
from fedsched.rpc.method import Method
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods.job_extras import JOB_PLAN, JobPlanReply, JobPlanRequest, RegionPlan
from fedsched.rpc.methods.rollout import (
    ROLLOUT_BEGIN,
    ROLLOUT_GET,
    RolloutBeginReply,
    RolloutBeginRequest,
    RolloutGetRequest,
    RolloutView,
)
from fedsched.rpc.server_side import CallContext
from fedsched.server.admission import ANY_NAMESPACE, warnings_of
from fedsched.server.desk import Desk
from fedsched.server.region_calls import LOOK_S, Q, R, RegionCalls
from fedsched.state.store import State
from fedsched.state.tables.rollouts import rollout_write
from fedsched.wire.groups import open_plain_nursery

WRITE_S: Final = 8.0
"""For what a region is asked to write while somebody waits: shorter than a call may take, so that the answer says who
was late."""


class MultiregionJobs:
    """One server's part in it."""

    def __init__(self, desk: Desk, calls: RegionCalls) -> None:
        self._desk = desk
        self._calls = calls

    async def register(self, request: jobs.JobRegisterRequest, context: CallContext) -> jobs.JobWriteReply:
        """Take in a job that lists regions, wherever it was handed in."""
        job = self._checked(request.job, context)
        if request.preserve_counts or request.preserve_resources:
            raise BadRequest(
                f"job {job.id!r} spans regions, and what they have now may differ from one to the next",
                hint="give the counts and resources in the job; leave preserving out",
            )
        if not follows_turns(job):
            return await self._register_everywhere(job, request, context)
        owner = owner_of(job, self._desk.region)
        wanted = RolloutBeginRequest(
            job=job,
            enforce_index=request.enforce_index,
            job_modify_index=request.job_modify_index,
            submission=request.submission,
        )
        if owner == self._desk.region:
            begun = await self.begin(wanted, context)
        else:
            begun = await self._ask(owner, ROLLOUT_BEGIN, wanted, job.namespace, context)
        return jobs.JobWriteReply(
            index=begun.index, warnings=begun.warnings, rollout_id=begun.rollout_id, job_version=begun.job_version
        )

    async def begin(self, request: RolloutBeginRequest, context: CallContext) -> RolloutBeginReply:
        """Begin a rollout that this region drives."""
        job = self._checked(request.job, context)
        if self._desk.region not in region_names(job) or not follows_turns(job):
            raise BadRequest(
                f"region {self._desk.region!r} does not drive rollouts of job {job.id!r}",
                hint=f"it lists {', '.join(region_names(job))}; hand it in with `fedsched job run`",
            )
        version, before = await self._newest(job, context)
        now_ns = self._desk.proposals.now_ns()
        rollout = structs.replace(
            begin(self._desk.env.new_id(), job, version=version + 1, owner=self._desk.region, now_ns=now_ns),
            leaves=self._leaves(job, before),
        )
        command = rollout_write(
            rollout, is_new=True, enforce_index=request.enforce_index, check_index=request.job_modify_index
        )
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return RolloutBeginReply(
            rollout_id=result.value["rollout_id"],
            job_version=result.value["job_version"],
            owner=self._desk.region,
            warnings=warnings_of(job),
            index=result.index,
        )

    async def plan(self, request: JobPlanRequest, context: CallContext) -> JobPlanReply:
        """Try a job in all of its regions at once; what one cannot say is no reason for the others to be silent."""
        job = self._checked(request.job, context)
        requests = [
            (name, structs.replace(request, job=job_for_region(job, name), one_region=True))
            for name in region_names(job)
        ]
        found = await self._ask_each(requests, JOB_PLAN, WRITE_S, job.namespace, context)
        return JobPlanReply(regions=tuple(_region_plan(name, one) for name, one in found.items()))

    async def deregister(self, request: jobs.JobDeregisterRequest, context: CallContext) -> jobs.JobWriteReply:
        """Stop a job in all regions that it lists here."""
        namespace = context.meta.namespace or "default"
        job = self._state.jobs.get(namespace, request.job_id)
        share = self._state.rollouts.share_row(namespace, request.job_id)
        names = region_names(job) if job is not None else ()
        if not names and share is not None:  # purged here, and perhaps not elsewhere
            names = tuple(one.name for one in share.header().rollout.regions)
        if not names:
            raise BadRequest(
                f"job {request.job_id!r} lists no regions here, so it cannot be stopped in all of them",
                hint="stop it without -global, or ask a region that it runs in",
            )
        alone = structs.replace(request, global_=False)
        found = await self._ask_each(
            [(name, alone) for name in names], jobs.JOB_DEREGISTER, WRITE_S, namespace, context
        )
        return self._written(found)

    def _checked(self, job: Job, context: CallContext) -> Job:
        """The job as it was handed in, with defaults; `InvalidJob` with everything that is wrong with it."""
        namespace = context.meta.namespace
        if namespace and namespace != ANY_NAMESPACE and job.namespace in ("", "default"):
            job = structs.replace(job, namespace=namespace)
        if job.dispatched or job.payload:
            raise BadRequest(f"job {job.id!r} says that it was dispatched", hint="leave Dispatched and Payload out")
        job = canonicalise(job, region=self._desk.region)
        found = [
            *problems(job, texts=CONTENT, own_types=(job.type,)),
            *multiregion_problems(job, self._calls.known()),
        ]
        if found:
            raise InvalidJob(found)
        return job

    async def _newest(self, job: Job, context: CallContext) -> tuple[int, Job | None]:
        """The highest version that any region has of the job, and the job as it is there; -1 if it is new.

        A region that does not answer is not waited for: if it is further than all others, it will refuse.
        """
        known: list[Job] = []
        versions: list[int] = []

        async def ask_for_jobs() -> None:
            asked = [(name, jobs.JobRequest(job_id=job.id)) for name in region_names(job)]
            found = await self._ask_each(asked, jobs.JOB_GET, LOOK_S, job.namespace, context)
            known.extend(one.job for one in found.values() if isinstance(one, jobs.JobGetReply))

        async def ask_for_rollouts() -> None:
            asked = [(name, RolloutGetRequest(job_id=job.id)) for name in region_names(job)]
            found = await self._ask_each(asked, ROLLOUT_GET, LOOK_S, job.namespace, context)
            versions.extend(one.rollout.job_version for one in found.values() if isinstance(one, RolloutView))

        async with open_plain_nursery() as nursery:
            nursery.start_soon(ask_for_jobs)
            nursery.start_soon(ask_for_rollouts)
        newest = max(known, key=lambda one: one.version, default=None)
        return max([*versions, *(one.version for one in known)], default=-1), newest

    def _leaves(self, job: Job, before: Job | None) -> tuple[str, ...]:
        """Regions to be left, those included that an earlier rollout would have left."""
        earlier = self._state.rollouts.newest(job.namespace, job.id)
        names = [*left_regions(before, job)]
        if earlier is not None:
            record = earlier.header()
            names += [one.name for one in record.regions] + list(record.leaves)
        now = set(region_names(job))
        return tuple(dict.fromkeys(name for name in names if name not in now))

    async def _register_everywhere(
        self, job: Job, request: jobs.JobRegisterRequest, context: CallContext
    ) -> jobs.JobWriteReply:
        if request.enforce_index:
            raise BadRequest(
                f"job {job.id!r} is registered in several regions at once, which have no modify index in common",
                hint="leave the check of the index out",
            )
        requests = [
            (name, structs.replace(request, job=job_for_region(job, name), one_region=True))
            for name in region_names(job)
        ]
        found = await self._ask_each(requests, jobs.JOB_REGISTER, WRITE_S, job.namespace, context)
        return structs.replace(self._written(found), warnings=warnings_of(job))

    def _written(self, found: Mapping[str, jobs.JobWriteReply | FedschedError]) -> jobs.JobWriteReply:
        """The outcome by region; our own region's stands for the whole. An error if no region did it."""
        written = {name: one for name, one in found.items() if isinstance(one, jobs.JobWriteReply)}
        if not written:
            raise next(one for one in found.values() if isinstance(one, FedschedError))
        own = written.get(self._desk.region, jobs.JobWriteReply())
        return structs.replace(own, regions=tuple(_region_write(name, one) for name, one in found.items()))

    async def _ask_each(
        self, requests: list[tuple[str, Q]], method: Method[Q, R], within_s: float, namespace: str, context: CallContext
    ) -> dict[str, R | FedschedError]:
        return await self._calls.ask_each(
            requests, method, within_s=within_s, namespace=namespace, token=context.meta.token
        )

    async def _ask(self, region: str, method: Method[Q, R], request: Q, namespace: str, context: CallContext) -> R:
        return await self._calls.ask(
            region,
            method,
            request,
            within_s=WRITE_S,
            namespace=namespace,
            token=context.meta.token,
            request_id=context.meta.request_id,
        )

    @property
    def _state(self) -> State:
        return self._desk.machine.store


def follows_turns(job: Job) -> bool:
    """Whether the regions of a job follow one another, each with a deployment of its own."""
    return has_deployments(job) and not (job.is_periodic or job.is_parameterized)


def _region_write(region: str, found: jobs.JobWriteReply | FedschedError) -> jobs.RegionWrite:
    if isinstance(found, FedschedError):
        return jobs.RegionWrite(region=region, error=str(found))
    return jobs.RegionWrite(
        region=region, eval_id=found.eval_id, job_modify_index=found.job_modify_index, index=found.index
    )


def _region_plan(region: str, found: JobPlanReply | FedschedError) -> RegionPlan:
    if isinstance(found, FedschedError):
        return RegionPlan(region=region, error=str(found))
    return RegionPlan(
        region=region,
        annotations=found.annotations,
        failed_tg_allocs=found.failed_tg_allocs,
        job_modify_index=found.job_modify_index,
        next_periodic_launch_ns=found.next_periodic_launch_ns,
        warnings=found.warnings,
        diff=found.diff,
    )
