"""People of a simulated region: they change jobs, nodes, deployments and settings, and give up where nobody leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.node import DrainStrategy, Eligibility
from fedsched.model.scheduler_config import PreemptionConfig, SchedulerAlgorithm, SchedulerConfiguration
from fedsched.rpc.methods import alloc as alloc_methods
from fedsched.rpc.methods import deployment as deployment_methods
from fedsched.rpc.methods import job as job_methods
from fedsched.rpc.methods import job_extras as extra_methods
from fedsched.rpc.methods import node as node_methods
from fedsched.rpc.methods.operator import SchedulerConfigSetRequest
from fedsched.sim.fleet_jobs import PARAMETERIZED, PERIODIC, JobMaker, job_id
from fedsched.sim.streams import stream

if TYPE_CHECKING:
    from fedsched.sim.fleet_clients import SimNode
    from fedsched.sim.fleet_faults import Fleet
    from fedsched.sim.fleet_server import FleetServer
    from fedsched.sim.fleet_world import FleetWorld

Act = Callable[["FleetServer"], Awaitable[Any]]
NODES_LEAST: Final = 4


class People:
    """Those who change things."""

    def __init__(self, world: FleetWorld, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._chance = stream(world.seed, "people")
        self.jobs = JobMaker(self._chance, world.options.features)
        self._acts: list[tuple[str, Callable[[], Act | None]]] = [
            *[("register", self._register)] * 5,
            ("stop", self._stop),
            ("scale", self._scale),
            ("evaluate", self._evaluate),
            ("eligibility", self._eligibility),
            ("eligibility", self._eligibility),
            ("deregister node", self._deregister),
            ("stop allocation", self._stop_alloc),
        ]
        more: dict[str, list[tuple[str, Callable[[], Act | None]]]] = {
            "drains": [("drain", self._drain), ("drain", self._drain)],
            "people and deployments": [("fail deployment", self._fail), ("pause deployment", self._pause)],
            "canaries": [("promote", self._promote), ("promote", self._promote)],
            "forgetting": [("collect", self._collect)],
            "dispatches": [("dispatch", self._dispatch), ("dispatch", self._dispatch)],
            "reverts": [("revert", self._revert)],
            "preemption": [("configure", self._configure)],
            "labels": [("relabel", self._relabel)],
            "periodic": [("force", self._force)],
        }
        for feature in sorted(more.keys() & world.options.features):
            self._acts += more[feature]

    async def run(self) -> None:
        await self.do("configure", self._configure())
        while True:
            await trio.sleep(self._chance.expovariate(1.0) * self._world.options.pace_s)
            name, choose = self._chance.choice(self._acts)
            act = choose()
            if act is not None:
                await self.do(name, act)

    async def do(self, name: str, act: Act) -> Any:
        """Once: who gets no answer does not know what became of it, and goes on to something else."""
        leader = self._world.leader
        if leader is None:
            return None
        reply = None
        try:
            reply = await act(leader)
            outcome = "done"
        except FedschedError as error:
            outcome = f"{type(error).__name__}: {error}"
        self._world.counts[f"people: {name}" if reply is not None else f"people, in vain: {name}"] += 1
        self._world.note("", "people", f"{name}: {outcome}")
        return reply

    # ------------------------------------------------------------------ jobs

    def _some_job(self) -> str:
        return job_id(self.jobs.some())

    def _register(self) -> Act:
        request = job_methods.JobRegisterRequest(job=self.jobs.draw(self.jobs.some()))
        return lambda leader: leader.jobs.register(request, leader.context())

    def _stop(self) -> Act:
        request = job_methods.JobDeregisterRequest(job_id=self._some_job(), purge=self._chance.random() < 0.4)
        return lambda leader: leader.jobs.deregister(request, leader.context())

    def _scale(self) -> Act:
        request = extra_methods.JobScaleRequest(job_id=self._some_job(), group="g", count=self._chance.randrange(0, 8))
        return lambda leader: leader.extras.scale(request, leader.context())

    def _evaluate(self) -> Act:
        force = self._chance.random() < 0.5
        request = extra_methods.JobEvaluateRequest(job_id=self._some_job(), force_reschedule=force)
        return lambda leader: leader.extras.evaluate(request, leader.context())

    def _revert(self) -> Act:
        request = extra_methods.JobRevertRequest(job_id=self._some_job(), job_version=self._chance.randrange(0, 6))
        return lambda leader: leader.extras.revert(request, leader.context())

    def _dispatch(self) -> Act:
        token = f"token-{self._chance.randrange(0, 8)}"
        request = extra_methods.JobDispatchRequest(
            job_id=job_id(PARAMETERIZED), payload=self._chance.randbytes(20), idempotency_token=token
        )
        return lambda leader: leader.extras.dispatch(request, leader.context())

    def _force(self) -> Act:
        request = job_methods.JobRequest(job_id=job_id(PERIODIC))
        return lambda leader: leader.extras.force(request, leader.context())

    def _stop_alloc(self) -> Act | None:
        leader = self._world.leader
        if leader is None:
            return None
        held = self._world.checks.truth.of_job(leader.store, "default", self._some_job())
        if not held:
            return None
        request = alloc_methods.AllocStopRequest(alloc_id=self._chance.choice(held).id)
        return lambda leader: leader.allocs.stop(request, leader.context())

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
                deadline_s=chance.choice((-1.0, 0.0, 5.0, 30.0)), ignore_system_jobs=chance.random() < 0.5
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
        there = sum(not one.is_gone for one in self._fleet.nodes.values())
        if node is None or there < NODES_LEAST or self._chance.random() < 0.5:
            return None
        node.is_gone = True
        request = node_methods.NodesRequest(node_ids=(node.id,))
        return lambda leader: leader.nodes.deregister(request, leader.context())

    def _relabel(self) -> Act | None:
        node = self._some_node()
        if node is not None:
            node.relabel()
        return None

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
        preempts = "preemption" in self._world.options.features and chance.random() < 0.8
        config = SchedulerConfiguration(
            scheduler_algorithm=chance.choice(tuple(SchedulerAlgorithm)),
            memory_oversubscription_enabled="memory" in self._world.options.features,
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
        request = job_methods.JobDeregisterRequest(job_id=job_id(PERIODIC), purge=False)
        await self.do("stop", lambda leader: leader.jobs.deregister(request, leader.context()))
