"""Jobs as lists and overviews show them."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job, JobStatus, Multiregion
from fedsched.model.record import EMPTY, Index, Record, StringMap, TimeNs


class TaskGroupSummary(Record):
    """How many of a group's allocations are in which state."""

    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class JobChildrenSummary(Record):
    """How many children of a periodic or parameterized job are in which state."""

    pending: int = 0
    running: int = 0
    dead: int = 0


class JobSummary(Record):
    """A job in numbers."""

    job_id: str
    namespace: str = "default"
    summary: dict[str, TaskGroupSummary] = EMPTY
    children: JobChildrenSummary | None = JobChildrenSummary()
    create_index: Index = 0
    modify_index: Index = 0


class JobListStub(Record):
    """A job as lists show it."""

    id: str
    parent_id: str = ""
    name: str = ""
    namespace: str = ""
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    multiregion: Multiregion | None = None
    type: str = ""
    priority: int = 0
    periodic: bool = False
    parameterized_job: bool = False
    stop: bool = False
    status: JobStatus = JobStatus.PENDING
    status_description: str = ""
    job_summary: JobSummary | None = None
    create_index: Index = 0
    modify_index: Index = 0
    job_modify_index: Index = 0
    submit_time_ns: TimeNs = 0
    meta: StringMap = EMPTY


def job_stub(job: Job, summary: JobSummary | None, *, meta: bool = False) -> JobListStub:
    """Give the form for lists; the meta comes only when asked for."""
    return JobListStub(
        **{name: getattr(job, name) for name in _STUB_FIELDS},
        periodic=job.is_periodic,
        parameterized_job=job.is_parameterized,
        job_summary=summary,
        meta=job.meta if meta else {},
    )


_STUB_FIELDS = tuple(
    name
    for name in JobListStub.__struct_fields__
    if name not in ("periodic", "parameterized_job", "job_summary", "meta")
)


class JobStatusesDeployment(Record):
    """How an allocation counts in its deployment, in the overview."""

    canary: bool = False
    healthy: bool | None = None


class JobStatusesAlloc(Record):
    """An allocation in the overview."""

    id: str
    group: str = ""
    client_status: ClientStatus = ClientStatus.PENDING
    node_id: str = ""
    deployment_status: JobStatusesDeployment = JobStatusesDeployment()
    job_version: int = 0
    followup_eval_id: str = ""
    has_paused_task: bool = False


class JobStatusesLatestDeployment(Record):
    """A job's latest deployment in the overview."""

    id: str
    is_active: bool = False
    job_version: int = 0
    status: DeploymentStatus = DeploymentStatus.RUNNING
    status_description: str = ""
    all_auto_promote: bool = False
    requires_promotion: bool = False


class JobStatusesJob(Record):
    """A job in the overview that user interfaces poll."""

    id: str
    namespace: str = ""
    name: str = ""
    type: str = ""
    node_pool: str = ""
    datacenters: tuple[str, ...] = ()
    priority: int = 0
    version: int = 0
    submit_time_ns: TimeNs = 0
    modify_index: Index = 0
    allocs: tuple[JobStatusesAlloc, ...] = ()
    group_count_sum: int = 0
    child_statuses: tuple[str, ...] = ()
    parent_id: str = ""
    latest_deployment: JobStatusesLatestDeployment | None = None
    stop: bool = False
    is_pack: Annotated[bool, "Whether it came from a pack."] = False
    status: JobStatus = JobStatus.PENDING


class FuzzyMatch(Record):
    """One hit of the fuzzy search: a name, and the ids that lead to it."""

    id: str
    scope: tuple[str, ...] = ()
