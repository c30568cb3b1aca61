"""Service and batch jobs from registration to allocations, over the real store and fleet."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus, DesiredStatus
from fedsched.model.constraint import Affinity, Constraint, Spread, SpreadTarget
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node, NodeStatus
from fedsched.model.policies import ReschedulePolicy, UpdateStrategy
from fedsched.model.scheduler_config import PreemptionConfig, SchedulerConfiguration
from fedsched.scheduler.decision import Outcome
from fedsched.scheduler.schedule import scheduler_for
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_group, a_job, a_task, an_evaluation
from tests.scheduler.places import a_place
from tests.scheduler.toy_region import ToyRegion

ALL_AT_ONCE = UpdateStrategy(max_parallel=0)
JOB_FIELDS = ("type", "priority", "datacenters", "node_pool", "spreads")


def a_numbered(number: int, **fields: Any) -> Node:
    fields.setdefault("computed_class", "c")
    return a_place(id=f"{number:08x}-0000-4000-8000-000000000000", name=f"n{number}", **fields)


def some_nodes(count: int, **fields: Any) -> list[Node]:
    return [a_numbered(number, **fields) for number in range(1, count + 1)]


def a_simple(count: int = 1, *, cpu: int = 500, memory_mb: int = 256, job_id: str = "web", **fields: Any) -> Job:
    """A job of one group; fields of the job are named, all others are the group's."""
    of_job = {
        name: fields.pop(name) for name in ("type", "priority", "datacenters", "node_pool", "spreads") if name in fields
    }
    fields.setdefault("update", ALL_AT_ONCE)
    fields.setdefault("tasks", [a_task(cpu=cpu, memory_mb=memory_mb)])
    return a_job(job_id, groups=[a_group(count=count, **fields)], **of_job)


def test_a_job_gets_its_count_and_its_evaluation_is_complete() -> None:
    region = ToyRegion(some_nodes(3))
    job = a_simple(5)
    evaluation = region.register(job)

    region.run(evaluation)

    assert [one.name for one in region.live(job)] == [f"web.group[{n}]" for n in range(5)]
    done = region.evaluation(evaluation.id)
    assert (done.status, done.failed_tg_allocs) == (EvaluationStatus.COMPLETE, {})


def test_what_does_not_fit_is_explained_and_waits_as_a_blocked_evaluation() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    job = a_simple(10, cpu=400)
    evaluation = region.register(job)

    region.run(evaluation)

    assert len(region.live(job)) == 2
    done = region.evaluation(evaluation.id)
    metric = done.failed_tg_allocs["group"]
    assert (metric.coalesced_failures, done.queued_allocations) == (7, {"group": 8})
    assert metric.dimension_exhausted == {"cpu": 1}
    (blocked,) = region.blocked(job)
    assert (done.blocked_eval, blocked.previous_eval) == (blocked.id, done.id)
    assert blocked.class_eligibility == {"c": True}


def test_a_job_that_found_its_places_after_all_has_nothing_queued_any_more() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    job = a_simple(3, cpu=400)
    region.go(job)
    row = region.store.jobs.row(job.namespace, job.id)
    assert row is not None

    def queued() -> int:
        return region.store.allocations.group_counts(job.namespace, job.id, row.create_index)["group"].queued

    assert queued() == 1
    region.do(node_upsert(a_numbered(2, cpu=1000)))
    (blocked,) = region.blocked(job)

    region.run(blocked)

    assert len(region.live(job)) == 3
    assert queued() == 0


def test_ten_placements_without_a_node_are_one_failure_and_nine_alike() -> None:
    region = ToyRegion()
    job = a_simple(10)
    evaluation = region.register(job)

    region.run(evaluation)

    done = region.evaluation(evaluation.id)
    assert done.failed_tg_allocs["group"].coalesced_failures == 9
    assert done.queued_allocations == {"group": 10}


