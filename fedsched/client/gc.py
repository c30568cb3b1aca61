"""Removes finished allocations when room is short, when somebody asks for it, or when servers have forgotten them."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import trio

from fedsched.client.gc_core import GcCore, HostUse
from fedsched.client.settings import ClientSettings
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter, gauge

REMOVED: Final = counter("client.allocations_removed", "finished allocations removed from this host")
DISK_USE: Final = gauge("client.disk_use", "share of the disk below the allocations in use", unit="percent")
MEASURE_S: Final = 10.0
"""A file system that does not answer is asked again at the next turn."""

PAUSE_S: Final = 0.25
"""Between two looks: in a burst of short tasks something comes or ends every few milliseconds."""

QUIET_S: Final = 1.0
"""When nothing came or ended for so long, a host has time to tidy up."""
PUT_OFF_MAX_S: Final = 10.0
"""So long it may be put off, if there are too many allocations but room enough on the disk."""

Destroy = Callable[[str], Awaitable[None]]


def use_of(path: Path) -> HostUse:
    """How full the file system is that holds this directory."""
    found = os.statvfs(path)
    used, all_ = found.f_blocks - found.f_bfree, found.f_blocks - found.f_bfree + found.f_bavail
    nodes = found.f_files - found.f_ffree
    return HostUse(
        disk=100 * used / all_ if all_ else 0.0, inodes=100 * nodes / found.f_files if found.f_files else 0.0
    )


async def measure(path: Path) -> HostUse:
    """The same, without waiting for a file system that hangs."""
    return await trio.to_thread.run_sync(use_of, path, abandon_on_cancel=True)


class GarbageCollector:
    """Looks after the room on one host."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        count: Callable[[], int],
        finished: Callable[[], Mapping[str, int]],
        destroy: Destroy,
        log: Logger,
        metrics: Registry,
        measure: Callable[[Path], Awaitable[HostUse]] = measure,
    ) -> None:
        self._settings = settings
        self._core = GcCore(settings)
        self._count = count
        self._finished = finished
        self._destroy = destroy
        self._log = log
        self._measure = measure
        self._removed = metrics.counter(REMOVED)
        self._disk = metrics.gauge(DISK_USE)
        self._destroying: dict[str, trio.Event] = {}
        self._slots = trio.CapacityLimiter(settings.gc_parallel_destroys)
        self._poked = trio.Event()
        self._last_stuck = ""
        self._moved_at = -math.inf
        self._put_off_at = math.inf

    def poke(self) -> None:
        """Something came or ended: look soon."""
        self._moved_at = trio.current_time()
        self._poked.set()

    async def run(self) -> None:
        """Look every interval, and when poked, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._poked = trio.Event()
                is_put_off = await self._look(nursery)
                await trio.sleep(PAUSE_S)
                if not is_put_off:
                    with trio.move_on_after(self._settings.gc_interval_s):
                        await self._poked.wait()

    async def collect(self, alloc_id: str = "") -> int:
        """Remove one finished allocation, or all of them, now; how many it were."""
        finished = self._finished()
        chosen = [one for one in sorted(finished) if alloc_id in ("", one)]
        async with trio.open_nursery() as nursery:
            for one in chosen:
                nursery.start_soon(self.remove, one)
        return len(chosen)

    async def remove(self, alloc_id: str) -> None:
        """Remove one that is over; whoever asks for the same one waits for the same removal."""
        under_way = self._destroying.get(alloc_id)
        if under_way is not None:
            await under_way.wait()
            return
        done = self._destroying[alloc_id] = trio.Event()
        try:
            async with self._slots:
                await self._destroy(alloc_id)
            self._removed.add()
        except Exception as error:  # tried again at the next look
            self._log.exception("allocation_not_removed", error, alloc_id=alloc_id)
        finally:
            del self._destroying[alloc_id]
            done.set()
            if not self._destroying:
                self._poked.set()

    def _may_wait(self) -> bool:
        """Is this host busy with tasks that come and go? Tidying takes a fifth of what starting one does."""
        now = trio.current_time()
        if now >= self._moved_at + QUIET_S:
            self._put_off_at = math.inf
            return False
        self._put_off_at = min(self._put_off_at, now)
        return now < self._put_off_at + PUT_OFF_MAX_S

    async def _look(self, nursery: trio.Nursery) -> bool:
        """Remove what is to go. True if that was put off."""
        use = HostUse()
        try:
            with trio.move_on_after(MEASURE_S):
                use = await self._measure(self._settings.alloc_dir)
        except OSError as error:
            self._log.warn("room_not_measured", why=str(error))
        self._disk.set(use.disk)
        may_wait = self._may_wait()
        verdict = self._core.decide(use, self._count(), self._finished(), self._destroying, may_wait=may_wait)
        if verdict.is_stuck:
            if verdict.why != self._last_stuck:
                say = self._log.warn if verdict.is_warning else self._log.info
                say("nothing_to_remove", why=verdict.why)
            self._last_stuck = verdict.why
            return False
        self._last_stuck = ""
        for alloc_id in verdict.remove:
            self._log.info("allocation_removed_for_room", alloc_id=alloc_id, why=verdict.why)
            nursery.start_soon(self.remove, alloc_id)
        return may_wait
