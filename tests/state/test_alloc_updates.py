from __future__ import annotations

import pytest

from fedsched.codec import dumps
from fedsched.model.alloc import Allocation, AllocDeploymentStatus, ClientStatus
from fedsched.model.evaluation import EvaluationStatus
from fedsched.state.fields import Command, pack, unpack
from fedsched.state.tables.alloc_columns import stored_fields
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite, evaluation_write
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from tests.builders import a_job, an_evaluation, an_id
from tests.state.test_plans import alloc
from tests.state.worlds import World, column, ids, problems


def a_world() -> World:
    world = World()
    world.nodes(2)
    world.register(a_job())
    world.place([1, 2, 3, 4], [0, 1, 0, 1])
    return world


def test_reports_of_clients_are_stored_with_their_health() -> None:
    world = a_world()
    client, sizes = pack([dumps({"ClientDescription": "up"}), b""])
    done = world.do(
        AllocStatusUpdate(
            ids=ids([1, 2]), statuses=bytes([2, 4]), healths=bytes([1, 2]), client=client, client_sizes=sizes
        )
    )

    first, second = alloc(world, 1), alloc(world, 2)
    assert (first.client_status, second.client_status) == (ClientStatus.RUNNING, ClientStatus.FAILED)
    assert first.client_description == "up"
    assert first.deployment_status is not None
    assert first.deployment_status.is_healthy
    assert second.deployment_status is not None
    assert second.deployment_status.is_unhealthy
    assert first.modify_index == world.index
    assert first.alloc_modify_index == world.index - 1
    assert done.result.value == {"updated": 2, "unknown": 0}
    assert done.changes.node_slots().tolist() == [0, 1]


def test_a_later_report_that_says_nothing_leaves_details_and_health_alone() -> None:
    world = a_world()
    client, sizes = pack([dumps({"ClientDescription": "up"})])
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02", healths=b"\x01", client=client, client_sizes=sizes))
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x03", healths=b"\x00"))

    found = alloc(world, 1)
    assert found.client_status is ClientStatus.COMPLETE
    assert found.client_description == "up"
    assert found.deployment_status is not None
    assert found.deployment_status.is_healthy


def test_of_several_reports_in_one_batch_the_last_one_counts() -> None:
    world = a_world()
    done = world.do(AllocStatusUpdate(ids=ids([1, 0x99, 1]), statuses=bytes([2, 2, 4])))

    assert alloc(world, 1).client_status is ClientStatus.FAILED
    assert done.result.value["unknown"] == 1
    assert world.do(AllocStatusUpdate(ids=ids([0x99]), statuses=b"\x02")).result.value["unknown"] == 1
    assert world.do(AllocStatusUpdate(ids=b"", statuses=b"")).result.value == {"updated": 0, "unknown": 0}


def test_the_summary_moves_with_the_status_but_ends_only_grow() -> None:
    world = a_world()
    for number, statuses in ((1, [2, 3, 2]), (2, [2, 4]), (3, [6])):
        for status in statuses:
            world.do(AllocStatusUpdate(ids=ids([number]), statuses=bytes([status])))

    counts = world.store.allocations.group_counts("default", "web", 3)["group"]
    assert counts._asdict() == {
        "live": 3,
        "queued": 0,
        "starting": 1,
        "running": 1,
        "complete": 1,
        "failed": 1,
        "lost": 0,
        "unknown": 1,
    }


@pytest.mark.parametrize(
    "command",
    [
        AllocStatusUpdate(ids=b"x", statuses=b"\x01"),
        AllocStatusUpdate(ids=ids([1]), statuses=b""),
        AllocStatusUpdate(ids=ids([1]), statuses=b"\x09"),
        AllocStatusUpdate(ids=ids([1]), statuses=b"\x01", healths=b"\x03"),
        AllocStatusUpdate(ids=ids([1]), statuses=b"\x01", healths=b"\x01\x01"),
        AllocStatusUpdate(ids=ids([1]), statuses=b"\x01", client=b"ab", client_sizes=column([1, 1])),
        AllocStatusUpdate(ids=ids([1]), statuses=b"\x01", client=b"ab", client_sizes=column([1])),
        AllocTransition(ids=b"x", flags=1),
        Reap(allocs=b"x"),
    ],
)
def test_batches_that_do_not_fit_change_nothing_and_raise_an_alarm(command: Command) -> None:
    world = a_world()
    done = world.do(command)

    assert done.alarm
    assert done.result.code == "bad_request"
    assert not done.changes