def test_a_blocked_evaluation_that_still_finds_no_room_stays_blocked_and_knows_more() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    job = a_simple(3, cpu=400)
    region.go(job)
    (blocked,) = region.blocked(job)
    region.do(node_upsert(a_numbered(2, cpu=100, computed_class="small")))

    (attempt,) = region.run(blocked)

    assert attempt.reblock
    assert [one.id for one in region.blocked(job)] == [blocked.id]
    assert set(region.blocked(job)[0].class_eligibility) == {"c", "small"}


def test_a_blocked_evaluation_places_the_rest_when_there_is_room() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    job = a_simple(3, cpu=400)
    region.go(job)
    (blocked,) = region.blocked(job)
    region.do(node_upsert(a_numbered(2)))

    region.run(blocked)

    assert len(region.live(job)) == 3
    assert region.evaluation(blocked.id).status is EvaluationStatus.COMPLETE


def test_nothing_to_do_writes_no_plan() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(2)
    region.go(job)

    (attempt,) = region.run(region.evaluate(job))

    assert attempt.plan is None
    assert len(region.live(job)) == 2


def test_a_job_too_large_for_one_plan_is_placed_by_several() -> None:
    region = ToyRegion(some_nodes(4, cpu=4_000_000, memory_mb=8_000_000, disk_mb=8_000_000))
    job = a_simple(9_000, cpu=100, memory_mb=10)

    attempts = region.run(region.register(job))

    assert [len(attempt.plan.placed[0].ids) // 16 for attempt in attempts if attempt.plan] == [4000, 4000, 1000]
    assert len({one.name for one in region.live(job)}) == 9_000


def test_a_stopped_job_stops_everything() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(3)
    region.go(job)

    region.run(region.register(replace(job, stop=True)))

    assert region.live(job) == []
    assert {one.desired_status for one in region.allocs(job)} == {DesiredStatus.STOP}


def test_scaling_down_stops_the_highest_names() -> None:
    region = ToyRegion(some_nodes(4))
    region.go(a_simple(10))

    region.run(region.register(a_simple(4)))

    assert [one.name for one in region.live(a_simple())] == [f"web.group[{n}]" for n in range(4)]


def test_a_destructive_update_uses_the_place_of_what_it_replaces() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    before = region.go(a_simple(2, cpu=500))

    after = region.go(a_simple(2, tasks=[a_task(cpu=500, memory_mb=256, env={"NEW": "1"})]))

    assert len(after) == 2
    assert {one.previous_allocation for one in after} == {one.id for one in before}


def test_a_replacement_without_a_place_leaves_the_old_one_alone() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    before = region.go(a_simple(1, cpu=500))
    too_big = a_simple(1, cpu=5000)

    region.run(region.register(too_big))

    assert [one.id for one in region.live(too_big)] == [one.id for one in before]
    assert len(region.blocked(too_big)) == 1


def test_an_update_in_place_keeps_the_allocation_and_its_resources() -> None:
    region = ToyRegion(some_nodes(1))
    (before,) = region.go(a_simple(1))
    changed = replace(a_simple(1), priority=70)

    (after,) = region.go(changed)

    assert after.id == before.id
    assert after.allocated_resources == before.allocated_resources
    assert region.store.allocations.origin_of(region.store.allocations.slot_of(after.id)).job_version == 1


def test_allocations_on_a_node_that_went_down_are_lost_and_placed_elsewhere() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(2)
    first = region.go(job)
    region.report(first, ClientStatus.RUNNING)
    region.do(node_upsert(replace(a_numbered(1), status=NodeStatus.DOWN)))
    region.do(node_upsert(replace(a_numbered(2), status=NodeStatus.DOWN)))
    region.do(node_upsert(a_numbered(3)))

    region.run(region.evaluate(job))

    assert region.by_node(job) == {"n3": 2}
    lost = [one for one in region.allocs(job) if one.client_status is ClientStatus.LOST]
    assert {one.id for one in lost} == {one.id for one in first}
    assert {one.next_allocation for one in lost} == {one.id for one in region.live(job)}


def test_a_failed_allocation_is_rescheduled_away_from_where_it_failed() -> None:
    region = ToyRegion(some_nodes(2))
    policy = ReschedulePolicy(unlimited=True, delay_s=0.0, delay_function="constant")
    job = a_simple(1, reschedule_policy=policy)
    (failed,) = region.go(job)
    region.report([failed], ClientStatus.FAILED)

    region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

    (new,) = region.live(job)
    assert (new.previous_allocation, new.name) == (failed.id, failed.name)
    assert new.node_id != failed.node_id
    assert new.reschedule_tracker is not None
    assert [event.prev_alloc_id for event in new.reschedule_tracker.events] == [failed.id]


def test_a_later_reschedule_leaves_an_evaluation_for_its_time() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(1, reschedule_policy=ReschedulePolicy(unlimited=True, delay_s=30.0, delay_function="constant"))
    (failed,) = region.go(job)
    region.report([failed], ClientStatus.FAILED)

    region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

    waiting = [row.evaluation() for row in region.store.evaluations.with_status("pending")]
    (later,) = [one for one in waiting if one.wait_until_ns]
    assert later.wait_until_ns == region.now_ns + 30 * 1_000_000_000
    (known,) = region.allocs(job)
    assert known.followup_eval_id == later.id


def test_constraints_filter_nodes_and_say_so() -> None:
    region = ToyRegion([*some_nodes(2), a_numbered(3, node_class="gpu", computed_class="g")])
    job = a_simple(1, constraints=(Constraint(l_target="${node.class}", operand="=", r_target="gpu"),))

    (alloc,) = region.go(job)

    assert alloc.node_name == "n3"
    assert alloc.metrics is not None
    assert (alloc.metrics.nodes_evaluated, alloc.metrics.nodes_filtered) == (3, 2)
    assert alloc.metrics.constraint_filtered == {"${node.class} = gpu": 2}
    assert [score.node_id for score in alloc.metrics.score_meta_data] == [alloc.node_id]


def test_datacenters_and_pools_are_kept_to() -> None:
    nodes = [
        a_numbered(1, datacenter="dc1"),
        a_numbered(2, datacenter="dc2"),
        a_numbered(3, datacenter="dc2", node_pool="x"),
    ]
    region = ToyRegion(nodes)

    assert region.go(a_simple(2, job_id="a", datacenters=("dc2",)))[0].node_name == "n2"
    assert region.go(a_simple(1, job_id="b", datacenters=("d*2",), node_pool="x"))[0].node_name == "n3"
    assert len(region.go(a_simple(3, job_id="c", node_pool="all"))) == 3


def test_distinct_hosts_puts_one_on_each_node() -> None:
    region = ToyRegion(some_nodes(3))
    job = a_simple(4, constraints=(Constraint(operand="distinct_hosts"),))

    region.go(job)

    assert sorted(region.by_node(job).values()) == [1, 1, 1]
    (blocked,) = region.blocked(job)
    assert blocked.failed_tg_allocs["group"].constraint_filtered == {"distinct_hosts": 3}


def test_distinct_property_limits_each_value() -> None:
    region = ToyRegion([a_numbered(n, meta={"rack": f"r{n % 2}"}, computed_class=f"c{n % 2}") for n in range(1, 7)])
    limit = Constraint(l_target="${meta.rack}", operand="distinct_property", r_target="2")
    job = a_simple(6, constraints=(limit,))

    region.go(job)

    racks = Counter(int(one.node_name[1:]) % 2 for one in region.live(job))
    assert racks == {0: 2, 1: 2}


def test_an_affinity_attracts() -> None:
    region = ToyRegion([*some_nodes(3), a_numbered(4, meta={"ssd": "yes"}, computed_class="s")])
    wish = Affinity(l_target="${meta.ssd}", operand="=", r_target="yes", weight=100)

    (alloc,) = region.go(a_simple(1, affinities=(wish,)))

    assert alloc.node_name == "n4"


@pytest.mark.parametrize("percent", range(100, 0, -10))
def test_spread_targets_are_met_exactly(percent: int) -> None:
    nodes = [a_numbered(n, datacenter=f"dc{1 + n % 2}", computed_class=f"c{n % 2}") for n in range(1, 11)]
    region = ToyRegion(nodes)
    targets = (SpreadTarget(value="dc1", percent=percent), SpreadTarget(value="dc2", percent=100 - percent))
    spread = Spread(attribute="${node.datacenter}", weight=100, spread_target=tuple(t for t in targets if t.percent))
    job = a_simple(10, cpu=100, spreads=(spread,))

    region.go(job)

    in_dc1 = sum(region.store.nodes.get(one.node_id).datacenter == "dc1" for one in region.live(job))  # type: ignore[union-attr]
    assert in_dc1 == percent // 10


def test_static_ports_keep_allocations_apart_and_dynamic_ones_differ() -> None:
    region = ToyRegion(some_nodes(2))
    network = NetworkResource(reserved_ports=(Port(label="http", value=8080),), dynamic_ports=(Port(label="admin"),))
    job = a_simple(3, networks=(network,))

    region.go(job)

    assert sorted(region.by_node(job).values()) == [1, 1]
    for one in region.live(job):
        assert one.allocated_resources is not None
        ports = {port.label: port.value for port in one.allocated_resources.shared.ports}
        assert ports["http"] == 8080
        assert 20000 <= ports["admin"] <= 32000
    (blocked,) = region.blocked(job)
    assert list(blocked.failed_tg_allocs["group"].dimension_exhausted) == ["network: reserved port collision http=8080"]


def preempting(region: ToyRegion) -> None:
    from fedsched.codec import dumps, to_builtins
    from fedsched.state.tables.meta import SchedulerConfigSet

    config = SchedulerConfiguration(preemption_config=PreemptionConfig(service_scheduler_enabled=True))
    region.do(SchedulerConfigSet(config=dumps(to_builtins(config))))


def test_a_more_important_job_evicts_as_in_the_worked_example() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000, memory_mb=2048, reserved_cpu=50, reserved_memory_mb=256))
    preempting(region)
    low = a_simple(1, job_id="p30", cpu=500, memory_mb=1024, priority=30)
    middle = a_simple(1, job_id="p50", cpu=350, memory_mb=512, priority=50)
    region.go(low)
    region.go(middle)
    high = a_simple(1, job_id="p100", cpu=900, memory_mb=1700, priority=100)

    (alloc,) = region.go(high)

    victims = [*region.allocs(low), *region.allocs(middle)]
    assert {one.desired_status for one in victims} == {DesiredStatus.EVICT}
    assert set(alloc.preempted_allocations) == {one.id for one in victims}
    assert {one.preempted_by_allocation for one in victims} == {alloc.id}


