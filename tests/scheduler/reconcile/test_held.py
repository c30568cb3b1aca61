"""Allocations as reconcilers see them, made from a real store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsched.codec import dumps
from fedsched.model.alloc import Allocation
from fedsched.model.ids import uuid_bytes
from fedsched.model.node import NodeStatus
from fedsched.scheduler.reconcile.held import Held, Roster, Taint, by_name, taints_of
from fedsched.scheduler.reconcile.service import Ground, reconcile
from fedsched.state.columns import Slots
from fedsched.state.fields import pack
from fedsched.state.store import Store
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from fedsched.state.tables.plans import StoppedBatch
from tests.builders import a_group, a_job, an_evaluation, an_id
from tests.scheduler.reconcile.kit import a_service, alloc, allocs, held_of, new_ids, roster_of, stays
from tests.state.worlds import World, ids, placed_group

pytestmark = pytest.mark.plans_by_hand

JOB = a_job(groups=[a_group(count=3)])
FIRST = 0xA000


@pytest.fixture
def world() -> World:
    """A job with three allocations on three nodes, and an evaluation of it."""
    world = World()
    world.register(JOB)
    nodes = world.nodes(3)
    world.place([FIRST, FIRST + 1, FIRST + 2], nodes)
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(9, job=JOB)),)))
    return world


def roster(store: Store, load: Any = None) -> Roster:
    view = store.view_for(an_id(9))
    assert view is not None
    return Roster.of(view, load or store.allocations.records)


def everyone(found: Roster) -> list[Held]:
    return found.held(np.arange(len(found)))


def test_columns_say_what_there_is(world: World) -> None:
    helds = everyone(roster(world.store))

    assert [held.id for held in helds] == [an_id(FIRST), an_id(FIRST + 1), an_id(FIRST + 2)]
    assert [held.name_index for held in helds] == [0, 1, 2]
    assert [held.record.id for held in helds] == [held.id for held in helds]
    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert {held.version for held in helds} == {(job.create_index, job.version)}
    assert {held.group for held in helds} == {"group"}
    assert [held.slot for held in helds] == [0, 1, 2]


def test_a_calm_job_is_recognised_without_reading_a_record(world: World) -> None:
    def must_not(slots: Slots) -> list[Allocation]:
        raise AssertionError("no record is needed")

    store = world.store
    running = bytes([CLIENT_CODES["running"]] * 3)  # type: ignore[index]
    world.do(AllocStatusUpdate(ids=ids([FIRST, FIRST + 1, FIRST + 2]), statuses=running))
    job = store.jobs.get("default", "web")
    ground = Ground(
        evaluation=an_evaluation(9, job=JOB),
        job=job,
        roster=roster(store, must_not),
        taints=taints_of(store.nodes, [0, 1, 2]),
        deployment=None,
        now_ns=store.time_ns,
        new_id=new_ids(),
        can_stay=stays,
        job_at=lambda *_: None,
        deployments=lambda: (),
    )

    wanted = reconcile(ground)

    assert wanted.is_calm
    assert wanted.groups["group"].desired.ignore == 3


def test_flags_and_health_come_from_columns(world: World) -> None:
    world.do(AllocTransition(ids=ids([FIRST]), flags=int(Flag.MIGRATE | Flag.RESCHEDULE)))
    world.do(
        AllocStatusUpdate(
            ids=ids([FIRST, FIRST + 1]),
            statuses=bytes([CLIENT_CODES["failed"], CLIENT_CODES["running"]]),  # type: ignore[index]
            healths=bytes([2, 1]),
        )
    )

    first, second, third = everyone(roster(world.store))

    assert first.should_migrate
    assert first.should_reschedule
    assert not first.must_reschedule
    assert first.is_unhealthy
    assert first.is_client_terminal
    assert not first.is_server_terminal
    assert second.is_healthy
    assert not third.is_healthy
    assert not third.is_unhealthy


def test_what_lies_beyond_the_columns_is_read_when_it_is_asked_for(world: World) -> None:
    states = [{"Field": 0, "Value": "unknown", "Time": 77}]
    fields = dumps({"AllocStates": states, "FollowupEvalID": an_id(5)})
    world.plan(stopped=(StoppedBatch(ids=ids([FIRST]), desired=1, client_status=6, fields=fields),))
    report = dumps({"TaskStates": {"web": {"State": "dead", "FinishedAt": 5}}})
    client, sizes = pack([report])
    world.do(
        AllocStatusUpdate(
            ids=ids([FIRST + 1]),
            statuses=bytes([CLIENT_CODES["complete"]]),
            client=client,
            client_sizes=sizes,  # type: ignore[index]
        )
    )

    first, second, third = everyone(roster(world.store))

    assert first.needs_reconnect
    assert first.unknown_since_ns == 77
    assert first.followup_id == an_id(5)
    assert second.ran_successfully
    assert not third.needs_reconnect
    assert (third.followup_id, third.next_id, third.tracker, third.unknown_since_ns) == ("", "", None, 0)


def test_links_to_successors_are_seen(world: World) -> None:
    group = placed_group([FIRST + 9], [0], previous=uuid_bytes(an_id(FIRST)))
    world.plan(placed=(group,))

    by_id = {held.id: held for held in everyone(roster(world.store))}

    assert by_id[an_id(FIRST)].next_id == an_id(FIRST + 9)
    assert by_id[an_id(FIRST + 9)].next_id == ""


def test_taints_come_from_node_rows(world: World) -> None:
    world.do(NodeUpsert(id=an_id(1), name="node-1", status=NodeStatus.DOWN.value))
    world.do(NodeUpsert(id=an_id(2), name="node-2", status=NodeStatus.DISCONNECTED.value, draining=True))
    world.do(NodeDeregister(ids=(an_id(3),)))
    world.do(NodeUpsert(id=an_id(4), name="node-4", status=NodeStatus.READY.value, draining=True))
    world.do(NodeUpsert(id=an_id(5), name="node-5", status=NodeStatus.INITIALIZING.value, eligibility="ineligible"))

    taints = taints_of(world.store.nodes, [0, 1, 2, 3, 4, 9])

    assert taints[[0, 1, 2, 3, 4, 9]].tolist() == [
        Taint.DOWN,
        Taint.DISCONNECTED,
        Taint.MISSING,
        Taint.DRAINING,
        Taint.COMING,
        Taint.MISSING,
    ]
    assert len(taints_of(world.store.nodes, [])) == 0


def test_a_node_slot_that_nobody_knows_is_missing() -> None:
    found = roster_of([alloc(0, a_service(), node=7)])

    assert found.taint(np.zeros(3, dtype=np.uint8)).tolist() == [Taint.MISSING]


def test_records_are_read_once() -> None:
    record = alloc(0, a_service())
    reads: list[int] = []
    plain = roster_of([record])

    def load(slots: Slots) -> list[Allocation]:
        reads.extend(slots.tolist())
        return [record]

    found = Roster(plain.slots, plain.rows, {one.ref: one for one in plain.origins}, load)
    held = found.held(np.array([0]))[0]

    assert held.record is held.record
    assert reads == [0]


def test_order_is_by_place_then_by_age() -> None:
    job = a_service()
    helds = everyone(roster_of([alloc(0, job, index=2), alloc(1, job, index=0), alloc(2, job, index=2)]))

    assert [held.at for held in by_name(reversed(helds))] == [1, 0, 2]


def test_groups_are_told_apart() -> None:
    job = a_job(groups=[a_group("b"), a_group("a")])
    found = roster_of([alloc(0, job, group="b"), alloc(1, job, group="a"), alloc(2, job, group="b")])

    assert {name: where.tolist() for name, where in found.by_group().items()} == {"a": [1], "b": [0, 2]}
    assert roster_of([]).by_group() == {}


def test_versions_are_told_apart() -> None:
    old, new = a_service(version=1), a_service(version=2)
    found = roster_of([*allocs(old, 2), *allocs(new, 1)])

    assert found.with_version((5, 2)).tolist() == [False, False, True]
    assert found.older_than((5, 2)).tolist() == [True, True, False]
    assert found.older_than((6, 0)).tolist() == [True, True, True]


def test_two_held_are_equal_only_if_they_are_the_same() -> None:
    record = alloc(0, a_service())

    assert held_of(record) != held_of(record)
    assert len({held_of(record), held_of(record)}) == 2