def test_a_wish_is_kept_until_an_evaluation_acts_on_it() -> None:
    world = a_world()
    wish = EvaluationWrite(id=an_id(5), job_id="web", triggered_by="node-drain")
    done = world.do(AllocTransition(ids=ids([1, 0x99]), flags=2, evaluations=(wish,)))
    world.do(AllocTransition(ids=ids([1]), flags=16))
    world.do(AllocTransition(ids=b"", flags=16))

    transition = alloc(world, 1).desired_transition
    assert (transition.migrate, transition.no_shutdown_delay, transition.reschedule) == (True, True, None)
    assert done.result.value == {"updated": 1, "unknown": 1}
    assert world.store.evaluations.row(an_id(5)) is not None


def test_reaped_allocations_leave_holes_that_are_used_again() -> None:
    world = a_world()
    client, sizes = pack([dumps({"ClientDescription": "up"})])
    world.do(AllocStatusUpdate(ids=ids([2]), statuses=b"\x03", client=client, client_sizes=sizes))
    done = world.do(Reap(allocs=ids([2, 3, 0x99])))
    assert done.result.value == {"allocs": 2, "evaluations": 0, "deployments": 0, "jobs": 0}
    assert done.changes.allocs[0].removed
    assert done.changes.allocs[0].jobs == (("default", "web"),)
    assert world.store.allocations.get(an_id(2)) is None

    world.place([5, 6, 7], [0, 0, 0])
    assert [world.store.allocations.slot_of(an_id(n)) for n in (5, 6, 7)] == [1, 2, 4]
    assert alloc(world, 5).client_description == ""
    assert world.store.allocations.page(10) == [0, 3, 1, 2, 4]
    counts = world.store.allocations.group_counts("default", "web", 3)["group"]
    assert (counts.complete, counts.live) == (1, 5)
    assert problems(world.store) == []


def test_many_of_one_job_are_reaped_at_once() -> None:
    world = a_world()
    world.place(list(range(10, 40)), [0] * 30)
    world.do(Reap(allocs=ids(list(range(10, 30)))))

    slots = world.store.allocations.slots_of_job("default", "web")
    assert [record.id for record in world.store.allocations.records(slots)] == [
        an_id(number) for number in (1, 2, 3, 4, *range(30, 40))
    ]
    assert problems(world.store) == []


def test_reaped_evaluations_are_gone() -> None:
    world = a_world()
    world.register(a_job(priority=3), evaluation=EvaluationWrite(id=an_id(5), job_id="web"))
    done = world.do(Reap(evaluations=(an_id(5), an_id(5), an_id(6))))

    assert done.result.value == {"allocs": 0, "evaluations": 1, "deployments": 0, "jobs": 0}
    assert world.store.evaluations.row(an_id(5)) is None


def test_a_list_goes_on_after_its_cursor_even_if_that_was_removed() -> None:
    world = a_world()
    world.place([5, 6], [0, 1])
    reader = world.store.allocations
    first = [reader.records(reader.columns.in_use(slot, slot + 1))[0] for slot in reader.page(2)]
    cursor = (first[-1].create_index, first[-1].id)
    assert [alloc.id for alloc in first] == [an_id(1), an_id(2)]
    assert reader.page(2, after=cursor) == [2, 3]

    world.do(Reap(allocs=ids([2])))
    assert reader.page(2, after=cursor) == [4, 5]
    last = (alloc(world, 6).create_index, an_id(6))
    assert reader.page(2, after=last) == []
    world.do(Reap(allocs=ids([6])))
    assert reader.page(2, after=last) == []
    assert World().store.allocations.page(5) == []


