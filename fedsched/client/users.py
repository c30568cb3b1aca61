"""Which user of the host a task's files belong to, and who may not be one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import HookFailed
from fedsched.client.paths import Owner
from fedsched.drivers.driver import DriverError, FsIsolation
from fedsched.drivers.isolation.users import DEFAULT_USER, DeniedUsers, find_user, parse_ranges

INVALID: Final = "Failed Validation"


def task_owner(task: TaskContext) -> Owner | None:
    """The user that a task's files are handed to; None if they stay the agent's.

    A driver with an image runs as users that only the image knows. A chroot's task is `nobody` unless it says
    otherwise. Anything else runs as the agent's own user, unless the job names one.
    """
    if task.driver.capabilities.fs_isolation is FsIsolation.IMAGE or os.geteuid() != 0:
        return None
    user = wanted_user(task)
    if not user and task.driver.capabilities.fs_isolation is FsIsolation.CHROOT:
        user = DEFAULT_USER
    if not user:
        return None
    with _invalid():
        found = find_user(user)
    return Owner(found.uid, found.gid)


def has_own_user(task: TaskContext) -> bool:
    """Whether the task is to have a user that exists for it alone."""
    return not task.task.user and task.driver.capabilities.dynamic_workload_users and os.geteuid() == 0


def wanted_user(task: TaskContext) -> str:
    """The user that the job names, which most do not, or the one that exists for this task alone."""
    user = task.task.user or task.dynamic_user
    return (task.environment().text(user) if "${" in user else user).strip()


def refuse_denied(task: TaskContext) -> None:
    """`HookFailed` if the operator does not let this driver's tasks be this user. By number, too: `0` is root.

    A range that cannot be read denies the task: a slip in a denylist must not open it.
    """
    settings, driver = task.parts.settings, task.driver.name
    user = wanted_user(task)
    if not user or task.driver.capabilities.fs_isolation is FsIsolation.IMAGE:
        return
    own = settings.driver_settings(driver)
    with _invalid():
        DeniedUsers(
            names=settings.user_denylist if driver in settings.user_checked_drivers else (),
            uids=parse_ranges(own.get("denied_host_uids") or ""),
            gids=parse_ranges(own.get("denied_host_gids") or ""),
        ).check(find_user(user))


@contextmanager
def _invalid() -> Iterator[None]:
    try:
        yield
    except DriverError as error:
        raise HookFailed(error.message, hint=error.hint, event=INVALID) from None
