"""Runs the broker and the blocked evaluations while this server leads.

Both live on the changes of the state: a stored evaluation enters one of them because it was stored, never because
somebody remembered to say so. Opening the office reads what is stored, closing it forgets everything.

Three small loops write what the cores decide: evaluations overtaken by newer ones are cancelled, evaluations that
failed too often are given up with a second chance later, and time passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import trio
from msgspec import structs

from fedsched.model.errors import FedschedError
from fedsched.model.evaluation import CORE_JOB_TYPE, Evaluation, EvaluationStatus, Trigger
from fedsched.raft.errors import NotLeader
from fedsched.server.desk import Desk
from fedsched.server.leader.blocked_core import Blocked, BlockedCore, blocked_of
from fedsched.server.leader.broker_core import FAILED_QUEUE, BrokerCore, BrokerLimits, Delivery, Ticket
from fedsched.server.leader.broker_metrics import watch_broker
from fedsched.server.leader.unblocking import News, news_of
from fedsched.state.changes import Changes
from fedsched.state.tables.evaluations import EvaluationRow, EvaluationsUpsert, evaluation_write
from fedsched.state.tables.meta import SCHEDULER_CONFIG
from fedsched.state.tables.plans import OfficeBegin

NS: Final = 1_000_000_000
REAP_EVERY_S: Final = 5.0
REAP_MAX: Final = 728
"""Evaluations cancelled by one log entry."""
RETRY_S: Final = 1.0
CLOCK_LOOK_S: Final = 1.0
"""How often the wall clock is compared while evaluations wait for a time of it: it may jump either way."""
CLOCK_JUMP_S: Final = 0.05
"""Less is no jump but the noise between two readings."""
FOLLOW_UP_MIN_S: Final = 60.0
FOLLOW_UP_SPREAD_S: Final = 300.0
"""Failed evaluations come back over five minutes, not all at once: what made them fail may be their number."""
OF_JOB_MAX: Final = 64
PENDING: Final = EvaluationStatus.PENDING.value
BLOCKED: Final = EvaluationStatus.BLOCKED.value


class Handed(NamedTuple):
    """What a worker gets."""

    delivery: Delivery
    wait_index: int
    """It must have seen this much of the state before it starts."""


class BrokerService:
    """A leader's duty, and what workers of all servers talk to."""

    def __init__(self, desk: Desk, *, limits: BrokerLimits | None = None) -> None:
        self._desk = desk
        self._chance = desk.env.rng("broker")
        self.core = BrokerCore(seed=self._chance.getrandbits(63), limits=limits)
        self.blocked = BlockedCore()
        self.is_in_office = False
        self._epoch: int | None = None
        self._news = trio.Event()
        self._acked = trio.Event()
        self._earlier = trio.Event()
        self._sleeping_until = 0.0
        self._wall_ahead_s = 0.0
        """How far the wall clock was ahead of ours when delayed evaluations were last timed."""
        desk.machine.listen(self._heard)
        watch_broker(self, desk.metrics)

    # ------------------------------------------------------------------ the office

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        role = self._desk.raft.role
        self._epoch = role.epoch
        await self._begin(role.term)
        try:
            self._open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_time)
                nursery.start_soon(self._cancel_overtaken)
                nursery.start_soon(self._give_up_failed)
                task_status.started()
        finally:
            self._close()

    async def _begin(self, term: int) -> None:
        """Make plans of earlier leaderships void. Until that is in the state nothing is handed out."""
        while True:
            try:
                await self._desk.proposals.propose(OfficeBegin(term=term), epoch=self._epoch, is_essential=True)
                return
            except FedschedError as weather:
                self._desk.log.info("office_not_begun", why=str(weather))
                await trio.sleep(RETRY_S)

    def _open(self) -> None:
        self.is_in_office = True
        if not self._is_paused():
            self._fill()

    def _close(self) -> None:
        self.is_in_office = False
        self._empty()

    def _empty(self) -> None:
        self.core.disable()
        self.blocked.disable()
        self._tell()

    def _fill(self) -> None:
        """Enable both cores and restore them from the state, in one go: no change can slip in between."""
        store, now = self._desk.machine.store, trio.current_time()
        self.core.enable()
        self._wall_ahead_s = self._wall_now_ahead_s()
        self.blocked.enable(now)
        for row in store.evaluations.with_status(PENDING):
            self._enqueue_row(row, now)
        newest = max(store.table_indexes.get("nodes", 0), store.table_indexes.get("allocations", 0))
        stored = (blocked_of(row.evaluation()) for row in store.evaluations.with_status(BLOCKED))
        self.blocked.restore(stored, newest, now)
        self._kick()

    def _is_paused(self) -> bool:
        config = self._desk.machine.store.meta.config(SCHEDULER_CONFIG) or {}
        return bool(config.get("PauseEvalBroker"))

    # ------------------------------------------------------------------ for workers

    async def dequeue(self, types: Sequence[str], *, limit: int = 1, wait_s: float) -> list[Handed]:
        """Up to `limit` evaluations of these types; none if none came up in time. `NotLeader` without an office."""
        with trio.move_on_after(wait_s):
            while True:
                self._check_office()
                handed = self._hand_out(types, limit)
                if handed:
                    return handed
                await self._news.wait()
        return []

    def ack(self, evaluation_id: str, token: str) -> None:
        """Raises `NotOutstanding` unless the token holds the evaluation; so do all below."""
        self._check_office()
        self.core.ack(evaluation_id, token, trio.current_time())
        self._acked.set()
        self._kick()

    def nack(self, evaluation_id: str, token: str) -> None:
        self._check_office()
        self.core.nack(evaluation_id, token, trio.current_time())
        self._kick()

    def check(self, evaluation_id: str, token: str) -> None:
        self._check_office()
        self.core.check(evaluation_id, token)

    def pause_nack(self, evaluation_id: str, token: str) -> None:
        self._check_office()
        self.core.pause_nack(evaluation_id, token)

    def resume_nack(self, evaluation_id: str, token: str) -> None:
        """Nothing to do if the evaluation was acknowledged meanwhile."""
        if self.core.token_of(evaluation_id) == token:
            self.core.resume_nack(evaluation_id, token, trio.current_time())
            self._kick()

    def reset_nack(self, evaluation_id: str, token: str) -> None:
        self._check_office()
        self.core.reset_nack(evaluation_id, token, trio.current_time())

    def drop_waiting(self, evaluation_id: str) -> bool:
        """Forget a delayed evaluation whose reason is gone."""
        return self.core.drop_waiting(evaluation_id)

    def room_came_back(self) -> None:
        """A plan took less than was counted for it while it was on its way.

        Whoever found no room beside it meanwhile would wait for news that never come, so all have another look.
        """
        if self.is_in_office:
            now = trio.current_time()
            self._take_back(self.blocked.unblock_all(self._desk.machine.store.index + 1, now))
            self._kick()

    def enqueue(self, ticket: Ticket) -> None:
        """Hand in an evaluation that is not stored, such as clean-up work."""
        self.core.enqueue(ticket, trio.current_time())
        self._kick()

    def _check_office(self) -> None:
        if not self.is_in_office:
            raise NotLeader("this server is not the leader", leader=self._desk.raft.role.leader)

    def _hand_out(self, types: Sequence[str], limit: int) -> list[Handed]:
        now = trio.current_time()
        handed: list[Handed] = []
        while len(handed) < limit:
            delivery = self.core.dequeue(types, self._desk.env.new_id(), now)
            if delivery is None:
                break
            handed.append(Handed(delivery, self._wait_index(delivery.ticket)))
        if handed:
            self._kick()
        return handed

    def _wait_index(self, ticket: Ticket) -> int:
        """When any evaluation of the job was last written; of a job with very many, when any at all was."""
        store = self._desk.machine.store
        rows = list(islice(store.evaluations.of_job(*ticket.job), OF_JOB_MAX + 1))
        if len(rows) > OF_JOB_MAX:
            return max(ticket.modify_index, store.table_index("evaluations"))
        return max((row.modify_index for row in rows), default=ticket.modify_index)

    # ------------------------------------------------------------------ following the state

    def _heard(self, gathered: list[Changes]) -> None:
        if not self.is_in_office:
            return
        for changes in gathered:
            if changes.is_everything or ("meta", (SCHEDULER_CONFIG,)) in ((row.table, row.key) for row in changes.rows):
                self._look_again(changes)
            if self.core.is_enabled and not changes.is_everything:
                self._follow(changes)
        self._kick()

    def _look_again(self, changes: Changes) -> None:
        """The state was replaced, or the rules were: maybe the broker is to rest, or to work again."""
        wants_rest = self._is_paused()
        if self.core.is_enabled and (wants_rest or changes.is_everything):
            self._empty()
        if not self.core.is_enabled and not wants_rest:
            self._fill()
        self._take_back(self.blocked.unblock_all(changes.index, trio.current_time()))

    def _follow(self, changes: Changes) -> None:
        now = trio.current_time()
        for key in dict.fromkeys(changes.keys("evaluations")):
            self._follow_evaluation(key[0], now)
        for news in news_of(self._desk.machine.store, changes, wants_nodes=self.blocked.has_per_node):
            self._take_back(self._released_by(news, changes.index, now))

    def _released_by(self, news: News, index: int, now: float) -> list[Blocked]:
        if news.is_all:
            return self.blocked.unblock_all(index, now)
        released = []
        for name in news.classes:
            released += self.blocked.unblock(name, index, now)
        for node_id in news.nodes:
            released += self.blocked.unblock_node(node_id)
        return released

    def _follow_evaluation(self, evaluation_id: str, now: float) -> None:
        row = self._desk.machine.store.evaluations.row(evaluation_id)
        if row is not None and row.status == PENDING:
            self._enqueue_row(row, now)
        elif row is not None and row.status == BLOCKED:
            self._block_row(row)
        else:
            self.blocked.forget(evaluation_id)
            self.core.drop_waiting(evaluation_id)  # whoever ended it while it waited for its time knew why
            if row is not None:
                self.core.drop_pending((row.namespace, row.job_id), evaluation_id)

    def _enqueue_row(self, row: EvaluationRow, now: float) -> None:
        if row.wait_until_ns:
            self._look_at_clock()
        wait_ns = row.wait_until_ns - self._desk.proposals.now_ns() if row.wait_until_ns else 0
        self.core.enqueue(_ticket(row), now, wait_s=max(0.0, wait_ns / NS))

    def _block_row(self, row: EvaluationRow) -> None:
        delivery = self.core.delivery_of(row.id)
        if delivery is None and self.core.knows(row.id):
            return  # released and on its way: what it missed it will see
        if delivery is not None and row.snapshot_index <= delivery.ticket.snapshot_index:
            return  # its plan was committed; it has not been blocked again
        token = delivery.token if delivery is not None else ""
        self._take_back(self.blocked.block(blocked_of(row.evaluation(), token)))

    def _take_back(self, released: Iterable[Blocked]) -> None:
        now = trio.current_time()
        for blocked in released:
            self.core.enqueue(blocked.ticket, now, token=blocked.token)

    # ------------------------------------------------------------------ loops

    def _tell(self) -> None:
        event, self._news = self._news, trio.Event()
        event.set()

    def _kick(self) -> None:
        """Something changed: whoever waits for an evaluation looks again, and the clock may have to ring earlier."""
        if self.core.has_any_ready:
            self._tell()
        if self._wake_at() < self._sleeping_until:
            self._earlier.set()

    def _wall_now_ahead_s(self) -> float:
        return self._desk.proposals.now_ns() / NS - trio.current_time()

    def _look_at_clock(self) -> None:
        """If wall clocks jumped, delayed evaluations come up that much sooner or later."""
        jump_s = self._wall_now_ahead_s() - self._wall_ahead_s
        if abs(jump_s) > CLOCK_JUMP_S:
            self._wall_ahead_s += jump_s
            self.core.clock_moved(jump_s)

    def _wake_at(self) -> float:
        look_at = trio.current_time() + CLOCK_LOOK_S if self.core.has_waiting else math.inf
        return min(self.core.wake_at(), self.blocked.wake_at(), look_at)

    async def _keep_time(self) -> None:
        while True:
            self._earlier = trio.Event()
            self._sleeping_until = self._wake_at()
            with trio.move_on_at(self._sleeping_until):
                await self._earlier.wait()
            now = trio.current_time()
            self._look_at_clock()
            for late in self.core.wake(now):
                self._desk.log.warn(
                    "evaluation_timed_out", evaluation_id=late.ticket.id, job=late.ticket.job_id, delivery=late.number
                )
            self._take_back(self.blocked.wake(now))
            self._kick()

    async def _cancel_overtaken(self) -> None:
        """Store evaluations as cancelled that a newer one of their job made superfluous, or a newer blocked one."""
        while True:
            with trio.move_on_after(REAP_EVERY_S):
                await self._acked.wait()
            self._acked = trio.Event()
            while await self._cancel_some():
                pass

    async def _cancel_some(self) -> bool:
        tickets = self.core.take_cancelable(REAP_MAX)
        duplicates = self.blocked.take_duplicates(REAP_MAX - len(tickets))
        if not tickets and not duplicates:
            return False
        why = {ticket.id: "canceled after more recent eval was processed" for ticket in tickets}
        why |= {one.id: f'existing blocked evaluation exists for job "{one.ticket.job_id}"' for one in duplicates}
        cancelled = [
            structs.replace(row.evaluation(), status=EvaluationStatus.CANCELLED, status_description=text)
            for evaluation_id, text in why.items()
            if (row := self._desk.machine.store.evaluations.row(evaluation_id)) is not None and row.is_open
        ]
        if await self._store(cancelled):
            return True
        self.core.give_back_cancelable(tickets)
        self.blocked.give_back_duplicates(duplicates)
        return False

    async def _give_up_failed(self) -> None:
        """Evaluations that were delivered too often end as failed, and come back once later."""
        while True:
            for handed in await self.dequeue((FAILED_QUEUE,), limit=REAP_MAX, wait_s=REAP_EVERY_S):
                ticket, token = handed.delivery.ticket, handed.delivery.token
                self.core.pause_nack(ticket.id, token)
                if await self._store(self._given_up(ticket)):
                    self.ack(ticket.id, token)
                else:
                    await trio.sleep(RETRY_S)
                    self.nack(ticket.id, token)

    def _given_up(self, ticket: Ticket) -> list[Evaluation]:
        store = self._desk.machine.store
        row = store.evaluations.row(ticket.id)
        if ticket.type == CORE_JOB_TYPE or row is None or not row.is_open:
            return []
        failed = structs.replace(
            row.evaluation(),
            status=EvaluationStatus.FAILED,
            status_description=f"evaluation reached delivery limit ({self.core.limits.delivery_limit})",
        )
        if store.jobs.row(*ticket.job) is None:
            return [failed]
        later = Evaluation(
            id=self._desk.env.new_id(),
            namespace=failed.namespace,
            priority=failed.priority,
            type=failed.type,
            triggered_by=Trigger.FAILED_FOLLOW_UP.value,
            job_id=failed.job_id,
            job_modify_index=failed.job_modify_index,
            status=EvaluationStatus.PENDING,
            wait_s=FOLLOW_UP_MIN_S + self._chance.uniform(0.0, FOLLOW_UP_SPREAD_S),
            previous_eval=failed.id,
            create_time_ns=self._desk.proposals.now_ns(),
        )
        return [structs.replace(failed, next_eval=later.id), later]

    async def _store(self, evaluations: list[Evaluation]) -> bool:
        """Write these; false if that was not possible just now."""
        if not evaluations:
            return True
        now_ns = self._desk.proposals.now_ns()
        writes = tuple(evaluation_write(structs.replace(one, modify_time_ns=now_ns)) for one in evaluations)
        try:
            await self._desk.proposals.propose(
                EvaluationsUpsert(evaluations=writes), epoch=self._epoch, is_essential=True
            )
        except FedschedError as weather:
            self._desk.log.info("evaluations_not_stored", count=len(writes), why=str(weather))
            return False
        return True

    def statistics(self) -> dict[str, Any]:
        """How much there is of everything, for operators."""
        return {**self.core.statistics()._asdict(), "blocked": self.blocked.statistics()._asdict()}


def _ticket(row: EvaluationRow) -> Ticket:
    return Ticket(
        id=row.id,
        namespace=row.namespace,
        job_id=row.job_id,
        type=row.type,
        priority=row.priority,
        create_index=row.create_index,
        modify_index=row.modify_index,
        snapshot_index=row.snapshot_index,
    )
