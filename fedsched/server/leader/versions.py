"""Turns on newer commands once every server of the region understands them.

A server that does not know a command would have to stop when it meets one. So the leader asks everybody, voters and
learners alike, up to which version they know, and proposes the newest that all of them share. It never goes back. The
region's name is entered into the state in the same manner, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.methods.server import SERVER_HELLO, ServerHello
from fedsched.server.desk import Desk
from fedsched.state.tables.meta import COMMAND_VERSION, ClusterBegin, EnableVersion

ASK_EVERY_S: Final = 5.0
ASK_S: Final = 2.0


def version_to_enable(enabled: int, known_by_all: Iterable[int | None]) -> int | None:
    """The version to propose next, given what each server knows (None: it did not say); None for nothing to do."""
    known = list(known_by_all)
    if not known or None in known:
        return None
    shared = min(version for version in known if version is not None)
    return shared if shared > enabled else None


class VersionService:
    """A leader's duty; costs nothing once everything this code knows is enabled."""

    def __init__(self, desk: Desk, newest: int = COMMAND_VERSION) -> None:
        self._desk = desk
        self._newest = newest

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self._name_region()
                if await self._enable_newer():
                    return
            except FedschedError as weather:
                self._desk.log.info("versions_not_settled", why=str(weather))
            await trio.sleep(ASK_EVERY_S)

    async def _name_region(self) -> None:
        if not self._desk.machine.store.meta.cluster_id:
            await self._desk.proposals.propose(
                ClusterBegin(cluster_id=self._desk.raft.transport.cluster_id), is_essential=True
            )

    async def _enable_newer(self) -> bool:
        """One round of asking; True when there is nothing left to enable."""
        enabled = self._desk.machine.store.meta.enabled_version
        if enabled >= self._newest:
            return True
        others = [server for server in self._desk.raft.core.config.servers if server.id != self._desk.me.id]
        known = [await self._ask(server) for server in others]
        version = version_to_enable(enabled, [self._newest, *known])
        if version is not None:
            await self._desk.proposals.propose(EnableVersion(version=version), is_essential=True)
            self._desk.log.info("commands_enabled", version=version)
        return self._desk.machine.store.meta.enabled_version >= self._newest

    async def _ask(self, server: ServerInfo) -> int | None:
        me = self._desk.me
        hello = ServerHello(id=me.id, name=me.name, address=me.address, region=self._desk.region)
        try:
            with trio.fail_after(ASK_S):
                caller = await self._desk.peers.caller(server)
                reply, _ = await caller.call(SERVER_HELLO, hello)
        except (FedschedError, trio.TooSlowError):
            return None
        return reply.version_max
