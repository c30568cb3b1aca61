"""Who gets which evaluation when, and how often."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from fedsched.server.leader.broker_core import (
    FAILED_QUEUE,
    BrokerCore,
    BrokerLimits,
    Delivery,
    NotOutstanding,
    Ticket,
    nack_delay_s,
)


class Broker(BrokerCore):
    """A broker with a clock of its own and tokens that count up."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.enable()
        self.now = 0.0
        self.tokens = 0

    def put(self, name: str, *, job: str = "", **fields: Any) -> Ticket:
        wait_s, token = fields.pop("wait_s", 0.0), fields.pop("token", "")
        ticket = a_ticket(name, job=job, **fields)
        self.enqueue(ticket, self.now, wait_s=wait_s, token=token)
        return ticket

    def get(self, *types: str) -> Delivery | None:
        self.tokens += 1
        return self.dequeue(types or ("service",), f"t{self.tokens}", self.now)

    def must_get(self, *types: str) -> Delivery:
        delivery = self.get(*types)
        assert delivery is not None
        return delivery

    def names(self, *types: str) -> list[str]:
        """Everything that can be had, acknowledged as it comes."""
        found = []
        while (delivery := self.get(*types)) is not None:
            found.append(delivery.ticket.id)
            self.done(delivery)
        return found

    def done(self, delivery: Delivery) -> None:
        self.ack(delivery.ticket.id, delivery.token, self.now)

    def failed(self, delivery: Delivery) -> None:
        self.nack(delivery.ticket.id, delivery.token, self.now)

    def pass_time(self, seconds: float) -> list[Delivery]:
        self.now += seconds
        return self.wake(self.now)


def a_ticket(name: str, *, job: str = "", **fields: Any) -> Ticket:
    fields.setdefault("type", "service")
    fields.setdefault("priority", 50)
    return Ticket(id=name, namespace=fields.pop("namespace", "default"), job_id=job or f"job-of-{name}", **fields)


# ---------------------------------------------------------------------- in and out


def test_an_evaluation_is_handed_out_once_under_the_token_given_for_it() -> None:
    broker = Broker()
    ticket = broker.put("e1")

    delivery = broker.must_get()

    assert delivery == Delivery(ticket, "t1", 1)
    assert broker.get() is None
    assert broker.token_of("e1") == "t1"


def test_nothing_is_taken_in_while_disabled() -> None:
    broker = BrokerCore()

    broker.enqueue(a_ticket("e1"), 0.0)

    assert not broker.knows("e1")
    assert broker.dequeue(("service",), "t", 0.0) is None


def test_an_evaluation_that_is_known_is_not_taken_in_again() -> None:
    broker = Broker()
    broker.put("e1")
    broker.put("e1")

    assert broker.names() == ["e1"]


def test_a_higher_priority_goes_first_and_among_equals_the_older_one() -> None:
    broker = Broker()
    broker.put("young", priority=50, create_index=9)
    broker.put("old", priority=50, create_index=3)
    broker.put("low", priority=10, create_index=1)
    broker.put("high", priority=90, create_index=12)

    assert broker.names() == ["high", "old", "young", "low"]


def test_only_the_types_asked_for_are_handed_out() -> None:
    broker = Broker()
    broker.put("b", type="batch", priority=100)
    broker.put("s", type="service", priority=1)

    assert broker.must_get("service").ticket.id == "s"
    assert broker.get("service", "system") is None
    assert broker.must_get("service", "batch").ticket.id == "b"


def test_of_several_types_the_one_with_the_most_urgent_head_is_chosen() -> None:
    broker = Broker()
    broker.put("s", type="service", priority=50)
    broker.put("b", type="batch", priority=70)

    assert broker.must_get("service", "batch").ticket.id == "b"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_types_of_equal_urgency_are_chosen_by_a_fair_die(seed: int) -> None:
    broker = Broker(seed=seed)
    for number in range(300):
        broker.put(f"s{number}", type="service")
        broker.put(f"b{number}", type="batch")

    first = Counter(broker.must_get("batch", "service").ticket.type for _ in range(300))

    assert 100 < first["batch"] < 200
    assert 100 < first["service"] < 200


def test_a_die_with_the_same_seed_falls_the_same_way() -> None:
    def run() -> list[str]:
        broker = Broker(seed=7)
        for number in range(20):
            broker.put(f"s{number}", type="service", create_index=number)
            broker.put(f"b{number}", type="batch", create_index=number)
        return broker.names("service", "batch")

    assert run() == run()


