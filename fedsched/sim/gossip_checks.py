"""What must be true of a simulated pool: after every step, and once the world has been left in peace for a while."""

from __future__ import annotations

from fedsched.gossip.messages import State
from fedsched.sim.gossip_world import GossipWorld, Host, WorldBroken

QUEUE_MAX = 8192
REFUTED_S = 5.0
"""On a network that loses packets somebody is always just being suspected and speaking up."""


class StepChecks:
    """After every step: incarnations never fall, nobody speaks for another, nothing grows without bound."""

    def __init__(self, world: GossipWorld) -> None:
        self._world = world
        self._seen: dict[tuple[int, int], dict[str, tuple[int, State]]] = {}
        self._versions: dict[tuple[int, int], int] = {}
        self._own_highest: dict[str, int] = {}

    def __call__(self, host: Host) -> None:
        core = host.core
        assert core is not None
        key = (host.index, host.process)
        if len(core.broadcasts) > QUEUE_MAX:
            raise WorldBroken(f"{host.name} has {len(core.broadcasts)} pieces of news queued")
        if self._versions.get(key) == core.members.version:
            return
        self._versions[key] = core.members.version
        self._check_own(host, core.me.inc)
        self._check_table(host, key)

    def _check_own(self, host: Host, inc: int) -> None:
        """A member's own number never falls, restarts included, and is on disk before it is used."""
        highest = self._own_highest.get(host.name, 0)
        if inc < highest:
            raise WorldBroken(f"{host.name} speaks with incarnation {inc} after {highest}")
        self._own_highest[host.name] = inc
        if host.disk_inc is None or host.disk_inc < inc:
            raise WorldBroken(f"{host.name} speaks with incarnation {inc}, on disk is {host.disk_inc}")

    def _check_table(self, host: Host, key: tuple[int, int]) -> None:
        core = host.core
        assert core is not None
        seen = self._seen.setdefault(key, {})
        for name in [name for name in seen if core.members.get(name) is None]:
            del seen[name]  # forgotten: what is heard of it from now on is new
        for member in core.members:
            before = seen.get(member.name)
            if before is not None:
                if member.inc < before[0]:
                    raise WorldBroken(f"{host.name} holds {member.name} at {member.inc} after {before[0]}")
                if before[1] >= State.DEAD and member.state < State.DEAD and member.inc <= before[0]:
                    raise WorldBroken(f"{host.name} revives {member.name} without a higher incarnation")
            owner = self._world.by_name[member.name]
            highest = max(self._own_highest.get(member.name, 0), owner.disk_inc or 0)
            if member.inc > highest and highest:
                raise WorldBroken(f"{host.name} holds {member.name} at {member.inc}, which never said so")
            seen[member.name] = (member.inc, member.state)


def check_peace(world: GossipWorld) -> None:
    """After a time without faults: everybody that runs is alive for everybody, and nobody else is."""
    running = world.running()
    names = {host.name for host in running}
    for host in running:
        assert host.core is not None
        held_up = {member.name for member in host.core.members if member.is_up}
        missing, ghosts = names - held_up, held_up - names
        if missing or ghosts:
            raise WorldBroken(f"{host.name} misses {sorted(missing)[:5]} and still sees {sorted(ghosts)[:5]}")
    if world.run_until(lambda: _tables(world) == 1, REFUTED_S) > REFUTED_S:
        raise WorldBroken(f"{_tables(world)} different tables in peace")


def _tables(world: GossipWorld) -> int:
    return len({host.core.members.digest for host in world.running() if host.core is not None})


def check_events(world: GossipWorld) -> None:
    """An announcement reaches no process twice."""
    for (index, _, event), count in world.delivered.items():
        if count > 1:
            raise WorldBroken(f"host {index} delivered {event} {count} times")
