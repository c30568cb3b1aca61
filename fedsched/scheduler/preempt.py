"""Whom to evict so that something more important fits: chosen per node, cheapest harm first.

Only allocations of other jobs whose priority is at least 10 lower may go. Static ports and devices that they hold are
freed first, because nothing else can take their place; then CPU, memory and disk, lowest priority first and within a
priority whoever comes closest to what is still missing. In the end whoever was picked and is not needed stays.

Cores and exclusive volumes are never a reason to evict anyone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from fedsched.model.node_resources import NodeDeviceGroup
from fedsched.model.resources import RequestedDevice
from fedsched.scheduler.ask import Ask, Offer
from fedsched.scheduler.devices import device_matches, free_instances, healthy, usable_instances
from fedsched.scheduler.fit import Exhausted, NodeRoom, Sums, sums_of
from fedsched.scheduler.ports import PortIndex, ignores_collision
from fedsched.scheduler.special import HeldPort, Special

MIN_DIFFERENCE: Final = 10
"""How much lower a victim's priority must be; exactly 10 is enough."""

PENALTY: Final = 50.0
"""Per allocation beyond its group's migrate.max_parallel: more than any distance between honest sizes."""

SCORE_ORIGIN: Final = 2048.0
SCORE_RATE: Final = 0.0048
"""The curve on which a net priority becomes a score: one half at the origin."""

GroupKey = tuple[str, str, str]
"""Namespace, job id, group."""


class Candidate(NamedTuple):
    """An allocation on the node, as far as eviction looks at it."""

    key: Hashable
    """Whatever the caller knows it by."""
    priority: int
    group: GroupKey
    sums: Sums
    max_parallel: int = 0
    """Of the group's migrate block; 0 if it has none."""
    special: Special | None = None


class Preemption(NamedTuple):
    """A way to fit the ask on the node."""

    victims: tuple[Candidate, ...]
    offer: Offer
    """What the ask gets once they are gone."""

    @property
    def net_priority(self) -> float:
        return net_priority(victim.priority for victim in self.victims)

    @property
    def score(self) -> float:
        return preemption_score(self.net_priority)


def preempt(
    room: NodeRoom,
    on_node: Sequence[Candidate],
    ask: Ask,
    *,
    job: tuple[str, str],
    priority: int,
    preempted: Mapping[GroupKey, int] | None = None,
    seed: int = 0,
    name_index: int = 0,
) -> Preemption | None:
    """Find allocations whose eviction makes room for the ask; None if no permitted eviction does.

    `room` is the node with everything on it, `on_node` the allocations that may be looked at (all those in the room, or
    only some: those left out stay). `job` is who asks: namespace and id. `preempted` counts the evictions that the plan
    already has, by group.
    """
    may_go = [one for one in on_node if one.group[:2] != job and priority - one.priority >= MIN_DIFFERENCE]
    for_ports = _free_ports(room, may_go, ask)
    if for_ports is None:
        return None
    room, may_go = _evicted(room, may_go, for_ports)
    for_devices = _free_devices(room, may_go, ask)
    if for_devices is None:
        return None
    room, may_go = _evicted(room, may_go, for_devices)
    offer = room.special_offer(ask, seed, name_index) if ask.needs_special else Offer()
    if isinstance(offer, Exhausted):
        return None
    for_sums = _free_sums(room, may_go, sums_of(ask, offer), preempted or {})
    if for_sums is None:
        return None
    return Preemption((*for_ports, *for_devices, *for_sums), offer)


def distance(ask: Sums, used: Sums) -> float:
    """How far an allocation's resources are from what is asked; dimensions that ask for nothing are left out."""
    parts = ((ask.memory_mb, used.memory_mb), (ask.cpu, used.cpu), (ask.disk_mb, used.disk_mb))
    return math.sqrt(sum(((wanted - has) / wanted) ** 2 for wanted, has in parts if wanted > 0))


def parallel_penalty(max_parallel: int, preempted: int) -> float:
    """What is added to the distance of an allocation whose group has lost its share already."""
    if max_parallel <= 0 or preempted < max_parallel:
        return 0.0
    return PENALTY * (preempted + 1 - max_parallel)


def net_priority(priorities: Iterable[int]) -> float:
    """How much is lost with allocations of these priorities: the highest counts most, many count a little more."""
    lost = list(priorities)
    highest = max(lost, default=0)
    return highest + sum(lost) / highest if highest else 0.0


def preemption_score(net: float) -> float:
    """Near 1 for little loss, one half at 2048, near 0 beyond."""
    exponent = SCORE_RATE * (net - SCORE_ORIGIN)
    return 1.0 / (1.0 + math.exp(exponent)) if exponent < 700 else 0.0


def _free_sums(
    room: NodeRoom, may_go: Sequence[Candidate], more: Sums, preempted: Mapping[GroupKey, int]
) -> tuple[Candidate, ...] | None:
    """Pick by priority and distance until the sums fit, then let go of whoever is not needed."""
    if room.short_of(more) is None:
        return ()
    if room.without(total_of(may_go)).short_of(more) is not None:
        return None  # not even without all of them: most nodes of a full region end here
    picked: list[Candidate] = []
    freed, missing = room, more
    by_priority = sorted(may_go, key=lambda one: one.priority)
    for _, level in groupby(by_priority, key=lambda one: one.priority):
        left = list(level)
        while left and freed.short_of(more) is not None:
            distances = [_penalised(missing, one, preempted) for one in left]
            nearest = left.pop(distances.index(min(distances)))
            picked.append(nearest)
            freed = freed.without(nearest.sums)
            missing = missing.minus(nearest.sums)
    return _needed(room, picked, more)


