"""The directories of an allocation and of its tasks: made before anything else, removed after everything else."""

from __future__ import annotations

from collections.abc import Mapping

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.hooks.hook import NO_RESULT, AllocHook, HookFailed, HookResult, TaskHook
from fedsched.client.users import task_owner
from fedsched.drivers.driver import FsIsolation
from fedsched.model.errors import FedschedError


class AllocDirHook(AllocHook):
    """Builds what the tasks share; removes everything when the allocation leaves this host.

    Secrets do not stay that long: they go when the tasks are over."""

    name = "alloc_dir"

    async def prerun(self) -> None:
        try:
            await AllocDirs(self.alloc.root).build()
        except OSError as error:
            raise HookFailed(f"the allocation's directory cannot be made: {error}") from None

    async def postrun(self) -> None:
        await AllocDirs(self.alloc.root).forget_secrets(self.alloc.tasks)

    async def destroy(self) -> None:
        await AllocDirs(self.alloc.root).destroy()


class TaskDirHook(TaskHook):
    """Builds a task's own directories, before every start: what is there is left alone, what is missing comes back."""

    name = "task_dir"

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        task = self.task
        try:
            is_memory = await AllocDirs(task.alloc.root).build_task(
                task.name,
                owner=task_owner(task),
                secrets_mb=task.task.resources.secrets_mb,
                is_open=task.driver.capabilities.fs_isolation is FsIsolation.IMAGE,
            )
        except OSError as error:
            raise HookFailed(f"the task's directory cannot be made: {error}", is_recoverable=True) from None
        except FedschedError as error:
            raise HookFailed(error.message, hint=error.hint, event="Failed Validation") from None
        if not is_memory:
            task.parts.log.debug("secrets_on_disk", task=task.name, alloc_id=task.alloc.alloc.id)
        return NO_RESULT
