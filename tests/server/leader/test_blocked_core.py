"""When a blocked evaluation gets another look, and when it is left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.server.leader import blocked_core
from fedsched.server.leader.blocked_core import Blocked, BlockedCore, blocked_of
from fedsched.server.leader.broker_core import Ticket


class Tracker(BlockedCore):
    """A core with a clock of its own that answers with ids."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.enable(self.now)

    def put(self, name: str, **fields: Any) -> list[str]:
        return _ids(self.block(a_blocked(name, **fields)))

    def room(self, node_class: str, index: int = 100, **fields: Any) -> list[str]:
        return _ids(self.unblock(node_class, index, self.now, **fields))

    def pass_time(self, seconds: float) -> list[str]:
        self.now += seconds
        return _ids(self.wake(self.now))

    def tracked(self) -> set[str]:
        return set(self._known)


def a_blocked(name: str, *, job: str = "", **fields: Any) -> Blocked:
    ticket = {key: fields.pop(key) for key in ("type", "priority", "create_index", "snapshot_index") if key in fields}
    ticket.setdefault("type", "service")
    ticket.setdefault("snapshot_index", 10)
    fields["ruled_out"] = frozenset(fields.get("ruled_out", ()))
    namespace = fields.pop("namespace", "default")
    return Blocked(Ticket(id=name, namespace=namespace, job_id=job or f"job-of-{name}", **ticket), **fields)


def _ids(released: list[Blocked]) -> list[str]:
    return [one.id for one in released]


# ---------------------------------------------------------------------- what is read from an evaluation


def test_what_could_free_an_evaluation_is_read_from_its_record() -> None:
    evaluation = Evaluation(
        id="e1",
        namespace="shop",
        job_id="web",
        type="system",
        priority=70,
        status=EvaluationStatus.BLOCKED,
        triggered_by=Trigger.MAX_PLAN_ATTEMPTS.value,
        node_id="n1",
        class_eligibility={"small": False, "large": True},
        quota_limit_reached="gold",
        snapshot_index=12,
        create_index=14,
        modify_index=15,
    )

    blocked = blocked_of(evaluation, "token")

    assert blocked == Blocked(
        Ticket("e1", "shop", "web", "system", 70, 14, 15, 12),
        ruled_out=frozenset({"small"}),
        quota="gold",
        is_failed=True,
        node_id="n1",
        token="token",
    )
    assert blocked.age == 14


def test_an_escaped_evaluation_rules_nothing_out() -> None:
    evaluation = Evaluation(
        id="e1",
        class_eligibility={"small": False},
        escaped_computed_class=True,
        missing_non_node_resources=("volume",),
    )

    blocked = blocked_of(evaluation)

    assert (blocked.ruled_out, blocked.escaped, blocked.resources) == (frozenset(), True, ("volume",))


# ---------------------------------------------------------------------- classes


def test_room_on_a_class_frees_all_but_those_that_ruled_it_out() -> None:
    tracker = Tracker()
    tracker.put("fits", ruled_out=("small",))
    tracker.put("never", ruled_out=("large",))
    tracker.put("unsure")

    assert tracker.room("large") == ["fits", "unsure"]
    assert tracker.tracked() == {"never"}


def test_a_class_that_an_evaluation_has_never_seen_frees_it() -> None:
    tracker = Tracker()
    tracker.put("e1", ruled_out=("small", "large"))

    assert tracker.room("brand-new") == ["e1"]


def test_escaped_evaluations_are_freed_by_every_class() -> None:
    tracker = Tracker()
    tracker.put("e1", escaped=True)

    assert tracker.room("anything") == ["e1"]


def test_what_is_freed_comes_by_priority_and_then_by_age() -> None:
    tracker = Tracker()
    tracker.put("young", priority=50, create_index=9)
    tracker.put("old", priority=50, create_index=2)
    tracker.put("urgent", priority=90, create_index=20)

    assert tracker.room("large") == ["urgent", "old", "young"]


