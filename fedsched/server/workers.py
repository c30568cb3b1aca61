"""Scheduler workers: take an evaluation, decide, have the plan committed, until the evaluation is over.

    dequeue -> wait until this server's state is new enough -> attempt -> submit -> heard -> (once more) -> ack

A worker is a child that mostly waits, for evaluations and for commits; deciding itself happens on the event loop,
against the live state, and takes a millisecond or so. An attempt that expects to take longer works on a snapshot and a
fleet of its own and pauses for others (`attempt_in_pieces`), or takes out what it needs first and is done on a thread
(`detach`).

Any failure hands the evaluation back. Whoever finds that an evaluation is no longer its own drops it without a word:
its delivery timed out, or another leader hands it out anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import trio
from msgspec import structs

from fedsched.model.errors import FedschedError
from fedsched.model.evaluation import Evaluation
from fedsched.raft.errors import NotLeader
from fedsched.scheduler.decision import Attempt, Outcome, Scheduling
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.schedule import MakeScheduling
from fedsched.server.desk import Desk
from fedsched.server.dispatch import NoLeader, Unreached
from fedsched.server.fleet_feed import FleetFeed
from fedsched.server.leader.broker_core import NotOutstanding
from fedsched.server.leader.plan_apply import PlanAnswer
from fedsched.server.leader.plan_queue_core import PlanQueueDisabled
from fedsched.server.pieces import in_turns
from fedsched.server.work_source import Assignment, WorkSource
from fedsched.state.store import State, Store
from fedsched.state.tables.evaluations import OPEN, evaluation_write
from fedsched.telemetry.metrics import counter, histogram

DEQUEUE_S: Final = 8.0
"""One question in eight seconds from an idle worker; an evaluation that comes up answers it at once."""
WAIT_INDEX_S: Final = 5.0
LAGGING_S: Final = 50.0
"""A server that far behind takes nothing more until it has caught up, so that it does not eat evaluations."""
BACKOFF_S: Final = (0.02, 10.0)
RESEND_S: Final = (0.5, 10.0)
RESEND_FOR_S: Final = 60.0
"""Afterwards the delivery has timed out anyway."""

INVOKE: Final = histogram("worker.invoke", "time for one attempt of a scheduler", labels=("type",))
WAITED: Final = histogram("worker.wait_for_index", "time until the state was new enough to start")
ENDED: Final = counter("worker.evaluations", "evaluations that workers here were done with", labels=("type", "result"))

_WEATHER: Final = (NotLeader, NoLeader, Unreached, PlanQueueDisabled)
T = TypeVar("T")


class InPieces(Protocol):
    """A `Scheduling` that pauses for others when it takes long, as the built-in ones do."""

    def attempt_in_pieces(self, store: Store, fleet: Fleet, now_ns: int) -> Pieces[Attempt]:
        """What makes the attempt; from its first pause on it must look at copies of its own."""


class Detaching(Protocol):
    """A `Scheduling` that may work elsewhere."""

    def detach(self, state: State, fleet: Fleet, now_ns: int) -> Callable[[], Attempt] | None:
        """Take out what a long attempt needs; returns what makes it, fit for any thread. None if it will be short."""


def active_workers(count: int, *, leads: bool) -> int:
    """How many of a server's workers work: a leader has other things to do and rests three quarters of them."""
    return count - (count * 3) // 4 if leads and count > 1 else count


