"""Many nodes in one cheap process: they register over real links, take what is pushed to them, and report on it.

Nothing runs. A node answers for its allocations the way a client agent would: running a moment after they arrive, and
complete after a while if the script says so. Several nodes share a websocket, so that five thousand of them need no
five thousand connections; what servers do per node, per frame and per report is the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from fedsched.model.errors import FedschedError
from fedsched.model.node import DriverInfo, Node, NodeStatus
from fedsched.model.node_resources import (
    NodeCPU,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeNetworkAddress,
    NodeResources,
)
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_ALLOCS,
    NODE_UPDATE_STATUS,
    NODE_WATCH,
    NodeRegisterRequest,
    NodeReportRequest,
    NodeStatusRequest,
    NodeWatchRequest,
)
from fedsched.rpc.node_watch import WATCH_DTYPE
from fedsched.wire.address import parse_address
from fedsched.wire.link import open_link
from fedsched.wire.websocket import connect_websocket

REPORT_S: Final = 0.2
"""Reports of one node are gathered for so long."""
NODES_PER_LINK: Final = 100
AT_ONCE: Final = 16
"""Registrations under way per link."""
DRIVERS: Final = ("mock_driver", "raw_exec", "exec", "java", "docker")
"""They pretend to have them all, so that any job file can be tried."""
RUN: Final = 1
RUNNING: Final = 2
COMPLETE: Final = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """What the nodes are like."""

    count: int
    cpu: int = 4_000
    memory_mb: int = 8_192
    disk_mb: int = 100_000
    classes: int = 5
    datacenters: int = 1
    racks: int = 25
    seed: int = 0


@dataclass(slots=True)
class Tally:
    """What the fleet has seen; for whoever measures."""

    registered: int = 0
    received: int = 0
    """Allocations that arrived and are wanted."""
    running: int = 0
    """Reported as running, and the report was written."""
    complete: int = 0
    stopped: int = 0
    errors: int = 0
    last_error: str = ""


def make_nodes(shape: Shape) -> list[Node]:
    """The same nodes for the same shape."""
    chance = random.Random(shape.seed)
    return [_node(number, shape, chance) for number in range(1, shape.count + 1)]


def _node(number: int, shape: Shape, chance: random.Random) -> Node:
    kind, rack = number % shape.classes, number % shape.racks
    return Node(
        id=f"{chance.getrandbits(32):08x}-0000-4000-8000-{number:012x}",
        secret_id=f"{chance.getrandbits(32):08x}-0000-4000-9000-{number:012x}",
        name=f"sim-{number}",
        datacenter=f"dc{1 + number % shape.datacenters}",
        node_class=f"class-{kind}",
        status=NodeStatus.INITIALIZING,
        attributes={"kernel.name": "linux", "cpu.arch": "amd64", "unique.hostname": f"sim-{number}"},
        meta={"rack": f"r{rack}"},
        drivers={name: DriverInfo(detected=True, healthy=True) for name in DRIVERS},
        node_resources=NodeResources(
            cpu=NodeCPU(cpu_shares=shape.cpu, total_cpu_cores=4),
            memory=NodeMemory(memory_mb=shape.memory_mb),
            disk=NodeDisk(disk_mb=shape.disk_mb),
            node_networks=(
                NodeNetwork(
                    mode="host",
                    device="eth0",
                    addresses=(
                        NodeNetworkAddress(
                            family="ipv4", alias="default", address=f"10.0.{number >> 8 & 255}.{number & 255}"
                        ),
                    ),
                ),
            ),
        ),
    )


class SimulatedFleet:
    """All of them."""

    def __init__(
        self,
        nodes: Sequence[Node],
        addresses: Sequence[str],
        *,
        complete_after_s: float | None = None,
        reports: bool = True,
        nodes_per_link: int = NODES_PER_LINK,
    ) -> None:
        self._nodes = list(nodes)
        self._addresses = list(addresses)
        self._complete_after_s = complete_after_s
        self._reports = reports
        self._per_link = nodes_per_link
        self.tally = Tally()
        self.all_registered = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be all these nodes until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, start in enumerate(range(0, len(self._nodes), self._per_link)):
                address = self._addresses[number % len(self._addresses)]
                nursery.start_soon(self._keep_linked, self._nodes[start : start + self._per_link], address)
            task_status.started()

    async def _keep_linked(self, nodes: list[Node], address: str) -> None:
        """Some nodes over one link, dialled again when it breaks."""
        chance = random.Random(address)
        while True:
            try:
                await self._linked(nodes, address)
            except* (FedschedError, OSError, trio.BrokenResourceError) as group:
                self.tally.errors += 1
                self.tally.last_error = str(group.exceptions[0])
            await trio.sleep(0.2 + chance.random())

    async def _linked(self, nodes: list[Node], address: str) -> None:
        async with trio.open_nursery() as carrier_nursery:
            carrier = await connect_websocket(carrier_nursery, parse_address(address))
            async with open_link(carrier, is_opener=True) as link, trio.open_nursery() as nursery:
                caller = LinkCaller(link)
                slots = trio.CapacityLimiter(AT_ONCE)
                for node in nodes:
                    nursery.start_soon(_SimulatedNode(node, caller, self).run, slots)
                await link.wait_closed()
                nursery.cancel_scope.cancel()
            carrier_nursery.cancel_scope.cancel()

    def note_registered(self) -> None:
        self.tally.registered += 1
        if self.tally.registered >= len(self._nodes):
            self.all_registered.set()

    @property
    def complete_after_s(self) -> float | None:
        return self._complete_after_s

    @property
    def reports(self) -> bool:
        return self._reports


class _SimulatedNode:
    """One node: registers, listens, reports, gives signs of life."""

    def __init__(self, node: Node, caller: LinkCaller, fleet: SimulatedFleet) -> None:
        self._node = node
        self._caller = caller
        self._fleet = fleet
        self._due: dict[bytes, int] = {}
        """Statuses to be reported, by id."""
        self._known: set[bytes] = set()
        self._filled = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, slots: trio.CapacityLimiter) -> None:
        node, caller = self._node, self._caller
        async with slots:
            await caller.call(NODE_REGISTER, NodeRegisterRequest(node=node))
            request = NodeStatusRequest(node_id=node.id, secret_id=node.secret_id)
            reply, _ = await caller.call(NODE_UPDATE_STATUS, request)
        self._fleet.note_registered()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._beat, reply.heartbeat_ttl_s)
            if self._fleet.reports:
                nursery.start_soon(self._report)
            await self._listen()
            nursery.cancel_scope.cancel()

    async def _beat(self, ttl_s: float) -> None:
        while True:
            await trio.sleep(max(1.0, ttl_s / 2))
            request = NodeStatusRequest(node_id=self._node.id, secret_id=self._node.secret_id)
            reply, _ = await self._caller.call(NODE_UPDATE_STATUS, request)
            ttl_s = reply.heartbeat_ttl_s

    async def _listen(self) -> None:
        request = NodeWatchRequest(node_id=self._node.id, secret_id=self._node.secret_id)
        async with self._caller.open_stream(NODE_WATCH, request) as stream:
            async for frame in stream:
                self._take(frame.rows)

    def _take(self, data: bytes) -> None:
        rows = np.frombuffer(data, dtype=WATCH_DTYPE)
        ids = rows["id"].astype(">u8").tobytes()
        tally = self._fleet.tally
        for at, desired in enumerate(rows["desired"].tolist()):
            identity = ids[16 * at : 16 * at + 16]
            if desired == RUN:
                if identity not in self._known:
                    self._known.add(identity)
                    tally.received += 1
                    self._due[identity] = RUNNING
            elif identity in self._known:
                self._known.discard(identity)
                tally.stopped += 1
                self._due[identity] = COMPLETE
        if self._due:
            self._filled.set()

    async def _report(self) -> None:
        """Say what became of everything that changed within the last moment."""
        while True:
            await self._filled.wait()
            await trio.sleep(REPORT_S)
            self._filled = trio.Event()
            due, self._due = self._due, {}
            request = NodeReportRequest(
                node_id=self._node.id,
                secret_id=self._node.secret_id,
                ids=b"".join(due),
                statuses=bytes(due.values()),
            )
            await self._caller.call(NODE_UPDATE_ALLOCS, request)
            self._count(due)

    def _count(self, due: dict[bytes, int]) -> None:
        tally, after_s = self._fleet.tally, self._fleet.complete_after_s
        running = [identity for identity, status in due.items() if status == RUNNING]
        tally.running += len(running)
        tally.complete += len(due) - len(running)
        if after_s is not None and running and self._nursery is not None:
            self._nursery.start_soon(self._finish, running, after_s)

    async def _finish(self, ids: list[bytes], after_s: float) -> None:
        """These come to their end together: they arrived together."""
        await trio.sleep(after_s)
        self._due |= dict.fromkeys((identity for identity in ids if identity in self._known), COMPLETE)
        self._filled.set()
