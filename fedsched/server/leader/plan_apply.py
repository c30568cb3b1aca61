"""The plan applier: the one place where plans become log entries.

    submit -> queue -> check against the fleet -> count it there in advance -> log -> applied -> answer

The next plan is checked while earlier ones are replicated. That is safe because what those take is counted in the fleet
at once, and because the log keeps their order: a plan that relies on room which an earlier one frees can never be
committed without it. If a plan does not make it into the log, what was counted for it is taken back.

A plan is answered when it is applied here. One that is refused as a whole because of plans in flight is answered when
those have landed: earlier the scheduler would only decide the same again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import trio
from msgspec import structs

from fedsched.model.alloc import DesiredStatus
from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.scheduler.decision import Outcome
from fedsched.scheduler.fleet_plans import Reservation
from fedsched.server.desk import Desk
from fedsched.server.fleet_feed import FleetFeed
from fedsched.server.leader.broker import BrokerService
from fedsched.server.leader.plan_check import DISCONNECTED, DOWN, Verdict, check_plan
from fedsched.server.leader.plan_metrics import PlanMeters
from fedsched.server.leader.plan_queue_core import PlanQueueCore, PlanQueueDisabled
from fedsched.server.leader.rejections import RejectionSettings, RejectionTracker
from fedsched.state.id_map import words_of
from fedsched.state.result import InvalidCommand, Result
from fedsched.state.tables.alloc_columns import DESIRED_CODES
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite, evaluation_write
from fedsched.state.tables.plans import PlanApply, check_shapes

IN_FLIGHT_MAX: Final = 8
"""Plans on their way through the log at once: enough to keep a disk busy, few enough that a refusal is rare."""
CATCH_UP_S: Final = 10.0
EVICT: Final = DESIRED_CODES[DesiredStatus.EVICT]


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What a worker is told."""

    outcome: Outcome
    is_acked: bool = False
    """The evaluation ended with the plan and is off the worker's hands."""
    rejected_nodes: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _Submitted:
    """A plan that waits for its answer."""

    plan: PlanApply
    all_at_once: bool
    began: float
    done: trio.Event = field(default_factory=trio.Event)
    answer: PlanAnswer | None = None
    error: FedschedError | None = None

    def settle(self, answer: PlanAnswer) -> None:
        self.answer = answer
        self.done.set()

    def fail(self, error: FedschedError) -> None:
        if not self.done.is_set():
            self.error = error
            self.done.set()


@dataclass(slots=True, eq=False)
class _Flight:
    """A plan between its check and its commit."""

    reservation: Reservation
    index: int = 0
    """Of its entry in the state's count; 0 until it has one."""
    landed: trio.Event = field(default_factory=trio.Event)


