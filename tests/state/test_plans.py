from __future__ import annotations

from typing import Any

import pytest

from fedsched.codec import dumps
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus, RescheduleTracker
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources
from fedsched.state.fields import pack
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag, stored_fields
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from fedsched.state.tables.plans import OfficeBegin, PlacedGroup, StoppedBatch, UpdatedGroup
from tests.builders import a_deployment, a_group, a_job, an_id
from tests.state.worlds import World, column, ids, placed_group, problems


def a_world(*, nodes: int = 3) -> World:
    world = World()
    world.nodes(nodes)
    world.register(a_job(groups=[a_group("group", count=3), a_group("other")]))
    return world


def alloc(world: World, number: int) -> Allocation:
    found = world.store.allocations.get(an_id(number))
    assert found is not None
    return found


def test_placed_allocations_know_their_job_group_node_and_place() -> None:
    world = a_world()
    done = world.plan(
        placed=(placed_group([7, 8], [2, 0]), placed_group([9], [1], group="other")), deployment_id=an_id(0xD)
    )

    found = alloc(world, 8)
    assert found.name == "web.group[1]"
    assert (found.namespace, found.job_id, found.task_group) == ("default", "web", "group")
    assert (found.node_id, found.node_name) == (an_id(1), "node-1")
    assert (found.eval_id, found.deployment_id) == (an_id(0xE), an_id(0xD))
    assert (found.desired_status, found.client_status) == (DesiredStatus.RUN, ClientStatus.PENDING)
    assert found.create_index == found.modify_index == found.alloc_modify_index == world.index
    assert found.create_time_ns == found.modify_time_ns == world.store.time_ns
    assert alloc(world, 9).name == "web.other[0]"
    assert done.result.value["placed"] == 3
    assert [change.ids for change in done.changes.allocs] == [ids([7, 8]), ids([9])]
    assert world.store.table_index("allocations") == world.index


def test_what_a_group_shares_and_what_one_has_of_its_own_come_together() -> None:
    world = a_world()
    resources = AllocatedResources(shared=AllocatedSharedResources(disk_mb=300))
    shared = stored_fields(
        Allocation(id="x", allocated_resources=resources, client_description="no"), "allocated_resources"
    )
    own, sizes = pack([stored_fields(Allocation(id="x", reschedule_tracker=RescheduleTracker()), "reschedule_tracker")])
    world.plan(
        placed=(
            placed_group(
                [1, 2], [0, 0], shared=shared, own_at=column([1]), own=own, own_sizes=sizes, flags=int(Flag.CANARY)
            ),
        )
    )

    assert alloc(world, 1).allocated_resources == resources
    assert alloc(world, 1).client_description == ""
    assert alloc(world, 1).reschedule_tracker is None
    assert alloc(world, 2).allocated_resources == resources
    assert alloc(world, 2).reschedule_tracker == RescheduleTracker()
    assert alloc(world, 2).is_canary


def test_a_replacement_and_its_predecessor_know_each_other() -> None:
    world = a_world()
    world.place([1, 2], [0, 0])
    world.plan(placed=(placed_group([3, 4, 5], [1, 1, 1], previous=ids([1]) + bytes(16) + ids([0x99])),))
    world.plan(placed=(placed_group([6], [1], previous=ids([3])),))

    assert alloc(world, 1).next_allocation == an_id(3)
    assert alloc(world, 1).alloc_modify_index == world.index - 1
    assert (alloc(world, 3).previous_allocation, alloc(world, 3).next_allocation) == (an_id(1), an_id(6))
    assert alloc(world, 4).previous_allocation == ""
    assert alloc(world, 5).previous_allocation == an_id(0x99)
    assert problems(world.store) == []


def test_a_plan_is_carried_out_once_however_often_it_comes() -> None:
    world = a_world()
    world.place([1, 2], [0, 1])
    again = world.place([1, 2, 3], [0, 1, 2])

    assert again.result.value == {
        "placed": 1,
        "changed": 0,
        "skipped": 2,
        "placements_skipped": 2,
        "refused_node_slots": [],
    }
    assert len(world.store.allocations) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        JobDeregister(namespace="default", id="web"),
        JobDeregister(namespace="default", id="web", purge=True),
    ],
)
def test_nothing_is_placed_for_a_job_that_was_stopped_or_purged(spoil: JobDeregister) -> None:
    world = a_world()
    world.place([1], [0])
    row = world.store.jobs.row("default", "web")
    assert row is not None
    world.do(spoil)
    done = world.plan(
        job_create_index=row.create_index,
        placed=(placed_group([2], [0]),),
        updated=(UpdatedGroup(group="group", ids=ids([1])),),
        stopped=(StoppedBatch(ids=ids([1])),),
    )

    assert done.result.value["placed"] == 0
    assert done.result.value["skipped"] == 2
    assert alloc(world, 1).desired_status is DesiredStatus.STOP


