"""A plan: the scheduler's proposal; only the plan applier makes it true."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import Allocation, AllocListStub
from fedsched.model.deployment import Deployment, DeploymentStatusUpdate
from fedsched.model.record import EMPTY, Record


class DesiredUpdates(Record):
    """What a plan does to one group, in numbers."""

    ignore: int = 0
    place: int = 0
    migrate: int = 0
    stop: int = 0
    in_place_update: int = 0
    destructive_update: int = 0
    canary: int = 0
    preemptions: int = 0
    disconnect: int = 0
    reconnect: int = 0
    reschedule_now: int = 0
    reschedule_later: int = 0


class PlanAnnotations(Record):
    """What a plan does, for people to read."""

    desired_tg_updates: dict[str, DesiredUpdates] = EMPTY
    preempted_allocs: tuple[AllocListStub, ...] = ()


class PlanJobInfo(Record):
    """Which job a plan is for; the allocations carry no copy of it."""

    namespace: str = "default"
    id: str


class Plan(Record):
    """What a scheduler would like to change, seen from the state at one index."""

    eval_id: str
    eval_token: str = ""
    priority: int = 0
    all_at_once: bool = False
    job_info: PlanJobInfo | None = None
    snapshot_index: int = 0
    node_update: Annotated[dict[str, tuple[Allocation, ...]], "Stopped allocations, by node."] = EMPTY
    node_allocation: Annotated[dict[str, tuple[Allocation, ...]], "New and updated allocations, by node."] = EMPTY
    node_preemptions: dict[str, tuple[Allocation, ...]] = EMPTY
    deployment: Deployment | None = None
    deployment_updates: tuple[DeploymentStatusUpdate, ...] = ()
    annotations: PlanAnnotations | None = None

    @property
    def is_no_op(self) -> bool:
        return not (self.node_update or self.node_allocation or self.deployment or self.deployment_updates)


class PlanResult(Record):
    """The part of a plan that was made true."""

    node_update: dict[str, tuple[Allocation, ...]] = EMPTY
    node_allocation: dict[str, tuple[Allocation, ...]] = EMPTY
    node_preemptions: dict[str, tuple[Allocation, ...]] = EMPTY
    deployment: Deployment | None = None
    deployment_updates: tuple[DeploymentStatusUpdate, ...] = ()
    ineligible_nodes: tuple[str, ...] = ()
    rejected_nodes: tuple[str, ...] = ()
    refresh_index: Annotated[int, "Look again from here, because something was refused."] = 0
    alloc_index: int = 0
