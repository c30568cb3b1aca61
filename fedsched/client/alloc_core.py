"""What becomes of an allocation as a whole: which tasks may start, who takes whom along, and in which order they die.

It follows the tasks' states as they are reported, never ahead of them. A kill goes through steps: pre-kill hooks and
the group's shutdown delay, then the leader alone, then all other tasks that are neither sidecars nor poststop, then the
sidecars. Poststop tasks are not killed; their gate opens when all others are dead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fedsched.client import task_events as events
from fedsched.client.lifecycle import LifecycleCore, Stage, stage_of
from fedsched.client.task_signals import (
    FinishAsked,
    GateChanged,
    KillAsked,
    RestartAsked,
    ReviveAsked,
    SetupFailed,
    TaskInput,
)
from fedsched.model.alloc import ClientStatus, client_status_of
from fedsched.model.group import TaskGroup
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus
from fedsched.model.units import NS_PER_S, format_duration

RESTART_ALL = "User requested all tasks to restart"
RESTART_RUNNING = "User requested running tasks to restart"
RESTART_ONE = "User requested task to restart"

DESCRIPTIONS: Mapping[ClientStatus, str] = {
    ClientStatus.PENDING: "No tasks have started",
    ClientStatus.RUNNING: "Tasks are running",
    ClientStatus.COMPLETE: "All tasks have completed",
    ClientStatus.FAILED: "Failed tasks",
}


class KillStep(Enum):
    NONE = 0
    PREKILL = 1
    DELAY = 2
    LEADER = 3
    OTHERS = 4
    SIDECARS = 5


# -- effects


@dataclass(frozen=True, slots=True)
class Tell:
    """An input for one task."""

    task: str
    given: TaskInput


@dataclass(frozen=True, slots=True)
class RunAllocPrekill:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    """All tasks are dead for good: run what comes after them."""


AllocEffect = Tell | RunAllocPrekill | Finish


@dataclass(frozen=True, slots=True)
class TaskFacts:
    stage: Stage
    is_leader: bool = False


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the job says about the group as a whole; an in-place update may change it."""

    tasks: Mapping[str, TaskFacts]
    shutdown_delay_s: float = 0.0
    max_run_s: float = 0.0
    """0: as long as it likes."""
    stop_alone_s: float | None = None
    """After how long without a server the client stops it by itself."""


def group_rules(group: TaskGroup, job_type: str) -> GroupRules:
    alone_s = group.disconnect.stop_on_client_after_s if group.disconnect else None
    if alone_s is None:
        alone_s = group.stop_after_client_disconnect_s
    return GroupRules(
        tasks={task.name: TaskFacts(stage_of(task.lifecycle), task.leader) for task in group.tasks},
        shutdown_delay_s=group.shutdown_delay_s or 0.0,
        max_run_s=group.max_run_duration_s or 0.0,
        stop_alone_s=alone_s if job_type in ("service", "batch") else None,
    )


def describe(status: ClientStatus) -> str:
    return DESCRIPTIONS.get(status, "")


