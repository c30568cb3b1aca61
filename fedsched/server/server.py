"""One server of a region: owns its data directory, its Raft, its port, and what runs on them.

Start order: disk, state, port (so that the address is known), Raft, the rest. Stop order is the reverse, and a leader
hands over first, so that a planned stop costs the region no election time-out.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import trio

from fedsched.env.env import Env
from fedsched.federation.directory import Directory
from fedsched.gossip.keyring_file import FILE as KEYRING_FILE
from fedsched.gossip.keyring_file import load_ring
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.region import ServerMember
from fedsched.raft.assemble import OpenedDisk, load_snapshot, make_runner, open_disk
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.datadir import open_data_dir
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import SnapshotMeta, SnapshotOffer
from fedsched.raft.runner import SLOW_DISK_S, Office, RaftRunner, RunnerSettings
from fedsched.raft.settings import CoreSettings
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.method import Method
from fedsched.rpc.methods.node import NODE_REPORTS, NodeReportsReply, NodeReportsRequest
from fedsched.rpc.methods.raft import RAFT_SNAPSHOT_CHUNKS, SnapshotChunksRequest
from fedsched.rpc.methods.server import SERVER_LEAVE, ServerLeaveRequest
from fedsched.rpc.relay import hop_of
from fedsched.rpc.server_side import CallServer, Handler
from fedsched.scheduler.registry import schedulers_of
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.server.around import Around
from fedsched.server.desk import Desk
from fedsched.server.dialling import Dialer
from fedsched.server.dispatch import Dispatch
from fedsched.server.door import ServerDoor
from fedsched.server.dry_runs import DryRuns
from fedsched.server.endpoints.agent import AgentEndpoint, AgentFacts
from fedsched.server.endpoints.evaluation import EvaluationEndpoint
from fedsched.server.endpoints.gossip import GossipEndpoint
from fedsched.server.endpoints.job import JobEndpoint
from fedsched.server.endpoints.raft import RaftEndpoint
from fedsched.server.endpoints.scheduling import SchedulingEndpoint
from fedsched.server.endpoints.server import ServerEndpoint
from fedsched.server.endpoints.snapshot import SnapshotEndpoint
from fedsched.server.fleet_feed import FleetFeed
from fedsched.server.forwarding import Forwarding
from fedsched.server.identity import SERVER
from fedsched.server.joining import Joining
from fedsched.server.leader.autopilot import AutopilotService
from fedsched.server.leader.broker import BrokerService
from fedsched.server.leader.office import LeaderService, hold_office
from fedsched.server.leader.plan_apply import PlanApplier
from fedsched.server.leader.reconcile import ReconcileService
from fedsched.server.leader.versions import VersionService
from fedsched.server.leader.work import LeaderWork
from fedsched.server.machine import StateMachine
from fedsched.server.members import Members, Self
from fedsched.server.node_calls import NodeCalls
from fedsched.server.peers import PeerLinks
from fedsched.server.proposals import Proposals
from fedsched.server.raft_metrics import watch_raft
from fedsched.server.region_calls import RegionCalls
from fedsched.server.served_types import ServedTypes
from fedsched.server.settings import GossipOptions, ServerOptions
from fedsched.server.waits import StateWaits
from fedsched.server.wan import Wan, place_text
from fedsched.server.warming import warm_up
from fedsched.server.work_source import LeaderElsewhere, OwnOffice, WorkSource
from fedsched.server.workers import Workers
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry
from fedsched.wire.address import split_host_port
from fedsched.wire.limits import ByteBudget
from fedsched.wire.stream import Preamble

TICK_S = 0.05
HAND_OVER_S = 2.0


class Endpoint(Protocol):
    """The handlers of one noun."""

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        """What it answers."""


class Server:
    """A running server. `calls` answers everything that may be asked of it."""

    def __init__(
        self,
        options: ServerOptions,
        *,
        env: Env,
        log: Logger,
        metrics: Registry,
        facts: AgentFacts | None = None,
        schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
    ) -> None:
        self.options = options
        self._env = env
        self._log = log
        self._metrics = metrics
        self._facts = facts or AgentFacts(name=options.name, region=options.region, datacenter=options.datacenter)
        self._schedulers = schedulers_of(options.enabled_schedulers, schedulers)
        self.machine: StateMachine
        self.budget = ByteBudget()
        """Requests held in memory at once, over all links of this agent."""
        self.calls: CallServer
        self.raft: RaftRunner
        self.waits: StateWaits
        self.feed: FleetFeed
        self.work: LeaderWork
        self.me: ServerInfo
        self.wan: Wan | None = None
        self.directory: Directory
        """Servers of all regions, as far as they are known."""
        self.office_services: list[LeaderService] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; says `started` when the port is bound and the log recovered."""
        machine = self.machine = StateMachine(self._log)
        disk = await trio.to_thread.run_sync(self._open_disk, machine)
        try:
            for problem in disk.problems:
                self._log.warn("snapshot_unusable", why=problem)
            gossip = await self._with_ring_on_disk(self.options.gossip)
            gc.collect()
            gc.freeze()  # what was restored lives as long as the process: no collection needs to look at it again
            await self._run(disk, machine, gossip, task_status)
        finally:
            with trio.move_on_after(HAND_OVER_S, shield=True):
                await trio.to_thread.run_sync(disk.close, abandon_on_cancel=True)

    async def stop(self) -> None:
        """Get ready to be cancelled: a leader hands over, as far as there is time."""
        if self.raft.is_leader and len(self.raft.core.config.voters) > 1:
            try:
                with trio.move_on_after(HAND_OVER_S):
                    await self.raft.transfer_leadership()
            except FedschedError as refused:
                self._log.info("not_handed_over", why=str(refused))

    async def leave(self) -> None:
        """Leave the region for good; the others carry on with one voter less."""
        try:
            with trio.move_on_after(HAND_OVER_S):
                await LocalCaller(self.calls, identity=SERVER).call(SERVER_LEAVE, ServerLeaveRequest(id=self.me.id))
        except FedschedError as refused:
            self._log.warn("not_left", why=str(refused))
        if self.wan is not None:
            with trio.move_on_after(HAND_OVER_S):
                await self.wan.leave()

    def _open_disk(self, machine: StateMachine) -> OpenedDisk:
        warm_up()
        options = self.options
        data_dir = open_data_dir(
            options.data_dir, self._env.new_id, ballast_bytes=options.ballast_bytes, limits=options.space_limits
        )
        try:
            disk = open_disk(data_dir)
        except BaseException:
            data_dir.close()
            raise
        try:
            load_snapshot(disk, machine)
        except BaseException:
            disk.close()
            raise
        return disk

    async def _with_ring_on_disk(self, gossip: GossipOptions | None) -> GossipOptions | None:
        """The options with the keys in force, which a rotation may have changed since they were configured."""
        if gossip is None:
            return None
        ring = await trio.to_thread.run_sync(load_ring, self.options.data_dir, gossip.keys)
        if ring.is_overruled:
            self._log.warn(
                "gossip_key_overruled",
                hint=f"the key in the settings is not the one in {KEYRING_FILE}, which counts: was it rotated?"
                " change server.encrypt to the new one",
            )
        return replace(gossip, keys=ring.keys)

    async def _run(
        self,
        disk: OpenedDisk,
        machine: StateMachine,
        gossip: GossipOptions | None,
        task_status: trio.TaskStatus[None],
    ) -> None:
        options = self.options
        listeners = await _listen(options.rpc_host, options.rpc_port)
        host, port = listeners[0].socket.getsockname()[:2]
        advertised = split_host_port(options.advertise, port) if options.advertise else (host, port)
        self.me = ServerInfo(disk.data_dir.server_id, options.name, place_text(advertised))
        dialer = Dialer(options.tls, options.peer_address_overrides)
        peers = PeerLinks(dialer, server_id=self.me.id, log=self._log)
        members = Members(Self(self.me.id, self.me.name, self.me.address, options.region, options.datacenter))
        raft = self.raft = self._make_raft(disk, machine, dialer, peers)
        desk = Desk(
            me=self.me,
            region=options.region,
            datacenter=options.datacenter,
            machine=machine,
            raft=raft,
            proposals=Proposals(raft, self._env),
            peers=peers,
            env=self._env,
            metrics=self._metrics,
            log=self._log,
        )
        joining = Joining(options, self.me, raft=raft, peers=peers, pool=self, log=self._log)
        reconcile = ReconcileService(desk, joining, lambda: self.wan, lambda: LocalCaller(self.calls, identity=SERVER))
        autopilot = AutopilotService(raft, members, self._autopilot_settings, self._log, gone=reconcile.verdicts)
        self.feed = FleetFeed(machine)
        broker = BrokerService(desk)
        applier = PlanApplier(desk, broker, self.feed, rejections=options.rejections)
        self.work = LeaderWork(desk, broker, applier)
        self.office_services = [autopilot, reconcile, VersionService(desk), applier, broker]
        enabled = self._schedulers.enabled
        served = ServedTypes(desk, self._schedulers, workers=options.num_schedulers)
        dry_runs = DryRuns(lambda: self.feed.fleet, desk.proposals.now_ns, enabled)
        around = Around(
            desk,
            dry_runs,
            lambda: self.feed.fleet,
            served=served,
            schedulers=enabled,
            send_reports=self._send_reports,
            calls=RegionCalls(options.region, lambda: self.directory, self._ask),
        )
        self.office_services += around.services
        self.directory = Directory(options.region)
        jobs, evaluations = JobEndpoint(desk, served, around.multiregion), EvaluationEndpoint(desk)
        endpoints: list[Endpoint] = [
            jobs,
            evaluations,
            RaftEndpoint(desk, autopilot),
            SnapshotEndpoint(desk),
            ServerEndpoint(desk, members, joining.hear, self.directory, self._far_members),
            AgentEndpoint(desk, self._facts, served),
            SchedulingEndpoint(self.work),
            *around.endpoints,
        ]
        node_calls = NodeCalls(desk, around.uplinks)
        endpoints.append(node_calls)
        self.waits = StateWaits(machine, self._env.rng("blocking-query"))
        forwarding = Forwarding(
            self.directory,
            me=hop_of(self.me.name, options.region),
            server_id=self.me.id,
            peers=peers,
            env=self._env,
            log=self._log,
            metrics=self._metrics,
        )
        wan = self.wan = self._make_wan(gossip, raft, peers)
        endpoints.append(GossipEndpoint(wan, options.region))
        if wan is not None:
            forwarding.on_failure = wan.gossip.look_at
        dispatch = Dispatch(
            region=options.region,
            me=lambda: self.me,
            raft=raft,
            state_index=lambda: machine.store.index,
            peers=peers,
            waits=self.waits,
            looks={**jobs.looks(), **evaluations.looks(), **around.looks()},
            nodes=node_calls,
            forwarding=forwarding,
            env=self._env,
            log=self._log,
        )
        handlers = {method: handler for endpoint in endpoints for method, handler in endpoint.handlers().items()}
        self.calls = CallServer(handlers, policy=dispatch, metrics=self._metrics)
        workers = Workers(desk, self.feed, enabled, count=options.num_schedulers, source=self._work_source)
        watch_raft(raft, self._metrics)
        door = ServerDoor(
            calls=self.calls,
            raft=raft.transport.serve,
            servers=lambda: raft.core.config.servers,
            tls=options.tls,
            connections_max=options.connections_max,
            connections_per_host_max=options.connections_per_host_max,
            handshake_s=options.handshake_s,
            budget=self.budget,
            metrics=self._metrics,
            log=self._log,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(peers.run)
            await nursery.start(raft.run)
            nursery.start_soon(trio.serve_listeners, door.serve, listeners)
            nursery.start_soon(dispatch.run)
            nursery.start_soon(workers.run)
            nursery.start_soon(around.uplinks.run)
            if wan is not None:
                await nursery.start(wan.run)
            nursery.start_soon(joining.run)
            self._log.info("server_started", server=self.me.name, server_id=self.me.id, address=self.me.address)
            task_status.started()

    def _far_members(self) -> tuple[ServerMember, ...]:
        return self.wan.far_members() if self.wan is not None else ()

    def neighbours(self) -> tuple[str, ...]:
        return self.wan.neighbours() if self.wan is not None else ()

    def gossip_address(self) -> str:
        return self.wan.gossip_address if self.wan is not None else ""

    def meet(self, address: str) -> None:
        if self.wan is not None:
            self.wan.meet(address)

    def _make_wan(self, gossip: GossipOptions | None, raft: RaftRunner, peers: PeerLinks) -> Wan | None:
        if gossip is None:
            return None
        if not gossip.is_safe:
            self._log.warn("gossip_off", why=f"no key, and {gossip.host} is not loopback", hint="set server.encrypt")
            return None
        return Wan(
            self.options,
            gossip,
            self.me,
            self.directory,
            raft,
            peers=peers,
            env=self._env,
            log=self._log,
            metrics=self._metrics,
        )

    async def _send_reports(self, request: NodeReportsRequest) -> NodeReportsReply:
        reply, _ = await LocalCaller(self.calls, identity=SERVER).call(NODE_REPORTS, request)
        return reply

    async def _ask(self, method: Method[Any, Any], request: Any, meta: CallMeta) -> Any:
        reply, _ = await LocalCaller(self.calls, identity=SERVER).call(method, request, meta)
        return reply

    def _work_source(self) -> WorkSource:
        if self.raft.is_established:
            return OwnOffice(self.work)
        return LeaderElsewhere(LocalCaller(self.calls, identity=SERVER))

    def _make_raft(self, disk: OpenedDisk, machine: StateMachine, dialer: Dialer, peers: PeerLinks) -> RaftRunner:
        async def dial(peer: ServerInfo) -> trio.abc.Stream:
            return await dialer.open(peer, Preamble.RAFT)

        @asynccontextmanager
        async def fetch_image(
            server: ServerInfo, meta: SnapshotMeta, offset: int
        ) -> AsyncIterator[AsyncIterator[bytes]]:
            caller = await peers.bulk_caller(server)
            request = SnapshotChunksRequest(snapshot_id=meta.id, offset=offset)
            async with caller.open_stream(RAFT_SNAPSHOT_CHUNKS, request) as stream:
                yield aiter(stream)

        @asynccontextmanager
        async def fetch(offer: SnapshotOffer, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
            sender = self.raft.transport.known(offer.sender)
            if sender is None:
                raise Unavailable(f"server {offer.sender} offers a snapshot, but where it is, is not known")
            async with fetch_image(sender, offer.meta, offset) as chunks:
                yield chunks

        async def office(office: Office) -> None:
            await hold_office(office, self.office_services)

        return make_runner(
            disk,
            machine,
            me=self.me,
            dial=dial,
            fetch_snapshot=fetch,
            fetch_image=fetch_image,
            hold_office=office,
            core_settings=CoreSettings(),
            settings=RunnerSettings(
                tick_s=TICK_S * self.options.raft_multiplier,
                slow_disk_s=SLOW_DISK_S * self.options.raft_multiplier,
                compaction=self.options.compaction,
            ),
            env=self._env,
            log=self._log,
            metrics=self._metrics,
        )

    @property
    def _autopilot_settings(self) -> AutopilotSettings:
        return replace(self.options.autopilot, tick_s=TICK_S * self.options.raft_multiplier)


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port} (server port): {error.strerror or error}",
            hint="is another agent running here? choose another port with ports.rpc",
        ) from error