def total_of(some: Iterable[Candidate]) -> Sums:
    """What these take together."""
    sums = [one.sums for one in some]
    return Sums(
        sum(one.cpu for one in sums),
        sum(one.memory_mb for one in sums),
        sum(one.disk_mb for one in sums),
        sum(one.allocs for one in sums),
    )


def _needed(room: NodeRoom, picked: Sequence[Candidate], more: Sums) -> tuple[Candidate, ...]:
    """Keep those farthest from the ask until they suffice, then spare whoever is too many, highest priority first.

    The second step goes beyond Nomad, which stops after the first: an eviction that helps nobody is only harm.
    """
    kept: list[Candidate] = []
    for one in sorted(picked, key=lambda one: -distance(more, one.sums)):
        kept.append(one)
        room = room.without(one.sums)
        if room.short_of(more) is None:
            break
    for one in sorted(kept, key=lambda one: -one.priority):
        if room.with_(one.sums).short_of(more) is None:
            room = room.with_(one.sums)
            kept.remove(one)
    return tuple(kept)


def _penalised(missing: Sums, one: Candidate, preempted: Mapping[GroupKey, int]) -> float:
    return distance(missing, one.sums) + parallel_penalty(one.max_parallel, preempted.get(one.group, 0))


def _evicted(
    room: NodeRoom, may_go: Sequence[Candidate], victims: Sequence[Candidate]
) -> tuple[NodeRoom, list[Candidate]]:
    for one in victims:
        room = room.without(one.sums, one.special)
    return room, [one for one in may_go if one not in victims]


def _free_ports(room: NodeRoom, may_go: Sequence[Candidate], ask: Ask) -> list[Candidate] | None:
    """Pick whoever holds a static port that is asked for; None if someone holds it who must stay."""
    networks = [*((ask.network,) if ask.network else ()), *(net for task in ask.tasks for net in task.networks)]
    wanted = [port for net in networks for port in net.reserved_ports if not ignores_collision(net, port)]
    if not wanted:
        return []
    index = room.ports()
    if isinstance(index, str):
        return None
    victims: list[Candidate] = []
    for port in wanted:
        alias = index.host_network(port)
        if alias is None or index.is_free(alias, port.value):
            continue
        for one in may_go:
            if one not in victims and one.special is not None and _holds_port(index, one.special, alias, port.value):
                victims.append(one)
    freed = _evicted(room, may_go, victims)[0].ports()
    assert isinstance(freed, PortIndex)
    aliases = [(index.host_network(port), port.value) for port in wanted]
    return victims if all(alias is None or freed.is_free(alias, value) for alias, value in aliases) else None


def _holds_port(index: PortIndex, special: Special, alias: str, value: int) -> bool:
    wanted = set(index.addresses(alias))
    return any(held.value == value and not wanted.isdisjoint(_reach(index, held)) for held in special.ports)


def _reach(index: PortIndex, held: HeldPort) -> set[str]:
    return {held.address, *index.addresses(held.host_network)}


def _free_devices(room: NodeRoom, may_go: Sequence[Candidate], ask: Ask) -> list[Candidate] | None:
    """Pick, request by request, whoever must give up device instances; None if that never suffices."""
    victims: list[Candidate] = []
    if not ask.devices or not isinstance(room.special_offer(_only_devices(ask)), Exhausted):
        return victims
    for number, _request in enumerate(ask.devices):
        so_far = _only_devices(ask, number + 1)
        if not isinstance(room.special_offer(so_far), Exhausted):
            continue
        option = _best_option(room, may_go, so_far)
        if option is None:
            return None
        room, may_go = _evicted(room, may_go, option)
        victims += option
    return victims


def _best_option(room: NodeRoom, may_go: Sequence[Candidate], so_far: Ask) -> list[Candidate] | None:
    """Among the devices that match the latest request, choose the one whose freeing costs least priority."""
    request, best, best_cost = so_far.devices[-1], None, 0
    for device in room.node.node_resources.devices:
        if not device_matches(device, request):
            continue
        option = _device_option(room, may_go, request, device)
        if option is None or isinstance(_evicted(room, may_go, option)[0].special_offer(so_far), Exhausted):
            continue
        cost = sum({one.priority for one in option})
        if best is None or cost < best_cost:
            best, best_cost = option, cost
    return best


def _device_option(
    room: NodeRoom, may_go: Sequence[Candidate], request: RequestedDevice, device: NodeDeviceGroup
) -> list[Candidate] | None:
    """Take holders of the device by ascending priority until enough is free, then prefer those that hold more."""
    held = (part for special in room.specials for part in special.devices)
    free = len(usable_instances(device, request, free_instances(room.node, held)[device.id]))
    good = set(usable_instances(device, request, healthy(device)))
    holds = {number: _instances(one, device.id, good) for number, one in enumerate(may_go)}
    picked: list[int] = []
    for number in sorted((n for n in holds if holds[n]), key=lambda n: may_go[n].priority):
        picked.append(number)
        if free + sum(holds[n] for n in picked) >= request.count:
            break
    else:
        return None
    kept: list[int] = []
    for number in sorted(picked, key=lambda n: -holds[n]):
        if free + sum(holds[n] for n in kept) < request.count:
            kept.append(number)
    return [may_go[number] for number in kept]


def _instances(one: Candidate, device: str, good: set[str]) -> int:
    if one.special is None:
        return 0
    return sum(instance in good for part in one.special.devices if part.device == device for instance in part.instances)


def _only_devices(ask: Ask, count: int | None = None) -> Ask:
    """The ask reduced to its first `count` device requests."""
    return ask._replace(network=None, tasks=(), cores=0, volumes=(), devices=ask.devices[:count])
