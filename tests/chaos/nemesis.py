"""Carries out a plan against a region of real processes, and notes what each fault did to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.chaos import plan as faults
from tests.chaos.links import Links, Way, both_ways
from tests.chaos.plan import ALL, FOLLOWER, LEADER, Plan, Step
from tests.chaos.proxy import DROP, REFUSE, STALL
from tests.chaos.workload import Record
from tests.e2e.region import Region
from tests.e2e.view import Look, View, agreed_leader, digests_differ, views

RECOVERY_S = 20.0
"""How long a healed region may take to have all servers agree on a leader again, and a write go through."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One fault and what followed."""

    step: Step
    victims: list[str]
    at_s: float
    """Seconds into the run."""
    resumed_s: float | None
    """From the fault to the first acknowledged write that was called after it; None when there was none in time."""
    leader_changes: int
    has_quorum: bool
    """Whether a majority could go on during the fault; if not, `resumed_s` counts from when it was lifted."""


class Monitor(threading.Thread):
    """Keeps looking at all servers, and holds them to what must be true at every moment."""

    def __init__(self, region: Region, look: Look, *, poll_s: float = 0.2) -> None:
        super().__init__(name="monitor", daemon=True)
        self._region = region
        self._look = look
        self._poll_s = poll_s
        self._stop_asked = threading.Event()
        self.latest: dict[str, View] = {}
        self.leader_of_term: dict[int, str] = {}
        self.elected: list[tuple[float, int]] = []
        """When a term was first seen to have a leader."""
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._stop_asked.wait(self._poll_s):
            self.take(views(self._region, self._look), time.monotonic())

    def take(self, seen: dict[str, View], now: float) -> None:
        """Note one round of answers."""
        self.latest = seen
        for view in seen.values():
            if not view.is_leader:
                continue
            known = self.leader_of_term.setdefault(view.term, view.name)
            if known != view.name:
                self._complain(f"two leaders in term {view.term}: {known} and {view.name}")
            if all(term != view.term for _, term in self.elected):
                self.elected.append((now, view.term))
        problem = digests_differ(seen.values())
        if problem:
            self._complain(problem)

    def changes_since(self, moment: float) -> int:
        return sum(moment <= at for at, _ in self.elected)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(10)

    def _complain(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass
class Nemesis:
    """Does the steps of a plan one after another; a step begins only when the region is whole again."""

    region: Region
    links: Links
    monitor: Monitor
    record: Record
    plan: Plan
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _last_fault_at: float = 0.0

    def run(self, give_up_at: float) -> None:
        """All steps, or as many as begin before `give_up_at`; everything is healed when this returns."""
        began = time.monotonic()
        try:
            for step in self.plan.steps:
                if time.monotonic() >= give_up_at:
                    return
                self._one(step, began)
        finally:
            self.heal()
            self._wait_whole()
            self._count_changes()

    def heal(self) -> None:
        """End every fault: links open, nobody paused, everybody running."""
        self.links.heal()
        for server in self.region.servers.values():
            if server.is_paused and server.is_alive:
                server.resume()
            if not server.is_alive:
                server.start()
        for server in self.region.servers.values():
            server.wait_listening()

    def _one(self, step: Step, began: float) -> None:
        leader = self._wait_whole()
        if leader is None:
            return
        self._count_changes()
        victims = self._victims(step, leader)
        self.say(f"{step.kind} {step.target} {','.join(victims)} {step.hold_s:g} s")
        fault_at = self._inject(step, victims, leader)
        self.heal()
        lifted_at = time.monotonic()
        self.sleep(step.rest_s)
        has_quorum = step.target != ALL
        resumed_s = self._resumed_after(fault_at if has_quorum else lifted_at)
        if resumed_s is None:
            self.problems.append(f"no write went through within {RECOVERY_S:g} s of the end of: {step}")
        self.outcomes.append(
            Outcome(
                step=step,
                victims=victims,
                at_s=round(fault_at - began, 2),
                resumed_s=resumed_s,
                leader_changes=0,
                has_quorum=has_quorum,
            )
        )
        self._last_fault_at = fault_at

    def _count_changes(self) -> None:
        """Elections since the last fault are that fault's doing; they are complete only when the next one begins."""
        if self.outcomes:
            changes = self.monitor.changes_since(self._last_fault_at)
            self.outcomes[-1] = replace(self.outcomes[-1], leader_changes=changes)

    def _wait_whole(self) -> str | None:
        """The leader, once every server runs and names it; None (and a complaint) when that takes too long."""
        deadline = time.monotonic() + RECOVERY_S
        while time.monotonic() < deadline:
            dead = [server for server in self.region.servers.values() if not server.is_alive]
            if dead:
                self.problems.extend(f"{server.name} ended by itself\n{server.tail()}" for server in dead)
                self.heal()
            leader = agreed_leader(self.monitor.latest, len(self.region.servers))
            if leader is not None:
                return leader
            self.sleep(0.05)
        seen = "; ".join(f"{v.name} {v.role} term {v.term} leader {v.leader!r}" for v in self.monitor.latest.values())
        self.problems.append(f"servers did not agree on a leader within {RECOVERY_S:g} s after healing: {seen}")
        return None

    def _resumed_after(self, moment: float) -> float | None:
        deadline = time.monotonic() + RECOVERY_S
        while True:
            wrote_at = self.record.wrote_since(moment)
            if wrote_at is not None:
                return round(wrote_at - moment, 3)
            if time.monotonic() > deadline:
                return None
            self.sleep(0.05)

    def _victims(self, step: Step, leader: str) -> list[str]:
        followers = self.region.others(leader)
        return {
            LEADER: [leader],
            FOLLOWER: [followers[step.pick % len(followers)]],
            ALL: list(self.region.servers),
        }[step.target]

    def _inject(self, step: Step, victims: list[str], leader: str) -> float:
        """Put the fault in force and hold it; `heal` ends it. Returns when it was fully in force."""
        began = time.monotonic()
        match step.kind:
            case faults.KILL:
                for name in victims:
                    self.region.servers[name].kill()
            case faults.PAUSE:
                for name in victims:
                    self.region.servers[name].pause()
            case faults.FLAP:
                self._flap(step, both_ways(victims[0], self.region.servers))
                return began
            case faults.BREAK:
                self._break(step, both_ways(victims[0], self.region.servers))
                return began
            case _:
                self._cut(step, victims[0], leader)
        in_force_at = time.monotonic()
        self.sleep(step.hold_s)
        return in_force_at

    def _cut(self, step: Step, victim: str, leader: str) -> None:
        around = both_ways(victim, self.region.servers)
        match step.kind:
            case faults.ISOLATE:
                self.links.cut(around, DROP)
            case faults.DEAF:
                self.links.cut([way for way in around if way[1] == victim], DROP)
            case faults.MUTE:
                self.links.cut([way for way in around if way[0] == victim], DROP)
            case faults.BRIDGE:
                self.links.cut(both_ways(victim, [leader]), DROP)
            case faults.STALL:
                self.links.cut(around, STALL)
            case faults.SLOW:
                self.links.slow(around, step.number)
            case _:
                raise ValueError(f"no such fault: {step.kind}")

    def _flap(self, step: Step, ways: Iterable[Way]) -> None:
        times = int(step.number)
        for number in range(times):
            self.links.cut(ways, (DROP, STALL, REFUSE)[number % 3])
            self.sleep(step.hold_s / times / 2)
            self.links.heal()
            self.sleep(step.hold_s / times / 2)

    def _break(self, step: Step, ways: Iterable[Way]) -> None:
        """Each connection is broken anew as often as it comes back, each time further into the stream."""
        end = time.monotonic() + step.hold_s
        n_bytes = int(step.number)
        while time.monotonic() < end:
            self.links.break_after(ways, n_bytes)
            self.sleep(0.5)
            n_bytes = n_bytes * 3 // 2 + 1
