"""Drives rollouts while this server leads their owner region: one core for each record that is not done.

A driver is a loop around a `RolloutCore`: it writes what the core wants written, says what it wants said, and tells it
what came of both. Everything is in the record, so a new leader begins with the records and nothing else. What a region
is told goes the way of any call, our own region included.

Beside them there are adoptions (`AdoptionCore`), begun by a person or, if the job says so, because the owner is silent
(`owner_watch`). They are gone on with until they are over or outbid: a region that has promised itself to drive listens
to nobody else.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import trio
from msgspec.structs import replace

from fedsched.federation.adoption_core import AdoptionCore, Outbid
from fedsched.federation.rollout_core import (
    NS,
    CancelAsked,
    Effect,
    FailAsked,
    Heard,
    Input,
    RolloutCore,
    RolloutSettings,
    Send,
    Store,
    Stored,
    StoreFailed,
    UnblockAsked,
    Unheard,
)
from fedsched.federation.rollout_share import key_of
from fedsched.model.errors import Conflict, FedschedError, Unavailable
from fedsched.model.job import JobSubmission
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutStatus, RolloutStep
from fedsched.rpc.methods.rollout import ROLLOUT_COMMAND
from fedsched.server.desk import Desk
from fedsched.server.leader.owner_watch import OwnerWatch
from fedsched.server.leader.state_watch import StateWatch
from fedsched.server.region_calls import RegionCalls
from fedsched.state.changes import Changes
from fedsched.state.tables.rollouts import ROLLOUTS, SHARES, RolloutRow, ShareRow, rollout_write

LOOK_S: Final = 5.0
"""The longest sleep: wall clocks jump."""
PACE_S: Final = 0.01
RETRY_S: Final = 1.0
SETTINGS: Final = RolloutSettings(watch_s=0.0)
"""A region holds a question for less than the time that a call may take, so it needs no patience of its own."""
RUNS: Final = frozenset(
    {RolloutStatus.RUNNING, RolloutStatus.BLOCKED, RolloutStatus.UNBLOCKING, RolloutStatus.SUCCESSFUL}
)

Asked = UnblockAsked | FailAsked | CancelAsked


@dataclass(slots=True)
class _Adoption:
    """One under way, and what became of it."""

    known: Rollout
    epoch: int
    by_hand: bool
    ended: trio.Event = field(default_factory=trio.Event)
    record: Rollout | None = None
    refusal: FedschedError | None = None


class RolloutsService:
    """Sees every rollout that this region owns to its end."""

    def __init__(self, desk: Desk, calls: RegionCalls, settings: RolloutSettings | None = None) -> None:
        self._desk = desk
        self._calls = calls
        self._settings = settings or SETTINGS
        self._watch = StateWatch(desk.machine)
        self._drivers: dict[str, _Driver] = {}
        self._adoptions: dict[str, _Adoption] = {}
        self._owners = OwnerWatch(desk, calls, self._adopt_lost)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._watch.open():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await nursery.start(self._owners.run)
                    task_status.started()
                    while True:
                        self._look(await self._watch.wait())
                        await trio.sleep(PACE_S)
                finally:
                    self._nursery = None
                    self._let_go()

    async def ask(self, rollout_id: str, asked: Asked) -> Rollout:
        """Have a person's decision written; the record with it."""
        driver = self._drivers.get(rollout_id)
        if driver is None:
            raise Unavailable(f"rollout {rollout_id!r} is not in hand yet", hint="try again in a moment")
        return await driver.ask(asked)

    async def adopt(self, known: Rollout, epoch: int) -> Rollout:
        """Have this region drive a rollout from now on; the record that goes on. `Conflict` if another region does.

        Goes on also if nobody waits for it any more.
        """
        adoption = self._begin_adoption(known, epoch, by_hand=True)
        await adoption.ended.wait()
        if adoption.refusal is not None:
            raise adoption.refusal
        assert adoption.record is not None
        return adoption.record

    def heard(self, rollout: Rollout) -> None:
        """Whoever drives it has said something to our region."""
        self._owners.heard(rollout)

    def heard_ago_s(self, rollout_id: str) -> float | None:
        """How long ago that was; None if it was not in this term."""
        return self._owners.heard_ago_s(rollout_id)

    def _look(self, gathered: list[Changes]) -> None:
        rollouts = self._desk.machine.store.rollouts
        if any(changes.is_everything for changes in gathered):
            self._let_go()
            rows = list(rollouts.rows.scan())
            shares = list(rollouts.share_rows.scan())
        else:
            keys = dict.fromkeys(str(key[0]) for changes in gathered for key in changes.keys(ROLLOUTS))
            rows = [row for rollout_id in keys if (row := rollouts.row(rollout_id)) is not None]
            shares = []
            for namespace, job_id in dict.fromkeys(key for changes in gathered for key in changes.keys(SHARES)):
                share = rollouts.share_row(str(namespace), str(job_id))
                if share is None:
                    self._owners.forgotten((str(namespace), str(job_id)))
                else:
                    shares.append(share)
        self._resume_adoptions(shares)
        self._owners.told(shares)
        for row in rows:
            self._take_up(row)

    def _take_up(self, row: RolloutRow) -> None:
        """Have a driver for the record, if it is ours and may not be done; end those of older versions."""
        if row.owner != self._desk.region:
            return
        newest = self._desk.machine.store.rollouts.newest(row.namespace, row.job_id)
        is_newest = newest is not None and newest.id == row.id
        driver = self._drivers.get(row.id)
        if driver is not None and driver.ballot != row.ballot:
            driver.scope.cancel("adopted anew")
            driver = None
        if driver is None and (is_newest or not row.is_over) and self._nursery is not None:
            driver = self._drivers[row.id] = _Driver(
                self._desk, self._calls, row.rollout(), row.source(), self._settings
            )
            self._nursery.start_soon(self._drive, driver)
        if newest is not None and not is_newest and driver is not None and not row.is_over:
            driver.tell(CancelAsked(f"replaced by version {newest.job_version}"))
        if is_newest:
            for other in self._desk.machine.store.rollouts.of_job(row.namespace, row.job_id):
                older = self._drivers.get(other.id)
                if older is not None and other.id != row.id:
                    older.tell(CancelAsked(f"replaced by version {row.job_version}"))

    async def _drive(self, driver: _Driver) -> None:
        try:
            await driver.run()
        finally:
            if self._drivers.get(driver.id) is driver:
                del self._drivers[driver.id]

    def _let_go(self) -> None:
        for driver in self._drivers.values():
            driver.scope.cancel("looked at anew")
        self._drivers = {}
        for adoption in self._adoptions.values():
            adoption.refusal = Unavailable("the leader changed while the rollout was adopted", hint="look at it again")
            adoption.ended.set()
        self._adoptions = {}

    # -------------------------------------------------------------- adoption

    def _adopt_lost(self, rollout_id: str, epoch: int) -> None:
        """Adopt without a person."""
        share = self._desk.machine.store.rollouts.share_of(rollout_id)
        if share is not None and self._nursery is not None:
            self._begin_adoption(share.share().rollout, epoch, by_hand=False)

    def _begin_adoption(self, known: Rollout, epoch: int, *, by_hand: bool) -> _Adoption:
        adoption = self._adoptions.get(known.id)
        if adoption is None:
            if self._nursery is None:
                raise Unavailable("this server does not lead its region any more", hint="try again in a moment")
            adoption = self._adoptions[known.id] = _Adoption(known, epoch, by_hand)
            self._nursery.start_soon(self._adopt, adoption)
        return adoption

    def _resume_adoptions(self, shares: Iterable[ShareRow]) -> None:
        """Go on with what a former leader began: our region has promised to listen to nobody but itself.

        It may have begun by hand: of two regions nothing else begins.
        """
        rollouts = self._desk.machine.store.rollouts
        for share in shares:
            record = rollouts.row(share.rollout_id)
            ballot = record.ballot if record is not None else (0, "")
            if share.owner == self._desk.region and (share.epoch, share.owner) > ballot:
                self._begin_adoption(share.share().rollout, share.epoch, by_hand=True)

    async def _adopt(self, adoption: _Adoption) -> None:
        core = AdoptionCore(
            adoption.known,
            self._desk.region,
            epoch=adoption.epoch,
            by_hand=adoption.by_hand,
            settings=self._settings,
        )
        talk = _Talk(self._calls)
        async with trio.open_nursery() as nursery:
            effects = core.begin(self._desk.proposals.now_ns())
            while True:
                for effect in effects:
                    match effect:
                        case Send():
                            talk.say(effect, nursery)
                        case Store(record):
                            await self._store_adopted(adoption, record)
                        case Outbid(owner, epoch):
                            adoption.refusal = Conflict(
                                f"region {owner} drives rollout {adoption.known.id!r} in epoch {epoch}",
                                hint="`fedsched operator rollout status` there shows it",
                            )
                            self._note_outbid(adoption.known.id, (epoch, owner))
                if adoption.record is not None or adoption.refusal is not None:
                    break
                given = await talk.next(self._pause_s(core.wake_at_ns()))
                now_ns = self._desk.proposals.now_ns()
                effects = [effect for one in given for effect in core.handle(one, now_ns)]
                effects += core.wake(now_ns)
            nursery.cancel_scope.cancel("settled")
        self._adoptions.pop(adoption.known.id, None)
        adoption.ended.set()

    def _note_outbid(self, rollout_id: str, by: tuple[int, str]) -> None:
        share = self._desk.machine.store.rollouts.share_of(rollout_id)
        if share is not None:
            self._owners.outbid(share, by)

    async def _store_adopted(self, adoption: _Adoption, record: Rollout) -> None:
        try:
            await self._desk.proposals.propose(rollout_write(record, with_job=True), is_essential=True)
        except FedschedError as refused:
            adoption.refusal = refused
            return
        adoption.record = record
        self._desk.log.info("rollout_adopted", rollout=record.id, job=record.job_id, epoch=record.epoch)

    def _pause_s(self, wake_at_ns: float) -> float:
        return _pause_s(wake_at_ns, self._desk.proposals.now_ns())


