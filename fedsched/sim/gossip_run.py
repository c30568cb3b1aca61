"""One seed, one story: a pool of drawn size on a drawn network, faults, peace, and a look at what is left.

The faults are drawn before the run, so that the same seed tells the same story however the core behaves. After the last
one everything heals and the pool has half a minute: nobody may be left uninformed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from fedsched.gossip.asked import Publish
from fedsched.gossip.core import GossipCore
from fedsched.sim.gossip_checks import StepChecks, check_events, check_peace
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_world import GossipWorld, Host, MakeCore
from fedsched.sim.streams import stream

TROUBLE_S: Final = 60.0
PEACE_S: Final = 45.0
"""Up to fifteen seconds until the dead are known, and thirty in which nobody may be left uninformed."""
REGIONS: Final = 3

Deed = Callable[[GossipWorld, random.Random], None]


def run_seed(seed: int, *, make_core: MakeCore = GossipCore, count: int | None = None) -> GossipWorld:
    """Raises `WorldBroken` if anything happens that must not."""
    draw = stream(seed, "story")
    net = NetOptions(
        far_s=draw.choice((0.002, 0.02, 0.08)),
        loss=draw.choice((0.0, 0.01, 0.05, 0.1)),
        duplicates=draw.choice((0.0, 0.02)),
    )
    world = GossipWorld(seed, count or draw.choice((5, 9, 15, 24)), regions=REGIONS, net=net, make_core=make_core)
    world.after_step = StepChecks(world)
    for _ in range(draw.randint(3, 8)):
        deed = draw.choice(DEEDS)
        world.at(5 + draw.random() * (TROUBLE_S - 15), partial(deed, world, random.Random(draw.random())))
    world.run(TROUBLE_S)
    _make_peace(world)
    world.run(TROUBLE_S + PEACE_S)
    check_peace(world)
    check_events(world)
    return world


def _make_peace(world: GossipWorld) -> None:
    world.net.heal()
    for host in world.hosts:
        host.slow_s = 0.0
        if host.is_paused:
            world.resume(host)


def _some(world: GossipWorld, draw: random.Random) -> Host | None:
    """A host that runs; never one of the last three."""
    running = [host for host in world.running() if not host.is_paused]
    return draw.choice(running) if len(running) > 3 else None


def _anybody(world: GossipWorld) -> tuple[tuple[str, int], ...]:
    return tuple(host.addr for host in world.running()[:6])


def _crash(world: GossipWorld, draw: random.Random) -> None:
    """Killed, and back after a while, with or without its disk."""
    host = _some(world, draw)
    if host is not None:
        world.kill(host, keep_disk=draw.random() < 0.7)
        world.at(world.now + draw.choice((0.5, 3.0, 10.0, 20.0)), lambda: _restart(world, host))


def _restart(world: GossipWorld, host: Host) -> None:
    if host.core is None:
        world.boot(host, join=_anybody(world))


def _die(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        world.kill(host)


def _depart(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        world.leave(host)


def _pause(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        process = host.process
        world.pause(host)
        world.at(world.now + draw.choice((1.0, 4.0, 12.0)), lambda: _go_on(world, host, process))


def _go_on(world: GossipWorld, host: Host, process: int) -> None:
    if host.process == process and host.is_paused:
        world.resume(host)


def _slow(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        host.slow_s = draw.choice((0.1, 0.4, 1.5))


def _cut_one_way(world: GossipWorld, draw: random.Random) -> None:
    one, other = draw.sample(range(REGIONS), 2)
    world.net.region_cuts.add((one, other))
    world.at(world.now + draw.choice((2.0, 10.0, 25.0)), world.net.heal)


def _cut_off(world: GossipWorld, draw: random.Random) -> None:
    one = draw.randrange(REGIONS)
    for other in range(REGIONS):
        if other != one:
            world.net.region_cuts |= {(one, other), (other, one)}
    world.at(world.now + draw.choice((2.0, 10.0, 25.0)), world.net.heal)


def _mute(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        (world.net.mute if draw.random() < 0.5 else world.net.deaf).add(host.index)
        world.at(world.now + draw.choice((2.0, 8.0, 20.0)), world.net.heal)


def _announce(world: GossipWorld, draw: random.Random) -> None:
    host = _some(world, draw)
    if host is not None:
        world.tell(host, Publish("deploy", draw.randbytes(8)))


def _mass_restart(world: GossipWorld, draw: random.Random) -> None:
    """Everybody at once, as after a power cut; disks survive."""
    for host in world.running():
        world.kill(host)
        world.at(world.now + 1 + 3 * draw.random(), partial(_restart_alone, world, host))


def _restart_alone(world: GossipWorld, host: Host) -> None:
    """With nothing but what is on disk to find the others."""
    if host.core is None:
        world.boot(host)


DEEDS: Final[tuple[Deed, ...]] = (
    _crash,
    _crash,
    _die,
    _depart,
    _pause,
    _pause,
    _slow,
    _cut_one_way,
    _cut_off,
    _mute,
    _announce,
    _announce,
    _mass_restart,
)
