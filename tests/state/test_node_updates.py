"""Nodes: what servers say of them stays beside what their clients say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fedsched.codec import to_bytes
from fedsched.model.alloc import ClientStatus
from fedsched.model.node import MAX_NODE_EVENTS, DrainStatus, DrainStrategy, Eligibility, Node, NodeStatus
from fedsched.state.apply import ApplyResult
from fedsched.state.tables.alloc_columns import CLIENT_CODES
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import (
    NodeDrainUpdate,
    NodeDrainWrite,
    NodeEligibilityUpdate,
    NodeRegister,
    NodeStatusUpdate,
    NodeStatusWrite,
)
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_job, a_node, an_id
from tests.state.worlds import World, ids

NODE = an_id(1)
STRATEGY = to_bytes(DrainStrategy(deadline_s=60.0))


def register(world: World, *, secret: bytes = b"hash", **fields: Any) -> ApplyResult:
    host = a_node(1, status=NodeStatus.INITIALIZING)
    return world.do(
        NodeRegister(
            id=NODE,
            name=host.name,
            datacenter="dc1",
            body=to_bytes(host),
            create_pool=True,
            secret_hash=secret,
            event=NodeEventWrite(message="Node registered"),
            **fields,
        )
    )


def status(world: World, new: str, *, message: str = "") -> ApplyResult:
    event = NodeEventWrite(message=message) if message else None
    update = NodeStatusWrite(id=NODE, status=new, event=event)  # type: ignore[arg-type]
    return world.do(NodeStatusUpdate(updates=(update,)))


def node_of(world: World) -> Node:
    row = world.store.nodes.get(NODE)
    assert row is not None
    return row.node()


def test_a_node_that_registers_again_keeps_status_eligibility_drain_and_events() -> None:
    world = World()
    first = register(world)
    status(world, "ready")
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)))
    again = register(world)

    assert (first.result.value["is_new"], again.result.value["is_new"]) == (True, False)
    node = node_of(world)
    assert (node.status, node.scheduling_eligibility, node.drain) == (NodeStatus.READY, Eligibility.INELIGIBLE, True)
    assert [event.message for event in node.events] == ["Node registered", "Node registered"]
    assert node.create_index == first.result.index


def test_a_node_with_another_secret_is_refused() -> None:
    world = World()
    register(world)

    assert register(world, secret=b"other").result.code == "bad_request"
    world.do(NodeUpsert(id=NODE, name="kept"))
    row = world.store.nodes.get(NODE)
    assert row is not None
    assert row.secret_hash == b"hash"


def test_registering_makes_a_missing_pool_and_leaves_a_known_one_alone() -> None:
    world = World()
    made = register(world, node_pool="gpu")
    register(world, node_pool="gpu")

    pool = world.store.places.node_pools.get("gpu")
    assert pool is not None
    assert pool.create_index == pool.modify_index == made.result.index


def test_a_node_keeps_its_latest_events() -> None:
    world = World()
    register(world)
    for number in range(MAX_NODE_EVENTS + 3):
        status(world, "ready", message=f"beat {number}")

    messages = [event.message for event in node_of(world).events]
    assert messages == [f"beat {number}" for number in range(3, MAX_NODE_EVENTS + 3)]


def test_going_silent_is_noted_once_until_the_node_is_back() -> None:
    world = World()
    register(world)
    status(world, "ready")
    missed = status(world, "disconnected").result.index
    status(world, "down")
    assert node_of(world).last_missed_heartbeat_index == missed

    status(world, "initializing")
    world.do(AllocStatusUpdate(ids=b"", statuses=b"", synced_nodes=(NODE, an_id(9))))

    node = node_of(world)
    assert node.last_alloc_update_index > node.last_missed_heartbeat_index


def test_many_nodes_change_status_in_one_entry_and_unknown_ones_are_counted() -> None:
    world = World()
    world.nodes(3)
    updates = tuple(NodeStatusWrite(id=an_id(number), status="down") for number in (1, 2, 3, 9))
    evaluation = EvaluationWrite(id=an_id(5), job_id="web")
    done = world.do(NodeStatusUpdate(updates=updates, evaluations=(evaluation,)))

    assert done.result.value == {"updated": 3, "unknown": 1}
    assert [row.id for row in world.store.nodes.with_status("down")] == [an_id(1), an_id(2), an_id(3)]
    assert world.store.evaluations.row(an_id(5)) is not None


def test_a_draining_node_cannot_become_eligible() -> None:
    world = World()
    register(world)
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)))

    assert "is draining" in world.do(NodeEligibilityUpdate(ids=(NODE,), eligibility="eligible")).result.message
    assert world.do(NodeEligibilityUpdate(ids=(an_id(9),), eligibility="eligible")).result.code == "not_found"


@pytest.mark.parametrize(("is_complete", "ended"), [(True, DrainStatus.COMPLETE), (False, DrainStatus.CANCELLED)])
def test_the_end_of_a_drain_keeps_the_node_ineligible_and_says_how_it_went(
    is_complete: bool, ended: DrainStatus
) -> None:
    world = World()
    register(world)
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY, meta={"why": "rest"}),)))
    started = node_of(world).last_drain
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)))  # changed, not begun again
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, is_complete=is_complete),)))

    node = node_of(world)
    assert (node.drain, node.scheduling_eligibility) == (False, Eligibility.INELIGIBLE)
    assert node.last_drain is not None
    assert started is not None
    assert (node.last_drain.status, node.last_drain.started_at_ns) == (ended, started.started_at_ns)
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, mark_eligible=True),)))
    assert node_of(world).is_ready is (node.status is NodeStatus.READY)
    assert node_of(world).scheduling_eligibility is Eligibility.ELIGIBLE


def test_a_drain_of_nobody_or_with_an_unreadable_strategy_changes_nothing() -> None:
    world = World()
    register(world)

    assert world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=an_id(9)),))).result.code == "not_found"
    assert world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=b"\xff"),))).alarm
    assert not node_of(world).drain


def test_deregistering_stores_the_evaluations_that_follow() -> None:
    world = World()
    register(world)
    world.do(NodeDeregister(ids=(NODE,), evaluations=(EvaluationWrite(id=an_id(5), job_id="web"),)))

    assert world.store.evaluations.row(an_id(5)) is not None
    assert world.store.nodes.of_slot(0) is None


def test_a_node_that_refused_too_many_plans_is_set_aside_by_the_plan() -> None:
    world = World()
    register(world)
    world.register(a_job())
    row = world.store.jobs.row("default", "web")
    assert row is not None
    world.do(
        PlanApply(
            namespace="default",
            job_id="web",
            job_create_index=row.create_index,
            job_version=0,
            evaluation_id=an_id(5),
            snapshot_index=world.index,
            ineligible_nodes=(NODE, an_id(9)),
        )
    )

    node = node_of(world)
    assert node.scheduling_eligibility is Eligibility.INELIGIBLE
    assert "plan rejections" in node.events[-1].message


def test_allocations_whose_job_is_gone_are_stopped_with_the_report() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job())
    world.place([1], [0])
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02", stopped=ids([1, 7])))

    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert alloc.desired_status.value == "stop"
    assert world.do(AllocStatusUpdate(ids=b"", statuses=b"", stopped=b"odd")).alarm


def test_whoever_waits_for_a_node_hears_of_every_change_of_it() -> None:
    world = World()
    register(world)
    status(world, "ready")
    assert (node_of(world).modify_index, node_of(world).status_updated_at_s) == (
        world.index,
        world.store.time_ns // 10**9,
    )
    assert node_of(world).last_missed_heartbeat_index == 0  # who comes up was not missed

    for command in (
        NodeEligibilityUpdate(ids=(NODE,), eligibility="ineligible"),
        NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)),
        NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, mark_eligible=True),)),
        AllocStatusUpdate(ids=b"", statuses=b"", synced_nodes=(NODE,)),
    ):
        world.do(command)
        assert node_of(world).modify_index == world.index
    told = world.index
    world.do(NodeEligibilityUpdate(ids=(NODE,), eligibility="eligible"))

    assert node_of(world).modify_index == told  # it was eligible already


def test_a_draining_node_may_be_called_what_it_is_already() -> None:
    world = World()
    register(world)
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)))

    assert world.do(NodeEligibilityUpdate(ids=(NODE,), eligibility="ineligible")).result.is_done


def test_the_evaluations_that_follow_are_stored_with_whatever_a_node_does() -> None:
    world = World()
    writes = iter([(EvaluationWrite(id=an_id(number), job_id="web"),) for number in range(0xA1, 0xA6)])
    register(world, evaluations=next(writes))
    world.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=NODE, status="ready"),), evaluations=next(writes)))
    world.do(NodeEligibilityUpdate(ids=(NODE,), eligibility="ineligible", evaluations=next(writes)))
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),), evaluations=next(writes)))
    world.do(NodeDeregister(ids=(NODE,), evaluations=next(writes)))

    assert [row.id for row in world.store.evaluations.rows.scan()] == [an_id(number) for number in range(0xA1, 0xA6)]


def test_a_drain_that_was_changed_or_called_off_meanwhile_is_not_ended_as_done() -> None:
    world = World()
    register(world)
    other = to_bytes(DrainStrategy(deadline_s=7.0))
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=other),)))

    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY, is_complete=True),)))
    assert node_of(world).drain

    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, mark_eligible=True),)))
    before = node_of(world)
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=other, is_complete=True),)))
    assert node_of(world) == before


@pytest.mark.parametrize(
    ("client", "drains"), [("pending", True), ("running", True), ("unknown", True), ("complete", False)]
)
def test_a_drain_is_not_ended_by_who_has_not_seen_what_came_since_unless_it_is_over(client: str, drains: bool) -> None:
    world = World()
    register(world)
    status(world, "ready")
    world.register(a_job())
    world.do(NodeDrainUpdate(updates=(NodeDrainWrite(id=NODE, strategy=STRATEGY),)))
    seen = world.index
    world.place([1], [0])
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=bytes([CLIENT_CODES[ClientStatus(client)]])))
    done = NodeDrainWrite(id=NODE, strategy=STRATEGY, is_complete=True, as_of=seen)

    world.do(NodeDrainUpdate(updates=(done,)))

    assert node_of(world).drain is drains
    world.do(NodeDrainUpdate(updates=(structs.replace(done, as_of=world.index),)))
    assert not node_of(world).drain
