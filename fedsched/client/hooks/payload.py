"""The payload of a dispatched job, as a file of the tasks that want it."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from fedsched.client.hooks.hook import NO_RESULT, HookFailed, HookResult, TaskHook
from fedsched.client.paths import PathEscapes, directory, write_file_beneath
from fedsched.client.users import task_owner

MODE = 0o644


class PayloadHook(TaskHook):
    """Writes the payload to `local/<file>`: readable for all in the task, owned by its user.

    Payloads are stored as they were sent. Written before every start, because a task may have changed its copy, but not
    under a task that an agent came back to.
    """

    name = "dispatch_payload"

    @property
    def is_idle(self) -> bool:
        return self.task.task.dispatch_payload is None

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        wanted = self.task.task.dispatch_payload
        payload = self.task.alloc.job.payload
        if wanted is None or not wanted.file or not payload or self.task.task_id:
            return NO_RESULT
        owner = task_owner(self.task)

        def write() -> None:
            # `local` is reached from outside of what the task sees: it may be a symlink by now.
            with directory(self.task.dirs.alloc, f"{self.task.name}/local", follow=False) as local:
                write_file_beneath(local, wanted.file, payload, MODE, owner)

        try:
            await trio.to_thread.run_sync(write)
        except PathEscapes as error:
            raise HookFailed(f"dispatch payload: {error.message}", hint="name a file below local/") from None
        except OSError as error:
            raise HookFailed(f"dispatch payload {wanted.file[:200]!r}: {error.strerror}", is_recoverable=True) from None
        return NO_RESULT