# ---------------------------------------------------------------------- one per job


def test_one_evaluation_of_a_job_at_a_time_is_ready_or_in_hand() -> None:
    broker = Broker()
    broker.put("e1", job="web")
    broker.put("e2", job="web")
    broker.put("other", job="db", priority=1)

    first = broker.must_get()

    assert first.ticket.id == "e1"
    assert broker.must_get().ticket.id == "other"
    assert broker.get() is None
    broker.done(first)
    assert broker.must_get().ticket.id == "e2"


def test_jobs_of_the_same_name_in_two_namespaces_do_not_wait_for_each_other() -> None:
    broker = Broker()
    broker.put("a", job="web", namespace="shop")
    broker.put("b", job="web", namespace="blog")

    assert {broker.must_get().ticket.id, broker.must_get().ticket.id} == {"a", "b"}


def test_of_a_jobs_pending_evaluations_the_most_urgent_and_then_the_newest_is_next() -> None:
    broker = Broker()
    broker.put("first", job="web")
    delivery = broker.must_get()
    broker.put("old", job="web", modify_index=10)
    broker.put("new", job="web", modify_index=20)
    broker.put("urgent", job="web", priority=80, modify_index=5)

    broker.done(delivery)

    assert broker.must_get().ticket.id == "urgent"
    assert {ticket.id for ticket in broker.take_cancelable(10)} == {"old", "new"}


def test_one_that_ended_while_it_was_pending_is_not_what_the_others_are_cancelled_for() -> None:
    broker = Broker()
    broker.put("first", job="web")
    delivery = broker.must_get()
    broker.put("urgent", job="web", priority=80, modify_index=5)
    broker.put("new", job="web", modify_index=20)

    assert broker.drop_pending(("default", "web"), "urgent")
    assert not broker.drop_pending(("default", "web"), "urgent")
    assert not broker.drop_pending(("default", "web"), "first")
    broker.done(delivery)

    assert broker.names() == ["new"]
    assert broker.take_cancelable(10) == []


def test_with_the_last_pending_one_dropped_the_job_is_free() -> None:
    broker = Broker()
    broker.put("first", job="web")
    delivery = broker.must_get()
    broker.put("second", job="web")
    broker.drop_pending(("default", "web"), "second")
    broker.done(delivery)
    broker.put("second", job="web")
    assert broker.names() == ["second"]


def test_eleven_evaluations_queued_for_one_job_end_as_two_complete_and_nine_cancelled() -> None:
    broker = Broker()
    for number in range(11):
        broker.put(f"e{number}", job="web", create_index=number, modify_index=number)

    complete = broker.names()

    assert complete == ["e0", "e10"]
    assert len(broker.take_cancelable(728)) == 9
    assert broker.take_cancelable(728) == []


def test_cancelable_evaluations_are_taken_in_batches_and_can_be_given_back() -> None:
    broker = Broker()
    for number in range(5):
        broker.put(f"e{number}", job="web", modify_index=number)
    broker.done(broker.must_get())

    batch = broker.take_cancelable(2)
    broker.give_back_cancelable(batch)

    assert len(broker.take_cancelable(10)) == 3


def test_what_comes_in_anew_while_it_could_not_be_cancelled_is_not_cancelled_later() -> None:
    broker = Broker()
    for number in range(3):
        broker.put(f"e{number}", job="web", modify_index=number)
    broker.done(broker.must_get())
    (batch,) = broker.take_cancelable(10)

    broker.put(batch.id, job="web", modify_index=9)
    broker.give_back_cancelable([batch])

    assert broker.take_cancelable(10) == []


def test_a_cancelable_evaluation_that_is_stored_as_pending_again_is_worked_on() -> None:
    broker = Broker()
    for number in range(3):
        broker.put(f"e{number}", job="web", modify_index=number)
    broker.done(broker.must_get())

    broker.put("e1", job="web", modify_index=9)

    assert broker.take_cancelable(10) == []
    assert broker.names() == ["e2", "e1"]


# ---------------------------------------------------------------------- tokens


