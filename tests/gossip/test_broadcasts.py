"""The queue of news."""

from __future__ import annotations

from fedsched.gossip.broadcasts import KEPT_MIN, Broadcasts
from fedsched.gossip.messages import Dead, Suspect, UserEvent
from fedsched.gossip.wire import size_bound
from tests.gossip.kit import alive


def test_each_piece_is_sent_its_number_of_times_and_then_forgotten() -> None:
    queue = Broadcasts()
    queue.add(Dead(1, "a", "b"))

    assert [len(queue.take(1000, 3)) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert len(queue) == 0


def test_newer_news_of_a_member_replaces_older() -> None:
    queue = Broadcasts()
    queue.add(alive("a", 1))
    queue.add(Suspect(1, "a", "b"))
    queue.add(Suspect(1, "a", "c"))
    assert {m.by for m in queue.take(1000, 9) if isinstance(m, Suspect)} == {"b", "c"}

    queue.add(Dead(1, "a", "b"))

    assert queue.take(1000, 9) == [Dead(1, "a", "b")]


def test_the_least_told_goes_first() -> None:
    queue = Broadcasts()
    old, new = Dead(1, "old", "x"), Dead(1, "new", "x")
    queue.add(old)
    queue.take(1000, 9)
    queue.add(new)

    assert queue.take(size_bound(new), 9) == [new]


def test_what_is_said_of_oneself_goes_before_everything_else() -> None:
    queue = Broadcasts()
    own = Dead(1, "me", "me")
    queue.add(own, own=True)
    for number in range(50):
        queue.add(Dead(1, f"n{number}", "x"))

    for _ in range(3):
        assert queue.take(100, 9)[0] == own


def test_a_packet_is_never_filled_beyond_its_room() -> None:
    queue = Broadcasts()
    for number in range(40):
        queue.add(alive(f"n{number}", number))
        queue.add(UserEvent(number, "e", bytes(number * 7), False))

    for room in (0, 20, 90, 300, 1400):
        assert sum(map(size_bound, queue.take(room, 99))) <= room


def test_a_flood_is_pruned_from_the_most_told() -> None:
    queue = Broadcasts()
    for number in range(KEPT_MIN + 100):
        queue.add(Dead(1, f"n{number}", "x"))

    assert len(queue) == KEPT_MIN


def test_announcements_of_two_members_at_the_same_time_are_both_told() -> None:
    queue = Broadcasts()
    ours, theirs = UserEvent(5, "leader", b"us", False), UserEvent(5, "leader", b"eu", False)
    queue.add(ours, own=True)
    queue.add(theirs)
    queue.add(theirs)

    assert sorted(queue.take(1400, 4)) == sorted([ours, theirs])
