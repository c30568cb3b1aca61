"""More about jobs: dry runs, scaling, going back, launching children, and what became of them."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import AllocListStub
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.declare import Record, StringMap
from fedsched.model.deployment import Deployment
from fedsched.model.diff import JobDiff
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job, JobSubmission
from fedsched.model.plan import PlanAnnotations
from fedsched.model.record import EMPTY, FreeForm
from fedsched.model.scaling import JobScaleStatus
from fedsched.model.summary import JobSummary
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.job import JobRequest, JobWriteReply


class JobPlanRequest(Record):
    job: Job
    diff: Annotated[bool, "Also say what would differ."] = True
    policy_override: bool = False
    one_region: Annotated[bool, "Of a multi-region job: ask this region about its own part only."] = False


class RegionPlan(Record):
    """What registering a multi-region job would do in one region."""

    region: str
    error: Annotated[str, "Why the region would refuse it, or could not be asked."] = ""
    annotations: PlanAnnotations | None = None
    failed_tg_allocs: dict[str, AllocMetric] = EMPTY
    job_modify_index: Annotated[int, "Of the region's stored job; 0 if there is none."] = 0
    next_periodic_launch_ns: int = 0
    warnings: tuple[str, ...] = ()
    diff: JobDiff | None = None


class JobPlanReply(Record):
    annotations: PlanAnnotations | None = None
    failed_tg_allocs: dict[str, AllocMetric] = EMPTY
    created_evals: tuple[Evaluation, ...] = ()
    job_modify_index: Annotated[int, "Of the stored job; 0 if there is none. To be passed back when registering."] = 0
    next_periodic_launch_ns: int = 0
    warnings: tuple[str, ...] = ()
    diff: Annotated[JobDiff | None, "What differs from the stored job, with what each change forces."] = None
    regions: Annotated[
        tuple[RegionPlan, ...], "Of a multi-region job, by region in its order; what stands above is then empty."
    ] = ()


class JobEvaluateRequest(Record):
    job_id: str
    force_reschedule: Annotated[bool, "Replace failed allocations now, whatever their policy's delay."] = False


class JobScaleRequest(Record):
    job_id: str
    group: str = ""
    count: Annotated[int | None, "None only notes the event."] = None
    message: str = ""
    error: bool = False
    meta: FreeForm = EMPTY
    enforce_index: Annotated[bool, "Only if the job is still at `job_modify_index`."] = False
    job_modify_index: int = 0


class JobScaleStatusReply(Record):
    status: JobScaleStatus


class JobRevertRequest(Record):
    job_id: str
    job_version: int
    enforce_prior_version: Annotated[int | None, "Only if this is the current version."] = None


class JobStableRequest(Record):
    job_id: str
    job_version: int
    stable: bool = True


class JobTagRequest(Record):
    job_id: str
    name: str
    description: str = ""
    version: Annotated[int | None, "None is the newest."] = None
    unset: Annotated[bool, "Take the tag away."] = False


class JobDispatchRequest(Record):
    job_id: str
    payload: bytes = b""
    meta: StringMap = EMPTY
    id_prefix_template: str = ""
    idempotency_token: Annotated[str, "The same token again gives the child of the first time."] = ""
    priority: Annotated[int, "0 is the job's."] = 0


class JobDispatchReply(Record):
    dispatched_job_id: str = ""
    eval_id: Annotated[str, "Empty if an earlier child was found."] = ""
    eval_create_index: int = 0
    job_create_index: int = 0
    index: int = 0


class JobSummaryReply(Record):
    summary: JobSummary


class JobAllocsRequest(Record):
    job_id: str
    all: Annotated[bool, "Also those of earlier jobs of the same id."] = False


class JobAllocsReply(Record):
    allocs: tuple[AllocListStub, ...] = ()


class JobDeploymentsReply(Record):
    deployments: Annotated[tuple[Deployment, ...], "Newest first."] = ()


class JobDeploymentReply(Record):
    deployment: Deployment | None = None


class JobSubmissionRequest(Record):
    job_id: str
    version: int = 0


class JobSubmissionReply(Record):
    submission: JobSubmission


JOB_PLAN = reads("Job.Plan", JobPlanRequest, JobPlanReply, "submit-job", "What registering a job would do.")
JOB_EVALUATE = writes("Job.Evaluate", JobEvaluateRequest, JobWriteReply, "submit-job", "Have a job looked at again.")
JOB_SCALE = writes("Job.Scale", JobScaleRequest, JobWriteReply, "scale-job", "Change the count of a group.")
JOB_SCALE_STATUS = reads(
    "Job.ScaleStatus", JobRequest, JobScaleStatusReply, "read-job-scaling", "How a job is scaled, and how it came so."
)
JOB_REVERT = writes("Job.Revert", JobRevertRequest, JobWriteReply, "submit-job", "Go back to an earlier version.")
JOB_STABLE = writes("Job.Stable", JobStableRequest, JobWriteReply, "submit-job", "Call a version proven, or not.")
JOB_TAG = writes("Job.Tag", JobTagRequest, JobWriteReply, "submit-job", "Name a version, which keeps it.")
JOB_DISPATCH = writes(
    "Job.Dispatch", JobDispatchRequest, JobDispatchReply, "dispatch-job", "Launch a child of a parameterized job."
)
PERIODIC_FORCE = writes(
    "Periodic.Force", JobRequest, JobDispatchReply, "submit-job", "Launch a periodic job out of turn."
)
JOB_SUMMARY = reads("Job.Summary", JobRequest, JobSummaryReply, "read-job", "A job in numbers.")
JOB_ALLOCS = reads("Job.Allocations", JobAllocsRequest, JobAllocsReply, "read-job", "The allocations of a job.")
JOB_DEPLOYMENTS = reads("Job.Deployments", JobRequest, JobDeploymentsReply, "read-job", "The deployments of a job.")
JOB_LATEST_DEPLOYMENT = reads(
    "Job.LatestDeployment", JobRequest, JobDeploymentReply, "read-job", "The newest deployment of a job, if any."
)
JOB_SUBMISSION = reads(
    "Job.Submission", JobSubmissionRequest, JobSubmissionReply, "read-job", "The text that a version came from."
)