def test_nothing_is_placed_for_a_version_that_is_no_longer_kept() -> None:
    world = a_world()

    assert world.plan(job_version=5, placed=(placed_group([1], [0]),)).result.value["skipped"] == 1


def test_placements_on_nodes_that_left_or_changed_hands_are_refused() -> None:
    world = a_world()
    world.place([9], [1])
    known_until = world.index
    world.do(NodeDeregister(ids=(an_id(1), an_id(2))))
    world.do(NodeUpsert(id=an_id(7)))
    done = world.plan(placed=(placed_group([1, 2, 3, 4], [0, 1, 2, 77]),), snapshot_index=known_until)

    assert done.result.value["placed"] == 1
    assert done.result.value["refused_node_slots"] == [0, 1, 77]
    assert alloc(world, 3).node_id == an_id(3)
    assert done.changes.allocs[0].ids == ids([3])
    assert world.plan(placed=(placed_group([1], [0]),)).result.value["placed"] == 1


def test_nothing_can_be_placed_without_nodes() -> None:
    world = a_world(nodes=0)

    assert world.place([1], [0]).result.value["refused_node_slots"] == [0]


def test_a_plan_of_an_earlier_leadership_is_refused_whole() -> None:
    world = a_world()
    world.place([1], [0])
    world.do(OfficeBegin(term=4))
    stale = world.plan(term=3, stopped=(StoppedBatch(ids=ids([1])),))

    assert stale.result.code == "conflict"
    assert alloc(world, 1).desired_status is DesiredStatus.RUN
    assert world.plan(term=4, stopped=(StoppedBatch(ids=ids([1])),)).result.is_done


def test_a_stop_says_why_and_leaves_the_client_its_status_unless_it_is_lost() -> None:
    world = a_world()
    world.place([1, 2], [0, 1])
    world.plan(
        stopped=(
            StoppedBatch(ids=ids([1, 0x99]), fields=dumps({"DesiredDescription": "not needed"})),
            StoppedBatch(ids=ids([2]), desired=3, client_status=5),
        )
    )

    assert (alloc(world, 1).desired_status, alloc(world, 1).client_status) == (DesiredStatus.STOP, ClientStatus.PENDING)
    assert alloc(world, 1).desired_description == "not needed"
    assert (alloc(world, 2).desired_status, alloc(world, 2).client_status) == (DesiredStatus.EVICT, ClientStatus.LOST)
    counts = world.store.allocations.group_counts("default", "web", 4)["group"]
    assert (counts.live, counts.starting, counts.lost) == (0, 1, 1)


def test_an_update_in_place_moves_allocations_to_the_new_version() -> None:
    world = a_world()
    world.place([1, 2], [0, 1])
    created = world.index
    world.register(a_job(priority=77))
    done = world.plan(updated=(UpdatedGroup(group="group", ids=ids([1])), UpdatedGroup(group="other", ids=ids([2]))))

    assert done.result.value["changed"] == 1
    assert done.result.value["skipped"] == 1
    assert [world.store.allocations.origin_of(slot).job_version for slot in (0, 1)] == [1, 0]
    assert (alloc(world, 1).create_index, alloc(world, 1).modify_index) == (created, world.index)
    assert world.plan(updated=(UpdatedGroup(group="group", ids=ids([2])),)).result.value["changed"] == 1
    assert world.plan(updated=(UpdatedGroup(group="group", ids=b""),)).result.value["changed"] == 0
    assert problems(world.store) == []


def test_deployments_and_evaluations_of_a_plan_are_stored_with_it() -> None:
    from fedsched.state.tables.deployments import deployment_write

    world = a_world()
    world.plan(
        deployments=(deployment_write(a_deployment(5)),),
        evaluations=(EvaluationWrite(id=an_id(6), job_id="web", triggered_by="preemption"),),
    )

    assert world.store.deployments.get(an_id(5)) is not None
    assert world.store.evaluations.get is not None
    row = world.store.evaluations.row(an_id(6))
    assert row is not None
    assert row.triggered_by == "preemption"


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": b"short"},
        {"node_slots": b""},
        {"name_indexes": column([1, 2])},
        {"name_indexes": column([1 << 31])},
        {"ids": ids([1, 1]), "node_slots": column([0, 0]), "name_indexes": column([0, 1])},
        {"previous": b"x"},
        {"own_at": column([0])},
        {"own": b"x", "own_sizes": b"abc", "own_at": column([0])},
        {"own": b"x", "own_sizes": column([1]), "own_at": column([5])},
        {"own": b"xy", "own_sizes": column([1, 1]), "own_at": column([0, 0])},
        {"own": b"xy", "own_sizes": column([1]), "own_at": column([0])},
    ],
)
def test_columns_that_do_not_fit_change_nothing_and_raise_an_alarm(fields: dict[str, Any]) -> None:
    world = a_world()
    world.place([9], [0])
    whole: dict[str, Any] = {"group": "group", "ids": ids([1]), "node_slots": column([0]), "name_indexes": column([0])}
    before = world.store.digest_parts()
    done = world.plan(placed=(PlacedGroup(**(whole | fields)),), stopped=(StoppedBatch(ids=ids([9])),))

    assert done.result.code == "bad_request"
    assert done.alarm
    assert not done.changes
    assert world.store.digest_parts() | {"time_ns": 0} == before | {"time_ns": 0}


