"""What goes wrong in a simulated region: leaders, workers, servers, nodes and clocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from fedsched.sim.fleet_clients import SimNode
from fedsched.sim.fleet_world import SERVERS, FleetWorld
from fedsched.sim.streams import stream

CHAOS_S: Final = 60.0
NODES: Final = 6
NODES_MAX: Final = 10


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


class Faults:
    """What goes wrong, for a while."""

    def __init__(self, world: FleetWorld, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._chance = stream(world.seed, "faults")
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self._leader,
            self._workers,
            self._follower,
            self._silence,
            self._silence,
            self._return,
            self._return,
            self._join,
        ]
        if "clocks" in world.options.features:
            self._kinds.append(self._clock)

    async def run(self) -> None:
        until = trio.current_time() + CHAOS_S
        while trio.current_time() < until:
            await trio.sleep(self._chance.uniform(0.5, 6.0))
            fault = self._chance.choice(self._kinds)
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
        jump = self._chance.choice((-3600.0, -70.0, -5.0, 5.0, 70.0, 3600.0))
        self._world.jump(jump)
