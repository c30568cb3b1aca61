"""The directories of an allocation and of its tasks: made before anything else, removed after everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedsched.client.alloc_dirs import SECRETS_MB, AllocDirs, TaskPlan
from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import NO_RESULT, AllocHook, HookFailed, HookResult, TaskHook
from fedsched.client.users import has_own_user, task_owner
from fedsched.drivers.driver import FsIsolation
from fedsched.model.errors import FedschedError


class AllocDirHook(AllocHook):
    """Builds what the tasks share; removes everything when the allocation leaves this host.

    Secrets do not stay that long: they go when the tasks are over."""

    name = "alloc_dir"

    async def prerun(self) -> None:
        try:
            made = await AllocDirs(self.alloc.root, self.alloc.parts.disk).build(self._plans())
        except OSError as error:
            raise HookFailed(f"the allocation's directory cannot be made: {error}") from None
        self.alloc.fresh_tasks |= made

    def _plans(self) -> Iterator[TaskPlan]:
        """Tasks whose directories can be made right away, with those of the allocation."""
        for task in self.alloc.tasks.values():
            if has_own_user(task):
                continue  # whose they are is known when the task is about to start
            try:
                yield TaskPlan(task.name, **_terms(task))
            except FedschedError:
                continue  # told when the task is about to start

    async def postrun(self) -> None:
        await AllocDirs(self.alloc.root, self.alloc.parts.disk).forget_secrets(self.alloc.tasks)

    async def destroy(self) -> None:
        await AllocDirs(self.alloc.root, self.alloc.parts.disk).destroy()


class TaskDirHook(TaskHook):
    """Builds a task's own directories, before every start: what is there is left alone, what is missing comes back.

    Before the first start they have just been made together with the allocation's.
    """

    name = "task_dir"

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        task = self.task
        if task.name in task.alloc.fresh_tasks:
            task.alloc.fresh_tasks.discard(task.name)
            return NO_RESULT
        try:
            is_memory = await AllocDirs(task.alloc.root, task.parts.disk).build_task(task.name, **_terms(task))
        except OSError as error:
            raise HookFailed(f"the task's directory cannot be made: {error}", is_recoverable=True) from None
        except FedschedError as error:
            raise HookFailed(error.message, hint=error.hint, event="Failed Validation") from None
        if not is_memory:
            task.parts.log.debug("secrets_on_disk", task=task.name, alloc_id=task.alloc.alloc.id)
        return NO_RESULT


def _terms(task: TaskContext) -> dict[str, Any]:
    """Whose a task's directories are, and how much memory its secrets may take."""
    return {
        "owner": task_owner(task),
        "secrets_mb": task.task.resources.secrets_mb or SECRETS_MB,
        "is_open": task.driver.capabilities.fs_isolation is FsIsolation.IMAGE,
    }
