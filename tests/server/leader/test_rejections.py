"""When a node that refuses plan after plan is taken out of service."""

from __future__ import annotations

from fedsched.server.leader.rejections import RejectionSettings, RejectionTracker


def a_tracker(**fields: object) -> RejectionTracker:
    return RejectionTracker(RejectionSettings(is_enabled=True, **fields))  # type: ignore[arg-type]


def refuse(tracker: RejectionTracker, node: str, times: int, now: float = 0.0) -> list[str]:
    return [name for _ in range(times) for name in tracker.note([node], now)]


def test_it_is_off_unless_asked_for() -> None:
    assert refuse(RejectionTracker(), "n1", 1000) == []


def test_the_hundredth_refusal_within_five_minutes_is_too_much() -> None:
    tracker = a_tracker()

    assert refuse(tracker, "n1", 99) == []
    assert refuse(tracker, "n1", 1, now=299.0) == ["n1"]


def test_refusals_longer_ago_than_five_minutes_do_not_count() -> None:
    tracker = a_tracker()
    refuse(tracker, "n1", 99)

    assert refuse(tracker, "n1", 99, now=300.0) == []
    assert refuse(tracker, "n1", 1, now=300.0) == ["n1"]


def test_only_ten_nodes_at_once_and_five_in_half_an_hour_are_taken_out() -> None:
    tracker = a_tracker(threshold=1)

    at_once = [name for number in range(20) for name in tracker.note([f"n{number}"], 0.0)]
    assert len(at_once) == 10
    assert tracker.note(["n50"], 359.0) == []
    assert tracker.note(["n50"], 360.0) == ["n50"]
    later = [name for number in range(20) for name in tracker.note([f"m{number}"], 360.0 + 1800.0)]
    assert len(later) == 5


def test_only_the_last_fifty_nodes_are_remembered() -> None:
    tracker = a_tracker(threshold=2)
    tracker.note(["n1"], 0.0)
    for number in range(50):
        tracker.note([f"other{number}"], 0.0)

    assert tracker.note(["n1"], 0.0) == []
    assert tracker.note(["n1"], 0.0) == ["n1"]
