"""Scaling policies and what became of scaling requests."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import EMPTY, FreeForm, Index, Record, StringMap, TimeNs, UpdateClass

BOOKKEEPING = UpdateClass.BOOKKEEPING


class ScalingPolicy(Record):
    """Bounds for a count (or for a task's resources), and a policy that an autoscaler outside reads."""

    id: Annotated[str, BOOKKEEPING, "Given by the server, the same across updates."] = ""
    type: Annotated[str, "`horizontal`, `vertical_cpu` or `vertical_mem`."] = "horizontal"
    target: StringMap = EMPTY
    policy: FreeForm = EMPTY
    min: int = 0
    max: int = 0
    enabled: bool = True
    create_index: Index = 0
    modify_index: Index = 0


class ScalingPolicyStub(Record):
    """A scaling policy as lists show it."""

    id: str
    enabled: bool = True
    type: str = ""
    target: StringMap = EMPTY
    create_index: Index = 0
    modify_index: Index = 0


class ScalingEvent(Record):
    """One scaling request and its outcome."""

    time_ns: TimeNs = 0
    count: int | None = None
    previous_count: int = 0
    message: str = ""
    error: bool = False
    meta: FreeForm = EMPTY
    eval_id: Annotated[str | None, "None when the request changed nothing."] = None
    create_index: Index = 0


class JobScalingEvents(Record):
    """The latest scaling events of a job, by group, newest first."""

    namespace: str
    job_id: str
    scaling_events: dict[str, tuple[ScalingEvent, ...]] = EMPTY
    modify_index: Index = 0


class TaskGroupScaleStatus(Record):
    """How far a group's wish and reality are apart."""

    desired: int = 0
    placed: int = 0
    running: int = 0
    healthy: int = 0
    unhealthy: int = 0
    events: tuple[ScalingEvent, ...] = ()


class JobScaleStatus(Record):
    """The answer to "how is this job scaled?"."""

    job_id: str
    namespace: str = "default"
    job_create_index: int = 0
    job_modify_index: int = 0
    job_stopped: bool = False
    task_groups: dict[str, TaskGroupScaleStatus] = EMPTY
