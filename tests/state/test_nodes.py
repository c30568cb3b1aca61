from __future__ import annotations

from fedsched.state.tables.alloc_updates import Reap
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert, node_upsert
from tests.builders import a_job, a_node, an_id
from tests.state.worlds import World, ids


def test_a_node_reads_back_as_it_was_stored() -> None:
    world = World()
    node = a_node(1, memory_mb=512, meta={"rack": "r1"})
    world.do(node_upsert(node))
    world.do(node_upsert(node))

    row = world.store.nodes.get(an_id(1))
    assert row is not None
    stored = row.node()
    assert stored.meta == {"rack": "r1"}
    assert stored.node_resources == node.node_resources
    assert (stored.create_index, stored.modify_index) == (1, 2)
    assert [found.id for found in world.store.nodes.rows.by("status", "ready")] == [an_id(1)]


def test_a_slot_is_given_to_the_next_node_once_it_is_empty() -> None:
    world = World()
    world.nodes(3)
    world.do(NodeDeregister(ids=(an_id(2),)))
    assert world.store.nodes.slot_of(an_id(2)) is None

    assert world.do(NodeUpsert(id=an_id(9))).result.value["slot"] == 1
    at = world.store.nodes.at(1)
    assert at is not None
    assert at.node_id == an_id(9)


def test_allocations_keep_the_slot_of_a_node_that_left() -> None:
    world = World()
    world.nodes(2)
    world.register(a_job())
    world.place([1], [1])
    world.do(NodeDeregister(ids=(an_id(2),)))

    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert (alloc.node_id, alloc.node_name) == (an_id(2), "node-2")
    assert world.do(NodeUpsert(id=an_id(9))).result.value["slot"] == 2
    world.do(Reap(allocs=ids([1])))
    assert world.do(NodeUpsert(id=an_id(8))).result.value["slot"] == 1


def test_a_node_that_comes_back_finds_its_allocations() -> None:
    world = World()
    world.nodes(2)
    world.register(a_job())
    world.place([1], [1])
    world.do(NodeDeregister(ids=(an_id(2),)))
    done = world.do(NodeUpsert(id=an_id(2), name="renamed"))

    assert done.result.value["slot"] == 1
    assert world.store.allocations.slots_of_node(1).tolist() == [0]
    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert alloc.node_name == "renamed"
    assert world.place([2], [1]).result.value["placed"] == 1


def test_an_unknown_node_among_those_to_leave_refuses_all_of_it() -> None:
    world = World()
    world.nodes(1)
    done = world.do(NodeDeregister(ids=(an_id(1), an_id(7))))

    assert done.result.code == "not_found"
    assert an_id(7) in done.result.message
    assert world.store.nodes.get(an_id(1)) is not None


def test_a_node_named_twice_leaves_once() -> None:
    world = World()
    world.nodes(1)

    assert world.do(NodeDeregister(ids=(an_id(1), an_id(1)))).result.is_done
    assert len(world.store.nodes.rows) == 0


def test_a_slot_that_nobody_has_holds_nothing() -> None:
    world = World()
    world.nodes(1)

    assert world.store.allocations.slots_of_node(5).tolist() == []
    assert world.store.allocations.slots_of_node(-1).tolist() == []
    assert world.store.nodes.at(5) is None
