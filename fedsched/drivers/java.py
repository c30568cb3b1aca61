"""The java driver: a class or a jar on the host's Java runtime, isolated as `exec` tasks are."""

from __future__ import annotations

from typing import Any

from fedsched.drivers.driver import DriverError, DriverFingerprint, Health, TaskConfig
from fedsched.drivers.exec import IsolatingDriver
from fedsched.drivers.isolation.plan import system_binds
from fedsched.drivers.isolation.settings import AGENT_SCHEMA
from fedsched.drivers.java_runtime import JavaRuntime, find_java, java_argv, locate_java
from fedsched.drivers.process_driver import LaunchPlan
from fedsched.drivers.registry import DriverHost
from fedsched.drivers.schemas import JAVA_SCHEMA


class JavaDriver(IsolatingDriver):
    """Runs isolated Java programs."""

    name = "java"
    task_schema = JAVA_SCHEMA

    def __init__(self, host: DriverHost, *, search: str | None = None, **parts: Any) -> None:
        super().__init__(host, **parts)
        self._search = search
        self._java: JavaRuntime | None = None

    async def detect(self) -> DriverFingerprint:
        """Whether there is a java, and whether its programs can be isolated."""
        try:
            java = await self._runtime()
        except DriverError as error:
            return DriverFingerprint(Health.UNDETECTED, str(error))
        obstacle = await self.obstacle()
        if obstacle:
            return DriverFingerprint(Health.UNDETECTED, obstacle)
        return self.found(
            {
                "driver.java.version": java.version,
                "driver.java.runtime": java.runtime,
                "driver.java.vm": java.vm,
            }
        )

    async def plan(self, config: TaskConfig) -> LaunchPlan:
        """As the task says, after everything in it was checked."""
        java = await self._runtime()
        argv = java_argv(java.path, config.config)
        extra = java.binds(system_binds(self.isolation.chroot_env))
        return self.launch_plan(config, tuple(argv), await self.isolated(config, extra=extra))

    async def _runtime(self) -> JavaRuntime:
        """The java of this host; asked again only when another one has come into PATH."""
        path = locate_java(self._search)
        if self._java is None or self._java.path != path:
            self._java = await find_java(self._search)
        return self._java


def make_driver(host: DriverHost) -> JavaDriver:
    """For the registry."""
    return JavaDriver(host)


make_driver.settings_schema = AGENT_SCHEMA  # type: ignore[attr-defined]
