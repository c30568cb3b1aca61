from __future__ import annotations

import gc

from fedsched.state.changes import Changes
from fedsched.state.store import Store
from fedsched.state.tables.alloc_updates import Reap
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.jobs import JobRegister
from fedsched.state.tables.nodes import NodeUpsert
from tests.builders import a_job, an_id
from tests.state.golden import a_golden_world
from tests.state.worlds import EMPTY_MAP, World, ids


def test_the_same_snapshot_is_given_until_something_changes() -> None:
    world = World()
    first = world.store.snapshot()
    assert world.store.snapshot() is first

    world.register(a_job())
    assert world.store.snapshot() is not first
    assert first.jobs.get("default", "web") is None
    assert first.index == 0


def test_a_snapshot_finds_what_was_removed_since_and_not_what_came() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job())
    world.place([1, 2], [0, 0])
    then = world.store.snapshot()
    world.do(Reap(allocs=ids([1])))
    world.place([3], [0])
    later = world.store.snapshot()
    world.do(Reap(allocs=ids([2, 3])))

    assert [then.allocations.slot_of(an_id(n)) for n in (1, 2, 3)] == [0, 1, -1]
    assert [later.allocations.slot_of(an_id(n)) for n in (1, 2, 3)] == [-1, 1, 0]
    assert then.allocations.slots_of_node(0).tolist() == [0, 1]
    assert then.allocations.group_counts("default", "web", 2)["group"].live == 2
    del then
    world.do(NodeUpsert(id=an_id(9)))
    assert later.allocations.slots_of_job("default", "web").tolist() == [0, 1]
    assert world.store.keeper.held() == 1


def test_an_evaluation_gets_everything_it_is_decided_from() -> None:
    world = World()
    world.nodes(2)
    world.register(a_job(), evaluation=EvaluationWrite(id=an_id(7), job_id="web", body=b"\xa1\x62ID\x61e"))
    world.place([1, 2], [0, 1])
    view = world.store.snapshot().view_for(an_id(7))

    assert view is not None
    assert view.snapshot_index == world.index
    assert view.job is not None
    assert view.slots.tolist() == [0, 1]
    assert view.allocs["node"].tolist() == [0, 1]
    assert view.origins[0].group == "group"
    assert world.store.view_for("nobody") is None


def test_indexes_of_tables_and_rows_are_never_below_one_and_what_is_not_there_has_none() -> None:
    world = World()
    assert world.store.table_index("jobs") == 1
    assert world.store.row_index("jobs", ("default", "web")) == 0
    world.nodes(2)
    world.register(a_job())
    world.register(a_job("db"))

    assert world.store.table_index("jobs") == 4
    assert world.store.row_index("jobs", ("default", "web")) == 3
    assert world.store.row_index("jobs", ("default", "nobody")) == 0
    assert world.store.row_index("allocations", ("x",)) == 0


def test_the_digest_differs_in_the_table_that_differs() -> None:
    first, second = a_golden_world(), a_golden_world()
    assert first.store.digest() == second.store.digest()
    second.do(NodeUpsert(id=an_id(1), datacenter="moved"))
    first.do(NodeUpsert(id=an_id(1)))

    parts, others = first.store.digest_parts(), second.store.digest_parts()
    assert [name for name in parts if parts[name] != others[name]] == ["nodes"]
    assert first.store.digest() != second.store.digest()


def test_rows_give_the_garbage_collector_nothing_to_walk_through() -> None:
    world = World()
    for number in range(300):
        world.do(JobRegister(namespace="default", id=f"job-{number}", spec=EMPTY_MAP))
    gc.collect()
    rows = [*world.store.jobs.rows.scan(), *world.store.jobs.version_rows.scan()]

    assert not any(gc.is_tracked(row) for row in rows)
    assert not any(gc.is_tracked(key) for key in world.store.jobs.table._live._values)


def test_changes_name_their_tables_and_keys() -> None:
    world = World()
    world.nodes(1)
    changes = world.register(a_job()).changes
    assert changes.tables() == {"jobs", "job_versions"}
    assert list(changes.keys("jobs")) == [("default", "web")]
    assert changes.node_slots().tolist() == []

    placed = world.place([1], [0]).changes
    assert placed.tables() == {"allocations", "jobs"}
    assert placed.node_slots().tolist() == [0]
    assert not Changes(1)


def test_an_empty_store_holds_not_even_what_is_built_in() -> None:
    assert len(Store(is_empty=True).places.namespaces) == 0
