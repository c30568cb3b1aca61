from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.model.errors import Busy
from fedsched.state.changes import Change, Changes
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.waits import (
    Topic,
    Waiter,
    Waits,
    allocs_of_job,
    allocs_of_node,
    one_alloc,
    one_row,
    rows_under,
    whole_table,
)
from tests.builders import a_job, an_id
from tests.state.worlds import World, ids


def changed(*rows: tuple[str, tuple[str, ...]], index: int = 9) -> Changes:
    changes = Changes(index)
    changes.rows = [Change(table, key, index) for table, key in rows]
    return changes


def wait(waits: Waits, topic: Topic) -> Waiter:
    waiter = waits.add(topic, after=5, current=5)
    assert waiter is not None
    return waiter


@pytest.mark.parametrize(
    ("topic", "is_woken"),
    [
        (whole_table("jobs"), True),
        (whole_table("nodes"), False),
        (one_row("jobs", "default", "web"), True),
        (one_row("jobs", "default", "db"), False),
        (one_row("jobs", "default"), False),
        (rows_under("jobs", "default"), True),
        (rows_under("jobs", "prod"), False),
        (rows_under("jobs", "default", text="w"), True),
        (rows_under("jobs", "default", text="web"), True),
        (rows_under("jobs", "default", text="webs"), False),
        (rows_under("jobs", "default", text="x"), False),
        (rows_under("jobs", "default", "web", text="x"), False),
        (rows_under("jobs", text="def"), True),
    ],
)
def test_a_change_wakes_those_whom_it_concerns(topic: Topic, is_woken: bool) -> None:
    waits = Waits()
    waiter = wait(waits, topic)

    assert waits.wake(changed(("jobs", ("default", "web")))) == ([waiter] if is_woken else [])
    assert len(waits) == (0 if is_woken else 1)


def test_nobody_waits_for_what_has_happened_already() -> None:
    waits = Waits()

    assert waits.add(whole_table("jobs"), after=5, current=6) is None
    assert len(waits) == 0


def test_a_waiter_is_handed_back_once_however_many_changes_concern_it() -> None:
    waits = Waits()
    waiter = wait(waits, whole_table("jobs"))

    assert waits.wake(changed(("jobs", ("a", "b")), ("jobs", ("a", "c")))) == [waiter]
    assert waits.wake(changed(("jobs", ("a", "b")))) == []


def test_one_who_gave_up_is_not_woken() -> None:
    waits = Waits()
    waiter = wait(waits, rows_under("jobs", "a"))
    other = wait(waits, rows_under("jobs", "a"))
    waits.remove(waiter)
    waits.remove(waiter)

    assert waits.wake(changed(("jobs", ("a", "b")))) == [other]
    waits.remove(other)
    assert len(waits) == 0


def test_one_too_many_is_refused() -> None:
    waits = Waits(limit=2)
    first = wait(waits, whole_table("jobs"))
    wait(waits, whole_table("nodes"))
    with pytest.raises(Busy, match="2 blocking queries"):
        wait(waits, whole_table("jobs"))

    waits.remove(first)
    wait(waits, whole_table("jobs"))


def test_a_replaced_state_wakes_everybody() -> None:
    waits = Waits()
    waiters = [wait(waits, topic) for topic in (whole_table("jobs"), one_row("nodes", "x"), allocs_of_node(3))]

    assert waits.wake(Changes(9, is_everything=True)) == waiters
    assert len(waits) == 0
    assert not Changes(9)
    assert Changes(9, is_everything=True)


def test_allocations_are_waited_for_by_job_node_and_id() -> None:
    world = World()
    world.nodes(3)
    world.register(a_job())
    waits = Waits()
    everything = wait(waits, whole_table("allocations"))
    job = wait(waits, allocs_of_job("default", "web"))
    nodes = [wait(waits, allocs_of_node(slot)) for slot in (0, 1, 2)]
    allocs = [wait(waits, one_alloc(an_id(number))) for number in (1, 2, 3)]

    woken = waits.wake(world.place([1, 2], [0, 1]).changes)
    assert set(woken) == {everything, job, nodes[0], nodes[1], allocs[0], allocs[1]}

    waits.wake_all()
    other = wait(waits, one_alloc(an_id(2)))
    assert waits.wake(world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02")).changes) == []
    assert waits.wake(world.do(AllocStatusUpdate(ids=ids([1, 2]), statuses=b"\x02\x02")).changes) == [other]


_keys = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "xy", "z"]))
_topics = st.one_of(
    st.just(whole_table("t")),
    _keys.map(lambda key: one_row("t", *key)),
    st.builds(
        lambda part, text: rows_under("t", part, text=text), st.sampled_from(["a", "b"]), st.sampled_from(["", "x"])
    ),
)


@given(st.lists(_topics, max_size=12), st.lists(_keys, max_size=3))
def test_exactly_those_wake_whose_topic_matches(topics: list[Topic], keys: list[tuple[str, str]]) -> None:
    def concerns(topic: Topic) -> bool:
        for key in keys:
            if topic.is_exact and topic.key == key:
                return True
            rest = key[len(topic.key)] if topic.text else ""
            if not topic.is_exact and key[: len(topic.key)] == topic.key and rest.startswith(topic.text):
                return True
        return False

    waits = Waits()
    waiters = [wait(waits, topic) for topic in topics]
    woken = waits.wake(changed(*(("t", key) for key in keys)))

    assert set(woken) == {waiter for waiter in waiters if concerns(waiter.topic)}
    assert len(waits) == len(waiters) - len(woken)