class AllocCore:
    """One allocation. Methods take what happened and give what is to be done."""

    def __init__(self, rules: GroupRules, states: Mapping[str, TaskState], *, is_restored: bool = False) -> None:
        self.rules = rules
        self.states = dict(states)
        self._stages = {name: facts.stage for name, facts in rules.tasks.items()}
        self._lifecycle = LifecycleCore(self._stages, is_restored=is_restored)
        self._told_open: dict[str, bool] = {}
        self._step = KillStep.NONE
        self._kill = KillAsked()
        self._delay_ends = math.inf
        self._skips_delay = False
        self._run_deadline = math.inf
        self._is_begun = False
        self._is_setup_failed = False
        self._is_finishing = False
        self._told_kill: set[str] = set()
        self.is_stopping = False
        self.stop_reason = ""
        self.skips_poststop = False

    @property
    def client_status(self) -> ClientStatus:
        return client_status_of(self.states.values())

    @property
    def is_begun(self) -> bool:
        """What comes before its tasks is done, or failed."""
        return self._is_begun

    @property
    def may_restart(self) -> bool:
        """It has begun, and nothing ends it at the moment."""
        return self._is_begun and not (self.is_stopping or self._is_finishing or self._step is not KillStep.NONE)

    @property
    def is_dead(self) -> bool:
        return all(state.state is TaskStatus.DEAD for state in self.states.values())

    def wake_at(self, last_contact: float) -> float:
        """When time itself has something to say, on the monotonic clock."""
        alone_at = math.inf
        if self.rules.stop_alone_s is not None and not (self.is_stopping or self._is_finishing):
            alone_at = last_contact + self.rules.stop_alone_s
        return min(self._delay_ends, self._run_deadline, alone_at)

    # -- inputs

    def begin(self, *, now: float, wall_ns: int, first_start_ns: int) -> list[AllocEffect]:
        """The pre-run hooks are done. `first_start_ns` is when they were done for the first time."""
        if not self._is_begun:
            self._is_begun = True
            effects = self._restored_deaths()
        else:
            effects = []
        if self.rules.max_run_s:
            ran_s = max(0.0, (wall_ns - first_start_ns) / NS_PER_S)
            self._run_deadline = now + max(0.0, self.rules.max_run_s - ran_s)
        return effects + self._next()

    def prerun_failed(self, reason: str) -> list[AllocEffect]:
        self._is_begun = self._is_setup_failed = True
        return [Tell(name, SetupFailed(reason)) for name in self.states] + self._next()

    def task_changed(self, name: str, state: TaskState) -> list[AllocEffect]:
        before = self.states[name]
        self.states[name] = state
        effects: list[AllocEffect] = []
        if before.state is not TaskStatus.DEAD and state.state is TaskStatus.DEAD:
            effects += self._died(name, state)
        return effects + self._next()

    def stop(self, reason: str = "", *, skips_delay: bool = False, skips_poststop: bool = False) -> list[AllocEffect]:
        """Everything is to end. Asking again changes nothing, except that it may skip what is being waited for."""
        self.skips_poststop = self.skips_poststop or skips_poststop
        if not self.is_stopping:
            self.is_stopping = True
            self.stop_reason = reason
        if not self._is_begun:
            # Nothing was prepared, so nothing is started any more, and nothing has to be taken down first.
            self._is_begun = self.skips_poststop = True
            self._kill = KillAsked(reason=reason)
            self._step = KillStep.LEADER
            return self._next()
        effects = self._begin_kill(KillAsked(reason=reason, skips_delay=skips_delay))
        if skips_delay:
            effects += self._skip_delay()
        return effects + self._next()

    def prekill_done(self, now: float) -> list[AllocEffect]:
        if self._step is not KillStep.PREKILL:
            return []
        self._step = KillStep.DELAY
        self._delay_ends = now if self._skips_delay else now + self.rules.shutdown_delay_s
        return self.wake(now, math.inf)

    def wake(self, now: float, last_contact: float) -> list[AllocEffect]:
        effects: list[AllocEffect] = []
        if now >= self._run_deadline:
            self._run_deadline = math.inf
            told = f"Ran for its max_run_duration of {format_duration(self.rules.max_run_s)}"
            effects += self.stop(told, skips_poststop=True)
        alone_s = self.rules.stop_alone_s
        if alone_s is not None and not self.is_stopping and now >= last_contact + alone_s:
            told = f"No server was reached for stop_on_client_after of {format_duration(alone_s)}"
            effects += self.stop(told)
        if self._step is KillStep.DELAY and now >= self._delay_ends:
            self._delay_ends = math.inf
            self._step = KillStep.LEADER
            effects += self._next()
        return effects

    def update(self, rules: GroupRules, *, now: float, wall_ns: int, first_start_ns: int) -> list[AllocEffect]:
        """The job was changed in place: other leader, delays, durations."""
        self.rules = rules
        self._run_deadline = math.inf
        if self._is_begun and not self._is_finishing:
            return self.begin(now=now, wall_ns=wall_ns, first_start_ns=first_start_ns)
        return []

    def restart(self, task: str = "") -> list[AllocEffect]:
        """Restart one task, or all that run."""
        if task:
            return [Tell(task, RestartAsked(RESTART_ONE))]
        return [
            Tell(name, RestartAsked(RESTART_RUNNING))
            for name, state in self.states.items()
            if state.state is TaskStatus.RUNNING
        ]

    def restart_all(self) -> list[AllocEffect]:
        """Begin anew with all tasks, dead or alive, from the first stage on."""
        self._lifecycle.restart()
        closed = [Tell(name, GateChanged(False)) for name in self.states]
        self._told_open = dict.fromkeys(self.states, False)
        # A dead task is alive again from this moment: nothing may be concluded from its old death.
        for name, state in self.states.items():
            if state.state is TaskStatus.DEAD:
                self.states[name] = TaskState(events=state.events, restarts=state.restarts)
        return [*closed, *(Tell(name, ReviveAsked(RESTART_ALL)) for name in self.states)]

    # -- what follows

    def _died(self, name: str, state: TaskState) -> list[AllocEffect]:
        cause = None if self._is_setup_failed else self._cause(name, state)
        if cause is None:
            return []
        return self._begin_kill(KillAsked(cause=cause))

    def _restored_deaths(self) -> list[AllocEffect]:
        """What an earlier agent may not have got round to; a leader's death comes first."""
        dead = [name for name, state in self.states.items() if state.state is TaskStatus.DEAD]
        effects: list[AllocEffect] = []
        for name in sorted(dead, key=lambda name: not self.rules.tasks[name].is_leader):
            effects += self._died(name, self.states[name])
        return effects

    def _cause(self, name: str, state: TaskState) -> TaskEvent | None:
        facts = self.rules.tasks[name]
        if facts.stage is Stage.POSTSTOP:
            return None
        if facts.is_leader:
            return events.leader_dead()
        if state.failed:
            return events.sibling_failed(name)
        live = [self._stages[other] for other in self._live()]
        if live and all(stage.is_sidecar for stage in live) and Stage.MAIN in self._stages.values():
            return events.main_dead()
        return None

    def _begin_kill(self, kill: KillAsked) -> list[AllocEffect]:
        if self._step is not KillStep.NONE or not self._live():
            return []
        self._kill = kill
        self._skips_delay = kill.skips_delay
        self._step = KillStep.PREKILL
        return [RunAllocPrekill()]

    def _skip_delay(self) -> list[AllocEffect]:
        self._skips_delay = True
        self._kill = KillAsked(self._kill.cause, self._kill.reason, self._kill.is_failure, skips_delay=True)
        if self._step is KillStep.DELAY:
            self._delay_ends = math.inf
            self._step = KillStep.LEADER
        if self._step.value <= KillStep.LEADER.value:
            return []
        return [Tell(name, self._kill) for name in self._live()]

    def _next(self) -> list[AllocEffect]:
        """Kills that are due, gates that changed, the end."""
        effects = self._kills()
        if not self._is_begun:
            return effects
        self._lifecycle.update(self.states)
        if self.skips_poststop:
            effects += self._poststop_kills()
        effects += self._gates()
        if self.is_dead and not self._is_finishing and self.states:
            self._is_finishing = True
            self._run_deadline = self._delay_ends = math.inf
            effects += [Finish(), *(Tell(name, FinishAsked()) for name in self.states)]
        return effects

    def _kills(self) -> list[AllocEffect]:
        effects: list[AllocEffect] = []
        for step, wanted in (
            (KillStep.LEADER, lambda facts: facts.is_leader),
            (KillStep.OTHERS, lambda facts: not facts.stage.is_sidecar),
            (KillStep.SIDECARS, lambda facts: facts.stage.is_sidecar),
        ):
            if self._step is not step:
                continue
            waiting = [name for name in self._live() if wanted(self.rules.tasks[name])]
            effects += [Tell(name, self._kill) for name in waiting if name not in self._told_kill]
            self._told_kill.update(waiting)
            if waiting:
                return effects
            self._step = {KillStep.LEADER: KillStep.OTHERS, KillStep.OTHERS: KillStep.SIDECARS}.get(step, KillStep.NONE)
            if self._step is KillStep.NONE:
                self._told_kill.clear()
        return effects

    def _poststop_kills(self) -> list[AllocEffect]:
        return [
            Tell(name, KillAsked(reason=self.stop_reason))
            for name, state in self.states.items()
            if self._stages[name] is Stage.POSTSTOP and state.state is TaskStatus.PENDING
        ]

    def _gates(self) -> list[AllocEffect]:
        effects: list[AllocEffect] = []
        for name in self.states:
            is_open = self._lifecycle.is_open(name)
            if self._told_open.get(name, False) is not is_open:
                self._told_open[name] = is_open
                effects.append(Tell(name, GateChanged(is_open)))
        return effects

    def _live(self) -> list[str]:
        """Tasks that are not dead, poststop ones apart."""
        return [
            name
            for name, state in self.states.items()
            if state.state is not TaskStatus.DEAD and self._stages[name] is not Stage.POSTSTOP
        ]