class PlanApplier:
    """A leader's duty, and what workers submit their plans to."""

    def __init__(
        self, desk: Desk, broker: BrokerService, feed: FleetFeed, *, rejections: RejectionSettings | None = None
    ) -> None:
        self._desk = desk
        self._broker = broker
        self._feed = feed
        self._queue: PlanQueueCore[_Submitted] = PlanQueueCore()
        self._flights: dict[_Flight, None] = {}
        self._tracker = RejectionTracker(rejections)
        self._due = trio.Event()
        self._term = 0
        self._epoch: int | None = None
        self._meters = PlanMeters(desk.metrics, depth=lambda: len(self._queue), in_flight=lambda: self.flights)
        feed.before.append(self._land_up_to)

    # ------------------------------------------------------------------ for workers

    async def submit(
        self, evaluation_id: str, token: str, plan: PlanApply, *, priority: int = 50, all_at_once: bool = False
    ) -> PlanAnswer:
        """Commit what still holds of a plan. `NotOutstanding` unless the token holds the evaluation."""
        _check_form(plan)
        self._broker.pause_nack(evaluation_id, token)
        try:
            await self._catch_up(plan.snapshot_index)
            submitted = _Submitted(plan, all_at_once, trio.current_time())
            self._queue.enqueue(submitted, priority, submitted.began)
            self._due.set()
            await submitted.done.wait()
            if submitted.error is not None:
                raise submitted.error
            assert submitted.answer is not None
            return self._acknowledged(evaluation_id, token, plan, submitted.answer)
        finally:
            self._broker.resume_nack(evaluation_id, token)

    async def _catch_up(self, index: int) -> None:
        """A follower may have applied what its leader is about to."""
        machine = self._desk.machine
        if machine.store.index >= index:
            return
        with trio.move_on_after(CATCH_UP_S):
            await self._desk.raft.wait_applied(index - machine.state_index(0))
            return
        raise PlanQueueDisabled(
            f"the leader is at index {machine.store.index}, the plan was made at {index}", hint="try again"
        )

    def _acknowledged(self, evaluation_id: str, token: str, plan: PlanApply, answer: PlanAnswer) -> PlanAnswer:
        is_over = answer.outcome.is_whole and any(end.id == evaluation_id for end in plan.ends)
        if not is_over or self._broker.core.token_of(evaluation_id) != token:
            return answer
        self._broker.ack(evaluation_id, token)
        return PlanAnswer(answer.outcome, is_acked=True)

    # ------------------------------------------------------------------ the office

    @property
    def flights(self) -> int:
        """Plans that are checked and not yet committed; the fleet counts what they will take."""
        return len(self._flights)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        role = self._desk.raft.role
        self._term, self._epoch = role.term, role.epoch
        self._queue.enable()
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await self._work(nursery)
        finally:
            self._close()

    def _close(self) -> None:
        closed = PlanQueueDisabled("this server no longer leads", hint="the evaluation is delivered again")
        for submitted in self._queue.disable():
            submitted.fail(closed)
        for flight in list(self._flights):
            self._land(flight)

    async def _work(self, nursery: trio.Nursery) -> None:
        while True:
            await self._due.wait()
            self._due = trio.Event()
            while len(self._flights) < IN_FLIGHT_MAX and (submitted := self._queue.dequeue()) is not None:
                await self._take_up(nursery, submitted)

    async def _take_up(self, nursery: trio.Nursery, submitted: _Submitted) -> None:
        began = trio.current_time()
        store, fleet = self._desk.machine.store, self._feed.fleet
        try:
            verdict = check_plan(submitted.plan, store=store, fleet=fleet, all_at_once=submitted.all_at_once)
        except Exception as error:  # a plan that we cannot judge must not take one leader down after the other
            self._desk.log.exception("plan_not_judged", error, evaluation_id=submitted.plan.evaluation_id)
            submitted.fail(FedschedError(f"the plan for job {submitted.plan.job_id!r} could not be judged: {error!r}"))
            return
        self._meters.checked(trio.current_time() - began, verdict, submitted.plan, is_alone=not self._flights)
        ineligible = tuple(self._tracker.note(self._names(verdict), trio.current_time()))
        if verdict.is_empty and not ineligible:
            nursery.start_soon(self._refuse, submitted, verdict, list(self._flights))
            return
        command = self._completed(verdict, ineligible)
        flight = _Flight(fleet.reserve(store, command))
        self._flights[flight] = None
        await nursery.start(self._commit, submitted, verdict, command, flight)

    async def _refuse(self, submitted: _Submitted, verdict: Verdict, ahead: list[_Flight]) -> None:
        for flight in ahead:
            await flight.landed.wait()
        store = self._desk.machine.store
        newest = max(store.table_index("nodes"), store.table_index("allocations"))
        refresh = max(verdict.refresh_index, newest) if verdict.rejected else 0
        outcome = Outcome(is_whole=verdict.is_whole, is_progress=False, refresh_index=refresh)
        submitted.settle(PlanAnswer(outcome, rejected_nodes=self._names(verdict)))

    async def _commit(
        self,
        submitted: _Submitted,
        verdict: Verdict,
        command: PlanApply,
        flight: _Flight,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Propose, and answer when it is applied. Says `started` when the plan has its place in the log, or never will.

        Whoever started this waits for that: plans enter the log in the order in which they were checked.
        """

        def appended(log_index: int) -> None:
            flight.index = self._desk.machine.state_index(log_index)
            task_status.started()

        began = trio.current_time()
        try:
            result = await self._desk.proposals.propose(
                command, epoch=self._epoch, is_essential=True, on_appended=appended
            )
            self._meters.committed(trio.current_time() - began, trio.current_time() - submitted.began)
            submitted.settle(self._answer(verdict, command, result))
            if result.value["refused_node_slots"] or result.value["placements_skipped"]:
                self._broker.room_came_back()
            await self._look_after(command)
        except FedschedError as error:
            submitted.fail(error)
            self._broker.room_came_back()
        finally:
            submitted.fail(PlanQueueDisabled("this server no longer leads", hint="the plan may have been committed"))
            self._land(flight)
            if not flight.index:
                task_status.started()

    def _answer(self, verdict: Verdict, command: PlanApply, result: Result) -> PlanAnswer:
        refused = verdict.rejected or result.value["refused_node_slots"] or result.value["placements_skipped"]
        outcome = Outcome(
            is_whole=not refused,
            is_progress=bool(result.value["placed"] or result.value["changed"] or command.deployments),
            refresh_index=max(verdict.refresh_index, result.index) if refused else 0,
            index=result.index,
        )
        return PlanAnswer(outcome, rejected_nodes=self._names(verdict))

    # ------------------------------------------------------------------ counted in advance

    def _land_up_to(self, index: int) -> None:
        """The fleet is about to follow the state to this index: what is counted for entries up to there comes now."""
        for flight in list(self._flights):
            if 0 < flight.index <= index:
                self._land(flight)

    def _land(self, flight: _Flight) -> None:
        if flight in self._flights:
            del self._flights[flight]
            self._feed.fleet.release(flight.reservation)
            flight.landed.set()
            self._due.set()

    # ------------------------------------------------------------------ what goes with a plan

    def _completed(self, verdict: Verdict, ineligible: tuple[str, ...]) -> PlanApply:
        """The plan with what only its applier can say."""
        return structs.replace(
            verdict.command,
            term=self._term,
            evaluations=(*verdict.command.evaluations, *self._for_preempted(verdict.command)),
            ineligible_nodes=ineligible,
        )

    def _for_preempted(self, command: PlanApply) -> list[EvaluationWrite]:
        """One evaluation for each job that loses allocations to this plan. What was evicted earlier and is now said to
        be lost is no loss of this plan's.
        """
        ids = b"".join(batch.ids for batch in command.stopped if batch.desired == EVICT and not batch.client_status)
        if not ids:
            return []
        allocations = self._desk.machine.store.allocations
        slots = allocations.find(words_of(ids))
        rows = allocations.live.read(slots[slots >= 0])
        found = []
        for namespace, job_id in allocations.live_origins.jobs(rows["origin"]):
            if (evaluation := self._new_evaluation(namespace, job_id, Trigger.PREEMPTION)) is not None:
                found.append(evaluation_write(evaluation))
        return found

    def _new_evaluation(self, namespace: str, job_id: str, trigger: Trigger) -> Evaluation | None:
        job = self._desk.machine.store.jobs.row(namespace, job_id)
        if job is None:
            return None
        now_ns = self._desk.proposals.now_ns()
        return Evaluation(
            id=self._desk.env.new_id(),
            namespace=namespace,
            job_id=job_id,
            type=job.type,
            priority=job.priority,
            triggered_by=trigger.value,
            job_modify_index=job.modify_index,
            status=EvaluationStatus.PENDING,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )

    async def _look_after(self, command: PlanApply) -> None:
        """A node may have gone down between check and commit, unseen by whoever looked after its allocations then."""
        parts = [np.frombuffer(group.node_slots, dtype="<u4") for group in command.placed]
        slots = np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.empty(0, dtype=np.int64)
        slots = slots[slots < self._feed.fleet.size]
        statuses = self._feed.fleet.status[slots]
        if not ((statuses == DOWN) | (statuses == DISCONNECTED)).any():
            return
        evaluation = self._new_evaluation(command.namespace, command.job_id, Trigger.NODE_UPDATE)
        if evaluation is not None:
            writes = (evaluation_write(evaluation),)
            await self._desk.proposals.propose(
                EvaluationsUpsert(evaluations=writes), epoch=self._epoch, is_essential=True
            )

    def _names(self, verdict: Verdict) -> tuple[str, ...]:
        names = (self._feed.fleet.node_id(slot) for slot in sorted(verdict.rejected))
        return tuple(name for name in names if name)


def _check_form(plan: PlanApply) -> None:
    """What a plan from another server may not be: out of shape."""
    try:
        check_shapes(plan)
    except InvalidCommand as error:
        raise BadRequest(f"plan for job {plan.job_id!r}: {error}") from error
