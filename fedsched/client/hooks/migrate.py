"""What came before: waiting for the allocations that this one replaces or pushes out, and taking over their disk.

Both are done once. A file in the allocation's directory says so: an agent that comes back to running tasks must not
wait for anybody before it takes care of them again.
"""

from __future__ import annotations

from typing import Final

import trio

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import Servers
from fedsched.client.disk_transfer import TransferFailed, fetch_disk
from fedsched.client.hooks.hook import AllocHook
from fedsched.client.paths import write_file_beneath
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.errors import FedschedError, NotFound
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.alloc import ALLOC_GET, AllocRequest

AGAIN_S: Final = 5.0
QUESTION_S: Final = 300.0
"""How long one question to the servers may stay open; then it is asked again."""


class _OnceHook(AllocHook):
    """Does its work once in the life of the allocation."""

    @property
    def is_idle(self) -> bool:
        return not self.is_wanted

    async def prerun(self) -> None:
        if not self.is_wanted or (self.alloc.root / self._mark).exists():
            return
        await self.do()
        write_file_beneath(self.alloc.root, self._mark, b"", makes_directories=False)

    @property
    def _mark(self) -> str:
        return f".{self.name}-done"

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything before this allocation; mostly there is not."""
        return bool(self.alloc.alloc.previous_allocation or self.alloc.alloc.preempted_allocations)

    async def do(self) -> None:
        """The work."""
        raise NotImplementedError


class UpstreamHook(_OnceHook):
    """Waits until the allocation before this one, and those that it pushes out, have ended."""

    name = "upstream_allocs"

    async def do(self) -> None:
        alloc = self.alloc.alloc
        for before in filter(None, (alloc.previous_allocation, *alloc.preempted_allocations)):
            local = self.alloc.parts.other_alloc(before)
            if local is not None:
                await local.terminal.wait()
            else:
                await wait_elsewhere(self.alloc.parts.servers, before, alloc.namespace)


class DiskMigrationHook(_OnceHook):
    """Takes over the ephemeral disk: by exchange on the same host, from another host as an archive.

    Without the disk an allocation starts empty: that is what it must be ready for anyway when a host is lost.
    """

    name = "migrate_disk"

    async def do(self) -> None:
        alloc, disk = self.alloc.alloc, self.alloc.group.ephemeral_disk
        if not disk.sticky or not alloc.previous_allocation:
            return
        tasks = [task.name for task in self.alloc.group.tasks]
        local = self.alloc.parts.other_alloc(alloc.previous_allocation)
        log = self.alloc.parts.log
        try:
            if local is not None:
                dirs = AllocDirs(self.alloc.root)
                await dirs.build_lasting(tasks)
                taken = await dirs.take_over(local.root, tasks)
                log.info("disk_taken_over", alloc_id=alloc.id, previous=alloc.previous_allocation, directories=taken)
            elif disk.migrate:
                await fetch_disk(self.alloc, alloc.previous_allocation, tasks)
                log.info("disk_migrated", alloc_id=alloc.id, previous=alloc.previous_allocation)
        except (OSError, TransferFailed, FedschedError) as error:
            log.warn("disk_not_taken_over", alloc_id=alloc.id, previous=alloc.previous_allocation, error=str(error))


async def wait_elsewhere(servers: Servers, alloc_id: str, namespace: str) -> Allocation | None:
    """Wait until servers say that an allocation has ended, or cannot say how it is; None if they do not know it."""
    index = 0
    while True:
        meta = CallMeta(namespace=namespace, stale=True, min_index=index, max_wait_s=QUESTION_S)
        try:
            caller = await servers.caller()
            reply, told = await caller.call(ALLOC_GET, AllocRequest(alloc_id=alloc_id), meta)
        except NotFound:
            return None
        except FedschedError:
            await trio.sleep(AGAIN_S)
            continue
        # `unknown`: its host is cut off, and this one was made to stand in for it.
        if reply.alloc.is_client_terminal or reply.alloc.client_status is ClientStatus.UNKNOWN:
            return reply.alloc
        index = told.index
