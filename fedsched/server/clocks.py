"""Compares this server's clock with those of others, over the links that servers have anyway."""

from __future__ import annotations

from typing import Final

import trio

from fedsched.env.env import Env
from fedsched.federation.clock_core import Clocks, skew_of
from fedsched.federation.directory import SKEW_MAX_S, Directory, Server
from fedsched.model.errors import FedschedError
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.status import STATUS_CLOCK
from fedsched.server.peers import PeerLinks
from fedsched.telemetry.log import Logger

LOOK_S: Final = 1.0
CALL_S: Final = 3.0


class ClockWatch:
    """Tells the directory how far other clocks are from ours, and the log when that is too far."""

    def __init__(self, directory: Directory, server_id: str, *, peers: PeerLinks, env: Env, log: Logger) -> None:
        self._directory = directory
        self._core = Clocks(server_id)
        self._peers = peers
        self._env = env
        self._log = log
        self._warned: frozenset[str] = frozenset()

    async def run(self) -> None:
        while True:
            directory = self._directory
            servers = [one for region in directory.all_regions() for one in directory.servers(region)]
            async with trio.open_nursery() as nursery:
                for server in self._core.due(servers, trio.current_time()):
                    nursery.start_soon(self._compare, server)
            await trio.sleep(LOOK_S)

    async def _compare(self, server: Server) -> None:
        try:
            with trio.fail_after(CALL_S):
                caller = await self._peers.caller_at(server.rpc, server.region)
                before = self._env.wall()
                reply, _ = await caller.call(STATUS_CLOCK, Empty())
        except (FedschedError, trio.TooSlowError) as weather:
            self._log.debug("clock_not_compared", server=server.name, why=str(weather))
            return
        skew_s = skew_of(reply.wall_s, before, self._env.wall())
        if skew_s is None:
            return
        self._directory.skew_seen(server.id, skew_s)
        if abs(skew_s) <= SKEW_MAX_S:
            self._warned -= {server.id}
        elif server.id not in self._warned:
            self._warned |= {server.id}
            self._log.warn(
                "clocks_differ",
                server=server.name,
                ahead_s=round(skew_s, 3),
                hint="deadlines and expiry times are compared between servers: have both follow the same time source",
            )
