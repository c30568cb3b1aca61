"""Looks after the owners of rollouts while this server leads, and has those that are lost replaced.

A loop around an `AdoptionWatch`: it is told of shares and of commands, asks what it wants asked, and hands over what it
wants begun. Nothing of it is stored; it lives as long as the term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import trio

from fedsched.federation.adoption_watch import (
    AdoptionWatch,
    Answered,
    Ask,
    Ballot,
    Begin,
    Contact,
    Effect,
    Forgotten,
    Input,
    JobKey,
    Told,
    Unanswered,
    WatchSettings,
)
from fedsched.model.errors import FedschedError
from fedsched.model.rollout import Rollout
from fedsched.rpc.methods.rollout import ROLLOUT_STATUS, RolloutStatusRequest
from fedsched.server.desk import Desk
from fedsched.server.region_calls import RegionCalls
from fedsched.state.tables.rollouts import ENDED, ShareRow

NS: Final = 1_000_000_000
SETTINGS: Final = WatchSettings()
Adopt = Callable[[str, int], None]
"""Begins the adoption of a rollout with an epoch."""


class OwnerWatch:
    """The owners of all rollouts that this region takes part in."""

    def __init__(self, desk: Desk, calls: RegionCalls, adopt: Adopt, settings: WatchSettings | None = None) -> None:
        self._desk = desk
        self._calls = calls
        self._adopt = adopt
        self._settings = settings or SETTINGS
        self._core: AdoptionWatch | None = None
        """Only in office: a new term knows nothing of what the last one heard."""
        self._nursery: trio.Nursery | None = None
        self._news = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._core, self._nursery = AdoptionWatch(self._desk.region, self._settings), nursery
            try:
                task_status.started()
                while True:
                    with trio.move_on_after(self._pause_s(self._core)):
                        await self._news.wait()
                    self._news = trio.Event()
                    self._perform(self._core.wake(_now_ns()))
            finally:
                self._core = self._nursery = None

    def told(self, rows: Iterable[ShareRow]) -> None:
        """The log has these shares."""
        for row in rows:
            job: JobKey = (row.namespace, row.job_id)
            self._give(Forgotten(job) if row.status in ENDED else Told(row.header()))

    def forgotten(self, job: JobKey) -> None:
        self._give(Forgotten(job))

    def outbid(self, row: ShareRow, by: Ballot) -> None:
        """Our adoption has met a higher ballot: that region is looked after from now on."""
        self._give(Told(row.header(), by))

    def heard(self, rollout: Rollout) -> None:
        """A command came with this record."""
        self._give(Contact(rollout.id, rollout.ballot))

    def heard_ago_s(self, rollout_id: str) -> float | None:
        """How long ago the owner was heard; None if this server does not know."""
        return self._core.heard_ago_s(rollout_id, _now_ns()) if self._core is not None else None

    def _give(self, given: Input) -> None:
        if self._core is not None:
            self._perform(self._core.handle(given, _now_ns()))
            self._news.set()

    def _perform(self, effects: list[Effect]) -> None:
        assert self._nursery is not None, "only in office"
        for effect in effects:
            match effect:
                case Ask(rollout_id, region):
                    self._nursery.start_soon(self._ask, rollout_id, region)
                case Begin(rollout_id, epoch):
                    self._desk.log.warn("owner_lost", rollout=rollout_id, epoch=epoch)
                    self._adopt(rollout_id, epoch)

    async def _ask(self, rollout_id: str, region: str) -> None:
        given: Answered | Unanswered
        request = RolloutStatusRequest(rollout_id=rollout_id)
        try:
            given = Answered(await self._calls.ask(region, ROLLOUT_STATUS, request, within_s=self._settings.call_s))
        except FedschedError as error:
            self._desk.log.info("region_not_heard", rollout=rollout_id, region=region, why=str(error))
            given = Unanswered(rollout_id, region)
        self._give(given)

    def _pause_s(self, core: AdoptionWatch) -> float:
        wake_at_ns = core.wake_at_ns()
        return math.inf if math.isinf(wake_at_ns) else max(0.0, (wake_at_ns - _now_ns()) / NS)


def _now_ns() -> int:
    """Silence is measured by a clock that never jumps."""
    return round(trio.current_time() * NS)
