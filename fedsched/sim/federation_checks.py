"""What must be true of a simulated federation when its troubles are over, and of regions that were left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from fedsched.federation.directory import Server
from fedsched.sim.federation_people import People, Write
from fedsched.sim.federation_region import NEW, FederationRegion
from fedsched.sim.verdict import Broken

if TYPE_CHECKING:
    from fedsched.sim.federation_world import Federation

HEALS_S: Final = 30.0
"""R-64: by then everybody knows again who is there."""
HEARD_S: Final = 15.0
"""By then everybody has heard of a new leader."""
SETTLES_S: Final = 10.0
"""What is under way when people stop asking has come to an end by then."""
SLOWER: Final = 1.1


def check_membership(federation: Federation) -> None:
    """R-64: every directory holds exactly who runs."""
    truth = {server.me.id for region in federation.alive for server in region.running()}
    for region in federation.alive:
        for server in region.running():
            held = {
                one.id for name in server.directory.all_regions() for one in server.directory.servers(name) if _up(one)
            }
            missing, ghosts = sorted(truth - held), sorted(held - truth)
            if missing or ghosts:
                what = f"{HEALS_S:g} s after healing it misses {missing} and takes {ghosts} for alive"
                raise Broken("R-64 membership converges", what, server.name_abroad)


def _up(server: Server) -> bool:
    return server.is_alive and not server.is_suspect


async def check_ways(federation: Federation, people: dict[str, People]) -> None:
    """R-64: after healing every server gets an answer from every region, at the first attempt."""
    for region in federation.alive:
        for server in region.running():
            for target in federation.alive:
                if not await people[region.region].read(target.region, stale=True, through=server):
                    what = f"no answer from {target.region} although everything has healed"
                    raise Broken("R-64 regions reach each other", what, server.name_abroad)


async def check_hints(federation: Federation) -> None:
    """A new leader is known everywhere soon: an old hint is replaced."""
    for region in federation.alive:
        await region.change_leader(crash=False)
    await trio.sleep(HEARD_S)
    for region in federation.alive:
        for server in region.running():
            for target in federation.alive:
                believed = server.directory.leader(target.region)
                assert target.leader is not None
                leads = target.server(target.leader.name).me.id
                if believed is None or believed.id != leads:
                    name = believed.id if believed is not None else "nobody"
                    what = f"takes {name} for the leader of {target.region}, which {leads} is"
                    raise Broken("R-64 leaders are known", what, server.name_abroad)


def check_writes(federation: Federation, people: dict[str, People]) -> None:
    """R-67: what was acknowledged is there, and nothing is there twice."""
    for name, asker in sorted(people.items()):
        for write in asker.asked.writes:
            region = federation.regions[write.region]
            if region.is_lost:
                continue
            _check_write(region, write, is_owed=not federation.regions[name].is_lost)


def _check_write(region: FederationRegion, write: Write, *, is_owed: bool) -> None:
    assert region.leader is not None
    there = region.done_for(write.key)
    if there > 1:
        raise Broken("R-67 once", f"{write.key} was carried out {there} times in {region.region}", region.region)
    if write.is_acknowledged and not there:
        raise Broken("R-67 not lost", f"{write.key} was acknowledged by {region.region} and is not there")
    if is_owed and not write.is_acknowledged:
        raise Broken("R-67 completes", f"{write.key} was tried {write.tries} times at {region.region}, in vain")


def check_versions(federation: Federation) -> None:
    """R-67: newer commands are in use exactly when every server knows them."""
    for region in federation.alive:
        known = min(region.versions.values())
        assert region.leader is not None
        enabled = region.leader.store.meta.enabled_version
        if enabled > known:
            raise Broken("R-67 nobody meets what it does not know", f"version {enabled} is enabled, {region.versions}")
        if known == NEW and enabled != NEW:
            raise Broken("R-67 the gate opens", f"all know version {NEW}, {enabled} is enabled", region.region)


def check_left_alone(
    federation: Federation, undisturbed: Federation, people: dict[str, People], alone: dict[str, People]
) -> None:
    """R-63: a region that was left alone did exactly what it does without any trouble elsewhere."""
    for name in federation.plan.left_alone:
        here, there = federation.regions[name].history, undisturbed.regions[name].history
        for one, other in zip(here, there, strict=False):
            if one != other:
                raise Broken("R-63 regions are independent", f"{name} did {one}, undisturbed {other}", name)
        if len(here) < len(there):
            raise Broken("R-63 regions are independent", f"{name} did not do {there[len(here)]}", name)
        calm = alone[name].asked.latencies
        until = calm[-1][0] if calm else 0.0  # a run with troubles goes on for longer
        calm_s = percentile_99([took for _, took in calm])
        disturbed_s = percentile_99([took for began, took in people[name].asked.latencies if began <= until])
        if disturbed_s > calm_s * SLOWER:
            what = f"writes at home took {disturbed_s:.3f} s at p99, undisturbed {calm_s:.3f} s"
            raise Broken("R-63 regions are independent", what, name)


def percentile_99(times: list[float]) -> float:
    return sorted(times)[max(0, (len(times) * 99 + 99) // 100 - 1)] if times else 0.0