def test_ids_that_share_their_first_half_are_still_different_ids() -> None:
    world = a_world()
    # The builders' ids differ in their last digits only; equal first halves must not be taken for equal ids.
    assert world.place([1, 2, 3], [0, 0, 0]).result.value["placed"] == 3


def test_stored_details_that_cannot_be_read_do_not_hide_the_allocation() -> None:
    world = a_world()
    world.plan(placed=(placed_group([1], [0], shared=b"\x01"), placed_group([2], [0], shared=dumps({"TaskStates": 7}))))

    for number in (1, 2):
        assert "cannot be read" in alloc(world, number).client_description
        assert alloc(world, number).node_id == an_id(1)


def test_a_plan_never_says_for_the_client_that_something_runs_or_has_ended() -> None:
    world = a_world()
    world.place([1, 2, 3, 4], [0, 1, 0, 1])
    codes = [CLIENT_CODES[ClientStatus.RUNNING], CLIENT_CODES[ClientStatus.COMPLETE], CLIENT_CODES[ClientStatus.FAILED]]
    world.plan(
        stopped=tuple(StoppedBatch(ids=ids([number]), client_status=code) for number, code in enumerate(codes, 1))
    )
    world.plan(stopped=(StoppedBatch(ids=ids([4]), desired=1, client_status=CLIENT_CODES[ClientStatus.UNKNOWN]),))

    assert [alloc(world, number).client_status for number in (1, 2, 3)] == [ClientStatus.PENDING] * 3
    assert (alloc(world, 4).desired_status, alloc(world, 4).client_status) == ("run", "unknown")


def test_what_a_client_reported_of_its_tasks_outlives_updates_and_stops_by_plans() -> None:
    world = a_world()
    world.place([1], [0])
    report, sizes = pack([dumps({"TaskStates": {"web": {"State": "running", "Restarts": 2}}})])
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02", client=report, client_sizes=sizes))
    world.register(a_job(priority=77))

    world.plan(updated=(UpdatedGroup(group="group", ids=ids([1])),))
    assert alloc(world, 1).task_states["web"].restarts == 2
    world.plan(stopped=(StoppedBatch(ids=ids([1]), fields=dumps({"DesiredDescription": "enough"})),))

    assert alloc(world, 1).task_states["web"].restarts == 2
    assert alloc(world, 1).client_status is ClientStatus.RUNNING


def test_every_plan_moves_the_index_of_its_evaluation_so_that_the_next_one_of_the_job_waits_for_it() -> None:
    world = a_world()
    world.do(EvaluationsUpsert(evaluations=(EvaluationWrite(id=an_id(0xE), job_id="web"),)))

    def index_after(**fields: Any) -> int:
        world.plan(**fields)
        row = world.store.evaluations.row(an_id(0xE))
        assert row is not None
        return row.modify_index

    assert index_after(placed=(placed_group([1], [0]),)) == world.index
    assert index_after(stopped=(StoppedBatch(ids=ids([1])),)) == world.index
    end = EvaluationWrite(id=an_id(0xE), job_id="web", status="complete")
    assert index_after(placed=(placed_group([2], [0]),), ends=(end,)) == world.index
    assert world.store.evaluations.row(an_id(0xE)).status == "complete"  # type: ignore[union-attr]


def test_an_evaluation_does_not_end_with_a_plan_of_which_something_was_left_out() -> None:
    world = a_world()
    world.do(EvaluationsUpsert(evaluations=(EvaluationWrite(id=an_id(0xE), job_id="web"),)))
    world.do(NodeDeregister(ids=(an_id(2),)))
    end = EvaluationWrite(id=an_id(0xE), job_id="web", status="complete")

    world.plan(placed=(placed_group([1, 2], [0, 1]),), ends=(end,))

    row = world.store.evaluations.row(an_id(0xE))
    assert row is not None
    assert (row.status, row.modify_index) == ("pending", world.index)