class Workers:
    """A server's workers."""

    def __init__(
        self,
        desk: Desk,
        feed: FleetFeed,
        schedulers: Mapping[str, MakeScheduling],
        *,
        count: int,
        source: Callable[[], WorkSource],
    ) -> None:
        self._desk = desk
        self._feed = feed
        self._schedulers = dict(schedulers)
        self._types = tuple(sorted(schedulers))
        self._count = count
        self._source = source
        self._invoke = desk.metrics.histograms(INVOKE)
        self._waited = desk.metrics.histogram(WAITED)
        self._ended = desk.metrics.counters(ENDED)

    async def run(self) -> None:
        """Work until cancelled."""
        if not self._types:
            return
        async with trio.open_nursery() as nursery:
            for number in range(self._count):
                nursery.start_soon(self._work, number)

    async def _work(self, number: int) -> None:
        pause_s = BACKOFF_S[0]
        while True:
            await self._wait_turn(number)
            try:
                assignment = await self._source().dequeue(self._types, wait_s=DEQUEUE_S)
                pause_s = BACKOFF_S[0]
            except FedschedError as error:
                self._desk.log.debug("nothing_dequeued", worker=number, why=str(error))
                with trio.move_on_after(pause_s):
                    await self._desk.raft.wait_role_change()  # there may be a leader now
                pause_s = min(2 * pause_s, BACKOFF_S[1])
                continue
            if assignment is not None:
                await self._serve(assignment)

    async def _wait_turn(self, number: int) -> None:
        while number >= active_workers(self._count, leads=self._desk.raft.is_leader):
            await self._desk.raft.wait_role_change()

    # ------------------------------------------------------------------ one evaluation

    async def _serve(self, assignment: Assignment) -> None:
        """See one evaluation through. Nothing that goes wrong with it may stop the worker, or the server."""
        result = "ended"
        try:
            if await self._wait_index(assignment.wait_index, WAIT_INDEX_S):
                await self._evaluate(assignment)
                return
            result = "lagging"
            await self._resent(lambda source: source.nack(assignment))
            await self._wait_index(assignment.wait_index, LAGGING_S)
        except NotOutstanding as error:
            result = "taken_away"
            self._desk.log.info("evaluation_taken_away", evaluation_id=assignment.evaluation_id, why=str(error))
        except Exception as error:
            result = "failed"
            await self._hand_back(assignment, error)
        finally:
            self._ended.labels(assignment.type, result).add()

    async def _hand_back(self, assignment: Assignment, error: Exception) -> None:
        if isinstance(error, FedschedError):
            self._desk.log.warn("evaluation_not_done", evaluation_id=assignment.evaluation_id, why=str(error))
        else:
            self._desk.log.exception("scheduler_failed", error, evaluation_id=assignment.evaluation_id)
        try:
            await self._source().nack(assignment)
        except FedschedError as refused:  # then its delivery times out
            self._desk.log.info("not_handed_back", evaluation_id=assignment.evaluation_id, why=str(refused))

    async def _evaluate(self, assignment: Assignment) -> None:
        row = self._desk.machine.store.evaluations.row(assignment.evaluation_id)
        if row is None or row.status not in OPEN:  # deleted, or cancelled by one that placed everything
            await self._resent(lambda source: source.ack(assignment))
            return
        scheduling = self._schedulers[row.type](row.evaluation(), self._desk.env.new_id)
        while True:
            snapshot_index = self._desk.machine.store.index
            attempt = await self._attempt(scheduling, row.type)
            answer = await self._submit(assignment, attempt, snapshot_index)
            if answer.is_acked:
                return
            ends = scheduling.heard(answer.outcome, self._desk.proposals.now_ns())
            if ends is not None:
                await self._end(assignment, ends, snapshot_index)
                return
            if not await self._wait_index(answer.outcome.refresh_index, WAIT_INDEX_S):
                raise PlanQueueDisabled(f"index {answer.outcome.refresh_index} did not arrive here in time")

    async def _attempt(self, scheduling: Scheduling, kind: str) -> Attempt:
        began = trio.current_time()
        store, fleet, now_ns = self._desk.machine.store, self._feed.fleet, self._desk.proposals.now_ns()
        detach: Any = getattr(scheduling, "detach", None)
        apart = detach(store, fleet, now_ns) if detach is not None else None
        pieces: Any = getattr(scheduling, "attempt_in_pieces", None)
        try:
            if apart is not None:
                return await trio.to_thread.run_sync(apart)
            if pieces is not None:
                attempt: Attempt = await in_turns(pieces(store, fleet, now_ns))
                return attempt
            return scheduling.attempt(store, fleet, now_ns)
        finally:
            self._invoke.labels(kind).observe(trio.current_time() - began)

    async def _submit(self, assignment: Assignment, attempt: Attempt, snapshot_index: int) -> PlanAnswer:
        ends = self._stamped(attempt.ends, snapshot_index)
        if attempt.plan is None:
            if ends:
                await self._resent(lambda source: source.store(assignment, ends, ack=True))
            return PlanAnswer(Outcome(is_whole=True, is_progress=False), is_acked=bool(ends))
        plan = structs.replace(attempt.plan, ends=tuple(evaluation_write(one) for one in ends))
        return await self._resent(
            lambda source: source.submit(assignment, plan, priority=attempt.priority, all_at_once=attempt.all_at_once)
        )

    async def _end(self, assignment: Assignment, ends: tuple[Evaluation, ...], snapshot_index: int) -> None:
        if ends:
            stamped = self._stamped(ends, snapshot_index)
            await self._resent(lambda source: source.store(assignment, stamped, ack=True))
        else:
            await self._resent(lambda source: source.ack(assignment))

    def _stamped(self, evaluations: tuple[Evaluation, ...], snapshot_index: int) -> list[Evaluation]:
        now_ns = self._desk.proposals.now_ns()
        return [
            structs.replace(
                one,
                snapshot_index=snapshot_index,
                create_time_ns=one.create_time_ns or now_ns,
                modify_time_ns=now_ns,
            )
            for one in evaluations
        ]

    # ------------------------------------------------------------------ weather

    async def _wait_index(self, index: int, patience_s: float) -> bool:
        """Wait until this server's state has come to `index`; false if it did not in time."""
        machine = self._desk.machine
        if machine.store.index >= index:
            return True
        began = trio.current_time()
        with trio.move_on_after(patience_s):
            await self._desk.raft.wait_applied(index - machine.state_index(0))
        self._waited.observe(trio.current_time() - began)
        return machine.store.index >= index

    async def _resent(self, send: Callable[[WorkSource], Awaitable[T]]) -> T:
        """Send until it arrives: while there is no leader it is nobody's fault."""
        pause_s = RESEND_S[0]
        until = trio.current_time() + RESEND_FOR_S
        while True:
            try:
                return await send(self._source())
            except _WEATHER:
                if trio.current_time() + pause_s > until:
                    raise
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESEND_S[1])
