"""One region's server set in a world: who exists, who was lost, who restarts when, and what healing means.

Servers sit in slots. A slot keeps its number when its server is wiped and comes back under a new id, so that a schedule
can go on naming it. Whatever replaces a lost server in the membership is done here too, the way an operator would: join
as a learner, then take the lost one's seat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedsched.raft.entry import EntryKind
from fedsched.raft.membership import (
    AddLearner,
    Config,
    ConfigChange,
    Remove,
    Replace,
    ServerInfo,
    bootstrap_entry,
    decode_config,
)
from fedsched.raft.messages import Effects, HardState
from fedsched.raft.quorum import has_quorum
from fedsched.sim.cores import SimServer, Watcher
from fedsched.sim.disk import Transaction
from fedsched.sim.machine import SimMachine
from fedsched.sim.net import Network
from fedsched.sim.options import Options
from fedsched.sim.schedule import LEADER, STALE_LEADER
from fedsched.sim.verdict import Broken
from fedsched.sim.world import World

SLOTS_MAX = 7


class Region:
    """The servers and the network between them."""

    def __init__(self, world: World, options: Options, watcher: Watcher, new_machine: Callable[[], SimMachine]) -> None:
        self.world = world
        self.options = options
        self.servers: dict[str, SimServer] = {}
        self.slots: list[str] = []
        self.lost: set[str] = set()
        """Ids whose disk is gone for good."""
        self.restart_us: dict[str, int] = {}
        self.fired: dict[str, int] = {}
        """How often each fault really did something."""
        self.net = Network(world, options, self.find)
        self._watcher = watcher
        self._new_machine = new_machine
        self._rng = world.stream("restarts")
        self._is_repairing = False
        self._is_healed = False
        self.standing: SimServer | None = None
        """The one server that a standing fault holds back while the others must make progress."""
        self._other_end: SimServer | None = None

    # --- who is there -------------------------------------------------------------------------------------------------

    def find(self, server_id: str) -> SimServer | None:
        return self.servers.get(server_id)

    def ids(self) -> list[str]:
        return [server_id for server_id in self.slots if server_id not in self.lost]

    def members(self) -> list[SimServer]:
        """Every server that is not lost, up or down, in slot order."""
        return [self.servers[server_id] for server_id in self.ids()]

    def at(self, slot: int) -> SimServer | None:
        """The server in a slot, or whoever leads."""
        if slot == LEADER:
            return self.leader()
        if slot == STALE_LEADER:
            leaders = self.leaders()
            return leaders[-1] if leaders else None
        if slot >= len(self.slots) or self.slots[slot] in self.lost:
            return None
        return self.servers[self.slots[slot]]

    def leaders(self) -> list[SimServer]:
        """Everybody who thinks that it leads, newest term first."""
        found = [server for server in self.members() if server.core is not None and server.core.role == "leader"]
        return sorted(found, key=lambda server: -server.core.term if server.core is not None else 0)

    def leader(self) -> SimServer | None:
        leaders = self.leaders()
        return leaders[0] if leaders else None

    # --- coming and going ---------------------------------------------------------------------------------------------

    def bootstrap(self) -> None:
        """Make the first servers, all with the same first config, and start them."""
        first = [self._add(f"{chr(ord('a') + slot)}") for slot in range(self.options.servers)]
        infos = tuple(info(server.id) for server in first)
        entry = bootstrap_entry(Config(voters=frozenset(server.id for server in first), servers=infos))
        first[self.options.favourite].disk.always_slow_us = self.options.sloth_us
        for server in first:
            write = Transaction(hard_state=HardState(term=entry.term), append=(entry,))
            server.disk.durable.apply(write)
            server.disk.ahead.apply(write)
            server.start()

    def add_server(self) -> SimServer | None:
        """A fresh server with an empty disk that waits to be taken in; None when there are enough."""
        if len(self.slots) >= SLOTS_MAX:
            return None
        server = self._add(chr(ord("a") + len(self.slots)))
        server.start()
        return server

    def _add(self, server_id: str, slot: int | None = None) -> SimServer:
        server = self._make(server_id)
        self.servers[server_id] = server
        if slot is None:
            self.slots.append(server_id)
        else:
            self.slots[slot] = server_id
        server.on_death = self._died
        return server

    def _make(self, server_id: str) -> SimServer:
        server = SimServer(
            server_id,
            self.world,
            self.options,
            send=self.net.send,
            find=self.find,
            watcher=self._watcher,
            new_machine=self._new_machine,
        )
        server.is_open = self.net.is_open
        return server

    def _died(self, server: SimServer) -> None:
        default_us = int(self.options.election_us * self._rng.random())
        down_us = self.restart_us.pop(server.id, default_us)
        self.world.after(
            min(down_us, 50_000) if self._is_healed else down_us,
            None,
            "restart",
            self._restart,
            server,
            detail=server.id,
        )

    def _restart(self, server: SimServer) -> None:
        if (
            server.id in self.lost
            or server.is_up
            or (server is self.standing and self.options.standing.startswith("down"))
        ):
            return
        server.start()
        if server.is_damaged:
            self.replace_lost(server)

    def is_gone(self, server_id: str) -> bool:
        """Whether this server's disk is lost, known to others or not."""
        return server_id in self.lost or bool(self.servers[server_id].disk.flips)

    def can_lose(self, server: SimServer) -> bool:
        """Whether the others can still decide, in every config that may be in force, if this disk is gone."""
        if self.is_gone(server.id):
            return False
        left = {other.id for other in self.members() if other is not server and not self.is_gone(other.id)}
        if not left:
            return False
        return all(has_quorum(config, left) for other in self.members() for config in live_configs(other))

    def replace_lost(self, server: SimServer) -> None:
        """The disk is gone: a new server with a new id takes the slot and asks for the lost one's seat."""
        slot = self.slots.index(server.id)
        self.lost.add(server.id)
        base, generation = server.id[0], int(server.id[1:] or 1)
        successor = self._add(f"{base}{generation + 1}", slot)
        successor.start()
        if not self._is_repairing:
            self._is_repairing = True
            self.world.after(self.options.election_us // 2, None, "repair", self._repair)

    def _repair(self) -> None:
        """Now and then, look for lost servers in the membership and take the next step to have them replaced."""
        leader = self.leader()
        if leader is not None and leader.core is not None and not leader.core.config.is_joint:
            status = leader.core.status()
            gone = sorted(self.lost & status.config.members)
            if gone:
                successor = next(server_id for server_id in self.slots if server_id[0] == gone[0][0])
                change = _repair_step(status.config, gone[0], successor)
                leader.change_config(change, status.config_index, lambda word, what: None)
        self.world.after(self.options.election_us // 2, None, "repair", self._repair)

    def start_clone(self, server: SimServer, for_us: int) -> None:
        """Run a copy of this server's disk beside it. Links are bound to one identity: nobody listens to the copy."""
        clone = SimServer(
            server.id,
            self.world,
            self.options,
            send=lambda message: None,
            find=lambda server_id: None,
            watcher=CloneWatch(),
            new_machine=self._new_machine,
        )
        clone.is_clone = True
        server.disk.clone(clone.disk)
        clone.start()
        self.world.after(for_us, None, "unclone", clone.crash, detail=server.id)

    # --- healing ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End every fault; whoever is down comes back soon."""
        self._is_healed = True
        self.net.heal()
        for server in self.members():
            server.disk.heal()
            server.crash_at = ""
            server.clock.rate = 1.0
            server.clock.resume()
            if not server.is_up:
                self.world.after(1_000, None, "restart", self._restart, server, detail=server.id)

    def stand(self, kind: str) -> bool:
        """Hold one server back in this way until `unstand`; False if the others could not decide without it."""
        leader = self.leader()
        voters = [] if leader is None or leader.core is None else sorted(leader.core.config.voters)
        others = [self.servers[voter] for voter in voters if leader is not None and voter != leader.id]
        victim = leader if kind.endswith("leader") else (others[self._rng.randrange(len(others))] if others else None)
        if leader is None or victim is None or len(voters) < 3 or not self.can_lose(victim):
            return False
        self.standing = victim
        self._other_end = leader if kind == "pair" else None
        if kind.startswith("down"):
            victim.crash()
        for other in self.ids():
            if kind.startswith("deaf") or (kind == "pair" and other == leader.id):
                self.net.cut(other, victim.id)
            if kind.startswith("mute") or (kind == "pair" and other == leader.id):
                self.net.cut(victim.id, other)
        self.world.trace.remark(self.world.now, victim.id, f"is held back: {kind}")
        return True

    def unstand(self) -> None:
        """Let the server that was held back go again."""
        victim, self.standing = self.standing, None
        self.net.heal()
        if victim is not None and not victim.is_up:
            self._restart(victim)

    def can_lead(self, server: SimServer | None) -> bool:
        """Whether this one's leading counts as progress: it must not be the one that is held back."""
        return server is not None and (server is not self.standing or self._other_end is not None)

    def unsettled(self) -> str:
        """Why the region is not yet one leader with equal servers; empty when it is."""
        leader = self.leader()
        if leader is None or leader.core is None:
            return "nobody leads"
        if leader is self.standing and self._other_end is not None:
            self.standing, self._other_end = self._other_end, self.standing  # either end of a cut pair may lead
        if leader is self.standing:
            return f"{leader.id} leads though it is held back"
        config = leader.core.config
        if self.lost & config.members:
            return f"{sorted(self.lost & config.members)} not yet replaced"
        if config.is_joint:
            return "a membership change is still under way"
        if leader.id not in config.voters:
            return f"{leader.id} leads though it is no longer a voter"
        commit = leader.core.commit
        if commit < leader.core.log.last:
            return f"{leader.id} has committed {commit} of {leader.core.log.last}"
        for server_id in sorted(config.members):
            server = self.servers[server_id]
            if server is self.standing:
                continue
            if server.core is None:
                return f"{server_id} is down"
            if server.core.leader != leader.id:
                return f"{server_id} does not follow {leader.id} (term {server.core.term})"
            if server.applied != commit or leader.applied != commit:
                return f"{server_id} has applied {server.applied} of {commit}"
            if server.machine.digest() != leader.machine.digest():
                return f"{server_id} and {leader.id} have applied {commit} and differ"
        return ""


def info(server_id: str, address: str = "") -> ServerInfo:
    return ServerInfo(server_id, server_id, address or f"{server_id}:4647")


def _repair_step(config: Config, gone: str, successor: str) -> ConfigChange:
    """What brings the membership one step closer to having `successor` in the place of `gone`."""
    if gone not in config.voters or successor in config.voters:
        return Remove(gone)
    if successor in config.learners:
        return Replace(gone, successor)
    return AddLearner(info(successor))


def live_configs(server: SimServer) -> list[Config]:
    """Every config that this server's log holds, as far as it may still matter."""
    image = server.disk.ahead
    configs = [] if image.mark is None else [image.mark.config]
    configs += [decode_config(entry.payload) for entry in image.entries if entry.kind is EntryKind.CONFIG]
    return [config for config in configs[-3:] if config.voters]


class CloneWatch:
    """For a process that is not part of the region: all it must not do is to come to lead others."""

    def started(self, server: SimServer) -> None: ...

    def took(self, server: SimServer, effects: Effects) -> None:
        leads = effects.role is not None and effects.role.role == "leader"
        if leads and server.core is not None and not has_quorum(server.core.config, {server.id}):
            raise Broken("clone_harmless", f"a copy of {server.id}, heard by nobody, leads", server.id)

    def sent(self, server: SimServer, message: Any) -> None: ...

    def applied(self, server: SimServer, entry: Any, outcome: Any) -> None: ...

    def made(self, server: SimServer, meta: Any) -> None: ...

    def installed(self, server: SimServer, meta: Any) -> None: ...

    def fatal(self, server: SimServer, why: str) -> None:
        raise Broken("core_alarm", why, server.id)
