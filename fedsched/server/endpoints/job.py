"""Jobs: admission before Raft, reads from this server's own state.

Ids and times are stamped here, before the command is proposed: what `apply` does with it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from fedsched.codec import to_bytes
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.job import MAX_PRIORITY, Job
from fedsched.model.summary import job_stub
from fedsched.rpc.method import Method
from fedsched.rpc.methods import job as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.admission import admitted, warnings_of, with_counts_of, with_resources_of
from fedsched.server.desk import Desk
from fedsched.server.job_summary import summary_of
from fedsched.server.multiregion_jobs import MultiregionJobs
from fedsched.server.paging import across_namespaces, by_id, page_of
from fedsched.server.served_types import BuiltInServed, Served, own_type_lacking
from fedsched.server.waits import Look, Looked, look_at_evaluations, look_at_row
from fedsched.state.store import State
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.jobs import JobDeregister, job_register
from fedsched.state.waits import rows_under, whole_table


class JobEndpoint:
    """Answers `Job.*`."""

    def __init__(self, desk: Desk, served: Served | None = None, multiregion: MultiregionJobs | None = None) -> None:
        self._desk = desk
        self._served = served or BuiltInServed()
        self._multiregion = multiregion
        """For jobs of several regions; without it they are this region's alone."""

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.JOB_REGISTER: self.register,
            methods.JOB_DEREGISTER: self.deregister,
            methods.JOB_GET: self.get,
            methods.JOB_LIST: self.list,
            methods.JOB_VERSIONS: self.versions,
            methods.JOB_EVALUATIONS: self.evaluations,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.JOB_GET: self._look_at_job,
            methods.JOB_LIST: self._look_at_list,
            methods.JOB_VERSIONS: self._look_at_job,
            methods.JOB_EVALUATIONS: self._look_at_evaluations,
        }

    async def register(self, request: methods.JobRegisterRequest, context: CallContext) -> methods.JobWriteReply:
        if request.job.multiregion is not None and not request.one_region and self._multiregion is not None:
            return await self._multiregion.register(request, context)
        job, warnings = await self._admitted(request.job, context), warnings_of(request.job)
        current = self._state.jobs.get(job.namespace, job.id)
        if request.preserve_counts:
            job = with_counts_of(job, current)
        if request.preserve_resources:
            job = with_resources_of(job, current)
        _check_priority(request.eval_priority)
        evaluation = None
        if not (job.is_periodic or job.is_parameterized):
            evaluation = self._evaluation(job, Trigger.JOB_REGISTER, request.eval_priority)
        command = job_register(
            job,
            evaluation=evaluation_write(evaluation) if evaluation else None,
            enforce_index=request.enforce_index,
            check_index=request.job_modify_index,
            submission=to_bytes(request.submission) if request.submission else b"",
        )
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return methods.JobWriteReply(
            eval_id=result.value["evaluation_id"],
            eval_create_index=result.index if result.value["evaluation_id"] else 0,
            job_modify_index=result.value["job_modify_index"],
            index=result.index,
            warnings=warnings,
        )

    async def deregister(self, request: methods.JobDeregisterRequest, context: CallContext) -> methods.JobWriteReply:
        if request.global_ and self._multiregion is not None:
            return await self._multiregion.deregister(request, context)
        namespace = _namespace(context)
        job = self._state.jobs.get(namespace, request.job_id)
        evaluation = None
        if job is not None and not (job.is_periodic or job.is_parameterized):
            evaluation = self._evaluation(job, Trigger.JOB_DEREGISTER, request.eval_priority)
        command = JobDeregister(
            namespace=namespace,
            id=request.job_id,
            purge=request.purge,
            submit_time_ns=self._desk.proposals.now_ns(),
            evaluation=evaluation_write(evaluation) if evaluation else None,
        )
        result = await self._desk.proposals.propose(command, request=context.meta.request_id, is_essential=True)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        if not result.value["was_known"]:
            raise _no_job(namespace, request.job_id)
        return methods.JobWriteReply(
            eval_id=result.value["evaluation_id"],
            eval_create_index=result.index if result.value["evaluation_id"] else 0,
            job_modify_index=result.value["job_modify_index"],
            index=result.index,
        )

    async def get(self, request: methods.JobRequest, context: CallContext) -> methods.JobGetReply:
        namespace = _namespace(context)
        job = self._state.jobs.get(namespace, request.job_id)
        if job is None:
            raise _no_job(namespace, request.job_id)
        return methods.JobGetReply(job=job)

    async def list(self, request: methods.JobListRequest, context: CallContext) -> methods.JobListReply:
        jobs = self._state.jobs
        if context.meta.namespace == "*":
            rows, next_token = page_of(
                across_namespaces(jobs.rows, request.prefix),
                structs.replace(request, prefix=""),
                id_of=lambda row: f"{row.namespace}.{row.id}",
            )
        else:
            rows, next_token = page_of(by_id(jobs.rows, _namespace(context)), request, id_of=lambda row: row.id)
        found = [jobs.of_row(row) for row in rows]
        stubs = tuple(job_stub(job, summary_of(self._state, job), meta=request.meta) for job in found)
        return methods.JobListReply(jobs=stubs, next_token=next_token)

    async def versions(self, request: methods.JobRequest, context: CallContext) -> methods.JobVersionsReply:
        namespace = _namespace(context)
        found = self._state.jobs.versions(namespace, request.job_id)
        if not found:
            raise _no_job(namespace, request.job_id)
        return methods.JobVersionsReply(versions=tuple(found))

    async def evaluations(self, request: methods.JobRequest, context: CallContext) -> methods.JobEvaluationsReply:
        rows = self._state.evaluations.of_job(_namespace(context), request.job_id)
        found = sorted((row.evaluation() for row in rows), key=lambda one: one.create_index, reverse=True)
        return methods.JobEvaluationsReply(evaluations=tuple(found))

    def _look_at_job(self, request: methods.JobRequest, context: CallContext) -> Looked:
        """A job and its versions: tags and stability are said of a version, status of the job."""
        key = (_namespace(context), request.job_id)
        jobs = self._state.jobs
        row = jobs.row(*key)
        looked = look_at_row(self._state, "jobs", *key)
        if row is None:
            return looked
        versions = jobs.version_rows.scan(*key, row.create_index)
        index = max([looked.index, *(version.modify_index for version in versions)])
        return Looked(index, (*looked.topics, rows_under("job_versions", *key)))

    def _look_at_list(self, request: methods.JobListRequest, context: CallContext) -> Looked:
        topic = whole_table("jobs")
        if context.meta.namespace != "*":
            topic = rows_under("jobs", _namespace(context), text=request.prefix)
        return Looked(self._state.table_index("jobs"), (topic,))

    def _look_at_evaluations(self, request: methods.JobRequest, context: CallContext) -> Looked:
        return look_at_evaluations(self._state, _namespace(context), request.job_id)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    async def _admitted(self, job: Job, context: CallContext) -> Job:
        """Fill in defaults and refuse what cannot run, naming every place that is wrong."""
        return admitted(
            self._state,
            job,
            namespace=context.meta.namespace,
            region=self._desk.region,
            now_ns=self._desk.proposals.now_ns(),
            lacking=await own_type_lacking(self._served, job.type),
        )

    def _evaluation(self, job: Job, trigger: Trigger, priority: int) -> Evaluation:
        now_ns = self._desk.proposals.now_ns()
        return Evaluation(
            id=self._desk.env.new_id(),
            namespace=job.namespace,
            priority=priority or job.priority,
            type=job.type,
            triggered_by=trigger,
            job_id=job.id,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )


def _namespace(context: CallContext) -> str:
    return context.meta.namespace or "default"


def _no_job(namespace: str, job_id: str) -> NotFound:
    return NotFound(f"job {job_id!r} not found in namespace {namespace!r}", hint="`fedsched job status` lists them")


def _check_priority(priority: int) -> None:
    if not 0 <= priority <= MAX_PRIORITY:
        raise BadRequest(
            f"evaluation priority {priority} is out of range", hint=f"1 to {MAX_PRIORITY}, 0 for the job's"
        )