class _Talk:
    """Calls to regions under way, one at a time to each, and what was heard."""

    def __init__(self, calls: RegionCalls) -> None:
        self._calls = calls
        self._under_way: dict[str, trio.CancelScope] = {}
        self._given: deque[Heard | Unheard] = deque()
        """At most what calls bring that are under way, which is one for each region."""
        self._news = trio.Event()

    def say(self, send: Send, nursery: trio.Nursery) -> None:
        """Ask a region, in place of what it is asked just now; what it answers is heard next."""
        before = self._under_way.get(send.region)
        if before is not None:
            before.cancel("something newer is to be said")
        scope = self._under_way[send.region] = trio.CancelScope()
        nursery.start_soon(self._ask, send, scope)

    async def _ask(self, send: Send, scope: trio.CancelScope) -> None:
        given: Heard | Unheard
        with scope:
            try:
                report = await self._calls.ask(send.region, ROLLOUT_COMMAND, send.command, within_s=send.patience_s)
                given = Heard(report, send.call)
            except FedschedError as error:
                given = Unheard(send.region, str(error), send.call)
            self._given.append(given)
            self.poke()
        if self._under_way.get(send.region) is scope:
            del self._under_way[send.region]

    def poke(self) -> None:
        """Have whoever waits look again."""
        self._news.set()

    async def next(self, wait_s: float) -> list[Heard | Unheard]:
        """What was heard, as soon as there is something, or nothing when time is up."""
        with trio.move_on_after(wait_s):
            await self._news.wait()
        self._news = trio.Event()
        given, self._given = list(self._given), deque()
        return given


