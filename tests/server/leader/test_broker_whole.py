"""The broker as a whole: in and out of office, its figures, and any thing that workers may do with it."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from fedsched.server.leader.broker_core import FAILED_QUEUE, BrokerLimits, Delivery, NotOutstanding
from tests.server.leader.test_broker_core import Broker


def test_disabling_forgets_everything() -> None:
    broker = Broker()
    broker.put("ready")
    broker.put("waiting", wait_s=5)
    broker.put("out", priority=90)
    delivery = broker.must_get()
    broker.put("pending", job=delivery.ticket.job_id)

    broker.disable()
    broker.enable()

    assert broker.statistics() == Broker().statistics()
    assert broker.wake_at() == math.inf
    with pytest.raises(NotOutstanding):
        broker.done(delivery)


def test_a_broker_that_was_disabled_takes_nothing_back() -> None:
    broker = Broker()
    for number in range(3):
        broker.put(f"e{number}", job="web")
    broker.done(broker.must_get())
    batch = broker.take_cancelable(5)
    broker.disable()

    broker.give_back_cancelable(batch)

    broker.enable()
    assert broker.take_cancelable(5) == []


def test_statistics_say_how_much_there_is_of_everything() -> None:
    broker = Broker(limits=BrokerLimits(delivery_limit=1))
    for number in range(4):
        broker.put(f"w{number}", job="web", priority=80, modify_index=number)
    broker.done(broker.must_get())
    broker.put("again", job="web")
    out = broker.must_get()
    broker.pause_nack(out.ticket.id, out.token)
    broker.put("b", type="batch")
    broker.must_get("batch")
    broker.put("lost", priority=99)
    broker.failed(broker.must_get())
    broker.put("s1")
    broker.put("s2")
    broker.put("later", wait_s=60)

    found = broker.statistics()

    assert found.ready_by_type == {"service": 2}
    assert found.unacked_by_type == {"batch": 1, "service": 1}
    assert (found.ready, found.unacked, found.pending, found.waiting) == (2, 2, 1, 1)
    assert (found.cancelable, found.failed) == (2, 1)


def test_what_rests_after_a_failure_is_counted_as_waiting() -> None:
    broker = Broker()
    broker.put("e1")
    broker.put("later", wait_s=60)
    broker.failed(broker.must_get())

    assert broker.statistics().waiting == 2


def test_whether_there_is_anything_ready_can_be_asked_by_type() -> None:
    broker = Broker()
    assert not broker.has_any_ready

    broker.put("b", type="batch")

    assert broker.has_any_ready
    assert broker.has_ready(("batch",))
    assert not broker.has_ready(("service",))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_workers_do_every_evaluation_ends_once_and_jobs_are_never_shared(seed: int) -> None:
    """A thousand steps by a die: enqueue, deliver, ack, nack, wait. Then everything is drained."""
    broker = Broker(seed=seed)
    roll = seed * 7919 + 1
    out: dict[str, Delivery] = {}
    entered: set[str] = set()
    ended: Counter[str] = Counter()

    def die(sides: int) -> int:
        nonlocal roll
        roll = (roll * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (roll >> 33) % sides

    def settle(limit: int) -> None:
        for ticket in broker.take_cancelable(limit):
            ended[ticket.id] += 1

    for step in range(1000):
        match die(6):
            case 0 | 1:
                name = f"e{step}"
                entered.add(name)
                broker.put(
                    name, job=f"job{die(10)}", priority=die(3), modify_index=step, wait_s=float(die(2) * die(30))
                )
            case 2 | 3:
                delivery = broker.get("service", FAILED_QUEUE)
                if delivery is not None:
                    out[delivery.ticket.id] = delivery
                    jobs = [one.ticket.job for one in out.values()]
                    assert len(jobs) == len(set(jobs))
            case 4 if out:
                delivery = out.pop(sorted(out)[die(len(out))])
                broker.done(delivery)
                ended[delivery.ticket.id] += 1
            case 5 if out and die(3) == 0:
                broker.failed(out.pop(sorted(out)[die(len(out))]))
            case _:
                for late in broker.pass_time(float(die(5))):
                    out.pop(late.ticket.id, None)
        settle(3)
    for delivery in out.values():
        broker.done(delivery)
        ended[delivery.ticket.id] += 1
    for _ in range(200):
        broker.pass_time(30)
        for name in broker.names("service", FAILED_QUEUE):
            ended[name] += 1
        settle(100)

    assert set(ended) == entered
    assert set(ended.values()) == {1}
    assert broker.statistics().unacked == 0
