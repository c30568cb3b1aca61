"""Nodes of the simulated region: clients that register, beat, start and stop what they are told, and report it late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from fedsched.env.ids import uuid_text
from fedsched.model.alloc import ClientStatus
from fedsched.model.errors import FedschedError, NotFound
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job
from fedsched.model.node import DriverInfo, HostVolumeInfo, Node
from fedsched.model.node_resources import (
    NodeCPU,
    NodeDevice,
    NodeDeviceGroup,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeNetworkAddress,
    NodeResources,
)
from fedsched.rpc.methods import node as methods
from fedsched.sim.fleet_truth import ENDED, RUN, Held
from fedsched.sim.streams import stream
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_CODES

if TYPE_CHECKING:
    from fedsched.sim.fleet_world import FleetWorld

HEALTHY: Final = 1
UNHEALTHY: Final = 2
ONE_SHOT: Final = ("batch", "sysbatch")
RACKS: Final = 3


@dataclass(slots=True)
class _Task:
    """What really goes on for one allocation."""

    status: ClientStatus
    since: float
    health: int = 0
    stop_at: float | None = None
    stop_alone_s: float = 0.0
    """After how long without a server its client ends it by itself; 0 for never."""


class SimNode:
    """One node and its client."""

    def __init__(self, world: FleetWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.chance = stream(world.seed, f"node-{number}")
        self.id = uuid_text(self.chance.randbytes(16))
        self.secret = uuid_text(self.chance.randbytes(16))
        self.name = f"n{number}"
        self.rack = f"r{self.chance.randrange(0, RACKS)}"
        self.is_silent = False
        self.is_gone = False
        self.tasks: dict[str, _Task] = {}
        self._is_registered = False
        self._beat_at = 0.0
        self._heard_at = 0.0
        self._seen = 0
        self._is_big = self.chance.random() < 0.3
        self._devices = self.chance.choice((0, 0, 2))
        self._volume = self.chance.choice(("", "", "read", "write"))

    def record(self) -> Node:
        size = 2 if self._is_big else 1
        address = NodeNetworkAddress(family="ipv4", alias="default", address=f"10.0.0.{self.number}")
        return Node(
            id=self.id,
            name=self.name,
            secret_id=self.secret,
            datacenter="dc1",
            attributes={"kernel.name": "linux"},
            meta={"rack": self.rack},
            drivers={"mock_driver": DriverInfo(detected=True, healthy=True)},
            host_volumes=self._volumes(),
            node_resources=NodeResources(
                cpu=NodeCPU(cpu_shares=1000 * size, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3)),
                memory=NodeMemory(memory_mb=1024 * size),
                disk=NodeDisk(disk_mb=10_000),
                devices=self._device_groups(),
                node_networks=(NodeNetwork(mode="host", device="eth0", addresses=(address,)),),
            ),
        )

    def _volumes(self) -> dict[str, HostVolumeInfo]:
        if not self._volume:
            return {}
        return {"data": HostVolumeInfo(name="data", path="/srv/data", read_only=self._volume == "read")}

    def _device_groups(self) -> tuple[NodeDeviceGroup, ...]:
        if not self._devices:
            return ()
        instances = tuple(NodeDevice(id=f"{self.name}-{at}", healthy=True) for at in range(self._devices))
        return (NodeDeviceGroup(vendor="acme", type="gpu", name="one", instances=instances),)

    def running(self) -> list[str]:
        return [one for one, task in self.tasks.items() if task.status is ClientStatus.RUNNING]

    def relabel(self) -> None:
        """It stands in another rack now, and says so."""
        self.rack = f"r{self.chance.randrange(0, RACKS)}"
        self._is_registered = False

    async def run(self) -> None:
        while not self.is_gone:
            await trio.sleep(self.chance.uniform(0.3, 1.2))
            if self.is_silent:
                self._be_alone()
                continue
            try:
                await self._turn()
            except FedschedError as weather:
                self.world.counts[f"client: {type(weather).__name__}"] += 1
                self._beat_at = 0.0
                self._is_registered = self._is_registered and not isinstance(weather, NotFound)

    def _be_alone(self) -> None:
        """Nobody is heard: what must not go on for long without servers ends."""
        alone_s = trio.current_time() - self._heard_at
        for task in self.tasks.values():
            if task.status is ClientStatus.RUNNING and 0 < task.stop_alone_s < alone_s:
                task.status = ClientStatus.COMPLETE

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
        self._heard_at = trio.current_time()
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
        for held in self.world.checks.truth.on_node(store, row.slot):
            self._heed(store, held, now)

    def _heed(self, store: State, held: Held, now: float) -> None:
        task = self.tasks.get(held.id)
        wanted = held.desired == RUN and held.client not in ENDED
        if task is None:
            if held.client in ENDED:
                return
            status = ClientStatus.RUNNING if wanted else ClientStatus.COMPLETE
            self.tasks[held.id] = _Task(status, now, stop_alone_s=self._stop_alone_s(store, held))
        elif task.status is ClientStatus.RUNNING:
            job = self.world.checks.truth.job(store, held.version_key)
            self._pass_time(held, job, task, wanted, now)

    def _stop_alone_s(self, store: State, held: Held) -> float:
        job = self.world.checks.truth.job(store, held.version_key)
        group = job.group(held.group) if job is not None else None
        block = group.disconnect if group is not None else None
        return (block.stop_on_client_after_s or 0.0) if block is not None else 0.0

    def _pass_time(self, held: Held, job: Job | None, task: _Task, wanted: bool, now: float) -> None:
        kind = job.type if job is not None else ""
        if not wanted:
            if task.stop_at is None:
                task.stop_at = now + self.chance.choice((0.0, 0.5, 4.0))
            if now >= task.stop_at:
                task.status = ClientStatus.COMPLETE
            return
        if kind in ONE_SHOT and now - task.since > self.chance.uniform(2.0, 20.0):
            task.status = ClientStatus.FAILED if self.chance.random() < 0.1 else ClientStatus.COMPLETE
        elif self.chance.random() < self.world.failure_rate:
            task.status = ClientStatus.FAILED
        elif held.deployment_id and not task.health and now - task.since > 1.0 and not self._is_stuck():
            task.health = UNHEALTHY if self.world.gets_unwell(job, self.chance) else HEALTHY

    def _is_stuck(self) -> bool:
        """Now and then nobody finds out how something is, for a while."""
        return self.chance.random() < self.world.stuck_rate

    def _changed(self, store: State) -> list[tuple[str, _Task]]:
        """What servers do not know yet."""
        changed: list[tuple[str, _Task]] = []
        for alloc_id, task in sorted(self.tasks.items()):
            slot = store.allocations.slot_of(alloc_id)
            if slot < 0:
                if task.status is not ClientStatus.RUNNING:
                    del self.tasks[alloc_id]
                continue
            known = store.allocations.columns.one(slot)
            is_told = not task.health or bool(known["health"])
            if known["client_status"] != CLIENT_CODES[task.status] or not is_told:
                changed.append((alloc_id, task))
        return changed

    def has_news(self, store: State) -> bool:
        """Whether it has something to say that servers have not heard."""
        return not self.is_gone and bool(self._changed(store))

    async def _report(self) -> None:
        leader = self.world.leader
        changed = self._changed(leader.store) if leader is not None else []
        if leader is None or not changed:
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
