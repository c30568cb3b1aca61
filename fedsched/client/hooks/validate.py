"""Whether a task can be started at all as it is written: its driver's settings and its user."""

from __future__ import annotations

from collections.abc import Mapping

from fedsched.client.hooks.hook import NO_RESULT, HookFailed, HookResult, TaskHook
from fedsched.client.users import refuse_denied
from fedsched.drivers.driver import DriverError

PROBLEMS_MAX = 5


class ValidateHook(TaskHook):
    """Refuses what servers could not see: values that only this host knows, and what its operator denies.

    The driver is asked for again: it may have been switched off since the allocation was placed here.
    """

    name = "validate"

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        task = self.task
        if task.task_id:
            return NO_RESULT  # an agent came back to it: what runs is not judged again
        try:
            task.parts.drivers(task.task.driver)
        except DriverError as error:
            raise _invalid(error.message, error.hint) from None
        refuse_denied(task)
        config = task.environment().config(task.task.config)
        problems = task.driver.task_schema.problems(config)
        if problems:
            more = f"; and {len(problems) - PROBLEMS_MAX} more" if len(problems) > PROBLEMS_MAX else ""
            raise _invalid("; ".join(problems[:PROBLEMS_MAX]) + more, f"settings of the driver {task.driver.name!r}")
        return NO_RESULT


def _invalid(message: str, hint: str) -> HookFailed:
    return HookFailed(message, hint=hint, event="Failed Validation")
