"""More about jobs: dry runs, scaling, going back, launching children, and reading what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from msgspec import structs

from fedsched.codec import to_bytes
from fedsched.model.alloc import ClientStatus
from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.model.scaling import ScalingEvent
from fedsched.rpc.method import Method
from fedsched.rpc.methods import job_extras as methods
from fedsched.rpc.methods.job import JobRequest, JobWriteReply
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.admission import admitted, warnings_of
from fedsched.server.alloc_stubs import alloc_stubs
from fedsched.server.desk import Desk
from fedsched.server.dispatching import check_dispatch, dispatched_child
from fedsched.server.duties import Duties
from fedsched.server.job_summary import scale_status_of, summary_of
from fedsched.server.leader.periodic_core import command_of, forced_launch
from fedsched.server.multiregion_jobs import MultiregionJobs
from fedsched.server.served_types import BuiltInServed, Served, own_type_lacking
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.changes import ALLOCATIONS
from fedsched.state.columns import Slots
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.alloc_updates import AllocTransition
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobStable, JobTag, job_register, spec_bytes
from fedsched.state.tables.launches import JobDispatch
from fedsched.state.tables.scaling_events import JobScale
from fedsched.state.waits import allocs_of_job, one_row, rows_under

DEPLOYMENTS: Final = "deployments"
TAG_DESCRIPTION_MAX: Final = 1000


class JobExtrasEndpoint:
    """Answers the methods of `rpc.methods.job_extras`."""

    def __init__(
        self,
        desk: Desk,
        duties: Duties,
        served: Served | None = None,
        multiregion: MultiregionJobs | None = None,
    ) -> None:
        self._desk = desk
        self._multiregion = multiregion
        self._duties = duties
        self._served = served or BuiltInServed()

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.JOB_PLAN: self.plan,
            methods.JOB_EVALUATE: self.evaluate,
            methods.JOB_SCALE: self.scale,
            methods.JOB_SCALE_STATUS: self.scale_status,
            methods.JOB_REVERT: self.revert,
            methods.JOB_STABLE: self.stable,
            methods.JOB_TAG: self.tag,
            methods.JOB_DISPATCH: self.dispatch,
            methods.PERIODIC_FORCE: self.force,
            methods.JOB_SUMMARY: self.summary,
            methods.JOB_ALLOCS: self.allocations,
            methods.JOB_DEPLOYMENTS: self.deployments,
            methods.JOB_LATEST_DEPLOYMENT: self.latest_deployment,
            methods.JOB_SUBMISSION: self.submission,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.JOB_SUMMARY: self._look_at_numbers,
            methods.JOB_SCALE_STATUS: self._look_at_numbers,
            methods.JOB_ALLOCS: self._look_at_allocs,
            methods.JOB_DEPLOYMENTS: self._look_at_deployments,
            methods.JOB_LATEST_DEPLOYMENT: self._look_at_deployments,
        }

    async def plan(self, request: methods.JobPlanRequest, context: CallContext) -> methods.JobPlanReply:
        if request.job.multiregion is not None and not request.one_region and self._multiregion is not None:
            return await self._multiregion.plan(request, context)
        job = admitted(
            self._state,
            request.job,
            namespace=context.meta.namespace,
            region=self._desk.region,
            now_ns=self._desk.proposals.now_ns(),
            lacking=await own_type_lacking(self._served, request.job.type),
        )
        reply = await self._duties.dry_run(self._desk.machine.store, job, request.diff)
        return structs.replace(reply, warnings=(*warnings_of(request.job), *reply.warnings))

    async def evaluate(self, request: methods.JobEvaluateRequest, context: CallContext) -> JobWriteReply:
        job = self._job(request.job_id, context)
        self._refuse_template(job, "evaluated")
        evaluation = self._evaluation(job, Trigger.JOB_REGISTER)
        slots = self._to_force(job) if request.force_reschedule else np.empty(0, dtype=np.int64)
        command: Command = EvaluationsUpsert(evaluations=(evaluation_write(evaluation),))
        if len(slots):
            words = self._state.allocations.columns.read(slots)["id"]
            command = AllocTransition(
                ids=words.astype(">u8").tobytes(),
                flags=int(Flag.FORCE_RESCHEDULE),
                evaluations=(evaluation_write(evaluation),),
            )
        result = await self._propose(command, context)
        return _written(result, job.job_modify_index, evaluation)

    async def scale(self, request: methods.JobScaleRequest, context: CallContext) -> JobWriteReply:
        job = self._job(request.job_id, context)
        group = _group_to_scale(job, request)
        if request.count is not None:
            self._check_scale(job, group, request)
        if request.enforce_index and job.job_modify_index != request.job_modify_index:
            raise Conflict(
                f"job {job.id!r} is at modify index {job.job_modify_index}, not at {request.job_modify_index}",
                hint="look at what changed and use its current index",
            )
        now_ns = self._desk.proposals.now_ns()
        event = ScalingEvent(
            time_ns=now_ns,
            count=request.count,
            previous_count=group.count,
            message=request.message,
            error=request.error,
            meta=request.meta,
        )
        evaluation = None
        if request.count is not None and not (job.is_periodic or job.is_parameterized):
            evaluation = self._evaluation(job, Trigger.JOB_SCALING)
        scaled = _with_count(job, group.name, request.count) if request.count is not None else None
        command = JobScale(
            namespace=job.namespace,
            id=job.id,
            group=group.name,
            spec=spec_bytes(scaled) if scaled else b"",
            check_index=job.job_modify_index,
            submit_time_ns=now_ns,
            event=to_bytes(event),
            evaluation=evaluation_write(evaluation) if evaluation else None,
        )
        result = await self._propose(command, context)
        return _written(result, result.value["job_modify_index"], evaluation)

    async def scale_status(self, request: JobRequest, context: CallContext) -> methods.JobScaleStatusReply:
        return methods.JobScaleStatusReply(status=scale_status_of(self._state, self._job(request.job_id, context)))

    async def revert(self, request: methods.JobRevertRequest, context: CallContext) -> JobWriteReply:
        job = self._job(request.job_id, context)
        self._check_revert(job, request)
        old = self._state.jobs.version(*job.key, request.job_version)
        if old is None:
            kept = ", ".join(str(one.version) for one in self._state.jobs.versions(*job.key))
            raise NotFound(f"job {job.id!r} has no version {request.job_version}", hint=f"kept are {kept}")
        now_ns = self._desk.proposals.now_ns()
        wanted = structs.replace(old, submit_time_ns=now_ns, stop=False, stable=False, version_tag=None)
        evaluation = None if job.is_periodic or job.is_parameterized else self._evaluation(job, Trigger.JOB_REGISTER)
        command = job_register(
            wanted,
            evaluation=evaluation_write(evaluation) if evaluation else None,
            enforce_index=True,
            check_index=job.job_modify_index,
        )
        result = await self._propose(command, context)
        return _written(result, result.value["job_modify_index"], evaluation)

    async def stable(self, request: methods.JobStableRequest, context: CallContext) -> JobWriteReply:
        job = self._job(request.job_id, context)
        command = JobStable(namespace=job.namespace, id=job.id, version=request.job_version, is_stable=request.stable)
        return _written(await self._propose(command, context), job.job_modify_index, None)

    async def tag(self, request: methods.JobTagRequest, context: CallContext) -> JobWriteReply:
        job = self._job(request.job_id, context)
        if not request.name or len(request.description) > TAG_DESCRIPTION_MAX:
            raise BadRequest(
                "a tag needs a name, and a description has at most 1000 characters", hint="name it with -name"
            )
        version = job.version if request.version is None else request.version
        if request.unset:
            version = self._tagged(job, request.name)
        command = JobTag(
            namespace=job.namespace,
            id=job.id,
            version=version,
            name="" if request.unset else request.name,
            description=request.description,
            tagged_time_ns=self._desk.proposals.now_ns(),
        )
        return _written(await self._propose(command, context), job.job_modify_index, None)

    async def dispatch(self, request: methods.JobDispatchRequest, context: CallContext) -> methods.JobDispatchReply:
        job = self._job(request.job_id, context)
        check_dispatch(job, request)
        random_hex = self._desk.env.new_id().replace("-", "")
        child = dispatched_child(job, request, now_ns=self._desk.proposals.now_ns(), random_hex=random_hex)
        evaluation = None if child.is_periodic else self._evaluation(child, Trigger.JOB_REGISTER)
        command = JobDispatch(
            namespace=job.namespace,
            id=job.id,
            child=job_register(child, evaluation=evaluation_write(evaluation) if evaluation else None),
        )
        result = await self._propose(command, context)
        return methods.JobDispatchReply(
            dispatched_job_id=result.value["child_id"],
            eval_id=result.value["evaluation_id"],
            eval_create_index=result.index if result.value["evaluation_id"] else 0,
            job_create_index=result.value["job_create_index"],
            index=result.index,
        )

    async def force(self, request: JobRequest, context: CallContext) -> methods.JobDispatchReply:
        now_ns = self._desk.proposals.now_ns()
        effect = forced_launch(self._state, _namespace(context), request.job_id, now_ns, self._desk.env.new_id)
        command = command_of(effect)
        assert command is not None
        result = await self._propose(command, context)
        if not result.value["launched"]:
            raise Conflict(f"job {request.job_id!r} was launched within this second", hint="try again in a second")
        return methods.JobDispatchReply(
            dispatched_job_id=result.value["child_id"],
            eval_id=result.value["evaluation_id"],
            eval_create_index=result.index,
            index=result.index,
        )

    async def summary(self, request: JobRequest, context: CallContext) -> methods.JobSummaryReply:
        return methods.JobSummaryReply(summary=summary_of(self._state, self._job(request.job_id, context)))

    async def allocations(self, request: methods.JobAllocsRequest, context: CallContext) -> methods.JobAllocsReply:
        namespace = _namespace(context)
        slots = self._state.allocations.slots_of_job(namespace, request.job_id)
        row = self._state.jobs.row(namespace, request.job_id)
        if not request.all and row is not None:
            slots = self._of_this_job(slots, row.create_index)
        return methods.JobAllocsReply(allocs=alloc_stubs(self._state, slots))

    async def deployments(self, request: JobRequest, context: CallContext) -> methods.JobDeploymentsReply:
        rows = list(self._state.deployments.of_job(_namespace(context), request.job_id))
        return methods.JobDeploymentsReply(deployments=tuple(row.deployment() for row in reversed(rows)))

    async def latest_deployment(self, request: JobRequest, context: CallContext) -> methods.JobDeploymentReply:
        namespace = _namespace(context)
        job = self._state.jobs.row(namespace, request.job_id)
        row = self._state.deployments.latest(namespace, request.job_id, job.create_index if job else None)
        return methods.JobDeploymentReply(deployment=row.deployment() if row else None)

    async def submission(
        self, request: methods.JobSubmissionRequest, context: CallContext
    ) -> methods.JobSubmissionReply:
        namespace = _namespace(context)
        job = self._state.jobs.row(namespace, request.job_id)
        key = (namespace, request.job_id, job.create_index if job else 0, request.version)
        row = self._state.jobs.version_rows.get(*key)
        found = row.source() if row else None
        if row is None or found is None:
            raise NotFound(
                f"no source is kept for version {request.version} of job {request.job_id!r}",
                hint="`fedsched job inspect` shows the job itself",
            )
        return methods.JobSubmissionReply(
            submission=structs.replace(
                found,
                namespace=namespace,
                job_id=request.job_id,
                version=row.version,
                job_modify_index=row.job_modify_index,
            )
        )

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _job(self, job_id: str, context: CallContext) -> Job:
        namespace = _namespace(context)
        job = self._state.jobs.get(namespace, job_id)
        if job is None:
            raise NotFound(
                f"job {job_id!r} not found in namespace {namespace!r}", hint="`fedsched job status` lists them"
            )
        return job

    def _refuse_template(self, job: Job, what: str) -> None:
        kind = "periodic" if job.is_periodic else "parameterized" if job.is_parameterized else ""
        if kind:
            raise BadRequest(f"job {job.id!r} is {kind} and cannot be {what}", hint="look at its children instead")

    def _to_force(self, job: Job) -> Slots:
        """Failed allocations that nothing has replaced, of groups that are rescheduled at all."""
        wanted = {group.name for group in job.task_groups if _is_rescheduled(group)}
        allocations = self._state.allocations
        slots = self._of_this_job(allocations.slots_of_job(*job.key), job.create_index)
        failed = slots[allocations.columns.read(slots)["client_status"] == CLIENT_CODES[ClientStatus.FAILED]]
        chosen = [
            slot
            for slot in failed.tolist()
            if allocations.origin_of(slot).group in wanted and not any((allocations.cold.kin.get(slot) or b"")[16:])
        ]
        return np.array(chosen, dtype=np.int64)

    def _of_this_job(self, slots: Slots, create_index: int) -> Slots:
        origins = self._state.allocations.columns.read(slots)["origin"]
        mine = [
            ref
            for ref in np.unique(origins).tolist()
            if (row := self._state.allocations.origins.get(ref)) and row.job_create_index == create_index
        ]
        found: Slots = slots[np.isin(origins, mine)]
        return found

    def _check_scale(self, job: Job, group: TaskGroup, request: methods.JobScaleRequest) -> None:
        count = request.count
        assert count is not None
        if request.error:
            raise BadRequest("a scaling action cannot have both a count and an error", hint="leave one of them out")
        if job.type in (JobType.SYSTEM.value, JobType.SYSBATCH.value) and count not in (0, 1):
            raise BadRequest(
                f"job {job.id!r} is a {job.type} job: its groups scale to 0 or 1, not {count}",
                hint="0 takes it off all nodes",
            )
        if count < 0:
            raise BadRequest(f"count {count} is negative", hint="0 or more")
        bounds = group.scaling
        if bounds is not None and not bounds.min <= count <= bounds.max:
            raise BadRequest(
                f"count {count} of group {group.name!r} is outside its scaling bounds",
                hint=f"the job allows {bounds.min} to {bounds.max}",
            )

    def _check_revert(self, job: Job, request: methods.JobRevertRequest) -> None:
        if request.job_version == job.version:
            raise BadRequest(
                f"can't revert to current version {job.version} of job {job.id!r}",
                hint="`fedsched job history` lists the others",
            )
        prior = request.enforce_prior_version
        if prior is not None and prior != job.version:
            raise BadRequest(
                f"current job has version {job.version}; enforcing version {prior}",
                hint="somebody changed it meanwhile: look again",
            )

    def _tagged(self, job: Job, name: str) -> int:
        for version in self._state.jobs.versions(*job.key):
            if version.version_tag is not None and version.version_tag.name == name:
                return version.version
        raise NotFound(f"no version of job {job.id!r} is tagged {name!r}", hint="`fedsched job history` lists them")

    def _evaluation(self, job: Job, trigger: Trigger) -> Evaluation:
        now_ns = self._desk.proposals.now_ns()
        return Evaluation(
            id=self._desk.env.new_id(),
            namespace=job.namespace,
            priority=job.priority,
            type=job.type,
            triggered_by=trigger,
            job_id=job.id,
            job_modify_index=job.job_modify_index,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )

    async def _propose(self, command: Command, context: CallContext) -> Result:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return result

    def _look_at_numbers(self, request: JobRequest, context: CallContext) -> Looked:
        key = (_namespace(context), request.job_id)
        looked = look_at_row(self._state, "jobs", *key)
        topics = (
            *looked.topics,
            allocs_of_job(*key),
            one_row("job_children", *key),
            rows_under("scaling_events", *key),
        )
        tables = (ALLOCATIONS, "jobs", "job_children", "scaling_events", "evaluations")
        index = max(self._state.table_index(table) for table in tables)
        return Looked(index, topics, absent_from=looked.absent_from)

    def _look_at_allocs(self, request: methods.JobAllocsRequest, context: CallContext) -> Looked:
        key = (_namespace(context), request.job_id)
        rows = self._state.allocations.columns.read(self._state.allocations.slots_of_job(*key))
        index = int(rows["modify_index"].max()) if len(rows) else 0
        return Looked(index, (allocs_of_job(*key),), absent_from="" if index else ALLOCATIONS)

    def _look_at_deployments(self, request: JobRequest, context: CallContext) -> Looked:
        rows = self._state.deployments.of_job(_namespace(context), request.job_id)
        index = max((row.modify_index for row in rows), default=0)
        return Looked(index, (rows_under(DEPLOYMENTS),), absent_from="" if index else DEPLOYMENTS)


def _namespace(context: CallContext) -> str:
    return context.meta.namespace or "default"


def _written(result: Result, job_modify_index: int, evaluation: Evaluation | None) -> JobWriteReply:
    return JobWriteReply(
        eval_id=evaluation.id if evaluation else "",
        eval_create_index=result.index if evaluation else 0,
        job_modify_index=job_modify_index,
        index=result.index,
    )


def _is_rescheduled(group: TaskGroup) -> bool:
    policy = group.reschedule_policy
    return policy is not None and (policy.unlimited or policy.attempts > 0)


def _group_to_scale(job: Job, request: methods.JobScaleRequest) -> TaskGroup:
    if not request.group:
        raise BadRequest(
            "missing task group name for scaling action",
            hint=f"job {job.id!r} has {', '.join(group.name for group in job.task_groups)}",
        )
    group = job.group(request.group)
    if group is None:
        raise BadRequest(
            f"task group {request.group!r} specified for scaling does not exist in job",
            hint=f"job {job.id!r} has {', '.join(group.name for group in job.task_groups)}",
        )
    return group


def _with_count(job: Job, name: str, count: int) -> Job:
    groups = tuple(structs.replace(group, count=count) if group.name == name else group for group in job.task_groups)
    return structs.replace(job, task_groups=groups)
