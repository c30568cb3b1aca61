"""Which tasks of an allocation may start now: prestart before main, poststart after it, poststop at the very end.

The table, read with the states of all tasks:

    init       leaves when all tasks are pending                          nothing is open
    prestart   ... every one-shot succeeded and every sidecar runs        prestart
    main       ... no main task is pending any more                       prestart sidecars, main
    poststart  ... every one-shot poststart task is dead                  prestart sidecars, main, poststart
    wait       ... all but poststop are dead                              prestart sidecars, main, poststart sidecars
    poststop   the end                                                    poststop

From any state, "all but poststop are dead" leads to poststop: it also runs after failures and after a stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from fedsched.model.resources import TaskLifecycle
from fedsched.model.task_state import TaskState, TaskStatus


class Stage(Enum):
    """What a task is for, by its `lifecycle` block."""

    PRESTART = "prestart"
    PRESTART_SIDECAR = "prestart sidecar"
    MAIN = "main"
    POSTSTART = "poststart"
    POSTSTART_SIDECAR = "poststart sidecar"
    POSTSTOP = "poststop"

    @property
    def is_sidecar(self) -> bool:
        return self in (Stage.PRESTART_SIDECAR, Stage.POSTSTART_SIDECAR)

    @property
    def is_one_shot(self) -> bool:
        """It is expected to end by itself before the allocation does."""
        return self in (Stage.PRESTART, Stage.POSTSTART, Stage.POSTSTOP)


def stage_of(lifecycle: TaskLifecycle | None) -> Stage:
    if lifecycle is None or not lifecycle.hook:
        return Stage.MAIN
    if lifecycle.hook == "prestart":
        return Stage.PRESTART_SIDECAR if lifecycle.sidecar else Stage.PRESTART
    if lifecycle.hook == "poststart":
        return Stage.POSTSTART_SIDECAR if lifecycle.sidecar else Stage.POSTSTART
    return Stage.POSTSTOP


class Period(Enum):
    """How far an allocation has come."""

    INIT = "init"
    PRESTART = "prestart"
    MAIN = "main"
    POSTSTART = "poststart"
    WAIT = "wait"
    POSTSTOP = "poststop"


GATES: Mapping[Period, frozenset[Stage]] = {
    Period.INIT: frozenset(),
    Period.PRESTART: frozenset({Stage.PRESTART, Stage.PRESTART_SIDECAR}),
    Period.MAIN: frozenset({Stage.PRESTART_SIDECAR, Stage.MAIN}),
    Period.POSTSTART: frozenset(
        {Stage.PRESTART_SIDECAR, Stage.MAIN, Stage.POSTSTART, Stage.POSTSTART_SIDECAR},
    ),
    Period.WAIT: frozenset({Stage.PRESTART_SIDECAR, Stage.MAIN, Stage.POSTSTART_SIDECAR}),
    Period.POSTSTOP: frozenset({Stage.POSTSTOP}),
}


class LifecycleCore:
    """Follows the tasks of one allocation through the table."""

    def __init__(self, stages: Mapping[str, Stage], *, is_restored: bool = False) -> None:
        self._stages = dict(stages)
        # A restored allocation may have tasks that are no longer pending; it finds its place from there.
        self.period = Period.PRESTART if is_restored else Period.INIT

    @property
    def open_stages(self) -> frozenset[Stage]:
        return GATES[self.period]

    def is_open(self, task: str) -> bool:
        return self._stages[task] in self.open_stages

    def update(self, states: Mapping[str, TaskState]) -> bool:
        """Move on as far as the tasks' states allow; whether that changed anything."""
        before = self.period
        while (after := self._next(states)) is not self.period:
            self.period = after
        return self.period is not before

    def restart(self) -> None:
        """All tasks begin anew; none may start until all of them are pending."""
        self.period = Period.INIT

    def _next(self, states: Mapping[str, TaskState]) -> Period:
        if self._all_but_poststop_dead(states):
            return Period.POSTSTOP
        match self.period:
            case Period.INIT if all(state.state is TaskStatus.PENDING for state in states.values()):
                return Period.PRESTART
            case Period.PRESTART if self._is_prepared(states):
                return Period.MAIN
            case Period.MAIN if all(state.state is not TaskStatus.PENDING for state in self._of(states, Stage.MAIN)):
                return Period.POSTSTART
            case Period.POSTSTART if all(state.state is TaskStatus.DEAD for state in self._of(states, Stage.POSTSTART)):
                return Period.WAIT
            case unchanged:
                return unchanged

    def _is_prepared(self, states: Mapping[str, TaskState]) -> bool:
        return all(state.is_successful for state in self._of(states, Stage.PRESTART)) and all(
            state.state is TaskStatus.RUNNING for state in self._of(states, Stage.PRESTART_SIDECAR)
        )

    def _all_but_poststop_dead(self, states: Mapping[str, TaskState]) -> bool:
        return all(
            state.state is TaskStatus.DEAD for name, state in states.items() if self._stages[name] is not Stage.POSTSTOP
        )

    def _of(self, states: Mapping[str, TaskState], stage: Stage) -> list[TaskState]:
        return [state for name, state in states.items() if self._stages[name] is stage]
