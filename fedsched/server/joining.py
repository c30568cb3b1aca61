"""Runs the forming core: greets other servers until this one belongs to a region, then keeps its entry there true.

Greeting is by plain calls, to those whom the settings name and to those whom gossip has found. What gossip says is only
where to try: who is there, and whether a region is founded, is decided by the greetings alone.

A server that already has a log greets too: it may have moved to another address, and those
that are new learn from its greeting that there is a region to join.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.membership import ServerInfo
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.methods.server import (
    SERVER_HELLO,
    SERVER_JOIN,
    ServerAddress,
    ServerHello,
    ServerJoinRequest,
)
from fedsched.server.forming import FormingCore, Found, Greeting, Join, Wait
from fedsched.server.peers import PeerLinks
from fedsched.server.settings import ServerOptions
from fedsched.state.tables.meta import COMMAND_VERSION
from fedsched.telemetry.log import Logger

ROUND_S: Final = 0.25
"""Between two rounds of greetings while the region is not there yet: forming takes about three of them."""
CALL_S: Final = 2.0
HEARD_MAX: Final = 64
"""Servers remembered from greetings; far more than a region has."""


class Pool(Protocol):
    """What gossip contributes, if there is any."""

    def neighbours(self) -> Iterable[str]:
        """Addresses of servers of this region that gossip knows."""

    def gossip_address(self) -> str:
        """Where others can join us; empty if nowhere."""

    def meet(self, address: str) -> None:
        """A server of our region has its gossip here. Never waits."""


class JoinGaveUp(FedschedError):
    """Nobody let us in within the attempts that the configuration allows."""

    code = "join_gave_up"


class Joining:
    """Brings one server into its region."""

    def __init__(
        self,
        options: ServerOptions,
        me: ServerInfo,
        *,
        raft: RaftRunner,
        peers: PeerLinks,
        pool: Pool,
        log: Logger,
    ) -> None:
        self._options = options
        self._me = me
        self._raft = raft
        self._peers = peers
        self._pool = pool
        self._log = log
        self._core = FormingCore(self._greeting(frozenset()))
        self._known: dict[str, str] = {}
        self._said = ""
        self._refused = ""

    async def run(self) -> None:
        """Greet until we are in; then make sure that the region knows our address."""
        attempts = 0
        while not self._belongs():
            await self._greet_all()
            await self._decide()
            attempts += 1
            limit = self._options.join_attempts_max
            if limit and attempts * ROUND_S >= limit * self._options.join_interval_s:
                raise JoinGaveUp(
                    f"no region to join after {limit} attempts: {self._said}",
                    hint="check server_join.retry_join and that those servers are up",
                )
            await trio.sleep(ROUND_S)
        await self._correct_address()

    def hear(self, hello: ServerHello) -> ServerHello:
        """Another server greets us: take note, and answer with our own greeting."""
        now = trio.current_time()
        refused = self._core.heard(_greeting_of(hello), now)
        if refused and refused != self._refused:
            self._refused = refused
            self._log.warn("greeting_refused", why=refused)
        for other in hello.others[:HEARD_MAX]:
            self._note(other.id, other.address)
        self._note(hello.id, hello.address)
        if hello.gossip and hello.region == self._options.region and hello.id != self._me.id:
            self._pool.meet(hello.gossip)
        return self.hello()

    def hello(self) -> ServerHello:
        now = trio.current_time()
        return ServerHello(
            id=self._me.id,
            name=self._me.name,
            address=self._me.address,
            region=self._options.region,
            bootstrap_expect=self._options.bootstrap_expect,
            has_log=self._has_log,
            cluster_id=self._raft.transport.cluster_id if self._has_log else "",
            seen=tuple(sorted(self._core.seen(now))),
            others=tuple(ServerAddress(id=o.id, name=o.name, address=o.address) for o in self._core.others(now)),
            version_max=COMMAND_VERSION,
            gossip=self._pool.gossip_address(),
        )

    @property
    def _has_log(self) -> bool:
        return self._raft.core.log.last > 0 or self._raft.core.snapshot is not None

    def _belongs(self) -> bool:
        """Whether the newest config we know has us in it."""
        return self._raft.core.config.server(self._me.id) is not None

    def _note(self, server_id: str, address: str) -> None:
        if server_id != self._me.id and address and len(self._known) < HEARD_MAX:
            self._known[address] = server_id

    async def _greet_all(self) -> None:
        found = sorted(self._pool.neighbours())[:HEARD_MAX]
        addresses = {a for a in (*self._options.join, *self._known, *found) if a != self._me.address}
        async with trio.open_nursery() as nursery:
            for address in sorted(addresses):
                nursery.start_soon(self.greet, address)

    async def greet(self, address: str) -> ServerHello | None:
        """Tell whoever is there who we are; what it says of itself, or None if nobody answers."""
        try:
            with trio.fail_after(CALL_S):
                caller = await self._peers.caller_at(address)
                reply, _ = await caller.call(SERVER_HELLO, self.hello())
            self.hear(reply)
            return reply
        except (FedschedError, trio.TooSlowError) as weather:
            self._log.debug("greeting_failed", address=address, why=str(weather))
            return None

    async def _decide(self) -> None:
        if self._belongs():
            return
        match self._core.decide(trio.current_time()):
            case Found(config=config, cluster_id=cluster_id):
                await self._raft.join_cluster(cluster_id)
                await trio.lowlevel.checkpoint_if_cancelled()  # told to stop meanwhile: the log is closed already
                if self._raft.bootstrap(config):
                    names = ", ".join(server.name for server in config.servers)
                    self._log.info("region_founded", region=self._options.region, servers=names)
            case Join(through=through):
                await self._ask_in(through)
            case Wait(why=why, is_refusal=is_refusal):
                if why != self._said:
                    self._said = why
                    say = self._log.warn if is_refusal else self._log.info
                    say("region_refused" if is_refusal else "waiting_for_region", why=why)

    async def _ask_in(self, through: ServerInfo) -> None:
        try:
            with trio.fail_after(2 * CALL_S):
                caller = await self._peers.caller_at(through.address)
                await caller.call(SERVER_JOIN, self._join_request())
            self._log.info("joined_region", region=self._options.region, through=through.name)
        except (FedschedError, trio.TooSlowError) as why:
            if str(why) != self._said:
                self._said = str(why)
                self._log.info("not_let_in_yet", through=through.name, why=str(why))

    async def _correct_address(self) -> None:
        """Tell the region where we are now, if that is not what the config says."""
        while self._raft.core.config.server(self._me.id) not in (None, self._me):
            for address in self._whom_to_tell():
                try:
                    with trio.fail_after(CALL_S):
                        caller = await self._peers.caller_at(address)
                        await caller.call(SERVER_JOIN, self._join_request())
                        break
                except (FedschedError, trio.TooSlowError) as weather:
                    self._log.debug("address_not_told", through=address, why=str(weather))
            await trio.sleep(self._options.join_interval_s)

    def _whom_to_tell(self) -> list[str]:
        """Whom we were told to join, whom gossip knows, whom the config knows; ourselves if there is nobody else."""
        others = [server.address for server in self._raft.core.config.servers if server.id != self._me.id]
        addresses = dict.fromkeys([*self._options.join, *sorted(self._pool.neighbours())[:HEARD_MAX], *others])
        addresses.pop(self._me.address, None)
        return list(addresses) if others else [self._me.address]

    def _join_request(self) -> ServerJoinRequest:
        return ServerJoinRequest(
            id=self._me.id, name=self._me.name, address=self._me.address, version_max=COMMAND_VERSION
        )

    def _greeting(self, seen: frozenset[str]) -> Greeting:
        return Greeting(
            id=self._me.id,
            name=self._me.name,
            address=self._me.address,
            region=self._options.region,
            bootstrap_expect=self._options.bootstrap_expect,
            cluster_id="",
            seen=seen,
        )


def _greeting_of(hello: ServerHello) -> Greeting:
    return Greeting(
        id=hello.id,
        name=hello.name,
        address=hello.address,
        region=hello.region,
        bootstrap_expect=hello.bootstrap_expect,
        cluster_id=hello.cluster_id,
        seen=frozenset(hello.seen),
    )
