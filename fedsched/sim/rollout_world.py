"""A world of regions in which one rollout happens to everybody, from a seed.

Regions are modelled by their share, their deployment's fate and their reachability; the owner by its written record and
the core of whoever leads it. Messages are lost, late, doubled; owners crash between any two inputs, an old leader may
go on beside its successor for a while; regions are cut off, some for good, the owner's among them, and then another
one adopts. `World.run` raises `Broken` with what promise was broken.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial

from fedsched.federation import rollout_share
from fedsched.federation.adoption_core import AdoptionCore, Outbid, next_epoch
from fedsched.federation.adoption_watch import AdoptionWatch, Contact, Told
from fedsched.federation.rollout_core import (
    NS,
    FailAsked,
    Heard,
    Input,
    RolloutCore,
    Send,
    Store,
    Stored,
    StoreFailed,
    UnblockAsked,
    Unheard,
)
from fedsched.federation.rollout_rules import FINAL, HEALTHY, begin
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.rollout import (
    Rollout,
    RolloutCommand,
    RolloutStatus,
    RolloutStep,
)
from fedsched.sim import rollout_promises as promises
from fedsched.sim.rollout_lookouts import Lookouts
from fedsched.sim.rollout_truth import DEADLINE_S, END_S, HELP_S, NAMES, PROMISE, TROUBLE_S, Driver, Region
from fedsched.sim.verdict import Broken

_S = DeploymentStatus


def _job(names: tuple[str, ...], strategy: MultiregionStrategy) -> Job:
    regions = tuple(MultiregionRegion(name=name) for name in names)
    block = Multiregion(strategy=strategy, regions=regions)
    return Job(id="web", name="web", multiregion=block, task_groups=(TaskGroup(name="web", count=0),))


class World:
    """Everything that one seed makes."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._drivers: list[Driver] = []
        self.lookouts = Lookouts(self)
        names = NAMES[: rng.randint(3, 5)]
        strategy = MultiregionStrategy(
            max_parallel=rng.choice([0, 1, 1, 1, 2]),
            on_failure=rng.choice(["", "fail_all", "fail_local"]),
            on_unreachable=rng.choice(["fail", "skip", "wait"]),
            region_deadline_s=DEADLINE_S,
            adopt_after_s=rng.choice([0.0, 0.0, 150.0]),
            bake_time_s=rng.choice([0.0, 0.0, 20.0, 120.0]),
            canary_region=rng.random() < 0.2,
        )
        rollout = begin("r1", _job(names, strategy), version=1, owner=names[0], now_ns=0)
        self.strategy = rollout.strategy
        failing = rng.random() < 0.4
        self.regions = {
            name: Region(
                name,
                fails=failing and rng.random() < 0.5,
                takes_s=rng.uniform(5, 120),
                refuses=rng.random() < 0.02,
            )
            for name in names
        }
        self.loss = rng.choice([0.0, 0.05, 0.3])
        self.flakiness = rng.choice([0.0, 0.0, 0.2])
        """How often an owner crashes just when it writes."""
        self.by_hand = False
        """Whether a person has meddled: then failures need no cause."""
        self.canary_was_let_go = False
        """Whether a person has unblocked something after the canary was healthy."""
        self.adoptions = 0
        self.adoptions_alone = 0
        """Begun without a person."""
        self.restarts = 0
        owner = self.regions[names[0]]
        owner.record = rollout
        for region in self.regions.values():
            self._elect(region)
        self._plan_trouble(owner)
        self._take_office(owner)

    @property
    def record(self) -> Rollout:
        """The record that counts: the one with the highest ballot."""
        return max((one.record for one in self.regions.values() if one.record), key=lambda one: one.ballot)

    # time

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, do))

    def run(self) -> None:
        while self._events and self._events[0][0] < END_S:
            self.now, _, do = heapq.heappop(self._events)
            do()
        promises.check_end(self)

    # trouble

    def _plan_trouble(self, owner: Region) -> None:
        rng = self.rng
        for region in self.regions.values():
            for _ in range(rng.choice([0, 0, 1, 2])):
                since = rng.uniform(0, TROUBLE_S * 0.8)
                region.cuts.append((since, min(since + rng.choice([5, 60, 500]) * rng.random(), TROUBLE_S)))
        kind = rng.random()
        if kind < 0.15:
            rng.choice(list(self.regions.values())[1:]).lost_at = rng.uniform(0, TROUBLE_S)
        elif kind < 0.3:
            owner.lost_at = rng.uniform(0, TROUBLE_S * 0.5)
            if not self.strategy.adopt_after_s:
                self.at(owner.lost_at + rng.uniform(10, 100), self._adopt)
        elif kind < 0.4:  # only cut off, and back later: two owners for a while
            since = rng.uniform(0, TROUBLE_S * 0.4)
            owner.cuts.append((since, since + 450))
            if not self.strategy.adopt_after_s:
                self.at(since + rng.uniform(10, 100), self._adopt)
        for _ in range(rng.choice([0, 1, 2, 5])):
            self.at(rng.uniform(0, TROUBLE_S), self._crash)
        for _ in range(rng.choice([0, 0, 1, 3])):
            self.at(rng.uniform(0, TROUBLE_S), partial(self._depose, rng.choice(list(self.regions.values()))))
        if rng.random() < 0.1:
            self.at(rng.uniform(10, TROUBLE_S), self._meddle)
        if self.strategy.canary_region:
            self.at(rng.uniform(10, TROUBLE_S), self._look_at_canary)
        self.at(HELP_S, self._help)

    def is_up(self, region: Region) -> bool:
        return self.now < region.lost_at

    def _is_gone(self, region: Region) -> bool:
        """Whether it looks lost from outside."""
        return not self.is_up(region) or any(since <= self.now < until for since, until in region.cuts)

    def can_reach(self, one: Region, other: Region) -> bool:
        if not (self.is_up(one) and self.is_up(other)):
            return False
        return one is other or not any(
            since <= self.now < until for region in (one, other) for since, until in region.cuts
        )

    def _crash(self) -> None:
        """The leader of the owner region is replaced; sometimes it does not notice at once."""
        alive = [one for one in self._drivers if one.is_alive]
        for driver in alive:
            self.at(self.now + self.rng.choice([0.0, 0.0, 5.0]), partial(setattr, driver, "is_alive", False))
        for home in self.regions.values():
            if any(one.region is home and isinstance(one.core, RolloutCore) for one in alive):
                self.restarts += 1
                self.at(self.now + self.rng.uniform(0.1, 20), partial(self._take_office, home))
            if any(one.region is home and isinstance(one.core, AdoptionCore) for one in alive):
                self.at(self.now + self.rng.uniform(1, 20), partial(self._adopt_again, home))

    def _depose(self, region: Region) -> None:
        """The leader of any region is replaced: what it heard is forgotten, what it began is gone on with."""
        region.watch = None
        for driver in [one for one in self._drivers if one.is_alive and one.region is region]:
            driver.is_alive = False
            if isinstance(driver.core, RolloutCore):
                self.restarts += 1
                self.at(self.now + 5, partial(self._take_office, region))
        self.at(self.now + self.rng.uniform(0.1, 20), partial(self._elect, region))

    def _elect(self, region: Region) -> None:
        """A new leader looks after the owner with full patience, and goes on with what its region has promised."""
        if not self.is_up(region):
            return
        region.watch = AdoptionWatch(region.name)
        region.heard_at, region.elected_at = {}, self.now
        if region.share is not None:
            self.lookouts.tell(region, Told(region.share))
        self.resume(region)

    def resume(self, region: Region) -> None:
        """Go on with an adoption that the region has promised to itself and that nobody is at."""
        share = region.share
        is_promised = share is not None and share.owner == region.name and region.watch is not None
        if not is_promised or self.is_adopting(region):
            return
        assert share is not None
        if region.record is None or region.record.ballot < (share.epoch, share.owner):
            self.bid(region, share.epoch)

    def is_adopting(self, region: Region) -> bool:
        adopting = [one for one in self._drivers if one.region is region and isinstance(one.core, AdoptionCore)]
        return any(one.is_alive for one in adopting)

    # the owner's leaders

    def _take_office(self, home: Region) -> None:
        assert home.record is not None
        if not self.is_up(home):
            return
        driver = Driver(home, RolloutCore(home.record, round(self.now * NS)))
        self._drivers.append(driver)
        self._perform(driver, driver.core.begin(round(self.now * NS)))

    def _adopt(self) -> None:
        """A person has another region take over, and tries again elsewhere if that one cannot."""
        if not self._is_gone(self.regions[self.record.owner]):
            return
        able = [one for one in self.regions.values() if not self._is_gone(one) and one.share is not None]
        if not able:
            self.at(self.now + 100, self._adopt)
            return
        home = self.rng.choice(able)
        assert home.share is not None
        self.bid(home, max(next_epoch(home.share.rollout), home.share.epoch + 1))
        self.at(self.now + 400, self._adopt)

    def _adopt_again(self, home: Region) -> None:
        """A leader that finds an adoption without an end goes on with it; one that left no trace is asked for anew."""
        share = home.share
        if share is None or share.owner != home.name:
            self._adopt()
        elif self.is_up(home) and (home.record is None or home.record.ballot < share.ballot):
            self.bid(home, share.epoch)

    def bid(self, home: Region, epoch: int) -> None:
        assert home.share is not None
        driver = Driver(home, AdoptionCore(home.share.rollout, home.name, epoch=epoch, by_hand=True))
        self._drivers.append(driver)
        self._perform(driver, driver.core.begin(round(self.now * NS)))

    def _meddle(self) -> None:
        self.by_hand = True
        wishes: list[Input] = [UnblockAsked(), FailAsked(reverts=True), FailAsked((NAMES[1],))]
        asked = self.rng.choice(wishes)
        self._tell_all(asked)

    def _look_at_canary(self) -> None:
        """A person lets the canary go when it is healthy, and comes again until it is."""
        canary = self.regions[self.canary()]
        if canary.status is _S.BLOCKED:
            self._tell_all(UnblockAsked((canary.name,)))
        if not (canary.status in FINAL and self.now > TROUBLE_S):
            self.at(self.now + self.rng.uniform(20, 200), self._look_at_canary)

    def canary(self) -> str:
        return next((one.name for one in self.record.regions if not one.is_skipped), NAMES[0])

    def _help(self) -> None:
        """A person comes by and decides what waits for one, and only that."""
        record = self.record
        if record.status is RolloutStatus.BLOCKED:
            is_canary = record.status_description.startswith("canary")
            if self.strategy.on_failure == "fail_all" and not self.by_hand and not is_canary:
                raise Broken(PROMISE, f"it waits for a person although all should fail: {record.status_description}")
            self._tell_all(UnblockAsked())
        elif record.status is RolloutStatus.PREPARING and self.strategy.on_unreachable == "wait":
            self._tell_all(FailAsked())
        self.at(self.now + 500, self._help)

    def _tell_all(self, asked: Input) -> None:
        if isinstance(asked, UnblockAsked) and self.regions[self.canary()].status in HEALTHY:
            self.canary_was_let_go = True
        for driver in [one for one in self._drivers if one.is_alive and isinstance(one.core, RolloutCore)]:
            self._give(driver, asked)

    # the owner

    def _give(self, driver: Driver, given: Input) -> None:
        if not driver.is_alive or not self.is_up(driver.region):
            return
        if isinstance(driver.core, AdoptionCore):
            if isinstance(given, (Heard, Unheard)):
                self._perform(driver, driver.core.handle(given, round(self.now * NS)))
        else:
            self._perform(driver, driver.core.handle(given, round(self.now * NS)))

    def _wake(self, driver: Driver, due: float) -> None:
        if driver.wakes_at == due:
            driver.wakes_at = float("inf")
            if driver.is_alive and self.is_up(driver.region):
                self._perform(driver, driver.core.wake(round(self.now * NS)))

    def _perform(self, driver: Driver, effects: list[Store | Send] | list[Store | Send | Outbid]) -> None:
        for effect in effects:
            match effect:
                case Store(rollout):
                    self.at(self.now + self.rng.uniform(0.01, 0.2), partial(self._write, driver, rollout))
                    if self.now < TROUBLE_S and self.rng.random() < self.flakiness:
                        self.at(self.now + self.rng.uniform(0, 0.2), self._crash)
                case Send(name, command, _, call):
                    self._send(driver, self.regions[name], command, call)
                case Outbid(owner, epoch):
                    driver.is_alive = False
                    if driver.region.share is not None:
                        self.lookouts.tell(driver.region, Told(driver.region.share, (epoch, owner)))
        due = max(driver.core.wake_at_ns() / NS, self.now) + 0.001
        if due < min(driver.wakes_at, END_S):
            driver.wakes_at = due
            self.at(due, partial(self._wake, driver, due))

    def _write(self, driver: Driver, rollout: Rollout) -> None:
        """The owner region's log: a record is written on top of its predecessor, or not at all."""
        home = driver.region
        if not self.is_up(home) or (not driver.is_alive and self.rng.random() < 0.5):
            return
        if isinstance(driver.core, AdoptionCore):
            self.adoptions += 1
            driver.is_alive = False
            if home.record is None or home.record.ballot < rollout.ballot:
                home.record = rollout
            self._take_office(home)
            return
        assert home.record is not None
        if rollout.revision != home.record.revision + 1 or rollout.ballot != home.record.ballot:
            self._give(driver, StoreFailed(home.record))
            return
        promises.check_written(home.record, rollout)
        home.record = rollout
        self._give(driver, Stored(rollout))

    # the network

    def is_lost(self) -> bool:
        return self.now < TROUBLE_S and self.rng.random() < self.loss

    def delay(self) -> float:
        late = self.now < TROUBLE_S and self.rng.random() < 0.1
        return self.rng.uniform(0.01, 0.3) + (self.rng.uniform(0, 40) if late else 0)

    def _send(self, driver: Driver, region: Region, command: RolloutCommand, call: int) -> None:
        if not self.can_reach(driver.region, region) and self.rng.random() < 0.8:
            self.at(self.now + 1, lambda: self._give(driver, Unheard(region.name, "no path", call)))
            return
        for _ in range(2 if self.rng.random() < self.loss / 2 else 1):
            if not self.is_lost():
                self.at(self.now + self.delay(), lambda: self._arrive(driver, region, command, call))

    def _arrive(self, driver: Driver, region: Region, command: RolloutCommand, call: int) -> None:
        if not self.can_reach(driver.region, region):
            return
        if not command.adopts:
            self.lookouts.tell(region, Contact(command.rollout.id, command.rollout.ballot))
            region.heard_at[command.rollout.owner] = self.now
        self._receive(region, command)

        def answer() -> None:
            if not self.is_lost() and self.can_reach(driver.region, region):
                report = rollout_share.received(region.share, command).report
                self.at(self.now + self.delay(), lambda: self._give(driver, Heard(report, call)))

        if command.step is None and not command.adopts and region.status is command.seen:
            region.held.append(answer)
            self.at(self.now + 60, lambda: self._let_go(region, answer))
        else:
            answer()

    def _let_go(self, region: Region, answer: Callable[[], None]) -> None:
        if answer in region.held:
            region.held.remove(answer)
            answer()

    # regions

    def _receive(self, region: Region, command: RolloutCommand) -> None:
        refusal = "the region refuses" if region.refuses else ""
        outcome = rollout_share.received(region.share, command, refusal=refusal)
        before, region.share = region.status, outcome.share
        if outcome.deed is not None:
            self._carry_out(region, outcome.deed.step)
        self._tell_news(region, before)
        if outcome.share is not None:
            self.lookouts.tell(region, Told(outcome.share))
            self.resume(region)

    def _carry_out(self, region: Region, step: RolloutStep) -> None:
        region.deeds[step] += 1
        promises.check_deed(self, region, step)
        match step:
            case RolloutStep.RUN:
                end = _S.FAILED if region.fails else _S.BLOCKED
                self.at(self.now + region.takes_s, lambda: self._moves(region, end))
            case RolloutStep.UNBLOCK:
                self.at(self.now + 1, lambda: self._moves(region, _S.SUCCESSFUL))

    def _moves(self, region: Region, status: DeploymentStatus) -> None:
        if not self.is_up(region) or region.share is None:
            return
        before = region.status
        outcome = rollout_share.deployment_changed(region.share, status, error="it did not get healthy")
        region.share = outcome.share
        if outcome.deed is not None:
            self._carry_out(region, outcome.deed.step)
        self._tell_news(region, before)

    def _tell_news(self, region: Region, before: DeploymentStatus) -> None:
        if region.status is not before:
            region.healthy_at = self.now if region.status is _S.BLOCKED else region.healthy_at
            held, region.held = region.held, []
            for answer in held:
                answer()

        if region.share is not None:
            self.lookouts.tell(region, Told(region.share))
