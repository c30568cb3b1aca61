"""System and sysbatch jobs: something on every node that can take it."""

from __future__ import annotations

from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus, DesiredStatus
from fedsched.model.constraint import Constraint
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.node import NodeStatus
from fedsched.model.policies import UpdateStrategy
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_task
from tests.scheduler.test_generic import a_numbered, a_simple, some_nodes
from tests.scheduler.toy_region import ToyRegion

GPU = Constraint(l_target="${node.class}", operand="=", r_target="gpu")


def a_system(**fields: object):  # type: ignore[no-untyped-def]
    fields.setdefault("reschedule_policy", None)
    fields.setdefault("migrate", None)
    return a_simple(1, type="system", **fields)  # type: ignore[arg-type]


def test_a_system_job_runs_once_on_every_node() -> None:
    region = ToyRegion(some_nodes(4))
    job = a_system()

    allocs = region.go(job)

    assert region.by_node(job) == {"n1": 1, "n2": 1, "n3": 1, "n4": 1}
    assert {one.name for one in allocs} == {"web.group[0]"}


def test_a_node_that_joins_gets_it_too() -> None:
    region = ToyRegion(some_nodes(1))
    job = a_system()
    region.go(job)
    region.do(node_upsert(a_numbered(2)))

    region.run(region.evaluate(job))

    assert region.by_node(job) == {"n1": 1, "n2": 1}


def test_a_node_that_cannot_run_it_is_no_failure() -> None:
    region = ToyRegion([*some_nodes(2), a_numbered(3, node_class="gpu", computed_class="g")])
    evaluation = region.register(a_system(constraints=(GPU,)))

    region.run(evaluation)

    assert region.by_node(a_system()) == {"n3": 1}
    done = region.evaluation(evaluation.id)
    assert (done.status, done.failed_tg_allocs, region.blocked(a_system())) == (EvaluationStatus.COMPLETE, {}, [])


def test_with_no_node_at_all_the_filter_is_reported() -> None:
    region = ToyRegion(some_nodes(2))
    evaluation = region.register(a_system(constraints=(GPU,)))

    region.run(evaluation)

    metric = region.evaluation(evaluation.id).failed_tg_allocs["group"]
    assert metric.constraint_filtered == {"${node.class} = gpu": 2}


def test_a_group_that_runs_nowhere_is_reported_also_while_another_group_runs() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_system()
    both = replace(job, task_groups=(*job.task_groups, replace(job.task_groups[0], name="gpu", constraints=(GPU,))))
    region.go(both)
    again = region.evaluate(both)

    region.run(again)

    assert set(region.evaluation(again.id).failed_tg_allocs) == {"gpu"}


def test_a_node_without_room_gets_a_blocked_evaluation_of_its_own() -> None:
    region = ToyRegion([a_numbered(1), a_numbered(2, cpu=100)])
    job = a_system()

    region.go(job)

    assert region.by_node(job) == {"n1": 1}
    (blocked,) = region.blocked(job)
    assert blocked.node_id == a_numbered(2).id
    assert blocked.failed_tg_allocs["group"].dimension_exhausted == {"cpu": 1}


def test_system_jobs_may_evict_by_default() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    low = a_simple(1, job_id="low", cpu=800, priority=10)
    region.go(low)

    (alloc,) = region.go(a_system(job_id="high", cpu=800, priority=90))

    (victim,) = region.allocs(low)
    assert (victim.desired_status, victim.preempted_by_allocation) == (DesiredStatus.EVICT, alloc.id)


def test_a_node_that_goes_down_loses_it_and_nobody_replaces_it() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_system()
    region.report(region.go(job), ClientStatus.RUNNING)
    region.do(node_upsert(replace(a_numbered(2), status=NodeStatus.DOWN)))

    region.run(region.evaluate(job))

    assert region.by_node(job) == {"n1": 1}
    assert sum(one.client_status is ClientStatus.LOST for one in region.allocs(job)) == 1


def test_a_changed_system_job_is_replaced_on_the_same_nodes_a_few_at_a_time() -> None:
    region = ToyRegion(some_nodes(3))
    update = UpdateStrategy(max_parallel=1)
    region.go(a_system(update=update))
    changed = a_system(update=update, tasks=[a_task(cpu=500, memory_mb=256, env={"NEW": "1"})])

    allocs = region.go(changed)

    assert len(allocs) == 3
    assert sum(bool(one.previous_allocation) for one in allocs) == 1


def test_a_finished_sysbatch_allocation_is_not_run_again() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(1, type="sysbatch", reschedule_policy=None, migrate=None, update=None)
    region.report(region.go(job), ClientStatus.COMPLETE)

    (attempt,) = region.run(region.evaluate(job))

    assert attempt.plan is None
    assert region.live(job) == []


def test_a_stopped_system_job_leaves_every_node() -> None:
    region = ToyRegion(some_nodes(3))
    job = a_system()
    region.go(job)

    region.run(region.register(replace(job, stop=True)))

    assert region.live(job) == []