def test_an_id_is_found_by_its_first_digits() -> None:
    world = a_world()
    world.place([0x1234, 0x1235], [0, 1])
    reader = world.store.allocations

    assert list(reader.with_prefix(an_id(0x1234))) == [4]
    assert list(reader.with_prefix(an_id(0x1234)[:-1])) == [4, 5]
    assert list(reader.with_prefix("f")) == []
    assert len(list(reader.with_prefix(""))) == 6


def test_packed_bytes_come_apart_as_they_went_in() -> None:
    parts = [b"a", b"", b"ccc"]

    assert unpack(*pack(parts)) == parts
    assert unpack(*pack([])) == []
    with pytest.raises(ValueError, match="not a column"):
        unpack(b"a", b"123")


def ended(world: World, numbers: list[int]) -> None:
    world.do(AllocStatusUpdate(ids=ids(numbers), statuses=bytes([3] * len(numbers))))


def test_what_has_changed_since_somebody_looked_is_not_reaped() -> None:
    world = a_world()
    ended(world, [1, 2])
    seen_index = world.index
    world.do(AllocStatusUpdate(ids=ids([2]), statuses=bytes([2])))  # its client has come back with it

    done = world.do(Reap(allocs=ids([1, 2]), seen_index=seen_index))

    assert done.result.value["allocs"] == 1
    assert world.store.allocations.get(an_id(1)) is None
    assert world.store.allocations.get(an_id(2)) is not None


def test_what_is_alive_is_not_reaped_whatever_somebody_saw() -> None:
    world = a_world()

    assert world.do(Reap(allocs=ids([1]), seen_index=world.index)).result.value["allocs"] == 0


def test_the_evaluation_of_an_allocation_that_stays_stays_too() -> None:
    world = a_world()
    made = an_evaluation(0xE, status=EvaluationStatus.COMPLETE)
    other = an_evaluation(0xF, status=EvaluationStatus.COMPLETE)
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(made), evaluation_write(other))))
    ended(world, [1])

    done = world.do(Reap(allocs=ids([1, 2]), evaluations=(made.id, other.id), seen_index=world.index))

    assert (done.result.value["allocs"], done.result.value["evaluations"]) == (1, 1)
    assert world.store.evaluations.row(made.id) is not None


def test_an_evaluation_that_is_open_or_was_written_since_is_not_reaped() -> None:
    world = a_world()
    pending, done = an_evaluation(5), an_evaluation(6, status=EvaluationStatus.COMPLETE)
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(pending), evaluation_write(done))))
    seen_index = world.index
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(done),)))

    gone = world.do(Reap(evaluations=(pending.id, done.id), seen_index=seen_index)).result.value["evaluations"]

    assert gone == 0


def test_a_node_that_came_back_is_not_reaped() -> None:
    world = a_world()
    seen_index = world.index
    world.do(NodeUpsert(id=an_id(1), name="back"))

    world.do(NodeDeregister(ids=(an_id(1), an_id(2), an_id(0x99)), seen_index=seen_index))

    assert world.store.nodes.get(an_id(1)) is not None
    assert world.store.nodes.get(an_id(2)) is None


def test_a_client_says_when_it_found_out_about_health_and_that_is_kept() -> None:
    world = a_world()
    status = AllocDeploymentStatus(healthy=True, timestamp_ns=1_767_323_045_000_000_000)
    said, sizes = pack([stored_fields(Allocation(id="x", deployment_status=status), "deployment_status")])
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02", healths=b"\x01", client=said, client_sizes=sizes))
    first = alloc(world, 1).deployment_status
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02", healths=b"\x02"))
    second = alloc(world, 1).deployment_status

    assert first is not None
    assert second is not None
    assert (first.is_healthy, second.is_unhealthy) == (True, True)
    assert first.timestamp_ns == second.timestamp_ns == status.timestamp_ns