def test_freeing_does_not_look_at_evaluations_that_the_class_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts every record looked at: it must not grow with the blocked evaluations of other classes."""
    looked = 0
    original = blocked_core._waiting_for

    def counting(bucket: Any, quota: str) -> Any:
        nonlocal looked
        looked += 1
        for one in original(bucket, quota):
            looked += 1
            yield one

    monkeypatch.setattr(blocked_core, "_waiting_for", counting)
    costs = []
    for others in (100, 2_000):
        tracker = Tracker()
        tracker.room("large", index=1)  # the class is known: what it concerns is kept up to date from here on
        for number in range(others):
            tracker.put(f"other{number}", ruled_out=("large", f"class{number % 50}"))
        for number in range(10):
            tracker.put(f"mine{number}", ruled_out=("small",))
        looked = 0
        assert len(tracker.room("large", index=2)) == 10
        costs.append(looked)

    assert costs[0] == costs[1] == 11


@given(
    st.lists(st.tuples(st.frozensets(st.sampled_from("abcd")), st.booleans(), st.sampled_from(["", "q1", "q2"]))),
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["", "q1"]))),
)
def test_freeing_agrees_with_looking_at_every_evaluation(
    blocked: list[tuple[frozenset[str], bool, str]], news: list[tuple[str, str]]
) -> None:
    tracker = Tracker()
    known: dict[str, tuple[frozenset[str], str]] = {}
    for number, (ruled_out, escaped, quota) in enumerate(blocked):
        ruled_out = frozenset() if escaped else ruled_out
        known[f"e{number}"] = (ruled_out, quota)
        tracker.put(f"e{number}", ruled_out=ruled_out, escaped=escaped, quota=quota, snapshot_index=1_000)
    for index, (node_class, quota) in enumerate(news):
        expected = {
            name
            for name, (ruled_out, waits_for) in known.items()
            if node_class not in ruled_out and (not quota or waits_for in ("", quota))
        }
        assert set(tracker.room(node_class, index, quota=quota)) == expected
        for name in expected:
            del known[name]

    assert tracker.tracked() == set(known)
    assert tracker.statistics().blocked == len(known)


# ---------------------------------------------------------------------- one per job


def test_of_two_blocked_evaluations_of_a_job_the_one_that_saw_more_is_kept() -> None:
    tracker = Tracker()
    tracker.put("old", job="web", snapshot_index=10, create_index=11)
    tracker.put("new", job="web", snapshot_index=20, create_index=5)
    tracker.put("oldest", job="web", snapshot_index=1, create_index=2)

    assert tracker.tracked() == {"new"}
    assert _ids(tracker.take_duplicates(10)) == ["old", "oldest"]
    assert tracker.take_duplicates(10) == []


def test_a_duplicate_does_not_go_back_whatever_it_missed() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)
    tracker.put("new", job="web", snapshot_index=60)

    assert tracker.put("old", job="web", snapshot_index=10) == []
    assert _ids(tracker.take_duplicates(10)) == ["old"]


def test_on_a_tie_the_newcomer_is_kept() -> None:
    tracker = Tracker()
    tracker.put("first", job="web", create_index=10)
    tracker.put("second", job="web", create_index=10)

    assert tracker.tracked() == {"second"}


def test_the_same_evaluation_blocked_again_is_no_duplicate_and_its_newest_word_counts() -> None:
    tracker = Tracker()
    tracker.put("e1", ruled_out=("large",), snapshot_index=10)
    tracker.put("e1", ruled_out=("small",), snapshot_index=20)

    assert tracker.take_duplicates(10) == []
    assert tracker.room("small") == []
    assert tracker.room("large") == ["e1"]


def test_jobs_of_the_same_name_in_two_namespaces_are_two_jobs() -> None:
    tracker = Tracker()
    tracker.put("a", job="web", namespace="shop")
    tracker.put("b", job="web", namespace="blog")

    assert tracker.tracked() == {"a", "b"}


def test_system_jobs_keep_one_blocked_evaluation_per_node() -> None:
    tracker = Tracker()
    tracker.put("a", job="agent", type="system", node_id="n1", create_index=11)
    tracker.put("b", job="agent", type="system", node_id="n2", create_index=12)
    tracker.put("c", job="agent", type="system", node_id="n1", create_index=13)

    assert tracker.tracked() == {"b", "c"}
    assert _ids(tracker.take_duplicates(10)) == ["a"]


def test_duplicates_can_be_given_back_and_are_forgotten_when_they_end() -> None:
    tracker = Tracker()
    tracker.put("old", job="web", create_index=1)
    tracker.put("new", job="web", create_index=2)
    assert tracker.has_duplicates()

    tracker.give_back_duplicates(tracker.take_duplicates(10))
    assert tracker.put("old", job="web", create_index=1) == []  # still to be cancelled: not tracked again
    tracker.forget("old")

    assert tracker.take_duplicates(10) == []
    assert tracker.tracked() == {"new"}


# ---------------------------------------------------------------------- news that were missed


def test_an_evaluation_that_missed_news_of_a_class_goes_back_at_once() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)

    assert tracker.put("before", snapshot_index=49) == ["before"]
    assert tracker.put("at", snapshot_index=50) == []
    assert tracker.put("after", snapshot_index=51) == []
    assert tracker.tracked() == {"at", "after"}


def test_news_of_a_class_that_it_ruled_out_are_not_missed() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)

    assert tracker.put("e1", ruled_out=("large",), snapshot_index=10) == []


def test_an_escaped_evaluation_misses_news_of_any_kind() -> None:
    for kind in ("class", "quota", "resource"):
        tracker = Tracker()
        if kind == "class":
            tracker.room("large", index=50)
        elif kind == "quota":
            tracker.unblock_quota("gold", 50, 0.0)
        else:
            tracker.unblock_resources(("disk",), 50, 0.0)
        assert tracker.put("early", escaped=True, snapshot_index=49) == ["early"]
        assert tracker.put("late", escaped=True, snapshot_index=50) == []


def test_to_an_evaluation_that_waits_for_a_quota_only_news_of_that_quota_count() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)
    tracker.unblock_quota("silver", 50, 0.0)

    assert tracker.put("e1", quota="gold", snapshot_index=10) == []
    tracker.unblock_quota("gold", 60, 0.0)
    assert tracker.put("e2", quota="gold", snapshot_index=59) == ["e2"]
    assert tracker.put("e3", quota="gold", snapshot_index=60) == []


def test_to_an_evaluation_that_waits_for_something_outside_nodes_only_news_of_that_count() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)

    assert tracker.put("e1", escaped=True, resources=("disk",), snapshot_index=10) == []
    tracker.unblock_resources(("disk",), 60, 0.0)
    assert tracker.put("e2", escaped=True, resources=("tape", "disk"), snapshot_index=59) == ["e2"]
    assert tracker.put("e3", escaped=True, resources=("tape", "disk"), snapshot_index=60) == []


def test_an_older_index_of_a_class_does_not_hide_a_newer_one() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)
    tracker.room("large", index=40)

    assert tracker.put("e1", snapshot_index=45) == ["e1"]


def test_news_are_remembered_for_fifteen_minutes_and_looked_through_every_five() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)

    tracker.pass_time(900)
    tracker.pass_time(1)
    assert tracker.put("e1", snapshot_index=10) == ["e1"]
    tracker.pass_time(299)
    assert tracker.put("e2", snapshot_index=10) == []


def test_a_class_that_is_heard_of_again_after_it_was_forgotten_still_frees_the_right_ones() -> None:
    tracker = Tracker()
    tracker.room("large", index=50)
    tracker.pass_time(1300)
    tracker.put("mine")
    tracker.put("other", ruled_out=("large",))

    assert tracker.room("large", index=60) == ["mine"]


# ---------------------------------------------------------------------- other news


def test_a_quota_frees_those_that_wait_for_it() -> None:
    tracker = Tracker()
    tracker.put("gold", quota="gold")
    tracker.put("silver", quota="silver")
    tracker.put("none")

    assert _ids(tracker.unblock_quota("gold", 50, 0.0)) == ["gold"]
    assert tracker.unblock_quota("", 50, 0.0) == []


def test_room_under_a_quota_leaves_those_that_wait_for_another() -> None:
    tracker = Tracker()
    tracker.put("gold", quota="gold")
    tracker.put("silver", quota="silver")
    tracker.put("none")

    assert tracker.room("large", quota="gold") == ["gold", "none"]
    assert tracker.put("late", quota="gold", snapshot_index=10) == ["late"]


def test_a_node_frees_the_system_evaluations_that_found_no_room_there() -> None:
    tracker = Tracker()
    tracker.put("here", type="system", node_id="n1", ruled_out=("large",))
    tracker.put("there", type="sysbatch", node_id="n2")
    tracker.put("service", node_id="n1")
    assert tracker.has_per_node

    assert _ids(tracker.unblock_node("n1")) == ["here"]
    assert tracker.unblock_node("n1") == []
    assert _ids(tracker.unblock_node("n2")) == ["there"]
    assert not tracker.has_per_node


def test_something_outside_nodes_frees_the_escaped_evaluations_that_name_it() -> None:
    tracker = Tracker()
    tracker.put("both", escaped=True, resources=("disk", "tape"))
    tracker.put("tape", escaped=True, resources=("tape",))
    tracker.put("captured", resources=("disk",))

    assert _ids(tracker.unblock_resources(("disk",), 50, 0.0)) == ["both"]
    assert _ids(tracker.unblock_resources(("disk", "tape"), 50, 0.0)) == ["tape"]


def test_evaluations_that_ran_out_of_attempts_try_again_every_sixty_seconds() -> None:
    tracker = Tracker()
    tracker.put("unlucky", is_failed=True)
    tracker.put("full")

    assert tracker.wake_at() == 60
    assert tracker.pass_time(59) == []
    assert tracker.pass_time(1) == ["unlucky"]
    tracker.put("again", is_failed=True)
    assert tracker.pass_time(59) == []
    assert tracker.pass_time(1) == ["again"]


def test_changed_rules_of_placement_free_everything_and_are_not_missed() -> None:
    tracker = Tracker()
    tracker.put("ruled", ruled_out=("large",))
    tracker.put("quota", quota="gold")

    assert set(_ids(tracker.unblock_all(50, 0.0))) == {"ruled", "quota"}
    assert tracker.put("late", ruled_out=("large",), snapshot_index=49) == ["late"]


# ---------------------------------------------------------------------- leaving


def test_an_evaluation_that_has_ended_is_forgotten() -> None:
    tracker = Tracker()
    tracker.put("e1", type="system", node_id="n1", resources=("disk",), escaped=True, is_failed=True)

    tracker.forget("e1")
    tracker.forget("e1")

    assert tracker.tracked() == set()
    assert tracker.room("large") == []
    assert tracker.unblock_node("n1") == []
    assert tracker.unblock_failed() == []
    assert tracker.unblock_resources(("disk",), 1, 0.0) == []
    assert tracker.statistics() == (0, 0, 0, 0)


def test_a_job_that_found_room_for_everything_is_no_longer_tracked() -> None:
    tracker = Tracker()
    tracker.put("e1", job="web")
    tracker.put("e2", job="db")

    tracker.untrack("default", "web")
    tracker.untrack("default", "unknown")

    assert tracker.tracked() == {"e2"}


def test_an_evaluation_blocked_again_is_freed_with_the_token_of_its_holder() -> None:
    tracker = Tracker()
    tracker.put("e1", token="t1")

    released = tracker.unblock("large", 50, 0.0)

    assert [(one.id, one.token) for one in released] == [("e1", "t1")]


def test_disabling_forgets_everything_and_a_disabled_tracker_hears_nothing() -> None:
    tracker = Tracker()
    tracker.put("e1")
    tracker.put("e2", job="web", create_index=1)
    tracker.put("e3", job="web", create_index=2)
    tracker.room("other")

    tracker.disable()

    assert tracker.wake_at() == math.inf
    assert tracker.put("e4") == []
    assert tracker.room("large") == []
    assert tracker.unblock_quota("gold", 99, 0.0) == []
    assert tracker.unblock_resources(("disk",), 99, 0.0) == []
    assert tracker.unblock_all(99, 0.0) == []
    duplicates = [a_blocked("e2")]
    tracker.give_back_duplicates(duplicates)
    assert not tracker.has_duplicates()
    tracker.enable(0.0)
    assert tracker.statistics().blocked == 0
    assert tracker.put("e5", snapshot_index=1) == []  # no news are remembered
    assert tracker.put("e6", escaped=True, snapshot_index=1) == []


def test_statistics_say_how_many_wait_for_what() -> None:
    tracker = Tracker()
    tracker.put("a")
    tracker.put("b", escaped=True)
    tracker.put("c", quota="gold")

    assert tracker.statistics() == (3, 1, 1, 0)


# ---------------------------------------------------------------------- a new leader


def test_a_new_leader_gives_a_second_look_to_whoever_has_not_seen_the_newest_write() -> None:
    tracker = Tracker()
    stored = [a_blocked("stale", snapshot_index=10), a_blocked("fresh", snapshot_index=50)]

    tracker.restore(stored, newest_write=50, now=0.0)

    assert tracker.tracked() == {"stale", "fresh"}
    assert tracker.pass_time(0) == ["stale"]
    assert tracker.pass_time(1) == []
    assert tracker.tracked() == {"fresh"}


def test_a_second_look_comes_at_fifty_per_second_and_by_priority() -> None:
    tracker = Tracker()
    stored = [a_blocked(f"e{number:03}", priority=number % 100, create_index=number) for number in range(200)]
    tracker.restore(stored, newest_write=50, now=0.0)

    released: list[tuple[float, str]] = []
    while (due := tracker.wake_at()) < 10:
        tracker.now = due
        released += [(due, name) for name in tracker.pass_time(0)]

    assert len(released) == 200
    for start in (0.0, 1.0, 2.0, 3.0):
        assert sum(start - 1e-6 <= when < start + 1 - 1e-6 for when, _ in released) == 50
    priorities = [int(name[1:]) % 100 for _, name in released]
    assert priorities == sorted(priorities, reverse=True)


def test_whoever_is_freed_or_ends_before_its_second_look_does_not_get_one() -> None:
    tracker = Tracker()
    stored = [a_blocked(f"e{number}", priority=number, ruled_out=(f"c{number}",)) for number in range(12)]
    tracker.restore(stored, newest_write=50, now=0.0)
    assert len(tracker.pass_time(0)) == 5

    tracker.forget("e6")
    assert tracker.room("c5") == ["e4", "e3", "e2", "e1", "e0"]

    assert tracker.pass_time(0.1) == ["e5"]
    assert tracker.statistics().restoring == 0


def test_restored_duplicates_are_found_too() -> None:
    tracker = Tracker()
    indexes = {"old": 11, "new": 19, "older": 10}
    stored = [a_blocked(name, job="web", create_index=index) for name, index in indexes.items()]

    tracker.restore(stored, newest_write=0, now=0.0)

    assert tracker.tracked() == {"new"}
    assert set(_ids(tracker.take_duplicates(10))) == {"old", "older"}
