"""A server of the simulated region: the real state machine, leader services, workers and endpoints, over one log.

Everything that decides is what a real server runs. Only Raft, links and clocks are stand-ins. A crash ends a life and
everything in its memory; the next life begins from the image that the state would have been saved as.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from fedsched.env.env import Chance
from fedsched.env.ids import uuid_text
from fedsched.model.errors import Unavailable
from fedsched.model.evaluation import Evaluation
from fedsched.raft.errors import NotLeader, OutcomeUnknown
from fedsched.raft.messages import RoleChange
from fedsched.raft.runner import Office, RaftRunner
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.node import NodeReportsReply, NodeReportsRequest
from fedsched.rpc.server_side import CallContext
from fedsched.scheduler.schedule import BUILT_IN
from fedsched.server.desk import Desk
from fedsched.server.dispatch import NoLeader, Unreached
from fedsched.server.dry_runs import DryRuns
from fedsched.server.duties import Duties
from fedsched.server.endpoints.alloc import AllocEndpoint
from fedsched.server.endpoints.deployment import DeploymentEndpoint
from fedsched.server.endpoints.job import JobEndpoint
from fedsched.server.endpoints.job_extras import JobExtrasEndpoint
from fedsched.server.endpoints.node import NodeEndpoint
from fedsched.server.endpoints.operator import OperatorEndpoint
from fedsched.server.fleet_feed import FleetFeed
from fedsched.server.leader.broker import BrokerService
from fedsched.server.leader.broker_core import BrokerLimits
from fedsched.server.leader.client_updates import ClientUpdatesService
from fedsched.server.leader.deployments import DeploymentsService
from fedsched.server.leader.drain import DrainService
from fedsched.server.leader.gc import GcService
from fedsched.server.leader.gc_core import GcSettings
from fedsched.server.leader.heartbeats import HeartbeatsService
from fedsched.server.leader.heartbeats_core import HeartbeatSettings
from fedsched.server.leader.office import LeaderService, hold_office
from fedsched.server.leader.periodic import PeriodicService
from fedsched.server.leader.plan_apply import PlanAnswer, PlanApplier
from fedsched.server.leader.work import LeaderWork
from fedsched.server.machine import StateMachine
from fedsched.server.proposals import Proposals
from fedsched.server.reports import Reports
from fedsched.server.uplinks import Uplinks
from fedsched.server.work_source import Assignment, OwnOffice, WorkSource
from fedsched.server.workers import Workers
from fedsched.sim.fleet_log import LogRaft
from fedsched.sim.streams import stream
from fedsched.state.tables.plans import PlanApply
from fedsched.telemetry.log import Event, Hub
from fedsched.telemetry.metrics import Registry

if TYPE_CHECKING:
    from fedsched.sim.fleet_world import FleetWorld

WORKERS: Final = 2
LIMITS: Final = BrokerLimits(nack_timeout_s=10.0)
"""Shorter than in production, so that a worker's death is over within the time that healing is given."""
PATIENCE: Final = HeartbeatSettings(ttl_min_s=4.0, grace_s=3.0, failover_ttl_s=12.0)
YOUNG: Final = GcSettings(
    evaluation_s=20.0, batch_evaluation_s=20.0, job_s=20.0, node_s=40.0, deployment_s=20.0, every_s=15.0
)


class FleetEnv:
    """Time and chance of one life."""

    def __init__(self, world: FleetWorld, prefix: str) -> None:
        self._world = world
        self._prefix = prefix
        self._dice: dict[str, Chance] = {}

    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return self._world.options.wall_s + trio.current_time() + self._world.wall_offset_s

    def rng(self, stream_name: str) -> Chance:
        if stream_name not in self._dice:
            self._dice[stream_name] = stream(self._world.seed, f"{self._prefix}-{stream_name}")
        return self._dice[stream_name]

    def new_id(self) -> str:
        return uuid_text(self.rng("ids").randbytes(16))


