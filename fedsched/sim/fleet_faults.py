"""What happens to a simulated region: people who change jobs, nodes and deployments, and everything that goes wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from fedsched.model.constraint import Constraint
from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, PeriodicConfig
from fedsched.model.node import DrainStrategy, Eligibility
from fedsched.model.policies import EphemeralDisk, ReschedulePolicy, UpdateStrategy
from fedsched.model.resources import Resources
from fedsched.model.scheduler_config import PreemptionConfig, SchedulerAlgorithm, SchedulerConfiguration
from fedsched.model.task import Task
from fedsched.rpc.methods import deployment as deployment_methods
from fedsched.rpc.methods import job as job_methods
from fedsched.rpc.methods import job_extras as extra_methods
from fedsched.rpc.methods import node as node_methods
from fedsched.rpc.methods.operator import SchedulerConfigSetRequest
from fedsched.sim.fleet_clients import SimNode
from fedsched.sim.fleet_server import FleetServer
from fedsched.sim.fleet_world import SERVERS, FleetWorld
from fedsched.sim.streams import stream

CHAOS_S: Final = 60.0
NODES: Final = 6
NODES_MAX: Final = 10
JOBS: Final = 7
TYPES: Final = ("service", "service", "service", "batch", "system", "sysbatch", "periodic")
"""By the job's number, so that a job's type never changes."""

Act = Callable[[FleetServer], Awaitable[Any]]


class Fleet:
    """The nodes of a run."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self.nodes: dict[str, SimNode] = {}
        self._made = 0
        for _ in range(NODES):
            self.join()

    def join(self) -> None:
        self._made += 1
        node = SimNode(self._world, self._made)
        self.nodes[node.id] = self._world.checks.nodes[node.id] = node
        self._world.nursery.start_soon(node.run)

    def heal(self) -> None:
        for node in self.nodes.values():
            node.is_silent = False