def test_nobody_is_evicted_unless_that_is_switched_on() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    region.go(a_simple(1, job_id="low", cpu=800, priority=10))

    assert region.go(a_simple(1, job_id="high", cpu=800, priority=100)) == []


def test_a_service_gets_a_deployment_that_its_allocations_belong_to() -> None:
    region = ToyRegion(some_nodes(3))
    job = a_simple(3, update=UpdateStrategy(max_parallel=1))

    allocs = region.go(job)

    row = region.store.deployments.latest("default", "web")
    assert row is not None
    deployment = row.deployment()
    assert (deployment.status.value, deployment.task_groups["group"].desired_total) == ("running", 3)
    assert {one.deployment_id for one in allocs} == {deployment.id}


def test_canaries_come_beside_the_old_ones() -> None:
    region = ToyRegion(some_nodes(3))
    update = UpdateStrategy(max_parallel=1, canary=2)
    region.go(a_simple(3, update=update))
    changed = a_simple(3, update=update, tasks=[a_task(cpu=500, memory_mb=256, env={"NEW": "1"})])

    allocs = region.go(changed)

    assert len(allocs) == 5
    assert sum(one.is_canary for one in allocs) == 2


def test_an_evaluation_gives_up_after_attempts_without_progress() -> None:
    region = ToyRegion(some_nodes(1))
    job = a_simple(1)
    evaluation = region.register(job)
    scheduling = scheduler_for("service")(evaluation, region.new_id)
    refused = Outcome(is_whole=False, is_progress=False, refresh_index=region.store.index)

    answers = []
    for _ in range(5):
        region.attempt(scheduling)
        answers.append(scheduling.heard(refused, region.now_ns))

    assert answers[:4] == [None] * 4
    failed, blocked = answers[4] or ()
    assert (failed.status, blocked.status) == (EvaluationStatus.FAILED, EvaluationStatus.BLOCKED)
    assert blocked.triggered_by == "max-plan-attempts"


