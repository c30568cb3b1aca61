"""The raw_exec driver: a command on the host, with the agent's own rights and nothing between. Off unless enabled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from fedsched.drivers.cgroups import CgroupMode, TaskGroup
from fedsched.drivers.driver import Capabilities, DriverError, DriverFingerprint, FsIsolation, Health, TaskConfig
from fedsched.drivers.isolation.users import DeniedUsers, TaskUser, find_user, parse_ranges
from fedsched.drivers.process_driver import LaunchPlan, ProcessDriver
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.schemas import RAW_EXEC_SCHEMA
from fedsched.drivers.supervisor.child import DEFAULT_PATH
from fedsched.drivers.task_schema import Field, Kind, TaskSchema

OOM_SCORE_MAX: Final = 1000

RAW_EXEC_AGENT_SCHEMA: Final = TaskSchema(
    {
        "enabled": Field(Kind.BOOL),
        "denied_host_uids": Field(Kind.TEXT, doc="Users no task may run as, such as `0,100-200`."),
        "denied_host_gids": Field(Kind.TEXT, doc="Groups no task may run as."),
        "denied_envvars": Field(Kind.TEXTS, doc="Names of the agent's variables no task sees; `*` stands for any."),
    }
)


class RawExecDriver(ProcessDriver):
    """Runs commands with no isolation at all."""

    name = "raw_exec"
    capabilities = Capabilities(fs_isolation=FsIsolation.NONE, takes_host_env=True)
    task_schema = RAW_EXEC_SCHEMA

    def __init__(self, host: DriverHost, **parts: Any) -> None:
        super().__init__(host, **parts)
        settings = host.settings
        self._denied_envvars = tuple(settings.get("denied_envvars") or ())
        self._denied = DeniedUsers(
            names=tuple(host.denied_users),
            uids=parse_ranges(settings.get("denied_host_uids") or ""),
            gids=parse_ranges(settings.get("denied_host_gids") or ""),
        )

    async def detect(self) -> DriverFingerprint:
        """It runs wherever we do."""
        cgroups = self.cgroups
        limits = "" if cgroups.mode is not CgroupMode.NONE else f"; tasks have no limits: {cgroups.reason}"
        return DriverFingerprint(Health.HEALTHY, f"Healthy{limits}", {"driver.raw_exec": "1"})

    async def plan(self, config: TaskConfig) -> LaunchPlan:
        """As the task says, after everything in it was checked."""
        settings = config.config
        work_dir = str(settings.get("work_dir") or config.dirs.task)
        if not os.path.isabs(work_dir):
            raise DriverError(f"work_dir {work_dir!r:.200} is not absolute", hint="begin it with /")
        env = self._env(config.env, settings.get("denied_envvars") or ())
        command = find_command(str(settings.get("command") or ""), config, env)
        uid, gid, groups = self._user(config.user)
        return LaunchPlan(
            argv=(command, *map(str, settings.get("args") or ())),
            cwd=work_dir,
            env=env,
            uid=uid,
            gid=gid,
            groups=groups,
            oom_score_adj=_oom_score(settings.get("oom_score_adj")),
            group=self._override(settings),
        )

    def _env(self, env: Mapping[str, str], denied: Iterable[str]) -> dict[str, str]:
        """Without what came from the agent's own environment and is denied; what the job itself says stays."""
        patterns = (*self._denied_envvars, *map(str, denied))
        if not patterns:
            return dict(env)

        def is_denied(name: str, value: str) -> bool:
            return os.environ.get(name) == value and any(fnmatchcase(name, pattern) for pattern in patterns)

        return {name: value for name, value in env.items() if not is_denied(name, value)}

    def _user(self, written: str) -> tuple[int | None, int | None, tuple[int, ...] | None]:
        user = find_user(written) if written else self._own_user
        self._denied.check(user)
        if not written or (user.uid, user.gid) == (os.geteuid(), os.getegid()):
            return None, None, None
        if os.geteuid() != 0:
            raise DriverError(
                f"the task wants to run as {written!r:.60}, and this agent is not root",
                hint="leave `user` out, or run the agent as root",
            )
        return user.uid, user.gid, tuple(os.getgrouplist(user.name, user.gid)) if not user.name.isdigit() else ()

    @cached_property
    def _own_user(self) -> TaskUser:
        """Whoever runs the agent: looked up once, a look-up reads files."""
        return find_user(str(os.geteuid()))

    def _override(self, settings: Mapping[str, Any]) -> TaskGroup | None:
        v1, v2 = settings.get("cgroup_v1_override"), settings.get("cgroup_v2_override")
        if v1 and v2:
            raise DriverError("cgroup_v1_override and cgroup_v2_override exclude each other")
        if v2 and self.cgroups.mode is not CgroupMode.V2:
            raise DriverError(f"cgroup_v2_override needs cgroups v2, and this host has {self.cgroups.mode.value}")
        if v1 and self.cgroups.mode is not CgroupMode.V1:
            raise DriverError(f"cgroup_v1_override needs cgroups v1, and this host has {self.cgroups.mode.value}")
        if not v1 and not v2:
            return None
        tables = v1 if isinstance(v1, (list, tuple)) else [v1 or {"": v2}]
        return self.cgroups.override({str(key): str(value) for table in tables for key, value in table.items()})


def find_command(command: str, config: TaskConfig, env: Mapping[str, str]) -> str:
    """The executable that is meant: in `local/`, in the task's directory, a path of the host, or in PATH."""
    if not command.strip():
        raise DriverError("the task has no command", hint="set config.command")
    if "\0" in command:
        raise DriverError(f"command {command!r:.80} is no path")
    if not os.path.isabs(command):
        for folder in (config.dirs.local, config.dirs.task):
            path = os.path.join(folder, command)
            if os.path.isfile(path):
                return path
    elif os.path.isfile(command):
        return command
    else:
        raise DriverError(
            f"there is no {command!r:.200} on this host", hint="an absolute command is a path of the host"
        )
    found = shutil.which(command, path=env.get("PATH", DEFAULT_PATH))
    if found is None or not os.path.isabs(found):
        raise DriverError(
            f"command {command!r:.200} was found neither in the task's directories nor in PATH",
            hint=f"PATH is {env.get('PATH', DEFAULT_PATH)}",
        )
    return found


def _oom_score(value: object) -> int:
    number = int(str(value or 0))
    if not 0 <= number <= OOM_SCORE_MAX:
        raise DriverError(f"oom_score_adj = {number} is not within 0 to {OOM_SCORE_MAX}")
    return number


def make_driver(host: DriverHost) -> RawExecDriver:
    """For the registry."""
    return RawExecDriver(host)


make_driver.settings_schema = RAW_EXEC_AGENT_SCHEMA  # type: ignore[attr-defined]
