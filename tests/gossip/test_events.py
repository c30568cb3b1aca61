"""Lamport clocks and announcements."""

from __future__ import annotations

from fedsched.gossip.events import LEAP_MAX, RING, EventRing
from fedsched.gossip.messages import UserEvent


def test_an_event_is_delivered_the_first_time_only() -> None:
    ring = EventRing()
    event = UserEvent(5, "deploy", b"x", False)

    assert [ring.receive(event) for _ in range(3)] == [True, False, False]
    assert ring.receive(event._replace(payload=b"y"))  # same time, another event


def test_what_happens_here_is_later_than_all_that_was_heard_of() -> None:
    ring = EventRing()
    ring.receive(UserEvent(41, "a", b"", False))

    assert ring.publish("b", b"", False).ltime == 42


def test_what_is_older_than_the_ring_is_dropped() -> None:
    ring = EventRing()
    ring.receive(UserEvent(RING + 100, "new", b"", False))

    assert not ring.receive(UserEvent(50, "old", b"", False))
    assert not ring.receive(UserEvent(100, "same slot", b"", False))


def test_history_from_before_the_joining_is_not_replayed() -> None:
    ring = EventRing()
    ring.begin_at(100)

    assert not ring.receive(UserEvent(99, "before", b"", False))
    assert ring.receive(UserEvent(100, "after", b"", False))


def test_an_absurd_leap_does_not_use_up_the_clock() -> None:
    ring = EventRing()

    assert not ring.receive(UserEvent(2**62, "hostile", b"", False))
    assert ring.clock.time < LEAP_MAX