@pytest.mark.parametrize(("kind", "limit"), [("service", 5), ("batch", 2), ("system", 5), ("sysbatch", 2)])
def test_each_type_of_job_has_its_number_of_attempts(kind: str, limit: int) -> None:
    scheduling = scheduler_for(kind)(an_evaluation(type=kind), ToyRegion().new_id)
    refused = Outcome(is_whole=False, is_progress=False)

    assert [scheduling.heard(refused, 0) is None for _ in range(limit)] == [True] * (limit - 1) + [False]


def test_progress_starts_the_count_of_attempts_anew() -> None:
    region = ToyRegion(some_nodes(1))
    scheduling = scheduler_for("batch")(region.register(a_simple(1, type="batch")), region.new_id)
    refused, some = Outcome(is_whole=False, is_progress=False), Outcome(is_whole=False, is_progress=True)

    assert [scheduling.heard(one, 0) for one in (refused, some, refused)] == [None, None, None]
    assert scheduling.heard(refused, 0) is not None


def test_an_eviction_keeps_to_distinct_hosts() -> None:
    region = ToyRegion(some_nodes(2, cpu=1000))
    preempting(region)
    region.go(a_simple(2, job_id="low", cpu=600, priority=10, constraints=(Constraint(operand="distinct_hosts"),)))
    high = a_simple(3, job_id="high", cpu=400, priority=90, constraints=(Constraint(operand="distinct_hosts"),))

    region.go(high)

    assert region.by_node(high) == {"n1": 1, "n2": 1}


