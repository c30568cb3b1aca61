"""Runs the reconciling core while this server leads: on news of members, and once a minute without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.caller import Caller
from fedsched.rpc.methods.server import SERVER_JOIN, ServerHello, ServerJoinRequest
from fedsched.server.desk import Desk
from fedsched.server.joining import Joining
from fedsched.server.leader.reconcile_core import Correct, Deed, Invite, ReconcileCore, Seen, verdicts

CALL_S = 5.0


class Pool(Protocol):
    """The servers of this region, as gossip has them."""

    def own_servers(self) -> Iterable[Seen]: ...

    def forgotten(self) -> Iterable[str]:
        """Ids of those that were dropped for having been gone for long."""

    @property
    def news_count(self) -> int: ...

    async def wait_news(self, after: int) -> None:
        """Until more has been heard than so many pieces."""


class ReconcileService:
    """Keeps the server set in line with gossip for as long as it is in office."""

    def __init__(
        self, desk: Desk, joining: Joining, pool: Callable[[], Pool | None], caller: Callable[[], Caller]
    ) -> None:
        """`caller` asks this server."""
        self._desk = desk
        self._joining = joining
        self._pool = pool
        self._caller = caller
        self._warned: set[str] = set()

    def verdicts(self) -> dict[str, str]:
        """Members of the set that are gone, as autopilot wants to know it."""
        pool, raft = self._pool(), self._desk.raft
        if pool is None:
            return {}
        config, links = raft.core.config, raft.transport.links_up()
        return verdicts(trio.current_time(), config, links, pool.own_servers(), pool.forgotten())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        pool, raft = self._pool(), self._desk.raft
        if pool is None:
            return
        core = ReconcileCore(self._desk.me.id)
        while True:
            count = pool.news_count
            links = raft.transport.links_up()
            for deed in core.decide(trio.current_time(), raft.core.config, links, pool.own_servers()):
                await self._do(deed)
            with trio.move_on_after(core.wait_s()):
                await pool.wait_news(count)

    async def _do(self, deed: Deed) -> None:
        """Ask the server who it is; what gossip says of it is not enough to change the set."""
        server = deed.server
        hello = await self._joining.greet(server.address)
        if hello is None:
            return
        if hello.id != server.id or hello.region != self._desk.region:
            self._warn(server, f"at {server.address} is {hello.name} of {hello.region}, id {hello.id}")
            return
        match deed:
            case Invite(may_return=may_return):
                if not hello.cluster_id:
                    return  # it has heard from us now, and asks to be let in by itself
                if hello.cluster_id != self._desk.raft.transport.cluster_id:
                    self._warn(server, f"it belongs to another region of this name, cluster {hello.cluster_id}")
                elif may_return:
                    await self._enter(hello, "server_returned")
            case Correct():
                await self._enter(hello, "server_found_again")

    async def _enter(self, hello: ServerHello, event: str) -> None:
        request = ServerJoinRequest(id=hello.id, name=hello.name, address=hello.address, version_max=hello.version_max)
        try:
            with trio.fail_after(CALL_S):
                await self._caller().call(SERVER_JOIN, request)
        except (FedschedError, trio.TooSlowError) as why:
            self._desk.log.info("server_not_entered", server=hello.name, why=str(why) or "too slow")
        else:
            self._desk.log.info(event, server=hello.name, server_id=hello.id, address=hello.address)

    def _warn(self, server: ServerInfo, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            self._desk.log.warn("server_not_invited", server=server.name, server_id=server.id, why=why)
