"""One region of a simulated federation: the world of `fleet_world`, with neighbours, and with a history to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import trio

from fedsched.env.env import Chance
from fedsched.model.job import Job
from fedsched.raft.entry import Entry
from fedsched.raft.membership import ServerInfo
from fedsched.sim.federation_server import FederationServer
from fedsched.sim.federation_untouched import check_untouched
from fedsched.sim.fleet_log import LogRaft
from fedsched.sim.fleet_options import PLAIN_S, FleetOptions
from fedsched.sim.fleet_server import FleetServer
from fedsched.sim.fleet_world import SERVERS, FleetWorld
from fedsched.sim.streams import stream
from fedsched.state.commands import decode_command
from fedsched.state.result import Result

if TYPE_CHECKING:
    from fedsched.sim.federation_world import Federation

WORK: Final = "work"
"""The job that work is dispatched to."""
OLD: Final = 1
NEW: Final = 2
"""Versions of the code, by which commands they know."""


def plain_options(seed: int) -> FleetOptions:
    """A region without extras: its own troubles are found by `fleet_run`."""
    chance = stream(seed, "federation-region")
    return FleetOptions(
        commit_s=chance.choice((0.005, 0.02)),
        lag_s=chance.choice((0.01, 0.2)),
        link_s=chance.choice((0.002, 0.02)),
        loss=chance.choice((0.0, 0.02)),
        pace_s=chance.choice((2.0, 4.0)),
        wall_s=PLAIN_S,
        features=frozenset({"dispatches"}),
    )


class FederationRegion(FleetWorld):
    """Three servers, their log, and what is known of them abroad."""

    def __init__(self, federation: Federation, name: str, number: int, nursery: trio.Nursery) -> None:
        self.federation = federation
        self.region = name
        self.number = number
        self.infos = tuple(
            ServerInfo(f"{one}-{name}", f"{one}-{name}", f"10.{number}.0.{at}:4647") for at, one in enumerate(SERVERS)
        )
        self.versions = dict.fromkeys(SERVERS, OLD)
        self.is_frozen = False
        """Its processes stand still."""
        self.was_frozen = False
        """They did at some time: nodes that nobody could hear may have been given up."""
        self.is_lost = False
        """For good."""
        self.history: list[tuple[int, int, str, int, str]] = []
        """Every committed command: index, time, kind, content, outcome."""
        seed = stream(federation.seed, f"region-{name}").getrandbits(48)
        super().__init__(seed, plain_options(seed), nursery, federation.trace)
        self.counts = federation.counts

    def start(self) -> None:
        for name in SERVERS:
            self._begin(self.make_server(name, 0))
        self.nursery.start_soon(self._replicate)

    def make_server(self, name: str, life: int, image: Sequence[bytes] = (), applied: int = 0) -> FleetServer:
        return FederationServer(self, name, life, image, applied)

    def server(self, name: str) -> FederationServer:
        found = self.servers[name]
        assert isinstance(found, FederationServer)
        return found

    def running(self) -> list[FederationServer]:
        return [self.server(name) for name in sorted(self.servers)]

    def done_for(self, key: str) -> int:
        """How often a piece of work was taken on, as the region's log has it."""
        assert self.leader is not None
        jobs = self.leader.store.jobs
        return sum(jobs.of_row(row).payload == key.encode() for row in jobs.children("default", WORK))

    # ------------------------------------------------------------------ the story

    def note(self, who: str, kind: str, detail: str) -> None:
        super().note(f"{who}-{self.region}", kind, detail)

    def applied(self, raft: LogRaft, entry: Entry, result: Result) -> None:
        if entry.index > self.checked:
            kind = type(decode_command(entry.payload).command).__name__
            now_us = round(trio.current_time() * 1e6)
            self.history.append((entry.index, now_us, kind, crc32(entry.payload), result.code))
            super().applied(raft, entry, result)
            state = self.servers[raft.name].store
            self.federation.steps.committed(self, state, entry, result)
            check_untouched(self, state, entry, result)

    def gets_unwell(self, job: Job | None, chance: Chance) -> bool:
        """Of jobs of several regions each version says where it does; nobody else has a part in that."""
        if job is None or job.multiregion is None:
            return super().gets_unwell(job, chance)
        return self.region in job.meta["unwell"].split()

    # ------------------------------------------------------------------ life

    async def elect(self) -> None:
        if self.is_lost:
            return
        await super().elect()
        assert isinstance(self.leader, FederationServer)
        self._tell_followers(self.leader.me.id)

    def _tell_followers(self, leader_id: str | None) -> None:
        for server in self.running():
            if not server.is_leader:
                server.follow(self.term, leader_id)

    async def change_leader(self, *, crash: bool) -> None:
        if self.leader is None or self.is_lost:
            return
        self._tell_followers(None)
        await super().change_leader(crash=crash)

    def restart(self, name: str) -> None:
        """A life ends without a word, and the next begins at once."""
        image, applied, life = self._end(name)
        self._begin_again(name, life, image, applied)

    async def bounce(self, name: str, down_s: float, version: int | None = None) -> None:
        """A planned restart, perhaps with other code: the leader hands over first."""
        if self.leader is self.servers.get(name):
            await self.change_leader(crash=False)
            while self.leader is None or self.leader.name == name:
                if self.is_lost:
                    return
                await trio.sleep(0.2)
                await self.change_leader(crash=False)
        if name not in self.servers or self.is_lost:
            return
        image, applied, life = self._end(name)
        self.versions[name] = version or self.versions[name]
        self.note(name, "stops", f"for {down_s:.1f} s, comes back with version {self.versions[name]}")
        await trio.sleep(down_s)
        if not self.is_lost:
            self._begin_again(name, life, image, applied)

    def _end(self, name: str) -> tuple[list[bytes], int, int]:
        old = self.server(name)
        assert not old.is_leader
        old.host.accept = None
        self.federation.wires.host_gone(old.host.name, silently=False)
        self.federation.pool.end_process(old.pool_host)
        old.scope.cancel()
        del self.servers[name]
        return [bytes(chunk) for chunk in old.machine.image()], old.raft.applied, old.life

    def _begin_again(self, name: str, life: int, image: Sequence[bytes], applied: int) -> None:
        server = self.make_server(name, life + 1, image, applied)
        assert isinstance(server, FederationServer)
        self._begin(server)
        if self.leader is not None:
            leader_id: Any = self.leader.raft.role.leader
            server.follow(self.term, leader_id)
        self.federation.pool.begin_process(server.pool_host)

    def _commit(self, target: int, epoch: int) -> None:
        if not self.is_frozen:
            super()._commit(target, epoch)

    def freeze(self) -> None:
        """All its processes are stopped."""
        self.is_frozen = self.was_frozen = True
        for server in self.running():
            self.federation.pool.pause(server.pool_host)

    def thaw(self) -> None:
        """They go on where they were."""
        self.is_frozen = False
        for server in self.running():
            if server.pool_host.is_paused:
                self.federation.pool.go_on(server.pool_host)

    def lose(self) -> None:
        """The region is gone for good, all at once and without a word."""
        self.note("", "fault", "is lost for good")
        self.is_lost = True
        self.leader, self.epoch = None, self.epoch + 1
        for server in self.running():
            server.host.accept, server.host.has_power = None, False
            self.federation.wires.host_gone(server.host.name, silently=True)
            self.federation.pool.end_process(server.pool_host)
            server.scope.cancel()
        self.servers.clear()
