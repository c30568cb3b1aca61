"""A toy world in which what a reconciler wants comes true at once, to see whether it ever stops wanting."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc import (
    Allocation,
    AllocDeploymentStatus,
    AllocState,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    RescheduleTracker,
)
from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.evaluation import Evaluation
from fedsched.model.ids import alloc_index
from fedsched.model.job import Job
from fedsched.scheduler.reconcile.held import Held, Taint
from fedsched.scheduler.reconcile.service import Ground, reconcile
from fedsched.scheduler.reconcile.system import NodeField, reconcile_system
from fedsched.scheduler.reconcile.wanted import GroupWanted, Single, Stop, Wanted
from tests.builders import an_evaluation
from tests.scheduler.reconcile.kit import NOW, SECOND, alloc, ground

NODES = 64


class World:
    """One job, its allocations, a few nodes; clients do at once as they are told."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.versions = {job.version: job}
        self.records: dict[str, Allocation] = {}
        self.tainted: dict[int, Taint] = {}
        self.deployments: list[Deployment] = []
        self.waiting: list[Evaluation] = []
        self.now_ns = NOW
        self._numbers = iter(range(1, 1_000_000))
        self.fewest = 1_000_000
        """The least number of reachable allocations after any pass."""
        self.touched: list[int] = []
        """How many allocations each pass took down for an update, together with those not yet known to be healthy."""

    @property
    def group(self) -> Any:
        return self.job.task_groups[0]

    def live(self) -> list[Allocation]:
        return [one for one in self.records.values() if not one.is_terminal]

    def change(self, job: Job) -> None:
        self.job = replace(job, version=self.job.version + 1)
        self.versions[self.job.version] = self.job

    def edit(self, one: Allocation, **fields: Any) -> None:
        self.records[one.id] = replace(self.records[one.id], modify_time_ns=self.now_ns, **fields)

    def look(self, evaluation: Evaluation | None = None) -> Wanted:
        return reconcile(self._ground(evaluation))

    def _ground(self, evaluation: Evaluation | None) -> Ground:
        return ground(
            self.job,
            list(self.records.values()),
            tainted=self.tainted,
            deployment=self.deployments[-1] if self.deployments else None,
            now_ns=self.now_ns,
            evaluation=evaluation or an_evaluation(next(self._numbers), job=self.job),
            versions=self.versions.values(),
            deployments=self.deployments,
        )

    def settle(self, limit: int = 400) -> None:
        """Look, let it come true, let clients report, until nothing is wanted any more and nothing is due."""
        for _ in range(limit):
            wanted = self.look()
            self.make_true(wanted)
            self.check()
            has_news = self.report_health()
            if wanted.is_calm and not has_news and not self.come_due():
                return
        raise AssertionError(
            f"not settled after {limit} passes: {wanted.groups['group'].desired}, {wanted.deployment_updates}"
        )

    def check(self) -> None:
        """What holds after every pass, settled or not: never more than the count, canaries aside."""
        update = self.group.update
        canaries = update.canary if update is not None and update.max_parallel else 0
        assert len(self.names()) <= self.group.count + canaries
        self.fewest = min(self.fewest, len(self.names()))

    def come_due(self) -> bool:
        """Let time pass until the next follow-up, if there is any, and follow it."""
        if not self.waiting:
            return False
        self.waiting.sort(key=lambda one: one.wait_until_ns)
        evaluation = self.waiting.pop(0)
        self.now_ns = max(self.now_ns, evaluation.wait_until_ns)
        self.make_true(self.look(evaluation))
        return True

    def make_true(self, wanted: Wanted) -> None:
        if wanted.deployment is not None:
            known = [one for one in self.deployments if one.id != wanted.deployment.id]
            self.deployments = [*known, wanted.deployment]
        for update in wanted.deployment_updates:
            self.deployments = [
                replace(one, status=update.status) if one.id == update.deployment_id else one
                for one in self.deployments
            ]
        dropped = set(wanted.dropped_evaluations)
        self.waiting = [one for one in self.waiting if one.id not in dropped]
        for held in wanted.gone:
            self.edit(held.record, client_status=ClientStatus.LOST)
        for group in wanted.groups.values():
            self._make_group_true(group)

    def _make_group_true(self, wanted: GroupWanted) -> None:
        self.waiting += wanted.follow_ups
        for entry in wanted.followed:
            self.edit(entry.held.record, followup_eval_id=entry.followup_id)
        for entry in wanted.disconnecting:
            self.edit(
                entry.held.record,
                client_status=ClientStatus.UNKNOWN,
                followup_eval_id=entry.followup_id,
                alloc_states=self._state(entry.held, "unknown"),
            )
        for held in wanted.reconnecting:
            self.edit(held.record, alloc_states=self._state(held, str(held.record.client_status)), followup_eval_id="")
        for stop in wanted.stops:
            self._stop(stop)
        for held in wanted.in_place:
            self.edit(held.record, job=self.job, deployment_id=self._deployment_id(), deployment_status=None)
        if wanted.destructive:
            self.touched.append(len(wanted.destructive) + self._undecided())
        for single in (*wanted.destructive, *wanted.special):
            self._place_single(single)
        nodes = [-1] * len(wanted.fresh) if wanted.fresh_nodes is None else wanted.fresh_nodes.tolist()
        for index, node in zip(wanted.fresh.tolist(), nodes, strict=True):
            self._place(index, self.job, node=node)

    def _undecided(self) -> int:
        current = self._deployment_id()
        return sum(
            one.deployment_id == current and not (one.deployment_status and one.deployment_status.healthy)
            for one in self.live()
        )

    def _state(self, held: Held, value: str) -> tuple[AllocState, ...]:
        return (*held.record.alloc_states, AllocState(value=value, time_ns=self.now_ns))

    def _stop(self, stop: Stop) -> None:
        one = stop.held.record
        status = stop.client_status or (one.client_status if one.is_client_terminal else ClientStatus.COMPLETE)
        is_cut_off = self.tainted.get(stop.held.node) is Taint.DISCONNECTED
        if is_cut_off and stop.client_status is None:
            status = one.client_status
        self.edit(one, desired_status=DesiredStatus.STOP, client_status=status)

    def _deployment_id(self) -> str:
        last = self.deployments[-1] if self.deployments else None
        return last.id if last is not None and last.is_active and last.job_version == self.job.version else ""

    def _place_single(self, single: Single) -> None:
        if single.stop is not None:
            self._stop(single.stop)
        job = self.job if single.job_version is None else self.versions[single.job_version]
        one = self._place(single.name_index, job, canary=single.is_canary, tracker=single.tracker, node=single.node)
        if single.previous is not None:
            self.edit(single.previous.record, next_allocation=one.id)
            self.edit(one, previous_allocation=single.previous.id)
        current = self._deployment_id()
        if single.is_canary and current:
            self._state_of_group(placed_canaries=(*self.deployments[-1].task_groups["group"].placed_canaries, one.id))

    def _place(
        self, index: int, job: Job, *, canary: bool = False, tracker: RescheduleTracker | None = None, node: int = -1
    ) -> Allocation:
        number = next(self._numbers)
        free = [node for node in range(NODES) if node not in self.tainted]
        one = alloc(
            number,
            job,
            index=index,
            node=free[number % len(free)] if node < 0 else node,
            create_index=number,
            client="running",
            canary=canary,
            deployment=self._deployment_id(),
            reschedule_tracker=tracker,
            modify_time_ns=self.now_ns,
        )
        self.records[one.id] = one
        return one

    def _state_of_group(self, **fields: Any) -> None:
        last = self.deployments[-1]
        state = replace(last.task_groups.get("group", DeploymentState()), **fields)
        self.deployments[-1] = replace(last, task_groups={**last.task_groups, "group": state})

    def report_health(self) -> bool:
        """Everything that runs in the current deployment is healthy; canaries that are get promoted."""
        current = self._deployment_id()
        if not current or self.deployments[-1].status is not DeploymentStatus.RUNNING:
            return False
        news = False
        for one in self.live():
            is_undecided = one.deployment_status is None or one.deployment_status.healthy is None
            if one.deployment_id == current and is_undecided and one.client_status is ClientStatus.RUNNING:
                self.edit(one, deployment_status=AllocDeploymentStatus(healthy=True, canary=one.is_canary))
                self._state_of_group(healthy_allocs=self.deployments[-1].task_groups["group"].healthy_allocs + 1)
                news = True
        return self._promote(current) or news

    def _promote(self, current: str) -> bool:
        state = self.deployments[-1].task_groups.get("group")
        if state is None or state.promoted or not state.desired_canaries:
            return False
        canaries = [one for one in self.live() if one.deployment_id == current and one.is_canary]
        if len([one for one in canaries if one.deployment_status and one.deployment_status.healthy]) < (
            state.desired_canaries
        ):
            return False
        for one in canaries:
            self.edit(one, deployment_status=AllocDeploymentStatus(healthy=True))
        self._state_of_group(promoted=True)
        return True

    def fail(self, one: Allocation) -> None:
        self.edit(one, client_status=ClientStatus.FAILED)

    def complete(self, one: Allocation) -> None:
        self.edit(one, client_status=ClientStatus.COMPLETE)

    def migrate(self, one: Allocation) -> None:
        self.edit(one, desired_transition=DesiredTransition(migrate=True))

    def lose_node(self, node: int) -> None:
        self.tainted[node] = Taint.DOWN

    def cut_off(self, node: int) -> None:
        self.tainted[node] = Taint.DISCONNECTED

    def bring_back(self, node: int, *, silent: bool = False) -> None:
        """The client is back and tells that its allocations run, or nothing of them."""
        taint = self.tainted.pop(node, None)
        if silent:
            return
        for one in list(self.records.values()):
            if int(one.node_id[-12:], 16) - 0x200 != node:
                continue
            if taint is Taint.DISCONNECTED and one.client_status is ClientStatus.UNKNOWN:
                is_wanted = one.desired_status is DesiredStatus.RUN
                self.edit(one, client_status=ClientStatus.RUNNING if is_wanted else ClientStatus.COMPLETE)

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)

    def names(self) -> list[int]:
        """Places of everything that is wanted and can be reached."""
        return sorted(alloc_index(one.name) for one in self.live() if one.client_status is not ClientStatus.UNKNOWN)


class SystemWorld(World):
    """The same for a system job on a handful of nodes."""

    def __init__(self, job: Job, nodes: int) -> None:
        super().__init__(job)
        self.nodes = nodes

    def candidates(self) -> list[int]:
        return [node for node in range(self.nodes) if node not in self.tainted]

    def look(self, evaluation: Evaluation | None = None) -> Wanted:
        ready, in_scope = np.zeros(self.nodes, dtype=np.bool_), np.ones(self.nodes, dtype=np.bool_)
        ready[self.candidates()] = True
        return reconcile_system(self._ground(evaluation), NodeField(ready, in_scope))

    def check(self) -> None:
        """What holds after every pass: at most one per node."""
        assert len(set(self.where())) == len(self.where())

    def where(self) -> list[int]:
        """Nodes of everything that is wanted and can be reached."""
        live = [one for one in self.live() if one.client_status is not ClientStatus.UNKNOWN]
        return sorted(int(one.node_id[-12:], 16) - 0x200 for one in live)