class People:
    """Those who change things, and retry while there is no leader."""

    def __init__(self, world: FleetWorld, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._chance = stream(world.seed, "people")
        self._pace_s = self._chance.choice((0.2, 0.5, 1.5))
        self._acts: list[tuple[str, Callable[[], Act | None]]] = [
            ("register", self._register),
            ("register", self._register),
            ("register", self._register),
            ("register", self._register),
            ("stop", self._stop),
            ("scale", self._scale),
            ("evaluate", self._evaluate),
            ("drain", self._drain),
            ("eligibility", self._eligibility),
            ("eligibility", self._eligibility),
            ("deregister node", self._deregister),
            ("promote", self._promote),
            ("promote", self._promote),
            ("fail deployment", self._fail),
            ("pause deployment", self._pause),
            ("collect", self._collect),
        ]

    async def run(self) -> None:
        await self.do("configure", self._configure())
        while True:
            await trio.sleep(self._chance.expovariate(1.0) * self._pace_s)
            name, choose = self._chance.choice(self._acts)
            act = choose()
            if act is not None:
                await self.do(name, act)

    async def do(self, name: str, act: Act) -> None:
        """Once: who gets no answer does not know what became of it, and goes on to something else."""
        leader = self._world.leader
        if leader is None:
            return
        try:
            await act(leader)
            outcome = "done"
        except FedschedError as error:
            outcome = f"{type(error).__name__}: {error}"
        self._world.counts[f"people: {name}"] += 1
        self._world.note("", "people", f"{name}: {outcome}")

    # ------------------------------------------------------------------ jobs

    def _register(self) -> Act:
        job = self._job(self._chance.randrange(0, JOBS))
        request = job_methods.JobRegisterRequest(job=job)
        return lambda leader: leader.jobs.register(request, leader.context())

    def _job(self, number: int) -> Job:
        chance = self._chance
        kind = TYPES[number]
        is_periodic = kind == "periodic"
        job_type = "batch" if is_periodic else kind
        count = 1 if kind in ("system", "sysbatch") else chance.randrange(0, 7)
        constraints: tuple[Constraint, ...] = ()
        if chance.random() < 0.3:
            constraints = (Constraint(l_target="${meta.rack}", r_target=f"r{chance.randrange(0, 4)}"),)
        fields: dict[str, Any] = {}
        if job_type in ("service", "system"):
            fields["update"] = self._update(job_type)
        if job_type == "service":
            fields["reschedule_policy"] = ReschedulePolicy(
                delay_s=5.0, delay_function="constant", unlimited=True, max_delay_s=0.0
            )
        task = Task(
            name="main",
            driver="mock_driver",
            config={"run_for": "10s", "note": str(chance.randrange(0, 3))},
            resources=Resources(cpu=chance.choice((50, 200, 400, 700)), memory_mb=chance.choice((32, 128, 400))),
        )
        group = TaskGroup(
            name="g",
            count=count,
            tasks=(task,),
            constraints=constraints,
            ephemeral_disk=EphemeralDisk(size_mb=300),
            **fields,
        )
        return Job(
            id=f"j{number}",
            name=f"j{number}",
            region="global",
            type=job_type,
            priority=chance.choice((20, 45, 50, 55, 80)),
            datacenters=("*",),
            node_pool="default",
            meta={"try": str(chance.randrange(0, 3))},
            task_groups=(group,),
            periodic=PeriodicConfig(specs=("* * * * *",), prohibit_overlap=chance.random() < 0.5)
            if is_periodic
            else None,
        )

    def _update(self, job_type: str) -> UpdateStrategy:
        chance = self._chance
        canary = chance.choice((0, 0, 1)) if job_type == "service" else 0
        return UpdateStrategy(
            max_parallel=chance.choice((1, 2)),
            min_healthy_time_s=1.0,
            healthy_deadline_s=15.0,
            progress_deadline_s=20.0,
            canary=canary,
            auto_promote=bool(canary) and chance.random() < 0.5,
            auto_revert=chance.random() < 0.3,
        )

    def _some_job(self) -> str:
        return f"j{self._chance.randrange(0, JOBS)}"

    def _stop(self) -> Act:
        request = job_methods.JobDeregisterRequest(job_id=self._some_job(), purge=self._chance.random() < 0.4)
        return lambda leader: leader.jobs.deregister(request, leader.context())

    def _scale(self) -> Act:
        request = extra_methods.JobScaleRequest(job_id=self._some_job(), group="g", count=self._chance.randrange(0, 8))
        return lambda leader: leader.extras.scale(request, leader.context())

    def _evaluate(self) -> Act:
        request = extra_methods.JobEvaluateRequest(job_id=self._some_job())
        return lambda leader: leader.extras.evaluate(request, leader.context())

    # ------------------------------------------------------------------ nodes

    def _some_node(self) -> SimNode | None:
        there = [node for node in self._fleet.nodes.values() if not node.is_gone]
        return self._chance.choice(there) if there else None

    def _drain(self) -> Act | None:
        node = self._some_node()
        if node is None:
            return None
        chance = self._chance
        strategy = None
        if chance.random() < 0.7:
            strategy = DrainStrategy(
                deadline_s=chance.choice((-1.0, 5.0, 30.0)), ignore_system_jobs=chance.random() < 0.5
            )
        request = node_methods.NodeDrainRequest(node_id=node.id, drain_strategy=strategy, mark_eligible=True)
        return lambda leader: leader.nodes.drain(request, leader.context())

    def _eligibility(self) -> Act | None:
        node = self._some_node()
        if node is None:
            return None
        wanted = Eligibility.ELIGIBLE if self._chance.random() < 0.7 else Eligibility.INELIGIBLE
        request = node_methods.NodeEligibilityRequest(node_id=node.id, eligibility=wanted)
        return lambda leader: leader.nodes.set_eligibility(request, leader.context())

    def _deregister(self) -> Act | None:
        node = self._some_node()
        if node is None or len(self._fleet.nodes) < NODES // 2 or self._chance.random() < 0.5:
            return None
        node.is_gone = True
        request = node_methods.NodesRequest(node_ids=(node.id,))
        return lambda leader: leader.nodes.deregister(request, leader.context())

    # ------------------------------------------------------------------ deployments and the region

    def _some_deployment(self) -> str | None:
        leader = self._world.leader
        active = [row.id for row in leader.store.deployments.active()] if leader is not None else []
        return self._chance.choice(sorted(active)) if active else None

    def _promote(self) -> Act | None:
        found = self._some_deployment()
        request = deployment_methods.DeploymentPromoteRequest(deployment_id=found or "", all=True)
        return (lambda leader: leader.deployments.promote(request, leader.context())) if found else None

    def _fail(self) -> Act | None:
        found = self._some_deployment()
        request = deployment_methods.DeploymentRequest(deployment_id=found or "")
        return (lambda leader: leader.deployments.fail(request, leader.context())) if found else None

    def _pause(self) -> Act | None:
        found = self._some_deployment()
        pause = self._chance.random() < 0.5
        request = deployment_methods.DeploymentPauseRequest(deployment_id=found or "", pause=pause)
        return (lambda leader: leader.deployments.pause(request, leader.context())) if found else None

    def _collect(self) -> Act:
        return lambda leader: leader.operator.collect(None, leader.context())  # type: ignore[arg-type]

    def _configure(self) -> Act:
        chance = self._chance
        preempts = chance.random() < 0.5
        config = SchedulerConfiguration(
            scheduler_algorithm=chance.choice((SchedulerAlgorithm.BINPACK, SchedulerAlgorithm.SPREAD)),
            preemption_config=PreemptionConfig(
                batch_scheduler_enabled=preempts,
                service_scheduler_enabled=preempts,
                sys_batch_scheduler_enabled=preempts,
            ),
        )
        request = SchedulerConfigSetRequest(scheduler_config=config)
        return lambda leader: leader.operator.set_config(request, leader.context())

    async def stop_launching(self) -> None:
        """The region is to come to rest: nothing new begins by the clock."""
        request = job_methods.JobDeregisterRequest(job_id="j6", purge=False)
        await self.do("stop", lambda leader: leader.jobs.deregister(request, leader.context()))


class Faults:
    """What goes wrong, for a while."""

    def __init__(self, world: FleetWorld, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._chance = stream(world.seed, "faults")

    async def run(self) -> None:
        until = trio.current_time() + CHAOS_S
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._leader,
            self._workers,
            self._follower,
            self._silence,
            self._silence,
            self._return,
            self._return,
            self._join,
            self._clock,
        ]
        while trio.current_time() < until:
            await trio.sleep(self._chance.uniform(0.5, 6.0))
            fault = self._chance.choice(kinds)
            self._world.counts[f"fault: {fault.__name__[1:]}"] += 1
            await fault()

    async def _leader(self) -> None:
        await self._world.change_leader(crash=self._chance.random() < 0.5)

    async def _workers(self) -> None:
        name = self._chance.choice(SERVERS)
        self._world.note(name, "fault", "its workers die")
        self._world.servers[name].kill_workers()

    async def _follower(self) -> None:
        name = self._chance.choice(SERVERS)
        if not self._world.servers[name].is_leader:
            self._world.note(name, "fault", "restarts")
            self._world.restart(name)

    async def _silence(self) -> None:
        node = self._chance.choice(sorted(self._fleet.nodes.values(), key=lambda one: one.number))
        node.is_silent = True
        self._world.note(node.name, "fault", "falls silent")

    async def _return(self) -> None:
        silent = [node for node in self._fleet.nodes.values() if node.is_silent]
        if silent:
            node = self._chance.choice(silent)
            node.is_silent = False
            self._world.note(node.name, "fault", "returns")

    async def _join(self) -> None:
        if len(self._fleet.nodes) < NODES_MAX:
            self._fleet.join()

    async def _clock(self) -> None:
        jump = self._chance.choice((-70.0, -5.0, 5.0, 70.0))
        self._world.wall_offset_s += jump
        self._world.jumped_ahead_s += max(0.0, jump)
        self._world.note("", "fault", f"wall clocks jump by {jump} s")
