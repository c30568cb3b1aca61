"""R-64 for cuts of any length: pools of several regions, cut apart for longer than failed members are remembered.

The federation's own runs have cuts of half a minute; here there is nothing but gossip, so that a cut may last from a
second to several times the time after which a dead member is forgotten. That time is shortened, three days being long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fedsched.gossip.core import GossipCore
from fedsched.gossip.profiles import FED
from fedsched.sim.gossip_checks import StepChecks, check_peace
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_world import GossipWorld, MakeCore, WorldBroken
from fedsched.sim.streams import stream
from fedsched.sim.verdict import Broken

FORGET_S: Final = 60.0
HEALS_S: Final = 30.0
LENGTHS_S: Final = (1.0, 8.0, 30.0, 90.0, 240.0)
PROFILE: Final = replace(FED, reconnect_timeout_s=FORGET_S, tombstone_s=FORGET_S)


def run_seed(seed: int, *, make_core: MakeCore = GossipCore) -> GossipWorld:
    """Cut the regions apart for a drawn time, heal, and look after half a minute. Raises `Broken`."""
    chance = stream(seed, "long-cuts")
    regions = chance.choice((2, 3, 5))
    net = NetOptions(far_s=chance.choice((0.005, 0.05)), loss=chance.choice((0.0, 0.02)))
    world = GossipWorld(seed, regions * 3, profile=PROFILE, regions=regions, net=net, make_core=make_core)
    try:
        world.after_step = StepChecks(world)
        world.run(3.0)
        side = set(chance.sample(range(regions), chance.randrange(1, regions)))
        is_one_way = chance.random() < 0.25
        for one in range(regions):
            for other in range(regions):
                if (one in side) != (other in side) and not (is_one_way and one in side):
                    world.net.region_cuts.add((one, other))
        length_s = chance.choice(LENGTHS_S) * (0.5 + chance.random())
        if chance.random() < 0.3:
            victim = chance.choice(world.hosts)
            world.at(3.0 + length_s * 0.7, lambda: world.kill(victim))
            world.at(3.0 + length_s * 0.7 + 2.0, lambda: world.boot(victim))
        world.run(3.0 + length_s)
        world.net.heal()
        world.run(world.now + HEALS_S)
        check_peace(world)
    except WorldBroken as error:
        raise Broken("R-64 membership converges after a cut of any length", str(error)) from error
    return world
