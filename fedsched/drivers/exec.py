"""The exec driver: a command of the task's own, alone in a root of its own, with few rights and limited resources.

How that is done is in `drivers.isolation`; here is only what a job and an operator may say, and whether this host can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsched.drivers.cgroups import CgroupMode
from fedsched.drivers.driver import Capabilities, DriverError, DriverFingerprint, FsIsolation, Health, TaskConfig
from fedsched.drivers.isolation import kernel
from fedsched.drivers.isolation.plan import Bind, IsolationPlan, find_command
from fedsched.drivers.isolation.probe import why_not
from fedsched.drivers.isolation.settings import AGENT_SCHEMA, IsolationSettings
from fedsched.drivers.process_driver import LaunchPlan, ProcessDriver
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.schemas import EXEC_SCHEMA


class IsolatingDriver(ProcessDriver):
    """Base of drivers whose tasks are isolated: what is the same whatever they run."""

    isolates = True
    capabilities = Capabilities(fs_isolation=FsIsolation.CHROOT, takes_host_env=True)

    def __init__(self, host: DriverHost, **parts: Any) -> None:
        super().__init__(host, **parts)
        self.isolation = IsolationSettings.read(
            host.settings, chroot_env=host.chroot_env, denied_users=tuple(host.denied_users)
        )
        self._obstacle: str | None = None
        """What keeps this host from isolating tasks; None while that is not known."""

    async def obstacle(self) -> str:
        """The reason why no task can be isolated here, or nothing. A host that could once is not tried again."""
        if self._obstacle != "":
            self._obstacle = await self._find_obstacle()
        return self._obstacle

    async def _find_obstacle(self) -> str:
        if self.cgroups.mode is CgroupMode.NONE and not self.isolation.is_rootless:
            return f"no cgroups to limit tasks with: {self.cgroups.reason}"
        found = await why_not(self.host.state_dir, pivots=self.isolation.pivots, is_rootless=self.isolation.is_rootless)
        if found and self.isolation.is_rootless:
            return f"the agent is not root, and without root: {found}"
        return found

    def found(self, attributes: Mapping[str, str]) -> DriverFingerprint:
        """That it works, and how well."""
        prefix = f"driver.{self.name}"
        named = {
            prefix: "1",
            f"{prefix}.cgroups": self.cgroups.mode.value,
            f"{prefix}.seccomp": str(self.isolation.filters_system_calls).lower(),
            f"{prefix}.landlock": str(kernel.landlock_version() if self.isolation.uses_landlock else 0),
            f"{prefix}.rootless": str(self.isolation.is_rootless).lower(),
            **attributes,
        }
        limits = "" if self.cgroups.mode is not CgroupMode.NONE else f"; tasks have no limits: {self.cgroups.reason}"
        return DriverFingerprint(Health.HEALTHY, f"Healthy{limits}", named)

    async def isolated(self, config: TaskConfig, *, extra: tuple[Bind, ...] = ()) -> IsolationPlan:
        """How one task is isolated; raises `DriverError` for what it may not have, or if this host cannot."""
        obstacle = await self.obstacle()
        if obstacle:
            raise DriverError(f"{self.name} cannot isolate tasks here: {obstacle}")
        return self.isolation.plan(config, extra=extra)

    def launch_plan(self, config: TaskConfig, argv: tuple[str, ...], isolation: IsolationPlan) -> LaunchPlan:
        """The same for the supervisor."""
        for text in argv:
            if "\0" in text:
                raise DriverError(f"argument {text!r:.80} holds a zero byte")
        return LaunchPlan(argv=argv, cwd="/", env=config.env, isolation=isolation.encode())


class ExecDriver(IsolatingDriver):
    """Runs isolated commands."""

    name = "exec"
    task_schema = EXEC_SCHEMA

    async def detect(self) -> DriverFingerprint:
        """Whether this host can isolate tasks: tried for real."""
        obstacle = await self.obstacle()
        return DriverFingerprint(Health.UNDETECTED, obstacle) if obstacle else self.found({})

    async def plan(self, config: TaskConfig) -> LaunchPlan:
        """As the task says, after everything in it was checked."""
        isolation = await self.isolated(config)
        command = find_command(str(config.config.get("command") or ""), config, isolation.system)
        return self.launch_plan(config, (command, *map(str, config.config.get("args") or ())), isolation)


def make_driver(host: DriverHost) -> ExecDriver:
    """For the registry."""
    return ExecDriver(host)


make_driver.settings_schema = AGENT_SCHEMA  # type: ignore[attr-defined]
