"""Nodes of the simulated region: clients that register, beat, start and stop what they are told, and report it late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from fedsched.env.ids import uuid_text
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.errors import FedschedError, NotFound
from fedsched.model.ids import uuid_bytes
from fedsched.model.node import DriverInfo, Node
from fedsched.model.node_resources import NodeCPU, NodeDisk, NodeMemory, NodeResources
from fedsched.rpc.methods import node as methods
from fedsched.sim.fleet_checks import with_jobs
from fedsched.sim.streams import stream
from fedsched.state.tables.alloc_columns import CLIENT_CODES

if TYPE_CHECKING:
    from fedsched.sim.fleet_world import FleetWorld

HEALTHY: Final = 1
UNHEALTHY: Final = 2
ONE_SHOT: Final = ("batch", "sysbatch")


@dataclass(slots=True)
class _Task:
    """What really goes on for one allocation."""

    status: ClientStatus
    since: float
    health: int = 0
    stop_at: float | None = None


class SimNode:
    """One node and its client."""

    def __init__(self, world: FleetWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.chance = stream(world.seed, f"node-{number}")
        self.id = uuid_text(self.chance.randbytes(16))
        self.secret = uuid_text(self.chance.randbytes(16))
        self.name = f"n{number}"
        self.rack = f"r{self.chance.randrange(0, 3)}"
        self.is_silent = False
        self.is_gone = False
        self.tasks: dict[str, _Task] = {}
        self._is_registered = False
        self._beat_at = 0.0
        self._seen = 0
        self._is_big = self.chance.random() < 0.3

    def record(self) -> Node:
        size = 2 if self._is_big else 1
        return Node(
            id=self.id,
            name=self.name,
            secret_id=self.secret,
            datacenter="dc1",
            attributes={"kernel.name": "linux"},
            meta={"rack": self.rack},
            drivers={"mock_driver": DriverInfo(detected=True, healthy=True)},
            node_resources=NodeResources(
                cpu=NodeCPU(cpu_shares=1000 * size, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3)),
                memory=NodeMemory(memory_mb=1024 * size),
                disk=NodeDisk(disk_mb=10_000),
            ),
        )

    def running(self) -> list[str]:
        return [one for one, task in self.tasks.items() if task.status is ClientStatus.RUNNING]

    async def run(self) -> None:
        while not self.is_gone:
            await trio.sleep(self.chance.uniform(0.2, 0.8))
            if self.is_silent:
                continue
            try:
                await self._turn()
            except FedschedError as weather:
                self.world.counts[f"client: {type(weather).__name__}"] += 1
                self._beat_at = 0.0
                self._is_registered = self._is_registered and not isinstance(weather, NotFound)

    async def _turn(self) -> None:
        world = self.world
        leader = world.leader
        if leader is None or self.chance.random() < world.loss:
            return
        if not self._is_registered:
            request = methods.NodeRegisterRequest(node=self.record())
            await leader.nodes.register(request, leader.context())
            self._is_registered, self._beat_at = True, 0.0
            return
        if trio.current_time() >= self._beat_at:
            status = methods.NodeStatusRequest(node_id=self.id, secret_id=self.secret)
            reply = await leader.nodes.update_status(status, leader.context())
            self._beat_at = trio.current_time() + reply.heartbeat_ttl_s * self.chance.uniform(0.3, 0.8)
        self._look()
        await self._report()

    def _look(self) -> None:
        """See what this node should run, as one server knows it; a server that is behind the last one is not asked."""
        servers = self.world.servers
        store = servers[self.chance.choice(sorted(servers))].store
        row = store.nodes.get(self.id)
        if store.index < self._seen or row is None:
            return
        self._seen = store.index
        now = trio.current_time()
        for alloc, job in with_jobs(store, store.allocations.slots_of_node(row.slot)):
            self._heed(alloc, job.type if job is not None else "", now)

    def _heed(self, alloc: Allocation, kind: str, now: float) -> None:
        task = self.tasks.get(alloc.id)
        wanted = alloc.desired_status == "run" and not alloc.client_status.is_terminal
        if task is None:
            if alloc.client_status.is_terminal:
                return
            status = ClientStatus.RUNNING if wanted else ClientStatus.COMPLETE
            self.tasks[alloc.id] = _Task(status, now)
        elif task.status is ClientStatus.RUNNING:
            self._pass_time(alloc, kind, task, wanted, now)

    def _pass_time(self, alloc: Allocation, kind: str, task: _Task, wanted: bool, now: float) -> None:
        if not wanted:
            if task.stop_at is None:
                task.stop_at = now + self.chance.choice((0.0, 0.5, 4.0))
            if now >= task.stop_at:
                task.status = ClientStatus.COMPLETE
            return
        if kind in ONE_SHOT and now - task.since > self.chance.uniform(2.0, 20.0):
            task.status = ClientStatus.FAILED if self.chance.random() < 0.1 else ClientStatus.COMPLETE
        elif self.chance.random() < self.world.checks.failure_rate:
            task.status = ClientStatus.FAILED
        elif alloc.deployment_id and not task.health and now - task.since > 1.0:
            task.health = UNHEALTHY if self.chance.random() < 0.05 else HEALTHY

    async def _report(self) -> None:
        leader = self.world.leader
        if leader is None:
            return
        store = leader.store
        changed: list[tuple[str, _Task]] = []
        for alloc_id, task in sorted(self.tasks.items()):
            known = store.allocations.get(alloc_id)
            if known is None:
                if task.status is not ClientStatus.RUNNING:
                    del self.tasks[alloc_id]
                continue
            told = known.deployment_status.healthy if known.deployment_status is not None else None
            is_told = not task.health or told is not None
            if known.client_status is not task.status or not is_told:
                changed.append((alloc_id, task))
        if not changed:
            return
        request = methods.NodeReportRequest(
            node_id=self.id,
            secret_id=self.secret,
            ids=b"".join(uuid_bytes(alloc_id) for alloc_id, _ in changed),
            statuses=bytes(CLIENT_CODES[task.status] for _, task in changed),
            healths=bytes(task.health for _, task in changed),
        )
        await trio.sleep(self.chance.uniform(0.0, self.world.link_s))
        await leader.nodes.update_allocs(request, leader.context())
