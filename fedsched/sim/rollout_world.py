"""A world of regions in which one rollout happens to everybody, from a seed.

Regions are modelled by their share, their deployment's fate and their reachability; the owner by its written record and
the core of whoever leads it. Messages are lost, late, doubled; owners crash between any two inputs, an old leader may
go on beside its successor for a while; regions are cut off, some for good, the owner's among them, and then another
one adopts. `World.run` raises `Broken` with what promise was broken.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from fedsched.federation import rollout_share
from fedsched.federation.adoption_core import AdoptionCore, Outbid, next_epoch
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
from fedsched.model.rollout import STEP_MOVES, Rollout, RolloutCommand, RolloutShare, RolloutStatus, RolloutStep
from fedsched.sim.verdict import Broken

_S = DeploymentStatus
NAMES = ("eu", "us", "asia", "africa", "mars")
DEADLINE_S = 300.0
TROUBLE_S = 900.0
"""After this every cut is healed (but for lost regions), nothing is lost any more, and nobody crashes."""
HELP_S = 3000.0
"""After this a person looks at a rollout that waits for one."""
END_S = 6000.0
PROMISE = "R-65 rollouts over cuts"


@dataclass
class Region:
    """The truth about one region."""

    name: str
    fails: bool
    takes_s: float
    refuses: bool
    share: RolloutShare | None = None
    deeds: Counter[RolloutStep] = field(default_factory=Counter)
    cuts: list[tuple[float, float]] = field(default_factory=list)
    lost_at: float = float("inf")
    healthy_at: float = float("inf")
    held: list[Callable[[], None]] = field(default_factory=list)
    """Questions for the status that wait for news."""
    record: Rollout | None = None
    """The owner's record, if it was written here."""

    @property
    def status(self) -> DeploymentStatus:
        return self.share.status if self.share is not None else _S.INITIALIZING


