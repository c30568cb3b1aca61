"""What a node says about its engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineRefused
from fedsched.drivers.driver import DriverError, DriverFingerprint, Health

PERIOD_S: Final = 30.0


class Fingerprints:
    """Looks at the engine again and again. Detected once, it stays detected: afterwards it is only unhealthy."""

    def __init__(self, name: str, engine: Engine, settings: DockerSettings) -> None:
        self._name = name
        self._engine = engine
        self._settings = settings
        self._was_there = False

    async def watch(self) -> AsyncIterator[DriverFingerprint]:
        last: DriverFingerprint | None = None
        while True:
            found = await self.look()
            if found != last:
                yield found
            last = found
            await trio.sleep(PERIOD_S)

    async def look(self) -> DriverFingerprint:
        try:
            attributes = await self._attributes()
        except DriverError as error:
            health = Health.UNHEALTHY if self._was_there else Health.UNDETECTED
            return DriverFingerprint(health, f"no answer from the engine: {error.message}")
        self._was_there = True
        return DriverFingerprint(Health.HEALTHY, "Healthy", attributes)

    async def _attributes(self) -> dict[str, str]:
        version = await self._engine.version()
        info = await self._engine.info()
        start = f"driver.{self._name}"
        found = {
            start: "1",
            f"{start}.version": version.version,
            f"{start}.privileged.enabled": _word(self._settings.allows_privileged),
            f"{start}.volumes.enabled": _word(self._settings.allows_host_volumes),
            f"{start}.os_type": info.os_type or version.os,
            f"{start}.runtimes": ",".join(sorted(info.runtimes or ())),
            f"{start}.bridge_ip": await self._bridge_ip(),
            f"{start}.pids.limit": str(self._settings.pids_limit) if self._settings.pids_limit else "",
        }
        return {name: value for name, value in found.items() if value}

    async def _bridge_ip(self) -> str:
        try:
            return (await self._engine.network("bridge")).gateway
        except EngineRefused:
            return ""


def _word(value: bool) -> str:
    return "true" if value else "false"