def test_a_wrong_or_stale_token_is_refused_and_changes_nothing() -> None:
    broker = Broker()
    broker.put("e1")
    broker.must_get()

    for act in (broker.ack, broker.nack):
        with pytest.raises(NotOutstanding, match="another delivery"):
            act("e1", "other", broker.now)
        with pytest.raises(NotOutstanding, match="nobody holds it"):
            act("e2", "t1", broker.now)
    with pytest.raises(NotOutstanding):
        broker.check("e1", "")
    with pytest.raises(NotOutstanding):
        broker.pause_nack("e1", "other")
    with pytest.raises(NotOutstanding):
        broker.resume_nack("e1", "other", 30.0)
    with pytest.raises(NotOutstanding):
        broker.reset_nack("e1", "other", 30.0)
    assert broker.wake_at() == 60.0

    broker.ack("e1", "t1", broker.now)


def test_an_evaluation_handed_in_again_by_its_holder_comes_back_after_the_ack() -> None:
    broker = Broker()
    ticket = broker.put("e1")
    delivery = broker.must_get()
    broker.enqueue(ticket, broker.now, token=delivery.token)

    assert broker.get() is None
    broker.done(delivery)

    again = broker.must_get()
    assert (again.ticket.id, again.number) == ("e1", 1)


def test_what_was_handed_in_again_is_dropped_by_a_nack() -> None:
    broker = Broker()
    ticket = broker.put("e1")
    delivery = broker.must_get()
    broker.enqueue(ticket, broker.now, token=delivery.token)

    broker.failed(delivery)
    broker.pass_time(1)
    broker.done(broker.must_get())

    assert broker.get() is None
    assert not broker.knows("e1")


def test_handing_in_again_with_anybody_elses_token_does_nothing() -> None:
    broker = Broker()
    ticket = broker.put("e1")
    delivery = broker.must_get()
    broker.enqueue(ticket, broker.now, token="other")

    broker.done(delivery)

    assert broker.get() is None
    broker.put("e2")
    assert broker.dequeue(("service",), "other", broker.now) is not None
    broker.ack("e2", "other", broker.now)
    assert broker.get() is None  # nor later, when somebody works under that token


def test_what_a_nack_dropped_does_not_come_back_with_the_next_ack() -> None:
    broker = Broker()
    ticket = broker.put("e1")
    assert broker.dequeue(("service",), "t", broker.now) is not None
    broker.enqueue(ticket, broker.now, token="t")
    broker.nack("e1", "t", broker.now)

    broker.pass_time(1)
    assert broker.dequeue(("service",), "t", broker.now) is not None
    broker.ack("e1", "t", broker.now)

    assert not broker.knows("e1")


# ---------------------------------------------------------------------- failing


def test_delays_after_a_nack_are_one_second_then_twenty_for_each_further_delivery() -> None:
    limits = BrokerLimits()

    assert [nack_delay_s(number, limits) for number in (1, 2, 3, 4, 5)] == [1.0, 20.0, 40.0, 60.0, 80.0]


def test_a_nacked_evaluation_comes_back_after_its_delay_and_holds_its_jobs_slot_meanwhile() -> None:
    broker = Broker()
    broker.put("e1", job="web")
    broker.put("e2", job="web")

    broker.failed(broker.must_get())

    assert broker.get() is None
    assert broker.wake_at() == 1.0
    broker.pass_time(0.9)
    assert broker.get() is None
    broker.pass_time(0.1)
    second = broker.must_get()
    assert (second.ticket.id, second.number) == ("e1", 2)

    broker.failed(second)
    broker.pass_time(19.9)
    assert broker.get() is None
    broker.pass_time(0.1)
    assert broker.must_get().number == 3


def test_after_three_deliveries_an_evaluation_is_for_the_failed_queue_only() -> None:
    broker = Broker()
    broker.put("e1", job="web")
    broker.put("e2", job="web")
    for _ in range(3):
        broker.failed(broker.must_get())
        broker.pass_time(20)

    assert broker.get() is None
    failed = broker.must_get(FAILED_QUEUE)
    assert (failed.ticket.id, failed.number) == ("e1", 4)
    broker.done(failed)
    assert broker.must_get().ticket.id == "e2"


def test_a_failed_evaluation_that_could_not_be_stored_stays_in_the_failed_queue() -> None:
    broker = Broker(limits=BrokerLimits(delivery_limit=1))
    broker.put("e1")
    broker.failed(broker.must_get())

    broker.failed(broker.must_get(FAILED_QUEUE))

    assert broker.must_get(FAILED_QUEUE).ticket.id == "e1"


def test_a_delivery_that_is_not_answered_in_sixty_seconds_counts_as_failed() -> None:
    broker = Broker()
    broker.put("e1")
    delivery = broker.must_get()

    assert broker.wake_at() == 60.0
    assert broker.pass_time(59.9) == []
    assert broker.pass_time(0.1) == [delivery]
    with pytest.raises(NotOutstanding):
        broker.ack("e1", delivery.token, broker.now)
    broker.pass_time(1)
    assert broker.must_get().number == 2


