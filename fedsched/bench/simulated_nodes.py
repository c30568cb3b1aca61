"""Many nodes in one cheap process: they register over real links, take what is pushed to them, and report on it.

Nothing runs. A node answers for its allocations the way a client agent would, by the script of their job (see
`simulated_scripts`). A hundred nodes share a websocket, so that five thousand of them need no five thousand
connections. What servers do per node, per frame and per report is the same; what they do per message of a websocket is
less than it would be for as many agents.

Nodes can fail and return: `fail` and `bring_back`, by place in the fleet, by number, or by share.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

from fedsched.bench.simulated_node import SimulatedNode, Tally, Timers
from fedsched.bench.simulated_scripts import BATCH_S, Scripts
from fedsched.client.dialling import server_address
from fedsched.model.errors import BadRequest, FedschedError
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
from fedsched.wire.link import Link, open_link
from fedsched.wire.websocket import connect_websocket

TURN_S: Final = 0.05
"""How often a link's nodes are looked through for reports that are due."""
LOOK_S: Final = 1.0
"""How often they are looked through for signs of life that are due."""
AGAIN_S: Final = 0.5
"""After something went wrong, at least."""
NODES_PER_LINK: Final = 100
AT_ONCE: Final = 2
"""Registrations under way per link."""
DRIVERS: Final = ("mock_driver", "raw_exec", "exec", "java", "docker")
"""They pretend to have them all, so that any job file can be tried."""
_SOME: Final = re.compile(r"(\d+)\s*(%|random)?")

Dial = Callable[[str], AbstractAsyncContextManager[Link]]
Which = Sequence[int] | int | str
"""Nodes by their places; so many at random; or a text: "all", "5 random", "10%"."""


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


@asynccontextmanager
async def dial_websocket(address: str) -> AsyncIterator[Link]:
    """A link as client agents have it: to a server's own port, or to the HTTP port of an agent that is named so."""
    async with trio.open_nursery() as nursery:
        carrier = await connect_websocket(nursery, server_address(address, is_tls=False))
        async with open_link(carrier, is_opener=True) as link:
            yield link
        nursery.cancel_scope.cancel("the link is over")


