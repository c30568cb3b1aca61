"""Looks at the host: everything at once at the start, what changes again and again, the drivers as they speak up."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

import trio

from fedsched.client.fingerprint.cpu import Arch, Cpu
from fedsched.client.fingerprint.found import Fingerprinter, Found, Host
from fedsched.client.fingerprint.host import (
    AgentFacts,
    Cgroups,
    HostVolumes,
    Landlock,
    Memory,
    Signals,
    Storage,
    System,
)
from fedsched.client.fingerprint.network import Network
from fedsched.client.fingerprint.picture import NO_META, Picture
from fedsched.client.identity import NodeIdentity
from fedsched.client.node_meta import Change
from fedsched.client.settings import ClientSettings
from fedsched.drivers.registry import Drivers
from fedsched.env.env import Env
from fedsched.model.node import Node
from fedsched.telemetry.log import Logger

FIND_S: Final = 10.0
"""For one look; what hangs is left to itself."""
ALL: Final[tuple[Callable[[], Fingerprinter], ...]] = (
    Arch,
    Cpu,
    Memory,
    System,
    Signals,
    Cgroups,
    Landlock,
    Network,
    Storage,
    AgentFacts,
    HostVolumes,
)
"""In the order in which later ones may overrule earlier ones."""


InThread = Callable[[Callable[[Host], Found], Host], Awaitable[Found]]


async def in_thread(find: Callable[[Host], Found], host: Host) -> Found:
    """Look without keeping the event loop waiting; a look that hangs is left to itself."""
    return await trio.to_thread.run_sync(find, host, abandon_on_cancel=True, limiter=_THREADS)


_THREADS: Final = trio.CapacityLimiter(8)


def chosen(settings: ClientSettings, makers: Iterable[Callable[[], Fingerprinter]] = ALL) -> list[Fingerprinter]:
    """Those that the operator lets look."""
    allowed, denied = settings.fingerprint_allowlist, settings.fingerprint_denylist
    looks = [make() for make in makers]
    return [one for one in looks if (not allowed or one.name in allowed) and one.name not in denied]


class FingerprintRunner:
    """Keeps the picture of this host, and says when it has changed."""

    def __init__(
        self,
        host: Host,
        identity: NodeIdentity,
        drivers: Drivers,
        *,
        env: Env,
        log: Logger,
        on_change: Callable[[Node], None],
        looks: list[Fingerprinter] | None = None,
        in_thread: InThread = in_thread,
        dynamic_meta: Change = NO_META,
    ) -> None:
        self._host = host
        self._in_thread = in_thread
        self._env = env
        self._log = log
        self._on_change = on_change
        self._drivers = drivers
        self._looks = chosen(host.settings) if looks is None else looks
        names = sorted({*drivers.names, *drivers.failed})
        self._driver_names = names
        self.picture = Picture(
            host.settings,
            identity,
            sources=[one.name for one in self._looks],
            drivers=names,
            now=env.now(),
            dynamic_meta=dynamic_meta,
        )
        self._changed = trio.Event()
        self._look_again = trio.Event()
        self.has_looked = trio.Event()
        """All looks at the host are done once."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look and listen until cancelled."""
        async with trio.open_nursery() as nursery:
            for one in self._looks:
                nursery.start_soon(self._keep_looking, one)
            for name in self._driver_names:
                nursery.start_soon(self._keep_listening, name)
            if not self._looks:
                self.has_looked.set()
            task_status.started()
            await self._keep_telling()

    def reload(self, settings: ClientSettings) -> None:
        """The operator's settings are other ones: whatever may see something else through them looks again."""
        self._host = replace(self._host, settings=settings)
        self.picture.set_settings(settings, self._env.now())
        again, self._look_again = self._look_again, trio.Event()
        again.set()
        self._changed.set()

    def set_meta(self, dynamic: Change) -> None:
        """Metadata was changed at run time."""
        self.picture.set_meta(dynamic, self._env.now())
        self._changed.set()

    async def _keep_telling(self) -> None:
        picture = self.picture
        while True:
            self._changed = trio.Event()
            node = picture.take(self._env.now())
            if node is not None:
                if not picture.is_complete:
                    self._log.warn("fingerprints_late", hint="the node is registered with what is known so far")
                self._on_change(node)
            with trio.move_on_after(max(0.0, picture.wake_at() - self._env.now())):
                await self._changed.wait()

    async def _keep_looking(self, one: Fingerprinter) -> None:
        while True:
            again = self._look_again  # of before the look: settings that change meanwhile are not missed
            self.picture.found(one.name, await self._look(one), self._env.now())
            self._changed.set()
            if self.picture.has_looked:
                self.has_looked.set()
            if not one.period_s and not one.is_reloadable:
                return
            with trio.move_on_after(one.period_s or math.inf):
                await (again if one.is_reloadable else trio.Event()).wait()

    async def _look(self, one: Fingerprinter) -> Found | None:
        try:
            with trio.fail_after(FIND_S):
                return await self._in_thread(one.find, self._host)
        except trio.TooSlowError:
            self._log.warn("fingerprint_slow", fingerprint=one.name, after_s=FIND_S)
        except Exception as error:
            self._log.exception("fingerprint_failed", error, fingerprint=one.name)
        return None

    async def _keep_listening(self, name: str) -> None:
        async for found in self._drivers.fingerprints(name):
            self.picture.driver(name, found, self._env.now(), round(self._env.wall() * 1e9))
            self._changed.set()
