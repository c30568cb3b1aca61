"""An allocation: one group placed on one node."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, ClassVar

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.job import Job
from fedsched.model.network import AllocNetworkStatus
from fedsched.model.record import EMPTY, Index, Record, Seconds, TimeNs, TimeText
from fedsched.model.resources import AllocatedResources, Resources
from fedsched.model.states import Moves
from fedsched.model.task_state import TaskState, TaskStatus


class DesiredStatus(StrEnum):
    """What the servers want of an allocation."""

    RUN = "run"
    STOP = "stop"
    EVICT = "evict"

    @property
    def is_terminal(self) -> bool:
        return self is not DesiredStatus.RUN


DESIRED_MOVES = Moves(DesiredStatus, {DesiredStatus.RUN: {DesiredStatus.STOP, DesiredStatus.EVICT}})


class ClientStatus(StrEnum):
    """What became of it on its node."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        return self in (ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST)


_ENDS = {ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST}
CLIENT_MOVES = Moves(
    ClientStatus,
    {
        ClientStatus.PENDING: {ClientStatus.RUNNING, ClientStatus.UNKNOWN, *_ENDS},
        # Back to pending while all tasks wait for a restart.
        ClientStatus.RUNNING: {ClientStatus.PENDING, ClientStatus.UNKNOWN, *_ENDS},
        ClientStatus.UNKNOWN: {ClientStatus.PENDING, ClientStatus.RUNNING, *_ENDS},
        # A client that comes back tells how it really went; until then lost is what servers had to assume.
        ClientStatus.LOST: {ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE, ClientStatus.FAILED},
        # Restarting all tasks of a finished allocation revives it.
        ClientStatus.COMPLETE: {ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.FAILED},
        ClientStatus.FAILED: {ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE},
    },
)


def client_status_of(states: Iterable[TaskState]) -> ClientStatus:
    """Sum task states up: any failed, else any running, else any pending, else complete."""
    seen = list(states)
    if any(state.failed for state in seen):
        return ClientStatus.FAILED
    if any(state.state is TaskStatus.RUNNING for state in seen):
        return ClientStatus.RUNNING
    if any(state.state is TaskStatus.PENDING for state in seen):
        return ClientStatus.PENDING
    return ClientStatus.COMPLETE


class AllocState(Record):
    """A moment at which a field of the allocation took a new value."""

    field: int = 0
    value: str = ""
    time_ns: TimeText = 0


class AllocDeploymentStatus(Record):
    """How the allocation counts in its deployment."""

    healthy: Annotated[bool | None, "None while undecided."] = None
    timestamp_ns: TimeText = 0
    canary: bool = False
    modify_index: Index = 0

    @property
    def is_healthy(self) -> bool:
        return self.healthy is True

    @property
    def is_unhealthy(self) -> bool:
        return self.healthy is False


class DesiredTransition(Record):
    """What someone asked to happen to the allocation at the next evaluation; None is not asked."""

    migrate: bool | None = None
    reschedule: bool | None = None
    force_reschedule: bool | None = None
    no_shutdown_delay: bool | None = None
    migrate_disable_placement: bool | None = None


class RescheduleEvent(Record):
    """One earlier replacement in the chain that led here."""

    reschedule_time_ns: TimeNs = 0
    prev_alloc_id: str = ""
    prev_node_id: str = ""
    delay_s: Seconds = 0.0


class RescheduleTracker(Record):
    """The story of replacements behind this allocation."""

    events: tuple[RescheduleEvent, ...] = ()
    last_reschedule: Annotated[str, "`ok`, `pending` or `no placement`."] = ""


class AllocListStub(Record):
    """An allocation as lists show it."""

    id: str
    eval_id: str = ""
    name: str = ""
    namespace: str = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job_type: str = ""
    job_version: int = 0
    task_group: str = ""
    allocated_resources: AllocatedResources | None = None
    desired_status: DesiredStatus = DesiredStatus.RUN
    desired_description: str = ""
    desired_transition: DesiredTransition = DesiredTransition()
    client_status: ClientStatus = ClientStatus.PENDING
    client_description: str = ""
    task_states: dict[str, TaskState] = EMPTY
    deployment_status: AllocDeploymentStatus | None = None
    followup_eval_id: str = ""
    next_allocation: str = ""
    reschedule_tracker: RescheduleTracker | None = None
    preempted_allocations: tuple[str, ...] = ()
    preempted_by_allocation: str = ""
    create_index: Index = 0
    modify_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0


class Allocation(Record):
    """One group placed on one node."""

    sparse: ClassVar[bool] = True

    id: str
    namespace: str = "default"
    eval_id: str = ""
    name: Annotated[str, "`<job>.<group>[<index>]`."] = ""
    node_id: str = ""
    node_name: str = ""
    job_id: str = ""
    job: Annotated[Job | None, "The version of the job that it runs."] = None
    task_group: str = ""
    resources: Annotated[Resources | None, "Legacy sum, for old clients."] = None
    shared_resources: Annotated[Resources | None, "Legacy, for old clients."] = None
    task_resources: Annotated[dict[str, Resources], "Legacy, for old clients."] = EMPTY
    allocated_resources: AllocatedResources | None = None
    metrics: AllocMetric | None = None
    desired_status: DesiredStatus = DesiredStatus.RUN
    desired_description: str = ""
    desired_transition: DesiredTransition = DesiredTransition()
    client_status: ClientStatus = ClientStatus.PENDING
    client_description: str = ""
    task_states: dict[str, TaskState] = EMPTY
    alloc_states: tuple[AllocState, ...] = ()
    deployment_id: str = ""
    deployment_status: AllocDeploymentStatus | None = None
    followup_eval_id: str = ""
    previous_allocation: str = ""
    next_allocation: str = ""
    reschedule_tracker: RescheduleTracker | None = None
    network_status: AllocNetworkStatus | None = None
    preempted_allocations: tuple[str, ...] = ()
    preempted_by_allocation: str = ""
    signing_key_id: str = ""
    create_index: Index = 0
    modify_index: Index = 0
    alloc_modify_index: Annotated[int, "Index of the last change by a server, not by its client."] = 0
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0

    @property
    def is_server_terminal(self) -> bool:
        return self.desired_status.is_terminal

    @property
    def is_client_terminal(self) -> bool:
        return self.client_status.is_terminal

    @property
    def is_terminal(self) -> bool:
        return self.is_server_terminal or self.is_client_terminal

    @property
    def is_canary(self) -> bool:
        return self.deployment_status is not None and self.deployment_status.canary

    def stub(self, *, resources: bool = False, task_states: bool = True) -> AllocListStub:
        """Give the form for lists; what is large comes only when asked for."""
        return AllocListStub(
            **{name: getattr(self, name) for name in _STUB_FIELDS},
            job_type=self.job.type if self.job else "",
            job_version=self.job.version if self.job else 0,
            allocated_resources=self.allocated_resources if resources else None,
            task_states=self.task_states if task_states else {},
        )


_STUB_FIELDS = tuple(
    name
    for name in AllocListStub.__struct_fields__
    if name not in ("job_type", "job_version", "allocated_resources", "task_states")
)
