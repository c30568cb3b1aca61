"""What a hook is: one concern around a task or an allocation, done before it runs and undone after.

Hooks run in the order of the lists in `hooks.order`. Every hook may be run again for the same allocation, because the
agent may have been killed anywhere: what is there already is left alone. Anything that a hook has to remember goes into
its result's `state` and is handed to it again, also after a restart of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fedsched.client.context import AllocContext, TaskContext
from fedsched.drivers.driver import ExitResult, Mount
from fedsched.model.errors import FedschedError


class HookFailed(FedschedError):
    """The task cannot start like this; `is_recoverable` says whether its restart policy applies."""

    code = "hook_failed"

    def __init__(self, message: str, *, hint: str = "", is_recoverable: bool = False, event: str = "") -> None:
        super().__init__(message, hint=hint)
        self.is_recoverable = is_recoverable
        self.event = event
        """The type of the event it is told by; empty: `Task hook failed`, or `Setup Failure` for an allocation."""


@dataclass(frozen=True, slots=True)
class HookResult:
    """What a prestart hook adds to its task."""

    env: Mapping[str, str] = field(default_factory=dict)
    template_env: Mapping[str, str] = field(default_factory=dict)
    """Beats everything else (spec of precedence: computed < task env < hooks < templates)."""
    mounts: tuple[Mount, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)
    is_done: bool = False
    """Not to be run again before the next start of this task, nor after a restart of the agent."""


NO_RESULT = HookResult()


class TaskHook:
    """Base of hooks around one task; a hook overrides what it needs. One object per task."""

    name: ClassVar[str]

    def __init__(self, task: TaskContext) -> None:
        self.task = task

    @property
    def is_idle(self) -> bool:
        """The job gives it nothing to do and never did: it is not called. An in-place update may change that."""
        return False

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        """Before every start. `state` is what it returned the last time. May raise `HookFailed`."""
        return NO_RESULT

    async def poststart(self) -> None:
        """The task runs."""

    async def prekill(self) -> None:
        """The task will be killed, after its shutdown delay."""

    async def exited(self, result: ExitResult) -> None:
        """The task ended; it may be started again."""

    async def update(self) -> None:
        """The allocation was changed in place: `task.task` and `task.alloc` are the new ones."""

    async def run(self) -> None:
        """In the background from the first prestart until the task is over for good; cancelled then."""

    async def stop(self) -> None:
        """The task is over for good. Also after a restart of the agent, if it was not done before."""


class AllocHook:
    """Base of hooks around an allocation. One object per allocation."""

    name: ClassVar[str]

    def __init__(self, alloc: AllocContext) -> None:
        self.alloc = alloc

    @property
    def is_idle(self) -> bool:
        """The job gives it nothing to do and never did: it is not called, but for `destroy`. See `TaskHook.is_idle`."""
        return False

    async def prerun(self) -> None:
        """Before any task. May raise `HookFailed`: no task starts then."""

    async def prekill(self) -> None:
        """Tasks will be killed, after the group's shutdown delay."""

    async def update(self) -> None:
        """The allocation was changed in place."""

    async def run(self) -> None:
        """In the background from `prerun` on until all tasks are over; cancelled then."""

    async def postrun(self) -> None:
        """All tasks are over. In reverse order."""

    async def destroy(self) -> None:
        """The allocation is being removed from this host. In reverse order."""


def overrides(kind: type[TaskHook | AllocHook], method: str) -> bool:
    """Whether this kind of hook does anything there: most do not, and a call that does nothing still costs a scope."""
    base = TaskHook if issubclass(kind, TaskHook) else AllocHook
    return getattr(kind, method) is not getattr(base, method)