@dataclass(eq=False)
class Driver:
    """A server of `region` that drives the rollout, or tries to adopt it."""

    region: Region
    core: RolloutCore | AdoptionCore
    is_alive: bool = True
    wakes_at: float = float("inf")


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
        names = NAMES[: rng.randint(3, 5)]
        strategy = MultiregionStrategy(
            max_parallel=rng.choice([0, 1, 1, 1, 2]),
            on_failure=rng.choice(["", "fail_all", "fail_local"]),
            on_unreachable=rng.choice(["fail", "skip", "wait"]),
            region_deadline_s=DEADLINE_S,
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
        self.restarts = 0
        owner = self.regions[names[0]]
        owner.record = rollout
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
        self._check_end()

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
            self.at(owner.lost_at + rng.uniform(10, 100), self._adopt)
        elif kind < 0.4:  # only cut off, and back later: two owners for a while
            since = rng.uniform(0, TROUBLE_S * 0.4)
            owner.cuts.append((since, since + 450))
            self.at(since + rng.uniform(10, 100), self._adopt)
        for _ in range(rng.choice([0, 1, 2, 5])):
            self.at(rng.uniform(0, TROUBLE_S), self._crash)
        if rng.random() < 0.1:
            self.at(rng.uniform(10, TROUBLE_S), self._meddle)
        if self.strategy.canary_region:
            self.at(rng.uniform(10, TROUBLE_S), self._look_at_canary)
        self.at(HELP_S, self._help)

    def _is_up(self, region: Region) -> bool:
        return self.now < region.lost_at

    def _is_gone(self, region: Region) -> bool:
        """Whether it looks lost from outside."""
        return not self._is_up(region) or any(since <= self.now < until for since, until in region.cuts)

    def _can_reach(self, one: Region, other: Region) -> bool:
        if not (self._is_up(one) and self._is_up(other)):
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
            elif any(one.region is home for one in alive):
                self.at(self.now + self.rng.uniform(1, 20), partial(self._adopt_again, home))

    def _take_office(self, home: Region) -> None:
        assert home.record is not None
        if not self._is_up(home):
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
        self._bid(home, max(next_epoch(home.share.rollout), home.share.epoch + 1))
        self.at(self.now + 400, self._adopt)

    def _adopt_again(self, home: Region) -> None:
        """A leader that finds an adoption without an end goes on with it; one that left no trace is asked for anew."""
        share = home.share
        if share is None or share.owner != home.name:
            self._adopt()
        elif self._is_up(home) and (home.record is None or home.record.ballot < share.ballot):
            self._bid(home, share.epoch)

    def _bid(self, home: Region, epoch: int) -> None:
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
        canary = self.regions[self._canary()]
        if canary.status is _S.BLOCKED:
            self._tell_all(UnblockAsked((canary.name,)))
        if not (canary.status in FINAL and self.now > TROUBLE_S):
            self.at(self.now + self.rng.uniform(20, 200), self._look_at_canary)

    def _canary(self) -> str:
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
        if isinstance(asked, UnblockAsked) and self.regions[self._canary()].status in HEALTHY:
            self.canary_was_let_go = True
        for driver in [one for one in self._drivers if one.is_alive and isinstance(one.core, RolloutCore)]:
            self._give(driver, asked)

    # the owner

    def _give(self, driver: Driver, given: Input) -> None:
        if not driver.is_alive or not self._is_up(driver.region):
            return
        if isinstance(driver.core, AdoptionCore):
            if isinstance(given, (Heard, Unheard)):
                self._perform(driver, driver.core.handle(given, round(self.now * NS)))
        else:
            self._perform(driver, driver.core.handle(given, round(self.now * NS)))

    def _wake(self, driver: Driver, due: float) -> None:
        if driver.wakes_at == due:
            driver.wakes_at = float("inf")
            if driver.is_alive and self._is_up(driver.region):
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
                case Outbid():
                    driver.is_alive = False
        due = max(driver.core.wake_at_ns() / NS, self.now) + 0.001
        if due < min(driver.wakes_at, END_S):
            driver.wakes_at = due
            self.at(due, partial(self._wake, driver, due))

    def _write(self, driver: Driver, rollout: Rollout) -> None:
        """The owner region's log: a record is written on top of its predecessor, or not at all."""
        home = driver.region
        if not self._is_up(home) or (not driver.is_alive and self.rng.random() < 0.5):
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
        self._check_written(home.record, rollout)
        home.record = rollout
        self._give(driver, Stored(rollout))

    # the network

    def _is_lost(self) -> bool:
        return self.now < TROUBLE_S and self.rng.random() < self.loss

    def _delay(self) -> float:
        late = self.now < TROUBLE_S and self.rng.random() < 0.1
        return self.rng.uniform(0.01, 0.3) + (self.rng.uniform(0, 40) if late else 0)

    def _send(self, driver: Driver, region: Region, command: RolloutCommand, call: int) -> None:
        if not self._can_reach(driver.region, region) and self.rng.random() < 0.8:
            self.at(self.now + 1, lambda: self._give(driver, Unheard(region.name, "no path", call)))
            return
        for _ in range(2 if self.rng.random() < self.loss / 2 else 1):
            if not self._is_lost():
                self.at(self.now + self._delay(), lambda: self._arrive(driver, region, command, call))

    def _arrive(self, driver: Driver, region: Region, command: RolloutCommand, call: int) -> None:
        if not self._can_reach(driver.region, region):
            return
        self._receive(region, command)

        def answer() -> None:
            if not self._is_lost() and self._can_reach(driver.region, region):
                report = rollout_share.received(region.share, command).report
                self.at(self.now + self._delay(), lambda: self._give(driver, Heard(report, call)))

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

    def _carry_out(self, region: Region, step: RolloutStep) -> None:
        region.deeds[step] += 1
        self._check_deed(region, step)
        match step:
            case RolloutStep.RUN:
                end = _S.FAILED if region.fails else _S.BLOCKED
                self.at(self.now + region.takes_s, lambda: self._moves(region, end))
            case RolloutStep.UNBLOCK:
                self.at(self.now + 1, lambda: self._moves(region, _S.SUCCESSFUL))

    def _moves(self, region: Region, status: DeploymentStatus) -> None:
        if not self._is_up(region) or region.share is None:
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

    # promises

    def _check_written(self, before: Rollout, after: Rollout) -> None:
        for old, new in zip(before.regions, after.regions, strict=True):
            was_learned = old.is_unsure  # what a former owner decided is not decided now
            if not STEP_MOVES.allows(old.step, new.step) and not was_learned:
                raise Broken(PROMISE, f"{new.name}: {old.step} was decided, and then {new.step}")
            if old.status in FINAL and new.status is not old.status:
                raise Broken(PROMISE, f"{new.name}: {old.status} was final, and then {new.status}")
        if before.status.is_over and after.status not in (before.status, RolloutStatus.ADOPTED):
            raise Broken(PROMISE, f"it was over as {before.status}, and then {after.status}")

    def _check_deed(self, region: Region, step: RolloutStep) -> None:
        if region.deeds[step] > 1:
            raise Broken(PROMISE, f"{region.name}: {step} was carried out twice")
        if sum(count for one, count in region.deeds.items() if one.is_last) > 1:
            raise Broken(PROMISE, f"{region.name}: two ends, {dict(region.deeds)}")
        if step is RolloutStep.RUN:
            self._check_start(region)
        if step is RolloutStep.UNBLOCK and region.status is not _S.UNBLOCKING and region.status is not _S.BLOCKED:
            raise Broken(PROMISE, f"{region.name}: unblocked while {region.status}")

    def _check_start(self, region: Region) -> None:
        record = self.record
        mine = record.region(region.name)
        if mine is None or mine.step is RolloutStep.PREPARE:
            decided = region.share is not None and region.share.rollout.region(region.name)
            if not decided or decided.step is RolloutStep.PREPARE:
                raise Broken(PROMISE, f"{region.name}: started without a decision")
        known = {one.name: one for one in record.regions}
        given_up = {name for name, one in known.items() if one.step.is_last or one.is_skipped}
        unprepared = [
            one.name for one in self.regions.values() if one.name not in given_up and not one.deeds[RolloutStep.PREPARE]
        ]
        if unprepared:
            raise Broken(PROMISE, f"{region.name} was started while {unprepared} were not prepared")
        busy = [
            one.name
            for one in self.regions.values()
            if one.deeds[RolloutStep.RUN] and self._keeps_its_place(one) and one.name not in given_up
        ]
        if self.strategy.max_parallel and len(busy) > self.strategy.max_parallel:
            raise Broken(PROMISE, f"{busy} have their turn at once, {self.strategy.max_parallel} may")
        waiting = [one.name for one in self._before(region) if not one.deeds[RolloutStep.RUN]]
        if self.strategy.max_parallel == 1 and set(waiting) - given_up:
            raise Broken(PROMISE, f"{region.name} was started before {waiting}")

        canary = self._canary()
        if self.strategy.canary_region and region.name != canary and not self.canary_was_let_go:
            raise Broken(PROMISE, f"{region.name} was started, and nobody has unblocked the canary {canary}")

    def _keeps_its_place(self, region: Region) -> bool:
        """Whether it runs, or is healthy and bakes."""
        if region.status is _S.BLOCKED:
            return self.now < region.healthy_at + self.strategy.bake_time_s
        return region.status not in HEALTHY | FINAL

    def _before(self, region: Region) -> list[Region]:
        listed = list(self.regions.values())
        return listed[: listed.index(region)]

    def _check_end(self) -> None:
        record = self.record
        alive = {name: one for name, one in self.regions.items() if self._is_up(one)}
        if record.owner not in alive:
            if any(one.share is not None for one in alive.values()) and self._may_be_adopted(alive):
                raise Broken(PROMISE, f"nobody adopted it; {record.status}")
            return
        if not record.status.is_over:
            raise Broken(PROMISE, f"it never ended: {record.status}, {record.status_description}")
        taking_part = {one.name: alive[one.name] for one in record.regions if not one.is_skipped and one.name in alive}
        loose = {name: one.status.value for name, one in taking_part.items() if one.share and one.status not in FINAL}
        if loose:
            raise Broken(PROMISE, f"it is over as {record.status}, yet there are {loose}")
        self._check_outcome(record, taking_part)

    def _may_be_adopted(self, alive: dict[str, Region]) -> bool:
        return sum(one.share is not None for one in alive.values()) > len(self.regions) // 2

    def _check_outcome(self, record: Rollout, taking_part: dict[str, Region]) -> None:
        # A former owner that was cut off may have ended its own part before it heard of its successor.
        former = {one.name for one in self.regions.values() if one.record is not None and one.record is not record}
        statuses = {name: one.status for name, one in taking_part.items() if name not in former}
        if record.status is RolloutStatus.SUCCESSFUL and set(statuses.values()) - {_S.SUCCESSFUL}:
            raise Broken(PROMISE, f"it is successful, yet there are {statuses}")
        wrong = [name for name, status in statuses.items() if status is _S.FAILED and self.regions[name].fails]
        if wrong and record.status is RolloutStatus.SUCCESSFUL:
            raise Broken(PROMISE, f"it is successful, yet {wrong} failed")
        if self.by_hand:
            return
        let_go = {self._canary()} if self.strategy.canary_region and self.canary_was_let_go else set()
        healthy = {name for name, status in statuses.items() if status is _S.SUCCESSFUL} - let_go
        if self.strategy.on_failure == "fail_all" and wrong and healthy:
            raise Broken(PROMISE, f"{wrong} failed and {healthy} did not, although all should")
        if self.strategy.on_failure == "" and wrong:
            names = list(self.regions)
            later = set(names[names.index(wrong[0]) :]) & healthy
            if later:
                raise Broken(PROMISE, f"{wrong[0]} failed, and {later} after it did not")
        blameless = not any(one.fails or one.refuses or one.cuts for one in self.regions.values())
        nobody_lost = all(one.lost_at > END_S for one in self.regions.values())
        if blameless and nobody_lost and self.loss == 0 and record.status is not RolloutStatus.SUCCESSFUL:
            raise Broken(PROMISE, f"nothing was wrong anywhere, yet it is {record.status}: {record.status_description}")
