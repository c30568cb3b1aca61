"""An evaluation: a note that a job's wanted and actual state may differ."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.plan import PlanAnnotations
from fedsched.model.record import EMPTY, Index, MaybeSeconds, Record, TimeNs, TimeText
from fedsched.model.states import Moves


class EvaluationStatus(StrEnum):
    BLOCKED = "blocked"
    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "canceled"

    @property
    def is_terminal(self) -> bool:
        return self in (EvaluationStatus.COMPLETE, EvaluationStatus.FAILED, EvaluationStatus.CANCELLED)


EVALUATION_MOVES = Moves(
    EvaluationStatus,
    {
        EvaluationStatus.PENDING: {
            EvaluationStatus.BLOCKED,
            EvaluationStatus.COMPLETE,
            EvaluationStatus.FAILED,
            EvaluationStatus.CANCELLED,
        },
        EvaluationStatus.BLOCKED: {
            EvaluationStatus.PENDING,
            EvaluationStatus.COMPLETE,
            EvaluationStatus.FAILED,
            EvaluationStatus.CANCELLED,
        },
    },
)


class Trigger(StrEnum):
    """Why an evaluation was made."""

    JOB_REGISTER = "job-register"
    JOB_DEREGISTER = "job-deregister"
    JOB_SCALING = "job-scaling"
    PERIODIC_JOB = "periodic-job"
    NODE_UPDATE = "node-update"
    NODE_DRAIN = "node-drain"
    ALLOC_STOP = "alloc-stop"
    ALLOC_FAILURE = "alloc-failure"
    ALLOC_RESCHEDULE = "alloc-reschedule"
    DEPLOYMENT_WATCHER = "deployment-watcher"
    FAILED_FOLLOW_UP = "failed-follow-up"
    MAX_PLAN_ATTEMPTS = "max-plan-attempts"
    QUEUED_ALLOCS = "queued-allocs"
    PREEMPTION = "preemption"
    MAX_DISCONNECT_TIMEOUT = "max-disconnect-timeout"
    RECONNECT = "reconnect"
    ROLLING_UPDATE = "rolling-update"
    SCHEDULED = "scheduled"


CORE_JOB_TYPE = "_core"
"""The job type of clean-up work, which Nomad's API calls the core scheduler."""

CORE_JOB_PRIORITY = 32767
"""Above every priority a user may ask for."""


class EvaluationStub(Record):
    """An evaluation as a related one shows it."""

    id: str
    priority: int = 0
    type: str = ""
    triggered_by: str = ""
    namespace: str = ""
    job_id: str = ""
    node_id: str = ""
    deployment_id: str = ""
    status: str = ""
    status_description: str = ""
    wait_until_ns: TimeText = 0
    next_eval: str = ""
    previous_eval: str = ""
    blocked_eval: str = ""
    create_index: Index = 0
    modify_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0


class Evaluation(Record):
    """A note that a job's wanted and actual state may differ."""

    sparse: ClassVar[bool] = True

    id: str
    namespace: str = "default"
    priority: int = 0
    type: Annotated[str, "The job's type, or `_core` for clean-up."] = ""
    triggered_by: str = ""
    job_id: str = ""
    job_modify_index: int = 0
    node_id: str = ""
    node_modify_index: int = 0
    deployment_id: str = ""
    status: EvaluationStatus = EvaluationStatus.PENDING
    status_description: str = ""
    wait_s: Annotated[MaybeSeconds, "Delay before it may run, counted from its creation."] = None
    wait_until_ns: Annotated[TimeText, "The moment before which it may not run."] = 0
    next_eval: str = ""
    previous_eval: str = ""
    blocked_eval: str = ""
    related_evals: tuple[EvaluationStub, ...] = ()
    failed_tg_allocs: Annotated[dict[str, AllocMetric], "Why groups could not be placed, by group."] = EMPTY
    plan_annotations: PlanAnnotations | None = None
    class_eligibility: Annotated[dict[str, bool], "Computed node classes that were found (not) to fit."] = EMPTY
    quota_limit_reached: str = ""
    missing_non_node_resources: tuple[str, ...] = ()
    escaped_computed_class: bool = False
    annotate_plan: bool = False
    queued_allocations: Annotated[dict[str, int], "How many are still unplaced, by group."] = EMPTY
    leader_acl: str = ""
    snapshot_index: Annotated[int, "Index of the state that the scheduler saw."] = 0
    create_index: Index = 0
    modify_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0
