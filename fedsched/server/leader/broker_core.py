"""Hands evaluations to workers: the most urgent first, one at a time per job, and again if a worker fails.

    enqueue --> waiting (until its time) --> ready <-- retrying (after a nack)
                       |                      |            ^
                       +--> pending (another  |            |
                            of its job is     v            |
                            on its way)    outstanding ----+--> ready[_failed] (delivered too often)
                                              |
                                              +-- ack --> the best pending one of the job; the others are cancelable

A job has one *slot*: whoever holds it is ready, outstanding or retrying, everybody else of the job is pending. That is
what keeps two workers from planning for one job at the same time. Scheduling a job once serves all evaluations that
were queued before it started, so of those that pile up only the newest is worked on and the rest are cancelled.

Nothing here is stored: a new leader fills its broker from the stored evaluations, and delivery counts start again.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from fedsched.model.errors import Conflict

FAILED_QUEUE: Final = "_failed"
"""Where evaluations go that were delivered too often; only the leader itself takes from it."""

JobKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The numbers are Nomad's."""

    nack_timeout_s: float = 60.0
    delivery_limit: int = 3
    first_nack_delay_s: float = 1.0
    nack_delay_s: float = 20.0
    """The nth nack delays by n - 1 of these; the first by less, because most failures are weather."""


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """What the broker knows of an evaluation. Workers read the rest from their own state."""

    id: str
    namespace: str
    job_id: str
    type: str
    priority: int = 0
    create_index: int = 0
    modify_index: int = 0
    snapshot_index: int = 0

    @property
    def job(self) -> JobKey:
        return (self.namespace, self.job_id)


class Delivery(NamedTuple):
    """An evaluation in the hands of a worker."""

    ticket: Ticket
    token: str
    number: int
    """How often it has been delivered, this time included."""


class NotOutstanding(Conflict):
    """The evaluation is not, or no longer, the caller's: its delivery timed out or another leader took over."""

    code = "not_outstanding"


class BrokerStatistics(NamedTuple):
    """How much there is of everything."""

    ready: int
    unacked: int
    pending: int
    waiting: int
    cancelable: int
    failed: int
    ready_by_type: dict[str, int]
    unacked_by_type: dict[str, int]


class _Out(NamedTuple):
    delivery: Delivery
    deadline: float


