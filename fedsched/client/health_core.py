"""Whether an allocation is healthy enough for its deployment, or for the drain that waits for it.

Healthy: every task that should run does, without a restart, and (where the job wants it) all checks pass, all of it
without a break for `min_healthy_time`. Any restart and any failing check starts that time again. Unhealthy: a task
failed or ended, or the deadline passed first. A verdict is final.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsched.client.lifecycle import Stage, stage_of
from fedsched.model.alloc import Allocation
from fedsched.model.group import TaskGroup
from fedsched.model.policies import HealthCheck
from fedsched.model.task_state import TaskState, TaskStatus
from fedsched.model.units import format_duration

LOOK_EVERY_S = 0.5
MIGRATION = "migration"
"""Stands for a deployment's id where an allocation is watched because it replaces one of a draining node."""

TASK_NOT_RUNNING = "Task not running by deadline"
CHECKS_NOT_HEALTHY = "Services not healthy by deadline"
TASK_FAILED = "Unhealthy because of failed task"
TASK_ENDED = "Unhealthy because of task that ended"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What counts as healthy."""

    stages: Mapping[str, Stage]
    min_healthy_s: float = 10.0
    deadline_s: float = 300.0
    needs_checks: bool = True


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    is_healthy: bool
    reasons: Mapping[str, str]
    """Why not, by task."""


def watched_for(alloc: Allocation) -> str:
    """What an allocation's health is wanted for now: a deployment's id, a migration, or nothing."""
    group = _group(alloc)
    if group is None or alloc.is_server_terminal or (alloc.job is not None and alloc.job.type != "service"):
        return ""
    if alloc.deployment_id:
        is_manual = group.update is not None and group.update.health_check == HealthCheck.MANUAL
        return "" if is_manual else alloc.deployment_id
    # A drain moves allocations only while enough others are known to be well, so it wants to know of all of them.
    return MIGRATION if group.migrate is not None else ""


def health_rules(alloc: Allocation) -> HealthRules:
    """What the job says about health, for the deployment or the migration that the allocation is watched for."""
    group = _group(alloc)
    assert group is not None
    stages = {task.name: stage_of(task.lifecycle) for task in group.tasks}
    policy = group.update if alloc.deployment_id else group.migrate
    if policy is None:
        return HealthRules(stages)
    return HealthRules(
        stages,
        min_healthy_s=policy.min_healthy_time_s,
        deadline_s=policy.healthy_deadline_s or math.inf,
        needs_checks=policy.health_check == HealthCheck.CHECKS,
    )


class HealthCore:
    """One watch, from its start to its verdict."""

    def __init__(self, rules: HealthRules, now: float) -> None:
        self._rules = rules
        self._deadline = now + rules.deadline_s
        self._tasks_since = math.inf
        """Since when all tasks run as they should; infinity while they do not."""
        self._checks_since = math.inf
        self._restarts: dict[str, tuple[int, int]] = {}
        self._verdict: HealthVerdict | None = None

    @property
    def next_look(self) -> float:
        """When looking again may find something new, if nothing else happens before."""
        return min(self._deadline, self._healthy_at())

    def look(self, states: Mapping[str, TaskState], *, checks_pass: bool, now: float) -> HealthVerdict | None:
        """See how the tasks and checks are now; the verdict, as soon as there is one."""
        if self._verdict is not None:
            return self._verdict
        ended = self._ended(states)
        if ended:
            return self._decide(False, ended)
        self._follow(states, checks_pass, now)
        if now >= self._healthy_at() and self._healthy_at() <= self._deadline:
            return self._decide(True, {})
        if now >= self._deadline:
            return self._decide(False, self._why_not(states))
        return None

    def _follow(self, states: Mapping[str, TaskState], checks_pass: bool, now: float) -> None:
        starts = {name: (state.restarts, state.started_at_ns) for name, state in states.items()}
        if starts != self._restarts:
            self._restarts = starts
            self._tasks_since = self._checks_since = math.inf
        if not self._all_run(states):
            self._tasks_since = math.inf
        elif self._tasks_since == math.inf:
            self._tasks_since = now
        if not checks_pass and self._rules.needs_checks:
            self._checks_since = math.inf
        elif self._checks_since == math.inf:
            self._checks_since = now

    def _healthy_at(self) -> float:
        return max(self._tasks_since, self._checks_since) + self._rules.min_healthy_s

    def _ended(self, states: Mapping[str, TaskState]) -> dict[str, str]:
        found = {}
        for name, state in states.items():
            if state.failed:
                found[name] = TASK_FAILED
            elif state.state is TaskStatus.DEAD and not self._rules.stages[name].is_one_shot:
                found[name] = TASK_ENDED
        return found

    def _all_run(self, states: Mapping[str, TaskState]) -> bool:
        return all(self._is_up(name, state) for name, state in states.items())

    def _is_up(self, name: str, state: TaskState) -> bool:
        stage = self._rules.stages[name]
        if stage is Stage.POSTSTOP:
            return True
        if stage.is_one_shot and state.is_successful:
            return True
        return state.state is TaskStatus.RUNNING

    def _why_not(self, states: Mapping[str, TaskState]) -> dict[str, str]:
        down = {name: TASK_NOT_RUNNING for name, state in states.items() if not self._is_up(name, state)}
        if down:
            return down
        live = [name for name, state in states.items() if state.state is TaskStatus.RUNNING]
        enough_s = self._rules.min_healthy_s
        are_tasks_fine = self._tasks_since + enough_s <= self._deadline
        if self._rules.needs_checks and are_tasks_fine and self._checks_since + enough_s > self._deadline:
            return dict.fromkeys(live, CHECKS_NOT_HEALTHY)
        short = f"Task not running for min_healthy_time of {format_duration(enough_s)} by deadline"
        return dict.fromkeys(live, short)

    def _decide(self, is_healthy: bool, reasons: Mapping[str, str]) -> HealthVerdict:
        self._verdict = HealthVerdict(is_healthy, reasons)
        return self._verdict


def minds_checks(alloc: Allocation) -> bool:
    """Whether there are checks that count for health, as `on_update` says."""
    group = _group(alloc)
    if group is None:
        return False
    services = [*group.services, *(service for task in group.tasks for service in task.services)]
    return any((check.on_update or service.on_update) != "ignore" for service in services for check in service.checks)


def _group(alloc: Allocation) -> TaskGroup | None:
    if alloc.job is None:
        return None
    return next((group for group in alloc.job.task_groups if group.name == alloc.task_group), None)
