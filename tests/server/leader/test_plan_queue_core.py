"""The order in which plans are taken up."""

from __future__ import annotations

import pytest

from fedsched.model.errors import Busy
from fedsched.server.leader.plan_queue_core import PlanQueueCore, PlanQueueDisabled


def a_queue(depth_max: int = 10) -> PlanQueueCore[str]:
    queue: PlanQueueCore[str] = PlanQueueCore(depth_max)
    queue.enable()
    return queue


def test_plans_come_by_priority_and_then_in_the_order_of_their_arrival() -> None:
    queue = a_queue()
    for name, priority in (("a", 50), ("b", 80), ("c", 50), ("d", 80)):
        queue.enqueue(name, priority, 0.0)

    assert [queue.dequeue() for _ in range(5)] == ["b", "d", "a", "c", None]


def test_a_closed_queue_takes_nothing_and_hands_back_who_waited() -> None:
    queue = a_queue()
    queue.enqueue("low", 1, 0.0)
    queue.enqueue("high", 9, 0.0)

    assert queue.disable() == ["high", "low"]
    assert len(queue) == 0
    with pytest.raises(PlanQueueDisabled):
        queue.enqueue("c", 50, 0.0)


def test_a_full_queue_says_so() -> None:
    queue = a_queue(depth_max=2)
    queue.enqueue("a", 50, 0.0)
    queue.enqueue("b", 50, 0.0)

    with pytest.raises(Busy, match="2 plans wait"):
        queue.enqueue("c", 50, 0.0)


def test_it_is_known_how_many_wait_and_for_how_long() -> None:
    queue = a_queue()
    assert queue.statistics(5.0) == (0, 0.0)
    queue.enqueue("a", 50, 1.0)
    queue.enqueue("b", 90, 3.0)

    assert queue.statistics(5.0) == (2, 4.0)
    queue.dequeue()
    assert queue.statistics(5.0) == (1, 4.0)