class _LogToTrace:
    def __init__(self, world: FleetWorld, name: str) -> None:
        self._world = world
        self._name = name

    def write(self, event: Event) -> None:
        self._world.heard_log(self._name, event)

    def close(self) -> None:
        """Nothing to let go of."""


class FleetServer:
    """One life of one server. `run` is that life; cancelling it is a crash."""

    def __init__(self, world: FleetWorld, name: str, life: int, image: Sequence[bytes] = (), applied: int = 0) -> None:
        self.world = world
        self.name = name
        self.life = life
        self.scope = trio.CancelScope()
        self._workers_scope = trio.CancelScope()
        self._office: trio.CancelScope | None = None
        self._office_over = trio.Event()
        hub = Hub(wall=lambda: 0.0)
        hub.configure(level="info", sink=_LogToTrace(world, name))
        self.env = FleetEnv(world, f"{name}-{life}")
        self.machine = StateMachine(hub.logger("state"))
        if image:
            loader = self.machine.load()
            for chunk in image:
                loader.feed(chunk)
            loader.finish()
        self.raft = self.make_raft(applied)
        raft = cast(RaftRunner, self.raft)
        self.metrics = Registry()
        self.log = hub.logger("server")
        means = self.means()
        self.desk = Desk(
            region=world.region,
            datacenter="dc1",
            machine=self.machine,
            raft=raft,
            proposals=Proposals(raft, self.env),
            env=self.env,
            metrics=self.metrics,
            log=self.log,
            **means,
        )
        self.feed = FleetFeed(self.machine)
        self.broker = BrokerService(self.desk, limits=LIMITS)
        self.applier = PlanApplier(self.desk, self.broker, self.feed)
        self.work = LeaderWork(self.desk, self.broker, self.applier)
        self._stand_behind()

    def make_raft(self, applied: int) -> LogRaft:
        """What stands in for Raft."""
        return LogRaft(self.name, self.world.log, self.machine, applied)

    def means(self) -> dict[str, Any]:
        """Who this server is, and its links to others: none, in a region that is alone."""
        return {"me": None, "peers": None}

    def _stand_behind(self) -> None:
        desk = self.desk
        heartbeats, updates = HeartbeatsService(desk, PATIENCE), ClientUpdatesService(desk)
        gc = GcService(desk, YOUNG if "forgetting" in self.world.options.features else None)
        duties = Duties(
            heartbeats=heartbeats,
            client_updates=updates,
            dry_run=DryRuns(lambda: self.feed.fleet, desk.proposals.now_ns),
            collect=gc.force,
        )
        self.services: list[LeaderService] = [
            self.applier,
            self.broker,
            updates,
            DeploymentsService(desk),
            DrainService(desk),
            PeriodicService(desk),
            gc,
            heartbeats,
        ]
        self.jobs = JobEndpoint(desk)
        self.extras = JobExtrasEndpoint(desk, duties)
        self.nodes = NodeEndpoint(desk, duties, self.no_uplinks())
        self.allocs = AllocEndpoint(desk)
        self.deployments = DeploymentEndpoint(desk)
        self.operator = OperatorEndpoint(desk, duties)
        self.workers = Workers(desk, self.feed, BUILT_IN, count=WORKERS, source=self._source)

    def no_uplinks(self) -> Uplinks:
        """Modelled clients have none."""
        return Uplinks(self.machine, Reports(self._no_streams, self.desk.log))

    async def _no_streams(self, request: NodeReportsRequest) -> NodeReportsReply:
        raise Unavailable("modelled clients report by calls")

    @property
    def store(self) -> Any:
        return self.machine.store

    @property
    def is_leader(self) -> bool:
        return self.raft.is_leader

    # ------------------------------------------------------------------ living

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._work)
                nursery.start_soon(self._follow)

    async def _work(self) -> None:
        while True:
            self._workers_scope = trio.CancelScope()
            with self._workers_scope:
                await self.workers.run()
            await trio.sleep(1.0)

    def kill_workers(self) -> None:
        """They die with whatever they have in hand, and others begin."""
        self._workers_scope.cancel()

    async def _follow(self) -> None:
        chance = self.env.rng("lag")
        while True:
            moved = self.world.log.moved
            if self.is_leader or self.raft.applied >= self.world.log.committed:
                await moved.wait()
                continue
            await trio.sleep(chance.uniform(0.0, self.world.lag_s))
            if not self.is_leader:
                self.catch_up()

    def catch_up(self) -> None:
        self.raft.apply(self.world.log.committed, self.world.applied)

    # ------------------------------------------------------------------ leading

    def lead(self, term: int, epoch: int) -> None:
        """Take office with everything applied that is committed."""
        self.catch_up()
        self.raft.become(RoleChange("leader", term, self.name, epoch))
        self._nursery.start_soon(self._hold_office, term, epoch)

    async def _hold_office(self, term: int, epoch: int) -> None:
        self._office, self._office_over = trio.CancelScope(), trio.Event()
        try:
            with self._office:
                await hold_office(Office(term, epoch), self.services)
        finally:
            self._office_over.set()

    async def step_down(self, kept: int) -> None:
        self.raft.become(RoleChange("follower", self.raft.role.term, None, self.raft.role.epoch + 1))
        self.raft.fail_promises(kept)
        if self._office is not None:
            self._office.cancel()
            await self._office_over.wait()

    # ------------------------------------------------------------------ workers and the leader

    def _source(self) -> WorkSource:
        source = OwnOffice(self.work) if self.is_leader else _ByLink(self.world, self.env.rng("link"))
        return _Watched(self, source)

    def context(self) -> CallContext:
        return CallContext(cast(Any, None), CallMeta(namespace="default"), peer="sim", identity=None, items=None)