def test_the_timeout_rests_while_the_plan_waits_and_starts_anew_afterwards() -> None:
    broker = Broker()
    broker.put("e1")
    delivery = broker.must_get()
    broker.pass_time(50)

    broker.pause_nack("e1", delivery.token)
    assert broker.wake_at() == math.inf
    assert broker.pass_time(1000) == []

    broker.resume_nack("e1", delivery.token, broker.now)
    assert broker.pass_time(59) == []
    assert broker.pass_time(1) == [delivery]


def test_a_paused_delivery_can_be_acknowledged() -> None:
    broker = Broker()
    broker.put("e1")
    delivery = broker.must_get()
    broker.pause_nack("e1", delivery.token)

    broker.done(delivery)

    assert not broker.knows("e1")


def test_a_worker_that_says_it_is_still_at_it_gets_the_whole_time_again() -> None:
    broker = Broker()
    broker.put("e1")
    broker.put("e2")
    first, second = broker.must_get(), broker.must_get()
    broker.pass_time(50)

    broker.reset_nack(first.ticket.id, first.token, broker.now)

    assert broker.pass_time(10) == [second]
    assert broker.pass_time(50) == [first]


def test_pausing_twice_and_resuming_what_is_not_paused_change_nothing() -> None:
    broker = Broker()
    broker.put("e1")
    delivery = broker.must_get()
    broker.resume_nack("e1", delivery.token, 30.0)
    assert broker.wake_at() == 60.0

    broker.pause_nack("e1", delivery.token)
    broker.pause_nack("e1", delivery.token)
    broker.reset_nack("e1", delivery.token, 30.0)

    assert broker.wake_at() == math.inf


# ---------------------------------------------------------------------- waiting


def test_a_delayed_evaluation_is_ready_when_its_time_has_come() -> None:
    broker = Broker()
    broker.put("later", wait_s=30)
    broker.put("soon", wait_s=10)

    assert broker.get() is None
    assert broker.wake_at() == 10
    broker.pass_time(10)
    assert broker.names() == ["soon"]
    broker.pass_time(20)
    assert broker.names() == ["later"]
    assert broker.wake_at() == math.inf


def test_a_delayed_evaluation_that_was_dropped_and_comes_again_waits_for_its_new_time() -> None:
    broker = Broker()
    broker.put("e1", wait_s=10)
    broker.drop_waiting("e1")
    broker.put("e1", wait_s=30)

    broker.pass_time(10)
    assert broker.get() is None
    assert broker.wake_at() == 30
    broker.pass_time(20)
    assert broker.must_get().ticket.id == "e1"


def test_a_delayed_evaluation_does_not_hold_its_jobs_slot() -> None:
    broker = Broker()
    broker.put("later", job="web", wait_s=30)
    broker.put("now", job="web")

    assert broker.must_get().ticket.id == "now"


def test_a_delayed_evaluation_whose_reason_is_gone_is_dropped() -> None:
    broker = Broker()
    broker.put("later", wait_s=30)

    assert broker.drop_waiting("later")
    assert not broker.drop_waiting("later")

    assert broker.wake_at() == math.inf
    broker.pass_time(30)
    assert broker.get() is None
    broker.put("later")
    assert broker.names() == ["later"]


def test_only_what_waits_for_its_time_can_be_dropped() -> None:
    broker = Broker()
    broker.put("ready")

    assert not broker.drop_waiting("ready")
    assert broker.names() == ["ready"]


@pytest.mark.parametrize(("jump_s", "due"), [(25.0, 5.0), (-60.0, 90.0)])
def test_delayed_evaluations_and_nothing_else_follow_a_clock_that_jumps(jump_s: float, due: float) -> None:
    broker = Broker()
    broker.put("nacked", job="other")
    broker.failed(broker.must_get())
    broker.put("later", wait_s=30)

    broker.clock_moved(jump_s)

    assert broker.waits("later")
    assert not broker.waits("nacked")
    assert broker.wake_at() == 1  # a second after the nack, whatever clocks on the wall say
    broker.pass_time(1)
    assert broker.names() == ["nacked"]
    assert broker.wake_at() == due
    broker.pass_time(due - 1)
    assert broker.names() == ["later"]
    assert not broker.waits("later")
