"""The region of one seed: three servers over one log, their leader, and who is watching every commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from fedsched.env.env import Chance
from fedsched.model.job import Job
from fedsched.raft.entry import Entry
from fedsched.sim.fleet_checks import FleetChecks
from fedsched.sim.fleet_log import FleetLog, LogRaft
from fedsched.sim.fleet_options import FleetOptions
from fedsched.sim.fleet_server import FleetServer
from fedsched.sim.fleet_watch import FleetWatch
from fedsched.sim.streams import stream
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken
from fedsched.state.commands import decode_command
from fedsched.state.result import Result
from fedsched.telemetry.log import Event

SERVERS: Final = ("s1", "s2", "s3")
NEVER: Final = frozenset({"scheduler_failed", "plan_not_judged", "entry_not_understood"})
"""Log lines that say that code of ours is wrong."""


class FleetWorld:
    """Everything that one run holds."""

    region = "global"

    def __init__(self, seed: int, options: FleetOptions, nursery: trio.Nursery, trace: Trace) -> None:
        self.seed = seed
        self.options = options
        self.nursery = nursery
        self.trace = trace
        self.counts: Counter[str] = Counter()
        self.log = FleetLog()
        self.wall_offset_s = 0.0
        self.commit_s, self.lag_s, self.link_s, self.loss = (
            options.commit_s,
            options.lag_s,
            options.link_s,
            options.loss,
        )
        self.failure_rate, self.stuck_rate = 0.01, 0.5
        """How often tasks fail, and how often their health stays unknown when it could be told."""
        self._unsteady_at = 0.0
        self._chance = stream(seed, "leaders")
        self._commits = stream(seed, "commits")
        self.term = self.epoch = 0
        self.leader: FleetServer | None = None
        self.servers: dict[str, FleetServer] = {}
        self.lives: list[FleetServer] = []
        """All that there ever were: their figures count."""
        self.checked = 0
        self.checks = FleetChecks(self)
        self.watch = FleetWatch(self)

    # ------------------------------------------------------------------ the story

    def note(self, who: str, kind: str, detail: str) -> None:
        self.trace.note(round(trio.current_time() * 1e6), who, kind, detail)

    def heard_log(self, who: str, event: Event) -> None:
        fields = dict(event.fields)
        self.counts[event.name] += 1
        self.note(who, "log", f"{event.name} {fields}")
        if event.name in NEVER:
            raise Broken("nothing of ours fails", f"{event.name}: {fields}", who)

    def applied(self, raft: LogRaft, entry: Entry, result: Result) -> None:
        """One server applied one entry; the first to do so is looked at."""
        if entry.index <= self.checked:
            return
        self.checked = entry.index
        command = decode_command(entry.payload).command
        name = type(command).__name__
        self.counts[name] += 1
        self.note(raft.name, "commit", f"{entry.index} {name} {result.code or 'done'} {sorted(result.value.items())}")
        self.checks.committed(self.servers[raft.name].store, command, result)

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        for name in SERVERS:
            self._begin(self.make_server(name, 0))
        self.nursery.start_soon(self._replicate)
        self.nursery.start_soon(self.watch.run)

    def make_server(self, name: str, life: int, image: Sequence[bytes] = (), applied: int = 0) -> FleetServer:
        """One life of one server."""
        return FleetServer(self, name, life, image, applied)

    def _begin(self, server: FleetServer) -> None:
        self.servers[server.name] = server
        self.lives.append(server)
        self.nursery.start_soon(server.run)

    async def _replicate(self) -> None:
        while True:
            grown, target = self.log.grown, len(self.log.entries)
            if self.leader is None or target == self.log.committed:
                await grown.wait()
                continue
            epoch = self.epoch
            slow = 20.0 if self._commits.random() < 0.02 else 1.0
            await trio.sleep(self._commits.uniform(0.2, 1.0) * self.commit_s * slow)
            self._commit(target, epoch)

    def _commit(self, target: int, epoch: int) -> None:
        if self.leader is not None and self.epoch == epoch:
            self.log.commit(target)
            self.leader.catch_up()

    async def elect(self) -> None:
        """Somebody takes office."""
        name = self._chance.choice([name for name in SERVERS if name in self.servers])
        self.term, self.epoch = self.term + 1, self.epoch + 1
        self.leader = self.servers[name]
        self.note(name, "leads", f"term {self.term}")
        self.counts["election"] += 1
        self._unsteady_at = trio.current_time()
        self.leader.lead(self.term, self.epoch)

    async def change_leader(self, *, crash: bool) -> None:
        """The leader loses office, by itself or by dying; the end of its log survives up to some point."""
        old = self.leader
        assert old is not None
        self.leader, self.epoch = None, self.epoch + 1
        kept = self._chance.randrange(self.log.committed, len(self.log.entries) + 1)
        self.note(old.name, "falls", f"crash {crash}, keeps {kept} of {len(self.log.entries)}")
        self.counts["leader_crash" if crash else "leader_steps_down"] += 1
        self.log.cut(kept)
        await old.step_down(kept)
        if crash:
            self.restart(old.name)
        await trio.sleep(self._chance.uniform(0.1, 3.0))
        await self.elect()

    def restart(self, name: str) -> None:
        """A life ends, and the next begins from what was saved."""
        old = self.servers[name]
        assert not old.is_leader
        old.scope.cancel()
        image = [bytes(chunk) for chunk in old.machine.image()]
        self._begin(self.make_server(name, old.life + 1, image, old.raft.applied))

    def jump(self, by_s: float) -> None:
        """All wall clocks jump."""
        self.wall_offset_s += by_s
        self._unsteady_at = trio.current_time()
        self.note("", "fault", f"wall clocks jump by {by_s} s")

    def gets_unwell(self, job: Job | None, chance: Chance) -> bool:
        """Whether an allocation of this version turns out unhealthy."""
        return chance.random() < 0.05

    # ------------------------------------------------------------------ looking

    @property
    def steady_s(self) -> float:
        """How long one leader has been in office with clocks that did not jump; 0 while nobody leads."""
        if self.leader is None or not self.leader.broker.is_in_office:
            self._unsteady_at = trio.current_time()
        return trio.current_time() - self._unsteady_at

    @property
    def wall_ns(self) -> int:
        return next(iter(self.servers.values())).desk.proposals.now_ns()

    async def becomes(self, is_so: Callable[[], Any], within_s: float) -> bool:
        """Whether it becomes so in this much virtual time."""
        stop_at = trio.current_time() + within_s
        while not is_so():
            if trio.current_time() > stop_at:
                return False
            await trio.sleep(0.5)
        return True