class BrokerCore:
    """Decides who gets which evaluation next. `now` is in seconds of a clock that never goes back."""

    def __init__(self, *, seed: int = 0, limits: BrokerLimits | None = None) -> None:
        self.limits = limits or BrokerLimits()
        self.is_enabled = False
        self._chance = seed
        self._clear()

    def _clear(self) -> None:
        self._deliveries: dict[str, int] = {}
        self._slots: dict[JobKey, str] = {}
        self._ready: dict[str, list[tuple[int, int, str, Ticket]]] = {}
        self._pending: dict[JobKey, list[tuple[int, int, str, Ticket]]] = {}
        self._out: OrderedDict[str, _Out] = OrderedDict()
        """By deadline: every delivery gets the same time, so the oldest ends first."""
        self._paused: dict[str, Delivery] = {}
        self._requeue: dict[str, Ticket] = {}
        self._timed: list[tuple[float, int, str]] = []
        self._waiting: dict[str, tuple[int, Ticket, float]] = {}
        """Delayed ones: the number of the timer, and when it rings."""
        self._retrying: dict[str, tuple[int, Ticket]] = {}
        self._timer = 0
        self._cancelable: dict[str, Ticket] = {}

    # ------------------------------------------------------------------ in office or not

    def enable(self) -> None:
        self.is_enabled = True

    def disable(self) -> None:
        """Forget everything: whoever leads next knows it from the state."""
        self.is_enabled = False
        self._clear()

    # ------------------------------------------------------------------ coming in

    def enqueue(self, ticket: Ticket, now: float, *, token: str = "", wait_s: float = 0.0) -> None:
        """Take an evaluation in, ignored while disabled.

        One that is known already is left as it is, unless its present holder's token comes with it: then it is taken in
        again once that delivery is acknowledged.
        """
        if not self.is_enabled:
            return
        if ticket.id in self._deliveries:
            if token and self.token_of(ticket.id) == token:
                self._requeue[token] = ticket
            return
        self._cancelable.pop(ticket.id, None)
        self._deliveries[ticket.id] = 0
        if wait_s > 0:
            self._wait(ticket, now + wait_s)
        else:
            self._enqueue_now(ticket)

    def _wait(self, ticket: Ticket, due: float) -> None:
        self._waiting[ticket.id] = (self._at(due, ticket.id), ticket, due)

    def clock_moved(self, by_s: float) -> None:
        """Wall clocks jumped ahead by so much (or back, if negative): delayed evaluations wait for a time of theirs."""
        for _, ticket, due in list(self._waiting.values()):
            self._wait(ticket, due - by_s)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def waits(self, evaluation_id: str) -> bool:
        """Whether this one is delayed, and its time has not come."""
        return evaluation_id in self._waiting

    def drop_waiting(self, evaluation_id: str) -> bool:
        """Forget a delayed evaluation whose reason is gone; false if none of this id waits for its time."""
        if self._waiting.pop(evaluation_id, None) is None:
            return False
        del self._deliveries[evaluation_id]
        return True

    def drop_pending(self, job: JobKey, evaluation_id: str) -> bool:
        """Forget an evaluation that waits behind another of its job, because it has ended; false if none does.

        Left in, it might be the one that is kept when the others are cancelled; nobody would do what they asked for.
        """
        heap = self._pending.get(job, [])
        kept = [entry for entry in heap if entry[-1].id != evaluation_id]
        if len(kept) == len(heap):
            return False
        heapq.heapify(kept)
        if kept:
            self._pending[job] = kept
        else:
            del self._pending[job]
        del self._deliveries[evaluation_id]
        return True

    def _enqueue_now(self, ticket: Ticket) -> None:
        holder = self._slots.setdefault(ticket.job, ticket.id)
        if holder == ticket.id:
            self._make_ready(ticket, ticket.type)
        else:
            heap = self._pending.setdefault(ticket.job, [])
            heapq.heappush(heap, (-ticket.priority, -ticket.modify_index, ticket.id, ticket))

    def _make_ready(self, ticket: Ticket, queue: str) -> None:
        heapq.heappush(self._ready.setdefault(queue, []), (-ticket.priority, ticket.create_index, ticket.id, ticket))

    # ------------------------------------------------------------------ going out

    def has_ready(self, types: Iterable[str]) -> bool:
        return any(self._ready.get(queue) for queue in types)

    @property
    def has_any_ready(self) -> bool:
        return bool(self._ready)

    def dequeue(self, types: Iterable[str], token: str, now: float) -> Delivery | None:
        """Deliver the most urgent evaluation of these types under a fresh token; None if there is none."""
        queue = self._most_urgent(types)
        if queue is None:
            return None
        ticket = heapq.heappop(self._ready[queue])[-1]
        if not self._ready[queue]:
            del self._ready[queue]
        self._deliveries[ticket.id] += 1
        delivery = Delivery(ticket, token, self._deliveries[ticket.id])
        self._out[ticket.id] = _Out(delivery, now + self.limits.nack_timeout_s)
        return delivery

    def _most_urgent(self, types: Iterable[str]) -> str | None:
        best: list[str] = []
        best_rank = math.inf
        for queue in sorted(set(types)):
            heap = self._ready.get(queue)
            if not heap:
                continue
            rank = heap[0][0]
            if rank < best_rank:
                best, best_rank = [queue], rank
            elif rank == best_rank:
                best.append(queue)
        return best[self._roll(len(best))] if best else None

    # ------------------------------------------------------------------ coming back

    def ack(self, evaluation_id: str, token: str, now: float) -> None:
        """The evaluation was dealt with. `NotOutstanding` unless this token holds it."""
        delivery = self._take_back(evaluation_id, token)
        del self._deliveries[evaluation_id]
        self._free_slot(delivery.ticket.job, evaluation_id)
        again = self._requeue.pop(token, None)
        if again is not None:
            self.enqueue(again, now)

    def nack(self, evaluation_id: str, token: str, now: float) -> None:
        """The worker failed: deliver again later, or give up. `NotOutstanding` unless this token holds it."""
        delivery = self._take_back(evaluation_id, token)
        self._requeue.pop(token, None)
        if delivery.number >= self.limits.delivery_limit:
            self._make_ready(delivery.ticket, FAILED_QUEUE)
            return
        due = now + nack_delay_s(delivery.number, self.limits)
        self._retrying[evaluation_id] = (self._at(due, evaluation_id), delivery.ticket)

    def _take_back(self, evaluation_id: str, token: str) -> Delivery:
        self.check(evaluation_id, token)
        out = self._out.pop(evaluation_id, None)
        return out.delivery if out is not None else self._paused.pop(evaluation_id)

    def _free_slot(self, job: JobKey, evaluation_id: str) -> None:
        if self._slots.get(job) == evaluation_id:
            del self._slots[job]
        waiting = self._pending.pop(job, None)
        if not waiting:
            return
        best = heapq.heappop(waiting)[-1]
        for *_, ticket in waiting:
            del self._deliveries[ticket.id]
            self._cancelable[ticket.id] = ticket
        self._enqueue_now(best)

    # ------------------------------------------------------------------ while it is out

    def token_of(self, evaluation_id: str) -> str:
        """The token of the present holder; empty if nobody holds it."""
        delivery = self.delivery_of(evaluation_id)
        return delivery.token if delivery is not None else ""

    def delivery_of(self, evaluation_id: str) -> Delivery | None:
        out = self._out.get(evaluation_id)
        return out.delivery if out is not None else self._paused.get(evaluation_id)

    def check(self, evaluation_id: str, token: str) -> None:
        """Raise `NotOutstanding` unless this token holds the evaluation."""
        held_by = self.token_of(evaluation_id)
        if not held_by or held_by != token:
            why = "another delivery holds it" if held_by else "nobody holds it"
            raise NotOutstanding(
                f"evaluation {evaluation_id!r} is not outstanding under this token: {why}",
                hint="its delivery timed out or the leader changed; it is delivered again, drop what you have",
            )

    def pause_nack(self, evaluation_id: str, token: str) -> None:
        """Stop the time-out: its plan waits in the queue, which is not the worker's fault."""
        self.check(evaluation_id, token)
        out = self._out.pop(evaluation_id, None)
        if out is not None:
            self._paused[evaluation_id] = out.delivery

    def resume_nack(self, evaluation_id: str, token: str, now: float) -> None:
        """Start the time-out anew."""
        self.check(evaluation_id, token)
        delivery = self._paused.pop(evaluation_id, None)
        if delivery is not None:
            self._out[evaluation_id] = _Out(delivery, now + self.limits.nack_timeout_s)

    def reset_nack(self, evaluation_id: str, token: str, now: float) -> None:
        """Give the worker the whole time again, because it said that it is still at it."""
        self.check(evaluation_id, token)
        out = self._out.pop(evaluation_id, None)
        if out is not None:
            self._out[evaluation_id] = _Out(out.delivery, now + self.limits.nack_timeout_s)

    # ------------------------------------------------------------------ time

    def wake_at(self) -> float:
        """When `wake` next has something to do; infinity if never."""
        nack = next(iter(self._out.values())).deadline if self._out else math.inf
        while self._timed and not self._is_current(self._timed[0]):
            heapq.heappop(self._timed)
        return min(nack, self._timed[0][0] if self._timed else math.inf)

    def wake(self, now: float) -> list[Delivery]:
        """Whatever is due happens; returns the deliveries that timed out."""
        late = []
        while self._out:
            out = next(iter(self._out.values()))
            if out.deadline > now:
                break
            late.append(out.delivery)
            self.nack(out.delivery.ticket.id, out.delivery.token, now)
        while self._timed and self._timed[0][0] <= now:
            entry = heapq.heappop(self._timed)
            if self._is_current(entry):
                self._come_back(entry[2])
        return late

    def _come_back(self, evaluation_id: str) -> None:
        waited = self._waiting.pop(evaluation_id, None)
        if waited is not None:
            self._enqueue_now(waited[1])
        else:
            ticket = self._retrying.pop(evaluation_id)[1]
            self._make_ready(ticket, ticket.type)

    def _at(self, due: float, evaluation_id: str) -> int:
        self._timer += 1
        heapq.heappush(self._timed, (due, self._timer, evaluation_id))
        return self._timer

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        known = self._waiting.get(entry[2]) or self._retrying.get(entry[2])
        return known is not None and known[0] == entry[1]

    # ------------------------------------------------------------------ the rest

    def take_cancelable(self, limit: int) -> list[Ticket]:
        """Evaluations that were overtaken by a newer one of their job, to be stored as cancelled."""
        return [self._cancelable.pop(key) for key in list(self._cancelable)[:limit]]

    def give_back_cancelable(self, tickets: Iterable[Ticket]) -> None:
        """They could not be stored: keep them for the next time."""
        if self.is_enabled:
            self._cancelable.update((ticket.id, ticket) for ticket in tickets if ticket.id not in self._deliveries)

    def knows(self, evaluation_id: str) -> bool:
        """Whether it is anywhere between enqueued and acknowledged."""
        return evaluation_id in self._deliveries

    def statistics(self) -> BrokerStatistics:
        ready = {queue: len(heap) for queue, heap in sorted(self._ready.items()) if queue != FAILED_QUEUE}
        unacked: dict[str, int] = {}
        for delivery in (*(out.delivery for out in self._out.values()), *self._paused.values()):
            unacked[delivery.ticket.type] = unacked.get(delivery.ticket.type, 0) + 1
        return BrokerStatistics(
            ready=sum(ready.values()),
            unacked=sum(unacked.values()),
            pending=sum(len(heap) for heap in self._pending.values()),
            waiting=len(self._waiting) + len(self._retrying),
            cancelable=len(self._cancelable),
            failed=len(self._ready.get(FAILED_QUEUE, ())),
            ready_by_type=ready,
            unacked_by_type=unacked,
        )

    def _roll(self, sides: int) -> int:
        """A fair die from the seed: Knuth's 64-bit multiplier, high bits."""
        if sides == 1:
            return 0
        self._chance = (self._chance * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._chance >> 33) % sides


def nack_delay_s(delivery_number: int, limits: BrokerLimits) -> float:
    """How long an evaluation rests after its nth delivery failed."""
    if delivery_number <= 1:
        return limits.first_nack_delay_s
    return (delivery_number - 1) * limits.nack_delay_s
