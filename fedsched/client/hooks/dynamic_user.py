"""A user of its own for a task whose driver wants one, and that names none."""

from __future__ import annotations

from collections.abc import Mapping

from fedsched.client.dynamic_users import HOOK, UID
from fedsched.client.hooks.hook import HookFailed, HookResult, TaskHook
from fedsched.client.users import has_own_user
from fedsched.model.errors import Unavailable


class DynamicUserHook(TaskHook):
    """Takes a number before the task's directories are made, so that they belong to it."""

    name = HOOK

    @property
    def is_idle(self) -> bool:
        return not has_own_user(self.task)

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        task = self.task
        try:
            uid = task.parts.users.take(self._key)
        except Unavailable as error:
            raise HookFailed(error.message, hint=error.hint, is_recoverable=True) from None
        task.dynamic_user = str(uid)
        return HookResult(state={UID: str(uid)})

    async def stop(self) -> None:
        self.task.parts.users.free(self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return self.task.alloc.alloc.id, self.task.name
