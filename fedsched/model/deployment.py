"""A deployment: the supervised change from one job version to the next."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import EMPTY, Index, Record, Seconds, TimeNs, TimeText
from fedsched.model.states import Moves


class DeploymentStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    SUCCESSFUL = "successful"
    CANCELLED = "cancelled"
    INITIALIZING = "initializing"
    PENDING = "pending"
    BLOCKED = "blocked"
    UNBLOCKING = "unblocking"

    @property
    def is_active(self) -> bool:
        return self not in (DeploymentStatus.FAILED, DeploymentStatus.SUCCESSFUL, DeploymentStatus.CANCELLED)


_S = DeploymentStatus
DEPLOYMENT_MOVES = Moves(
    DeploymentStatus,
    {
        _S.INITIALIZING: {_S.PENDING, _S.RUNNING, _S.FAILED, _S.CANCELLED},
        _S.PENDING: {_S.RUNNING, _S.FAILED, _S.CANCELLED},
        _S.RUNNING: {_S.PAUSED, _S.BLOCKED, _S.FAILED, _S.SUCCESSFUL, _S.CANCELLED},
        _S.PAUSED: {_S.RUNNING, _S.FAILED, _S.CANCELLED},
        _S.BLOCKED: {_S.UNBLOCKING, _S.FAILED, _S.SUCCESSFUL, _S.CANCELLED},
        _S.UNBLOCKING: {_S.SUCCESSFUL, _S.FAILED, _S.CANCELLED},
    },
)


class DeploymentState(Record):
    """How far one group of a deployment has come."""

    auto_revert: bool = False
    auto_promote: bool = False
    progress_deadline_s: Seconds = 0.0
    require_progress_by_ns: TimeText = 0
    promoted: bool = False
    placed_canaries: tuple[str, ...] = ()
    desired_canaries: int = 0
    desired_total: int = 0
    placed_allocs: int = 0
    healthy_allocs: int = 0
    unhealthy_allocs: int = 0


class Deployment(Record):
    """The supervised change from one job version to the next."""

    id: str
    namespace: str = "default"
    job_id: str = ""
    job_version: int = 0
    job_modify_index: int = 0
    job_spec_modify_index: int = 0
    job_create_index: int = 0
    is_multiregion: bool = False
    task_groups: dict[str, DeploymentState] = EMPTY
    status: DeploymentStatus = DeploymentStatus.RUNNING
    status_description: str = ""
    eval_priority: Annotated[int, "Priority of the evaluations that it makes."] = 0
    create_index: Index = 0
    modify_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0

    @property
    def is_active(self) -> bool:
        return self.status.is_active

    @property
    def requires_promotion(self) -> bool:
        return self.is_active and any(s.desired_canaries > 0 and not s.promoted for s in self.task_groups.values())


class DeploymentStatusUpdate(Record):
    """A new status for a deployment, as plans and the deployment watcher write it."""

    deployment_id: str
    status: DeploymentStatus
    status_description: str = ""
    update_time_ns: TimeNs = 0