class SimulatedFleet:
    """All of them."""

    def __init__(
        self,
        nodes: Sequence[Node],
        addresses: Sequence[str],
        *,
        batch_s: float = BATCH_S,
        reports: bool = True,
        nodes_per_link: int = NODES_PER_LINK,
        dial: Dial = dial_websocket,
        seed: int = 0,
    ) -> None:
        self._addresses = list(addresses)
        self._reports = reports
        self._dial = dial
        self._chance = random.Random(seed)
        self.tally = Tally()
        self.scripts = Scripts(batch_s)
        self.all_registered = trio.Event()
        self._groups: list[tuple[Timers, list[SimulatedNode]]] = []
        for start in range(0, len(nodes), nodes_per_link):
            timers = Timers()
            some = nodes[start : start + nodes_per_link]
            self._groups.append((timers, [self._simulated(node, timers) for node in some]))
        self.nodes = [node for _, group in self._groups for node in group]

    def _simulated(self, node: Node, timers: Timers) -> SimulatedNode:
        return SimulatedNode(node, self.scripts, self.tally, timers, self._registered)

    def _registered(self) -> None:
        if self.tally.registered >= len(self.nodes):
            self.all_registered.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be all these nodes until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, (timers, nodes) in enumerate(self._groups):
                nursery.start_soon(self._keep_linked, nodes, self._addresses[number % len(self._addresses)])
                nursery.start_soon(self._keep_time, timers, nodes)
            task_status.started()

    # ---- failing and returning ------------------------------------------------------------------------------

    def fail(self, which: Which) -> list[int]:
        """Let nodes fall silent that are not; their places."""
        chosen = self._choose(which, [at for at, node in enumerate(self.nodes) if not node.is_failed])
        for at in chosen:
            self.nodes[at].fail()
        return chosen

    def bring_back(self, which: Which) -> list[int]:
        """Let nodes return that have failed; their places."""
        chosen = self._choose(which, [at for at, node in enumerate(self.nodes) if node.is_failed])
        for at in chosen:
            self.nodes[at].bring_back()
        return chosen

    def obey(self, line: str) -> None:
        """Do what a line of JSON says: `{"fail": WHICH}`, `{"return": WHICH}`, or both."""
        try:
            wish = json.loads(line)
        except ValueError:
            wish = None
        if not isinstance(wish, dict) or not wish or wish.keys() - {"fail", "return"}:
            raise BadRequest(f"cannot obey {line.strip()[:100]!r}", hint='write {"fail": "10%"} or {"return": "all"}')
        if "return" in wish:
            self.bring_back(wish["return"])
        if "fail" in wish:
            self.fail(wish["fail"])

    def _choose(self, which: Any, candidates: list[int]) -> list[int]:
        """Those of the candidates that are meant. A share is one of the whole fleet, and at least one node."""
        if which == "all":
            return candidates
        if isinstance(which, (list, tuple)) and all(isinstance(at, int) for at in which):
            return sorted(set(which) & set(candidates))
        found = _SOME.fullmatch(str(which).strip()) if isinstance(which, (int, str)) else None
        if found is None:
            raise BadRequest(f"which nodes are {which!r}?", hint='places in a list, "all", "5 random" or "10%"')
        number = int(found[1])
        if found[2] == "%":
            number = max(1, len(self.nodes) * number // 100) if number else 0
        return sorted(self._chance.sample(candidates, min(number, len(candidates))))

    # ---- running --------------------------------------------------------------------------------------------

    async def _keep_linked(self, nodes: list[SimulatedNode], address: str) -> None:
        """Some nodes over one link, dialled again when it breaks."""
        while True:
            try:
                await self._linked(nodes, address)
            except* (FedschedError, OSError, trio.BrokenResourceError) as group:
                self._note(group.exceptions[0])
            await self._pause()

    async def _linked(self, nodes: list[SimulatedNode], address: str) -> None:
        async with self._dial(address) as link, trio.open_nursery() as nursery:
            caller = LinkCaller(link)
            slots = trio.CapacityLimiter(AT_ONCE)
            for node in nodes:
                nursery.start_soon(self._keep_up, node, caller, slots)
            nursery.start_soon(self._keep_alive, nodes, caller)
            await link.wait_closed()
            nursery.cancel_scope.cancel("the link is over")

    async def _keep_up(self, node: SimulatedNode, caller: LinkCaller, slots: trio.CapacityLimiter) -> None:
        """One node, registered again when servers have lost or refused it, and when it returns."""
        while True:
            await node.wait_up()
            failure: FedschedError | None = None
            try:
                await node.run(caller, slots)
            except FedschedError as error:
                failure = error
            if not node.is_failed:
                await self._pause()  # not left if the link is over, which is noted once for all its nodes
            if failure is not None:
                self._note(failure)

    async def _keep_alive(self, nodes: list[SimulatedNode], caller: LinkCaller) -> None:
        """Signs of life of all nodes of a link, each when it is due: no slow answer delays that of another node."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                now = trio.current_time()
                for node in nodes:
                    if node.beat_at <= now:
                        node.beat_at = math.inf
                        nursery.start_soon(self._beat, node, caller)

    async def _beat(self, node: SimulatedNode, caller: LinkCaller) -> None:
        try:
            await node.beat(caller)
        except FedschedError as error:
            node.beat_at = trio.current_time() + AGAIN_S
            self._note(error)

    async def _keep_time(self, timers: Timers, nodes: list[SimulatedNode]) -> None:
        """What becomes of allocations, and the reports of all nodes of a link, each when it is due."""
        while True:
            await trio.sleep(TURN_S)
            now = trio.current_time()
            timers.run(now)
            if self._reports:
                for node in nodes:
                    if node.report_at <= now:
                        node.report(now)

    async def _pause(self) -> None:
        await trio.sleep(AGAIN_S + self._chance.random())

    def _note(self, error: BaseException) -> None:
        self.tally.errors += 1
        self.tally.last_error = str(error)
