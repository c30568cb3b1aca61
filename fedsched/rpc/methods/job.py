"""Jobs: what the user wants to run."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job, JobSubmission
from fedsched.model.summary import JobListStub
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.rpc.methods.paging import ListReply, ListRequest


class JobRegisterRequest(Record):
    job: Job
    enforce_index: Annotated[bool, "Only if the job is still as `job_modify_index` says."] = False
    job_modify_index: Annotated[int, "What the caller last saw; 0: the job must not exist."] = 0
    preserve_counts: Annotated[bool, "Keep the counts of groups that exist already."] = False
    preserve_resources: Annotated[bool, "Keep the resources of tasks that exist already."] = False
    eval_priority: Annotated[int, "Of the evaluation; 0: the job's."] = 0
    submission: Annotated[JobSubmission | None, "The text it came from, to be kept with it."] = None
    one_region: Annotated[bool, "Of a multi-region job: register this region's own part only."] = False


class RegionWrite(Record):
    """What came of a write in one of several regions."""

    region: str
    eval_id: str = ""
    job_modify_index: int = 0
    index: int = 0
    error: Annotated[str, "Why it was not done there; empty if it was."] = ""


class JobWriteReply(Record):
    """What came of registering or deregistering a job."""

    eval_id: Annotated[str, "Empty for jobs that are only templates."] = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    index: int = 0
    warnings: tuple[str, ...] = ()
    rollout_id: Annotated[str, "Of a multi-region job whose regions follow one another: what to watch."] = ""
    job_version: Annotated[int, "With `rollout_id`: the version, the same in every region."] = 0
    regions: Annotated[tuple[RegionWrite, ...], "By region, for what was done in several at once."] = ()


class JobDeregisterRequest(Record):
    job_id: str
    purge: Annotated[bool, "Forget it entirely instead of keeping it stopped."] = False
    eval_priority: int = 0
    global_: Annotated[bool, "In all regions that a multi-region job lists, not in this one alone."] = False


class JobRequest(Record):
    """Names one job; the namespace goes beside it."""

    job_id: str


class JobGetReply(Record):
    job: Job


class JobListRequest(ListRequest):
    meta: Annotated[bool, "Include each job's meta map."] = False


class JobListReply(ListReply):
    jobs: tuple[JobListStub, ...] = ()


class JobVersionsReply(Record):
    versions: Annotated[tuple[Job, ...], "Newest first."] = ()


class JobEvaluationsReply(Record):
    evaluations: Annotated[tuple[Evaluation, ...], "Newest first."] = ()


JOB_REGISTER = declare(
    Method(
        "Job.Register",
        JobRegisterRequest,
        JobWriteReply,
        RunsAt.LEADER,
        needs="submit-job",
        writes=True,
        doc="Make a job known, or change it, and have it evaluated.",
    )
)
JOB_DEREGISTER = declare(
    Method(
        "Job.Deregister",
        JobDeregisterRequest,
        JobWriteReply,
        RunsAt.LEADER,
        needs="submit-job",
        writes=True,
        doc="Stop a job; with purge, forget it.",
    )
)
JOB_GET = declare(
    Method("Job.Get", JobRequest, JobGetReply, RunsAt.ANY_SERVER, needs="read-job", doc="One job, newest version.")
)
JOB_LIST = declare(
    Method("Job.List", JobListRequest, JobListReply, RunsAt.ANY_SERVER, needs="list-jobs", doc="Jobs in short, by id.")
)
JOB_VERSIONS = declare(
    Method(
        "Job.Versions",
        JobRequest,
        JobVersionsReply,
        RunsAt.ANY_SERVER,
        needs="read-job",
        doc="The versions of a job that are kept.",
    )
)
JOB_EVALUATIONS = declare(
    Method(
        "Job.Evaluations",
        JobRequest,
        JobEvaluationsReply,
        RunsAt.ANY_SERVER,
        needs="read-job",
        doc="The evaluations of a job.",
    )
)
