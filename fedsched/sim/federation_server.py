"""A server of a simulated federation: that of `fleet_server`, with the real way in and the real way out.

Calls go through the real dispatch, forwarding, router, directory and links; the real `Wan` feeds the directory from the
real gossip core. Raft stays the region's one log; followers know who leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from fedsched.federation.directory import Directory
from fedsched.federation.rollout_core import RolloutSettings
from fedsched.gossip.runner import GossipRunner
from fedsched.raft.errors import NoQuorumRead
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import RoleChange
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods.server import SERVER_HELLO, ServerHello
from fedsched.rpc.methods.status import STATUS_CLOCK, ClockReply
from fedsched.rpc.relay import hop_of
from fedsched.rpc.server_side import CallContext, CallServer, Handler
from fedsched.server.dispatch import Dispatch
from fedsched.server.endpoints.job import JobEndpoint
from fedsched.server.endpoints.rollout import RolloutEndpoint
from fedsched.server.endpoints.rollout_part import RolloutPartEndpoint
from fedsched.server.forwarding import Forwarding
from fedsched.server.identity import SERVER
from fedsched.server.leader.rollouts import RolloutsService
from fedsched.server.leader.versions import VersionService
from fedsched.server.multiregion_jobs import MultiregionJobs
from fedsched.server.node_calls import NodeCalls
from fedsched.server.peers import SERVER_LIMITS, PeerLinks
from fedsched.server.region_calls import RegionCalls
from fedsched.server.settings import GossipOptions, ServerOptions
from fedsched.server.waits import StateWaits
from fedsched.server.wan import Wan
from fedsched.sim import trio_seed
from fedsched.sim.federation_gossip import PoolHost, PoolMember
from fedsched.sim.federation_links import Host, WireDialer
from fedsched.sim.fleet_log import FleetLog, LogRaft
from fedsched.sim.fleet_server import FleetServer
from fedsched.state.tables import meta
from fedsched.wire.link import Link
from fedsched.wire.stream import StreamCarrier

if TYPE_CHECKING:
    from fedsched.sim.federation_region import FederationRegion

ABROAD: Final = "abroad"
"""The group of everything that has to do with other regions."""
TICK_S: Final = 0.05
HOLD_S: Final = 5.0
PATIENT: Final = RolloutSettings(prepare_s=6.0, call_s=8.0, watch_s=0.0, retry_max_s=4.0, afterwards_max_s=6.0)
"""Shorter than in production, so that a rollout is over within the time that healing is given."""


class RegionRaft(LogRaft):
    """One server's Raft as dispatch, forwarding and gossip see it."""

    def __init__(self, name: str, log: FleetLog, machine: Any, applied: int, region: FederationRegion) -> None:
        super().__init__(name, log, machine, applied)
        self.servers = region.infos
        self.version = region.versions[name]
        """Which commands the code of this server knows."""
        self._region = region
        config = SimpleNamespace(servers=region.infos, server=self._server)
        self.core = SimpleNamespace(config=config, status=self._status)
        self.settings = SimpleNamespace(tick_s=TICK_S)
        self.transport = SimpleNamespace(cluster_id=f"cluster-{region.region}")

    @property
    def applier(self) -> Any:
        return SimpleNamespace(applied=self.applied)

    @property
    def is_established(self) -> bool:
        return self.is_leader

    async def read_barrier(self) -> None:
        """Ask the leader for its index, and apply up to there."""
        region = self._region
        leader = region.leader
        await trio.sleep(region.commit_s / 2)
        if leader is None or region.leader is not leader or region.is_frozen:
            raise NoQuorumRead("there is no leader that a majority follows")
        await self.wait_applied(self._log.committed)

    def apply(self, upto: int, looked_at: Any) -> None:
        before = meta.COMMAND_VERSION
        vars(meta)["COMMAND_VERSION"] = self.version  # what this server's code would say
        try:
            super().apply(upto, looked_at)
        finally:
            vars(meta)["COMMAND_VERSION"] = before

    def _server(self, server_id: str) -> ServerInfo | None:
        return next((one for one in self.servers if one.id == server_id), None)

    def _status(self) -> Any:
        return SimpleNamespace(term=self.role.term, leader_contact_ticks=0)


