"""What operators say about isolation, and the plan that follows from it for one task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.drivers.driver import DriverError, TaskConfig
from fedsched.drivers.isolation.capabilities import DEFAULT, parse, task_capabilities
from fedsched.drivers.isolation.plan import CHROOT_ENV, Bind, IsolationPlan, network_binds, system_binds, task_binds
from fedsched.drivers.isolation.probe import own_user
from fedsched.drivers.isolation.users import DENIED_USERS, DeniedUsers, TaskUser, find_user, parse_ranges
from fedsched.drivers.task_schema import Field, Kind, TaskSchema

MODES: Final = ("private", "host")

AGENT_FIELDS: Final[Mapping[str, Field]] = {
    "no_pivot_root": Field(Kind.BOOL, doc="use chroot, where the host's root is a ramdisk; weaker"),
    "default_pid_mode": Field(Kind.TEXT, doc="private (default) or host: whose processes tasks see"),
    "default_ipc_mode": Field(Kind.TEXT, doc="private (default) or host: whose shared memory tasks see"),
    "allow_caps": Field(Kind.TEXTS, doc="capabilities that tasks may have at most"),
    "denied_host_uids": Field(Kind.TEXT, doc='ranges of uids refused to tasks: "0,100-200"'),
    "denied_host_gids": Field(Kind.TEXT, doc="ranges of gids refused to tasks"),
    "seccomp": Field(Kind.BOOL, doc="refuse dangerous system calls (default true)"),
    "landlock": Field(Kind.BOOL, doc="have the kernel's Landlock check writes too (default false)"),
}

AGENT_SCHEMA: Final = TaskSchema(AGENT_FIELDS)


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """An operator's choices for one driver."""

    pivots: bool = True
    pid_mode: str = "private"
    ipc_mode: str = "private"
    allowed_capabilities: frozenset[str] = DEFAULT
    denied: DeniedUsers = field(default_factory=DeniedUsers)
    chroot_env: Mapping[str, str] = field(default_factory=lambda: CHROOT_ENV)
    filters_system_calls: bool = True
    uses_landlock: bool = False
    is_rootless: bool = field(default_factory=lambda: os.geteuid() != 0)

    @classmethod
    def read(
        cls,
        given: Mapping[str, Any],
        *,
        chroot_env: Mapping[str, str] | None = None,
        denied_users: tuple[str, ...] = DENIED_USERS,
    ) -> IsolationSettings:
        """Read what `AGENT_SCHEMA` has checked; raises for words that mean nothing."""
        seen = chroot_env or CHROOT_ENV
        system_binds(seen)  # a place that cannot be is refused now, and not at every start
        return cls(
            pivots=not _bool(given.get("no_pivot_root", False)),
            pid_mode=_mode("default_pid_mode", given.get("default_pid_mode")) or "private",
            ipc_mode=_mode("default_ipc_mode", given.get("default_ipc_mode")) or "private",
            allowed_capabilities=parse(given["allow_caps"]) if "allow_caps" in given else DEFAULT,
            denied=DeniedUsers(
                names=denied_users,
                uids=parse_ranges(str(given.get("denied_host_uids", ""))),
                gids=parse_ranges(str(given.get("denied_host_gids", ""))),
            ),
            chroot_env=seen,
            filters_system_calls=_bool(given.get("seccomp", True)),
            uses_landlock=_bool(given.get("landlock", False)),
        )

    def plan(self, config: TaskConfig, *, extra: tuple[Bind, ...] = ()) -> IsolationPlan:
        """How one task is isolated. Raises `DriverError` for what its job may not have here."""
        told = config.config
        capabilities = task_capabilities(
            self.allowed_capabilities, told.get("cap_add") or (), told.get("cap_drop") or ()
        )
        system = (*system_binds(self.chroot_env), *extra)
        return IsolationPlan(
            root=config.dirs.task,
            user=self.user(config.user),
            capabilities=capabilities,
            system=system,
            binds=(*task_binds(config), *network_binds(config, system)),
            has_own_pids=(_mode("pid_mode", told.get("pid_mode")) or self.pid_mode) == "private",
            has_own_ipc=(_mode("ipc_mode", told.get("ipc_mode")) or self.ipc_mode) == "private",
            network_namespace=config.network_namespace,
            hostname=config.hostname,
            pivots=self.pivots,
            work_dir=_work_dir(told.get("work_dir") or "/"),
            filters_system_calls=self.filters_system_calls,
            uses_landlock=self.uses_landlock,
            is_rootless=self.is_rootless,
        )

    def user(self, written: str) -> TaskUser:
        """Who the task runs as, unless that is refused."""
        if not self.is_rootless:
            user = find_user(written)
            self.denied.check(user)
            return user
        own = own_user()
        if written and find_user(written).uid != own.uid:
            raise DriverError(
                f"this agent does not run as root, so tasks cannot run as {written}", hint="leave the task's `user` out"
            )
        return own


def _mode(name: str, value: Any) -> str:
    if value not in (None, "", *MODES):
        raise DriverError(f"{name} = {value!r:.40} is not a mode", hint=f"it is one of {', '.join(MODES)}")
    return str(value or "")


def _work_dir(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise DriverError(f"work_dir {path!r:.120} is not absolute", hint="write it as the task sees it: /local/app")
    return path


def _bool(value: Any) -> bool:
    return value in (True, "true", "1", 1)
