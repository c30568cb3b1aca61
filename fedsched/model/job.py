"""A job: what the user wants to run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.group import TaskGroup
from fedsched.model.policies import NO_UPDATE, MigrateStrategy, ReschedulePolicy, UpdateStrategy
from fedsched.model.record import EMPTY, Index, InDiff, InJson, Record, StringMap, TimeNs, Unit, UpdateClass, field

DEFAULT_NAMESPACE = "default"
DEFAULT_NODE_POOL = "default"
DEFAULT_REGION = "global"
DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100
RETAINED_VERSIONS = 6
"""Versions kept of a job, besides tagged ones and the latest stable one."""

BOOKKEEPING = UpdateClass.BOOKKEEPING
DESTRUCTIVE = UpdateClass.DESTRUCTIVE
INPUT = InJson.INPUT_ONLY


class JobType(StrEnum):
    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"


def is_type_name(text: str) -> bool:
    """Whether a job type may be called so: a letter, then letters, digits and dashes, at most 64."""
    return len(text) <= 64 and text.isascii() and text[:1].isalpha() and text.replace("-", "").isalnum()


def behaves_as(job_type: str) -> JobType:
    """The built-in type whose rules and defaults hold for jobs of this type.

    A type that somebody's own scheduler serves is a service job in everything but where it is placed.
    """
    return JobType(job_type) if job_type in set(JobType) else JobType.SERVICE


class JobStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class MultiregionStrategy(Record):
    """In which rhythm regions follow one another."""

    max_parallel: Annotated[int, "Regions at a time; 0 is all at once."] = 0
    on_failure: Annotated[str, "Empty, `fail_all` or `fail_local`."] = ""
    on_unreachable: Annotated[
        str, InJson.OMIT_EMPTY, "A region that cannot be reached at the start: `fail` (unless said), `skip` or `wait`."
    ] = ""
    region_deadline_s: Annotated[
        float, Unit.DURATION_NS, InJson.OMIT_EMPTY, "How long a region may be silent in its turn before it has failed."
    ] = 0.0
    adopt_after_s: Annotated[
        float,
        Unit.DURATION_NS,
        InJson.OMIT_EMPTY,
        "How long the region that drives may be silent before another one takes over; 0: until a person says so.",
    ] = 0.0
    bake_time_s: Annotated[
        float, Unit.DURATION_NS, InJson.OMIT_EMPTY, "How long a healthy region keeps its place before the next begins."
    ] = 0.0
    canary_region: Annotated[
        bool, InJson.OMIT_EMPTY, "The first region goes alone, and the others wait until a person unblocks it."
    ] = False


class MultiregionRegion(Record):
    """One region of a multi-region job and what differs there."""

    name: str = ""
    count: int = 1
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    meta: StringMap = EMPTY


class Multiregion(Record):
    """The regions that a job spans."""

    strategy: MultiregionStrategy | None = None
    regions: tuple[MultiregionRegion, ...] = ()


class PeriodicConfig(Record):
    """When copies of a job are launched."""

    enabled: bool = True
    spec: Annotated[str, "One cron line; deprecated."] = ""
    specs: tuple[str, ...] = ()
    spec_type: str = "cron"
    prohibit_overlap: Annotated[bool, "Skip a launch while an earlier one still runs."] = False
    time_zone: str = "UTC"


class PayloadRule(StrEnum):
    OPTIONAL = "optional"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class ParameterizedJobConfig(Record):
    """What a dispatch of the job must and may give."""

    payload: str = "optional"
    meta_required: tuple[str, ...] = ()
    meta_optional: tuple[str, ...] = ()


class JobUILink(Record):
    """A link shown beside the job."""

    label: str = ""
    url: str = field(default="", name="Url")


class JobUIConfig(Record):
    """What a user interface shows about the job."""

    description: str = ""
    links: tuple[JobUILink, ...] = ()


class JobVersionTag(Record):
    """A name that keeps one version of a job from being forgotten."""

    name: str = ""
    description: str = ""
    tagged_time_ns: TimeNs = 0


class Job(Record):
    """What the user wants to run."""

    stop: Annotated[bool, "Set by stopping the job; registering it again starts it."] = False
    region: str = ""
    namespace: str = DEFAULT_NAMESPACE
    id: str
    parent_id: Annotated[str, "The periodic or parameterized job that this one was launched from."] = ""
    name: Annotated[str, "The ID unless said."] = ""
    type: Annotated[str, "`service`, `batch`, `system` or `sysbatch`."] = JobType.SERVICE.value
    priority: Annotated[int, "0 is unset."] = 0
    all_at_once: Annotated[bool, "A plan for it is committed whole or not at all."] = False
    datacenters: tuple[str, ...] = ()
    node_pool: str = ""
    constraints: tuple[Constraint, ...] = ()
    affinities: tuple[Affinity, ...] = ()
    spreads: tuple[Spread, ...] = ()
    task_groups: tuple[TaskGroup, ...] = ()
    update: Annotated[UpdateStrategy, InDiff.NEVER, "Only what groups without an own strategy start from."] = NO_UPDATE
    reschedule: Annotated[ReschedulePolicy | None, INPUT, "For groups that say nothing."] = None
    migrate: Annotated[MigrateStrategy | None, INPUT, "For groups that say nothing."] = None
    multiregion: Multiregion | None = None
    periodic: PeriodicConfig | None = None
    parameterized_job: ParameterizedJobConfig | None = None
    dispatched: Annotated[bool, "Whether it was made by a dispatch."] = False
    dispatch_idempotency_token: str = ""
    payload: Annotated[bytes, InDiff.NEVER, "A dispatched job's input."] = b""
    meta: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    consul_namespace: str = ""
    vault_namespace: str = ""
    nomad_token_id: Annotated[str, BOOKKEEPING] = ""
    status: Annotated[JobStatus, BOOKKEEPING] = JobStatus.PENDING
    status_description: Annotated[str, BOOKKEEPING] = ""
    stable: Annotated[bool, BOOKKEEPING, "Whether a deployment of this version succeeded."] = False
    version: Annotated[int, BOOKKEEPING] = 0
    submit_time_ns: TimeNs = 0
    create_index: Index = 0
    modify_index: Index = 0
    job_modify_index: Index = 0
    ui: JobUIConfig | None = None
    version_tag: Annotated[JobVersionTag | None, BOOKKEEPING] = None

    @property
    def key(self) -> tuple[str, str]:
        """What identifies a job within its region."""
        return (self.namespace, self.id)

    @property
    def is_periodic(self) -> bool:
        return self.periodic is not None

    @property
    def is_parameterized(self) -> bool:
        """Whether it is a template for dispatches, and not the result of one."""
        return self.parameterized_job is not None and not self.dispatched

    def group(self, name: str) -> TaskGroup | None:
        return next((group for group in self.task_groups if group.name == name), None)


class JobSubmission(Record):
    """The text that a job version came from."""

    source: str = ""
    format: Annotated[str, "`hcl2` or `json`."] = ""
    variable_flags: StringMap = EMPTY
    variables: str = ""
    namespace: str = ""
    job_id: str = ""
    version: int = 0
    job_modify_index: int = 0
