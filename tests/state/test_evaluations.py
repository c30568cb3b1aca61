from __future__ import annotations

from fedsched.model.evaluation import EvaluationStatus
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite, evaluation_write
from tests.builders import a_job, an_evaluation, an_id
from tests.state.worlds import World


def upsert(world: World, *items: EvaluationWrite) -> None:
    assert world.do(EvaluationsUpsert(evaluations=items)).result.is_done


def test_an_evaluation_reads_back_as_it_was_stored() -> None:
    world = World()
    evaluation = an_evaluation(1, status_description="because", create_time_ns=5, class_eligibility={"c1": False})
    upsert(world, evaluation_write(evaluation))

    stored = world.store.evaluations.get(an_id(1))
    assert stored is not None
    assert (stored.create_index, stored.modify_index, stored.create_time_ns) == (1, 1, 5)
    assert stored.class_eligibility == {"c1": False}
    assert stored.status_description == "because"
    assert world.store.evaluations.get("nobody") is None


def test_an_update_keeps_when_it_was_created() -> None:
    world = World()
    upsert(world, evaluation_write(an_evaluation(1, create_time_ns=5)))
    upsert(world, evaluation_write(an_evaluation(1, create_time_ns=9, status=EvaluationStatus.COMPLETE)))

    row = world.store.evaluations.row(an_id(1))
    assert row is not None
    assert (row.create_index, row.modify_index, row.create_time_ns, row.status) == (1, 2, 5, "complete")


def test_a_successful_evaluation_cancels_the_blocked_ones_of_its_job() -> None:
    world = World()
    blocked = evaluation_write(an_evaluation(1, status=EvaluationStatus.BLOCKED))
    other = evaluation_write(an_evaluation(2, job=a_job("db"), status=EvaluationStatus.BLOCKED))
    pending = evaluation_write(an_evaluation(4, status=EvaluationStatus.PENDING))
    upsert(world, blocked, other, pending)
    upsert(world, evaluation_write(an_evaluation(3, status=EvaluationStatus.COMPLETE)))

    cancelled = world.store.evaluations.get(an_id(1))
    assert cancelled is not None
    assert cancelled.status is EvaluationStatus.CANCELLED
    assert cancelled.status_description == f'evaluation "{an_id(3)}" successful'
    assert [row.id for row in world.store.evaluations.with_status("blocked")] == [an_id(2)]
    assert [row.id for row in world.store.evaluations.with_status("pending")] == [an_id(4)]


def test_one_that_could_not_place_everything_cancels_nothing() -> None:
    world = World()
    upsert(world, EvaluationWrite(id=an_id(1), job_id="web", status="blocked"))
    upsert(world, EvaluationWrite(id=an_id(2), job_id="web", status="complete", failed_groups=True))

    assert [row.id for row in world.store.evaluations.with_status("blocked")] == [an_id(1)]


def test_the_latest_evaluation_says_how_many_are_queued() -> None:
    world = World()
    world.register(a_job())
    upsert(world, evaluation_write(an_evaluation(1, queued_allocations={"group": 4})))
    assert world.store.allocations.group_counts("default", "web", 1)["group"].queued == 4

    upsert(world, evaluation_write(an_evaluation(2, queued_allocations={"group": 0})))
    assert world.store.allocations.group_counts("default", "web", 1)["group"].queued == 0


def test_evaluations_are_listed_by_job_and_by_namespace() -> None:
    world = World()
    for number in (5, 3, 4):
        upsert(world, evaluation_write(an_evaluation(number)))

    assert [row.id for row in world.store.evaluations.of_job("default", "web")] == [an_id(5), an_id(3), an_id(4)]
    rows = world.store.evaluations.rows
    assert [row.id for row in rows.by("namespace", "default")] == [an_id(3), an_id(4), an_id(5)]
    assert [row.id for row in rows.by("namespace", "default", start=((an_id(4),),))] == [an_id(4), an_id(5)]
    assert [row.id for row in rows.by("namespace", "default", back=True)] == [an_id(5), an_id(4), an_id(3)]
    assert list(rows.by("namespace", "prod")) == []