def test_many_replacements_are_placed_by_one_plan() -> None:
    region = ToyRegion(some_nodes(2, cpu=100_000, memory_mb=100_000, disk_mb=1_000_000))
    job = a_simple(100, cpu=100)
    region.report(region.go(job), ClientStatus.RUNNING)
    for number in (1, 2):
        region.do(node_upsert(replace(a_numbered(number), status=NodeStatus.DOWN)))
    region.do(node_upsert(a_numbered(3, cpu=100_000, memory_mb=100_000, disk_mb=1_000_000)))

    attempts = region.run(region.evaluate(job))

    assert len(attempts) == 1
    assert len({one.previous_allocation for one in region.live(job)}) == 100
    assert region.by_node(job) == {"n3": 100}
    assert sum(one.client_status is ClientStatus.LOST for one in region.allocs(job)) == 100


def test_the_deployment_of_a_purged_job_ends_when_a_job_of_the_same_name_takes_its_place() -> None:
    region = ToyRegion(some_nodes(3))
    job = a_simple(2, update=UpdateStrategy(max_parallel=1))
    region.go(job)
    region.do(JobDeregister(namespace="default", id="web", purge=True))

    region.go(job)  # registered anew before anybody had looked at the purge
    region.run(region.evaluate(job))

    old, new = (row.deployment() for row in region.store.deployments.of_job("default", "web"))
    assert (old.status.value, old.status_description) == ("cancelled", "Cancelled due to newer version of job")
    assert (new.status.value, new.job_create_index > old.job_create_index) == ("running", True)
    assert [row.id for row in region.store.deployments.active()] == [new.id]