class _Driver:
    """One rollout."""

    def __init__(
        self,
        desk: Desk,
        calls: RegionCalls,
        rollout: Rollout,
        submission: JobSubmission | None,
        settings: RolloutSettings,
    ) -> None:
        self._submission = submission
        self.id = rollout.id
        self.ballot = rollout.ballot
        self.scope = trio.CancelScope()
        self._desk = desk
        self._calls = calls
        self._settings = settings
        self._core = RolloutCore(rollout, desk.proposals.now_ns(), settings)
        self._talk = _Talk(calls)
        self._inputs: deque[Input] = deque()
        """What was written, and what people ask; neither is much."""
        self._asking: list[trio.Event] = []
        self._is_cut_short = False
        """The driver ended before it had answered those who ask."""
        self._to_leave: set[str] | None = None
        """Regions that the job has left and that do not know it yet; None before the rollout runs."""

    def tell(self, given: Input) -> None:
        self._inputs.append(given)
        self._talk.poke()

    async def ask(self, asked: Asked) -> Rollout:
        """Decide something by hand, and wait until that is in the log."""
        answered = trio.Event()
        self._asking.append(answered)
        self.tell(asked)
        await answered.wait()
        if self._is_cut_short:
            raise Unavailable(
                f"the leader changed before rollout {self.id!r} was decided on", hint="look at it, and ask again"
            )
        return self._core.rollout

    async def run(self) -> None:
        """Until it is over and everybody knows."""
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    self._perform(self._core.begin(self._now_ns()), nursery)
                    self._leave_regions(nursery)
                    while not self._is_done():
                        given = await self._talk.next(_pause_s(self._core.wake_at_ns(), self._now_ns()))
                        self._perform(self._decide([*self._take_inputs(), *given]), nursery)
                        self._leave_regions(nursery)
                        self._answer()
                        await trio.sleep(PACE_S)
                    nursery.cancel_scope.cancel("done")
        finally:
            self._answer(is_end=True)

    def _is_done(self) -> bool:
        rollout = self._core.rollout
        leaves = self._to_leave if self._to_leave is not None else rollout.leaves if rollout.status in RUNS else ()
        return self._core.is_done() and not (self._core.is_writing or self._inputs or leaves)

    def _take_inputs(self) -> list[Input]:
        given, self._inputs = list(self._inputs), deque()
        return given

    def _decide(self, given: list[Input]) -> list[Effect]:
        now_ns = self._now_ns()
        if not given:
            return self._core.wake(now_ns)
        return [effect for one in given for effect in self._core.handle(one, now_ns)]

    def _perform(self, effects: list[Effect], nursery: trio.Nursery) -> None:
        for effect in effects:
            match effect:
                case Store(rollout):
                    nursery.start_soon(self._store, rollout)
                case Send(command=command) if command.step is RolloutStep.PREPARE:
                    with_text = replace(command, submission=self._submission)
                    self._talk.say(dataclasses.replace(effect, command=with_text), nursery)
                case Send():
                    self._talk.say(effect, nursery)

    def _answer(self, *, is_end: bool = False) -> None:
        self._is_cut_short = is_end and bool(self._asking)
        if is_end or not (self._core.is_writing or self._inputs):
            for waiting in self._asking:
                waiting.set()
            self._asking = []

    async def _store(self, rollout: Rollout) -> None:
        try:
            await self._desk.proposals.propose(rollout_write(rollout), is_essential=True)
        except FedschedError as error:
            self._desk.log.info("rollout_not_written", rollout=self.id, why=str(error))
            await trio.sleep(RETRY_S)
            row = self._desk.machine.store.rollouts.row(self.id)
            if row is None:
                self.scope.cancel("the record is gone")
                return
            self.tell(StoreFailed(row.rollout()))
            return
        self._desk.log.info(
            "rollout_moved",
            rollout=self.id,
            job=rollout.job_id,
            status=rollout.status.value,
            regions={one.name: f"{one.step.value}/{one.status.value}" for one in rollout.regions},
        )
        self.tell(Stored(rollout))

    # -------------------------------------------------------------- regions that the job has left

    def _leave_regions(self, nursery: trio.Nursery) -> None:
        """Once the new version runs, stop the job where it is not wanted any more. A new leader says it again."""
        rollout = self._core.rollout
        if self._to_leave is None and rollout.leaves and rollout.status in RUNS:
            self._to_leave = set(rollout.leaves)
            for name in rollout.leaves:
                nursery.start_soon(self._leave, name, replace(rollout, job=None))

    async def _leave(self, name: str, rollout: Rollout) -> None:
        key = key_of(rollout.id, name, RolloutStep.WITHDRAW)
        command = RolloutCommand(key=key, region=name, rollout=rollout, step=RolloutStep.WITHDRAW)
        rest_s = self._settings.retry_min_s
        while True:
            try:
                await self._calls.ask(name, ROLLOUT_COMMAND, command, within_s=self._settings.call_s)
                break
            except FedschedError as error:
                self._desk.log.info("region_not_left", rollout=self.id, region=name, why=str(error))
            await trio.sleep(rest_s)
            rest_s = min(rest_s * 2, self._settings.afterwards_max_s)
        assert self._to_leave is not None
        self._to_leave.discard(name)
        self._talk.poke()

    def _now_ns(self) -> int:
        return self._desk.proposals.now_ns()


def _pause_s(wake_at_ns: float, now_ns: int) -> float:
    return LOOK_S if math.isinf(wake_at_ns) else min(LOOK_S, max(0.0, (wake_at_ns - now_ns) / NS))