class _Watched:
    """Looks at every plan before it leaves its worker, on the state that it was made from.

    A leader's workers also count what plans on their way to the log will take, which that state does not show yet.
    """

    def __init__(self, server: FleetServer, source: WorkSource) -> None:
        self._server = server
        self.dequeue = source.dequeue
        self.store = source.store
        self.ack = source.ack
        self.nack = source.nack
        self._submit = source.submit

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        if plan.snapshot_index == self._server.store.index and not self._server.applier.flights:
            self._server.world.checks.proposed(self._server.store, plan)
        return await self._submit(assignment, plan, priority=priority, all_at_once=all_at_once)


class _ByLink:
    """A worker that asks a leader elsewhere: what it says takes time, and may get lost either way."""

    def __init__(self, world: FleetWorld, chance: Chance) -> None:
        self._world = world
        self._chance = chance

    async def dequeue(self, types: Sequence[str], *, wait_s: float) -> Assignment | None:
        office = await self._there()
        found = await office.dequeue(types, wait_s=wait_s)
        await self._back()
        return found

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        office = await self._there()
        answer = await office.submit(assignment, plan, priority=priority, all_at_once=all_at_once)
        await self._back()
        return answer

    async def store(self, assignment: Assignment, evaluations: Sequence[Evaluation], *, ack: bool) -> None:
        office = await self._there()
        await office.store(assignment, evaluations, ack=ack)
        await self._back()

    async def ack(self, assignment: Assignment) -> None:
        office = await self._there()
        await office.ack(assignment)
        await self._back()

    async def nack(self, assignment: Assignment) -> None:
        office = await self._there()
        await office.nack(assignment)
        await self._back()

    async def _there(self) -> OwnOffice:
        await trio.sleep(self._chance.uniform(0.0, self._world.link_s))
        leader = self._world.leader
        if leader is None:
            raise NoLeader("there is no leader just now")
        if self._chance.random() < self._world.loss:
            raise Unreached("the link broke")
        if not leader.is_leader:
            raise NotLeader("no longer", leader=None)
        return OwnOffice(leader.work)

    async def _back(self) -> None:
        await trio.sleep(self._chance.uniform(0.0, self._world.link_s))
        if self._chance.random() < self._world.loss:
            raise OutcomeUnknown("the link broke before the answer came")
