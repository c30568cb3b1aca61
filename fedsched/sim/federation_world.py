"""A federation of one seed: two to five regions, each a world of its own, joined by gossip and forwarded calls.

One clock, one heap of what is due, one trace. Regions are those of `fleet_world` with real dispatch, forwarding,
router, directory, links and gossip between them; Raft is one log per region. What goes wrong is drawn before the run
(`federation_plan`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

from fedsched.gossip.core import GossipCore
from fedsched.sim import trio_seed
from fedsched.sim.federation_gossip import Pool, PoolHost
from fedsched.sim.federation_links import Host, WanWeather, Wires
from fedsched.sim.federation_plan import CALM_S, CHAOS_S, Plan, Trouble
from fedsched.sim.federation_region import NEW, OLD, FederationRegion
from fedsched.sim.federation_server import ABROAD
from fedsched.sim.federation_steps import Steps
from fedsched.sim.fleet_clients import SimNode
from fedsched.sim.fleet_world import SERVERS
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_world import MakeCore
from fedsched.sim.streams import stream
from fedsched.sim.trace import Trace

START_S: Final = 1024.0
"""Virtual time begins here: sums and differences of times near it are exact, whatever else was due in between."""
NODES: Final = 2
DOWN_S: Final = (0.5, 2.0)
"""How long a restart takes."""

Way = tuple[str, str]


class Federation:
    """Everything that one run holds."""

    def __init__(
        self, seed: int, plan: Plan, nursery: trio.Nursery, trace: Trace, *, make_core: MakeCore = GossipCore
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.nursery = nursery
        self.trace = trace
        self.counts: Counter[str] = Counter()
        self.wires = Wires(seed, WanWeather(far_s=plan.far_s, loss=plan.loss), self.counts)
        net = NetOptions(far_s=plan.far_s, loss=plan.loss)
        self.pool = Pool(seed, net=net, make_core=make_core)
        self.pool_hosts: dict[str, PoolHost] = {}
        self.regions: dict[str, FederationRegion] = {}
        self.steps = Steps(self)
        self.broken_since: dict[Way, float] = {}
        """Since when one region cannot get an answer from another."""
        self._chance = stream(seed, "troubles")
        self._cuts: list[set[Way]] = []
        """Ways between regions that are cut just now, by cause."""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Everybody is there, knows everybody, and has a leader."""
        await trio.sleep_until(START_S)
        for number, name in enumerate(self.plan.regions):
            trio_seed.GROUP.set(name)
            region = self.regions[name] = FederationRegion(self, name, number, self.nursery)
            for info in region.infos:
                self.wires.add(Host(info.id, name, info.address))
                self._add_to_pool(region, info.id, info.address)
        self.pool.now = trio.current_time()
        self.pool.form()
        trio_seed.GROUP.set(ABROAD)
        self.nursery.start_soon(self.pool.drive)
        for region in self.regions.values():
            trio_seed.GROUP.set(region.region)
            region.start()
            for number in range(NODES):
                node = SimNode(region, number + 1)
                region.checks.nodes[node.id] = node
                self.nursery.start_soon(node.run)
            self.nursery.start_soon(self._begin, region)
        trio_seed.GROUP.set(ABROAD)
        await trio.sleep(1.0)

    async def _begin(self, region: FederationRegion) -> None:
        await trio.sleep(0.1)
        await region.elect()

    def _add_to_pool(self, region: FederationRegion, server_id: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        tags = {
            "role": "fedsched",
            "region": region.region,
            "dc": "dc1",
            "id": server_id,
            "rpc_addr": host,
            "port": port,
            "expect": str(len(SERVERS)),
        }
        self.pool_hosts[server_id] = self.pool.add_server(region.number, f"{server_id}.{region.region}", tags)

    @property
    def alive(self) -> list[FederationRegion]:
        return [region for _, region in sorted(self.regions.items()) if not region.is_lost]

    # ------------------------------------------------------------------ trouble

    async def troubles(self) -> None:
        """Let everything happen that was drawn; returns when the time for it is over."""
        end = START_S + 1.0 + CALM_S + CHAOS_S
        async with trio.open_nursery() as nursery:
            for name, region in sorted(self.regions.items()):
                own = [one for one in self.plan.troubles if one.region == name and not one.kind.startswith("cut")]
                trio_seed.GROUP.set(name)
                nursery.start_soon(self._own_troubles, region, own)
            trio_seed.GROUP.set(ABROAD)
            for one in self.plan.troubles:
                if one.kind.startswith("cut"):
                    nursery.start_soon(self._wan_trouble, one)
        await trio.sleep_until(end)
        self.trace.note(round(trio.current_time() * 1e6), "", "heal", "no more troubles")
        self.pool.net.options = NetOptions(far_s=self.plan.far_s)
        self.wires.wan.loss = 0.0

    async def _wan_trouble(self, trouble: Trouble) -> None:
        await trio.sleep_until(START_S + trouble.at_s)
        others = [name for name in self.plan.regions if name != trouble.region]
        if trouble.kind == "cut off":
            ways = {(trouble.region, other) for other in others} | {(other, trouble.region) for other in others}
        else:
            ways = {(trouble.region, trouble.other)}
            if trouble.kind == "cut":
                ways.add((trouble.other, trouble.region))
        await self._cut(ways, f"{trouble.kind}: {sorted(ways)} for {trouble.length_s:.1f} s", trouble)

    async def _cut(self, ways: set[Way], what: str, trouble: Trouble) -> None:
        self.counts[f"trouble: {trouble.kind}"] += 1
        self.trace.note(round(trio.current_time() * 1e6), trouble.region, "fault", what)
        self._cuts.append(ways)
        self._refresh()
        await trio.sleep(trouble.length_s)
        self._cuts.remove(ways)
        self._refresh()

    def _refresh(self) -> None:
        """Bring wires and gossip in line with what is cut."""
        cut = {way for ways in self._cuts for way in ways}
        pairs = {pair for one, other in cut for pair in self.wires.pairs(one, other)}
        for pair in sorted(pairs - self.wires.cuts):
            self.wires.cut(*pair)
        for pair in sorted(self.wires.cuts - pairs):  # only these: nobody else is to notice
            self.wires.join(*pair)
        self.pool.net.region_cuts = {
            (self.regions[one].number, self.regions[other].number) for one, other in cut if one != other
        }
        now = trio.current_time()
        for one in self.plan.regions:
            for other in self.plan.regions:
                way = (one, other)
                is_broken = way in cut or (other, one) in cut or self.regions[other].is_lost
                if is_broken:
                    self.broken_since.setdefault(way, now)
                else:
                    self.broken_since.pop(way, None)

    async def _own_troubles(self, region: FederationRegion, troubles: list[Trouble]) -> None:
        for one in troubles:
            await trio.sleep_until(START_S + one.at_s)
            if region.is_lost or region.leader is None:
                continue
            region.note("", "fault", f"{one.kind} {one.length_s:.1f}")
            match one.kind:
                case "stall":
                    await self._stall(region, one)
                    continue
                case "leader killed" | "leader steps down":
                    await region.change_leader(crash=one.kind == "leader killed")
                case "restart":
                    await region.bounce(self._chance.choice(SERVERS), self._chance.uniform(*DOWN_S))
                case "rolling restart":
                    await self._roll(region, None)
                case "upgrade":
                    await self._upgrade(region)
                case "lost":
                    region.lose()
                    self._refresh()
            self.counts[f"trouble: {one.kind}"] += 1

    async def _stall(self, region: FederationRegion, trouble: Trouble) -> None:
        name = region.region
        ways = {(name, name)} | {(name, other) for other in self.plan.regions if other != name}
        ways |= {(other, one) for one, other in ways}
        region.freeze()
        await self._cut(ways, f"stands still for {trouble.length_s:.1f} s", trouble)
        region.thaw()

    async def _roll(self, region: FederationRegion, version: int | None) -> None:
        """One server after the other, each when the one before is back."""
        for name in SERVERS:
            await region.bounce(name, self._chance.uniform(*DOWN_S), version)
            await trio.sleep(self._chance.uniform(0.5, 2.0))
            if region.is_lost:
                return

    async def _upgrade(self, region: FederationRegion) -> None:
        """New code on every server; now and then one goes back to the old code first, as long as that is allowed."""
        if self._chance.random() < 0.5:
            name = self._chance.choice(SERVERS)
            await region.bounce(name, 1.0, NEW)
            await trio.sleep(self._chance.uniform(1.0, 7.0))
            if not region.is_lost and NEW not in {one.store.meta.enabled_version for one in region.running()}:
                await region.bounce(name, 1.0, OLD)
        await self._roll(region, NEW)