class FederationServer(FleetServer):
    """One life of one server of one region."""

    def __init__(
        self, region: FederationRegion, name: str, life: int, image: Sequence[bytes] = (), applied: int = 0
    ) -> None:
        self.home = region
        self.host: Host = region.federation.wires.hosts[f"{name}-{region.region}"]
        self.pool_host: PoolHost = region.federation.pool_hosts[self.host.name]
        super().__init__(region, name, life, image, applied)
        self._stand_in_the_world()

    def make_raft(self, applied: int) -> LogRaft:
        return RegionRaft(self.name, self.home.log, self.machine, applied, self.home)

    def means(self) -> dict[str, Any]:
        self.me = next(one for one in self.home.infos if one.id == self.name_abroad)
        self.peers = PeerLinks(
            WireDialer(self.home.federation.wires, self.host.name), server_id=self.me.id, log=self.log
        )
        return {"me": self.me, "peers": self.peers}

    def _stand_behind(self) -> None:
        """Beside what a region needs for itself: its part in jobs of several regions."""
        super()._stand_behind()
        desk = self.desk
        calls = RegionCalls(self.home.region, lambda: self.directory, self._ask)
        self.rollouts = RolloutsService(desk, calls, PATIENT)
        multiregion = MultiregionJobs(desk, calls)
        self.services.insert(-2, self.rollouts)
        self.jobs = JobEndpoint(desk, multiregion=multiregion)
        self.driven = RolloutEndpoint(desk, self.rollouts, multiregion, calls)
        self.parts = RolloutPartEndpoint(desk, heard=self.rollouts.heard, hold_s=HOLD_S)

    async def _ask(self, method: Method[Any, Any], request: Any, meta: CallMeta) -> Any:
        reply, _ = await self.local.call(method, request, meta)
        return reply

    @property
    def name_abroad(self) -> str:
        return self.host.name

    def _stand_in_the_world(self) -> None:
        desk, region = self.desk, self.home.region
        raft = cast(RaftRunner, self.raft)
        self.services.append(VersionService(desk, newest=self.home.versions[self.name]))
        self.directory = Directory(region)
        self.forwarding = Forwarding(
            self.directory,
            me=hop_of(self.me.name, region),
            server_id=self.me.id,
            peers=self.peers,
            env=self.env,
            log=self.log,
            metrics=self.metrics,
        )
        options = ServerOptions(
            name=self.me.name, region=region, datacenter="dc1", data_dir=Path("/nowhere"), bootstrap_expect=3
        )
        self.wan = Wan(
            options,
            GossipOptions(),
            self.me,
            self.directory,
            raft,
            peers=self.peers,
            env=self.env,
            log=self.log,
            metrics=self.metrics,
        )
        member = PoolMember(
            self.home.federation.pool,
            self.pool_host,
            self.wan._member,
            self.wan._event,
            lambda one, round_trip_s: self.directory.round_trip_seen(one.id, round_trip_s),
        )
        self.wan.gossip = cast(GossipRunner, member)
        self.forwarding.on_failure = member.look_at
        self.waits = StateWaits(self.machine, self.env.rng("blocking-query"))
        self.dispatch = Dispatch(
            region=region,
            me=lambda: self.me,
            raft=raft,
            state_index=lambda: int(self.machine.store.index),
            peers=self.peers,
            waits=self.waits,
            looks={**self.jobs.looks(), **self.driven.looks()},
            nodes=NodeCalls(desk, self.no_uplinks()),
            forwarding=self.forwarding,
            env=self.env,
            log=self.log,
        )
        handlers: dict[Method[Any, Any], Handler] = {
            **self.jobs.handlers(),
            **self.extras.handlers(),
            **self.deployments.handlers(),
            **self.driven.handlers(),
            **self.parts.handlers(),
            SERVER_HELLO: self._hello,
            STATUS_CLOCK: self._clock,
        }
        self.calls = CallServer(handlers, policy=self.dispatch, metrics=self.metrics)
        self.local = LocalCaller(self.calls, identity=SERVER)

    async def _hello(self, request: ServerHello, context: CallContext) -> ServerHello:
        version = self.home.versions[self.name]
        return ServerHello(
            id=self.me.id, name=self.me.name, address=self.me.address, region=self.home.region, version_max=version
        )

    async def _clock(self, request: Empty, context: CallContext) -> ClockReply:
        return ClockReply(wall_s=self.env.wall())

    # ------------------------------------------------------------------ living

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._work)
                nursery.start_soon(self._follow)
                await nursery.start(self.peers.run)
                nursery.start_soon(self.dispatch.run)
                trio_seed.GROUP.set(ABROAD)
                nursery.start_soon(self.wan.run)
                self.host.accept = self._accept
                await trio.sleep_forever()

    def lead(self, term: int, epoch: int) -> None:
        super().lead(term, epoch)
        self.raft.role = replace(self.raft.role, leader=self.me.id)

    def follow(self, term: int, leader_id: str | None) -> None:
        """Hear who leads now, or that nobody does."""
        self.raft.become(RoleChange("follower", term, leader_id, self.raft.role.epoch))

    def _accept(self, caller: str, stream: trio.abc.Stream) -> None:
        async def admit(_: Any) -> Any:
            return SERVER

        link = Link(
            StreamCarrier(stream, caller), is_opener=False, handler=self.calls, authenticate=admit, limits=SERVER_LIMITS
        )
        self._nursery.start_soon(link.run)
