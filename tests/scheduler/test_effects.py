"""What a run leaves in the state: clients that are cut off and come back, follow-ups, deployments, older versions."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus, DesiredStatus
from fedsched.model.constraint import Constraint
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import Job
from fedsched.model.node import NodeStatus
from fedsched.model.policies import DisconnectStrategy, ReschedulePolicy, UpdateStrategy
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.nodes import node_upsert
from tests.scheduler.test_generic import a_numbered, a_simple, some_nodes
from tests.scheduler.toy_region import NS, ToyRegion

NO_COPIES = ReschedulePolicy(attempts=0, unlimited=False)
SLOW = ReschedulePolicy(unlimited=True, delay_s=30.0, delay_function="constant")


def a_patient(count: int = 1, **fields: Any) -> Job:
    fields.setdefault("reschedule_policy", NO_COPIES)
    return a_simple(count, disconnect=DisconnectStrategy(lost_after_s=60.0), **fields)


def set_node(region: ToyRegion, number: int, status: NodeStatus) -> None:
    region.do(node_upsert(replace(a_numbered(number), status=status)))


def evaluations(region: ToyRegion, trigger: Trigger) -> list[Evaluation]:
    rows = region.store.evaluations.rows.scan()
    return [row.evaluation() for row in rows if row.triggered_by == trigger.value]


def deployments(region: ToyRegion, job: Job) -> list[Deployment]:
    return [row.deployment() for row in region.store.deployments.of_job(job.namespace, job.id)]


def cut_off(region: ToyRegion, job: Job) -> Evaluation:
    """The job runs on node 1, whose client is cut off; the follow-up that was left."""
    region.report(region.go(job), ClientStatus.RUNNING)
    set_node(region, 1, NodeStatus.DISCONNECTED)
    region.run(region.evaluate(job))
    (timeout,) = evaluations(region, Trigger.MAX_DISCONNECT_TIMEOUT)
    return timeout


class TestCutOff:
    def test_it_is_stored_as_unknown_with_its_moment_and_its_follow_up(self) -> None:
        region = ToyRegion(some_nodes(1))

        timeout = cut_off(region, a_patient())

        (alloc,) = region.live(a_patient())
        assert (alloc.client_status, alloc.desired_status) == (ClientStatus.UNKNOWN, DesiredStatus.RUN)
        assert [(state.value, state.time_ns) for state in alloc.alloc_states] == [("unknown", region.now_ns)]
        assert alloc.followup_eval_id == timeout.id
        assert (timeout.status, timeout.wait_until_ns) == (EvaluationStatus.PENDING, region.now_ns + 60 * NS)

    def test_back_its_story_goes_on_and_the_follow_up_is_cancelled(self) -> None:
        region = ToyRegion(some_nodes(1))
        timeout = cut_off(region, a_patient())
        set_node(region, 1, NodeStatus.READY)
        region.report(region.live(a_patient()), ClientStatus.RUNNING)

        region.run(region.evaluate(a_patient(), Trigger.RECONNECT))

        (alloc,) = region.live(a_patient())
        assert [state.value for state in alloc.alloc_states] == ["unknown", "running"]
        assert alloc.followup_eval_id == ""
        assert region.evaluation(timeout.id).status is EvaluationStatus.CANCELLED

    def test_when_its_time_is_up_it_is_lost_and_placed_elsewhere(self) -> None:
        region = ToyRegion(some_nodes(1))
        timeout = cut_off(region, a_patient())
        (before,) = region.live(a_patient())
        set_node(region, 2, NodeStatus.READY)
        region.now_ns += 60 * NS

        region.run(timeout)

        gone = region.store.allocations.get(before.id)
        assert gone is not None
        assert (gone.client_status, gone.desired_status) == (ClientStatus.LOST, DesiredStatus.STOP)
        assert region.by_node(a_patient()) == {"n2": 1}

    def test_told_to_stop_on_a_node_that_went_down_it_is_marked_as_lost(self) -> None:
        region = ToyRegion(some_nodes(1))
        job = a_simple(1)
        (alloc,) = region.go(job)
        region.report([alloc], ClientStatus.RUNNING)
        region.do(JobDeregister(namespace=job.namespace, id=job.id, purge=False))
        region.run(region.evaluate(job, Trigger.JOB_DEREGISTER))
        set_node(region, 1, NodeStatus.DOWN)

        region.run(region.evaluate(job))

        assert [one.client_status for one in region.allocs(job)] == [ClientStatus.LOST]


class TestFollowUps:
    def test_a_follow_up_makes_no_further_ones_for_reschedules(self) -> None:
        region = ToyRegion(some_nodes(1))
        job = a_simple(2, reschedule_policy=SLOW)
        first, second = region.go(job)
        region.report([first], ClientStatus.FAILED)
        region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))
        (mine,) = evaluations(region, Trigger.ALLOC_RESCHEDULE)
        region.now_ns += 30 * NS
        region.report([second], ClientStatus.FAILED)

        region.run(mine)

        assert len(evaluations(region, Trigger.ALLOC_RESCHEDULE)) == 1
        assert not evaluations(region, Trigger.QUEUED_ALLOCS)
        follower = region.store.allocations.get(second.id)
        assert follower is not None
        assert follower.followup_eval_id == ""

    def test_one_that_comes_early_and_leaves_others_behind_blocks_nothing(self) -> None:
        """Somebody comes back anyway; a blocked evaluation beside it would be one too many."""
        region = ToyRegion(some_nodes(1, cpu=1000))
        job = a_patient(2, cpu=900)
        region.report(region.go(job), ClientStatus.RUNNING)
        (known,) = region.blocked(job)
        set_node(region, 1, NodeStatus.DISCONNECTED)
        early = region.evaluate(job, Trigger.ALLOC_RESCHEDULE, wait_until_ns=region.now_ns + NS)

        region.run(early)

        assert len(evaluations(region, Trigger.MAX_DISCONNECT_TIMEOUT)) == 1
        assert region.evaluation(early.id).failed_tg_allocs
        assert [one.id for one in region.blocked(job)] == [known.id]
        late = region.evaluate(job, Trigger.ALLOC_RESCHEDULE, wait_until_ns=region.now_ns - NS)
        region.run(late)
        assert region.evaluation(late.id).blocked_eval


ROLLING = UpdateStrategy(max_parallel=1)


class TestDeployments:
    def test_what_is_placed_while_one_runs_belongs_to_it(self) -> None:
        region = ToyRegion(some_nodes(1))
        job = a_simple(1, update=ROLLING)
        region.report(region.go(job), ClientStatus.RUNNING)
        (deployment,) = deployments(region, job)
        set_node(region, 1, NodeStatus.DOWN)
        set_node(region, 2, NodeStatus.READY)

        region.run(region.evaluate(job))

        assert [one.deployment_id for one in region.live(job)] == [deployment.id]

    def test_a_newer_version_cancels_it_and_a_stop_too(self) -> None:
        region = ToyRegion(some_nodes(1))
        region.go(a_simple(1, update=ROLLING))
        region.go(a_simple(1, update=ROLLING, cpu=600))
        job = a_simple(1)
        region.do(JobDeregister(namespace=job.namespace, id=job.id, purge=False))
        region.run(region.evaluate(job, Trigger.JOB_DEREGISTER))

        ends = {one.job_version: one.status_description for one in deployments(region, job)}
        assert ends == {0: "Cancelled due to newer version of job", 1: "Cancelled because job is stopped"}

    def test_while_canaries_wait_a_lost_one_is_replaced_from_the_version_before(self) -> None:
        region = ToyRegion(some_nodes(2, cpu=2000))
        old = a_simple(2, update=UpdateStrategy(max_parallel=0))
        before = region.go(old)
        region.report(before, ClientStatus.RUNNING)
        new = a_simple(2, cpu=600, update=UpdateStrategy(max_parallel=1, canary=1))
        region.go(new)
        (canary,) = [one for one in region.live(new) if one.is_canary]
        down = next(one for one in before if one.node_id != canary.node_id)
        set_node(region, int(down.node_id[:8], 16), NodeStatus.DOWN)

        region.run(region.evaluate(new))

        (placed,) = [one for one in region.live(new) if one.previous_allocation == down.id]
        origin = region.store.allocations.origin_of(region.store.allocations.slot_of(placed.id))
        assert (origin.job_version, origin.deployment_id) == (0, "")
        assert placed.allocated_resources is not None
        assert placed.allocated_resources.tasks["web"].cpu.cpu_shares == 500
        assert canary.id in {one.id for one in region.live(new)}


def test_what_is_said_of_a_group_that_found_no_place_counts_every_node_once() -> None:
    linux = Constraint(l_target="${meta.os}", operand="=", r_target="linux")
    region = ToyRegion(
        [
            a_numbered(1, meta={"os": "linux"}, node_class="small", cpu=400, datacenter="dc1"),
            a_numbered(2, meta={"os": "linux"}, node_class="small", memory_mb=100, datacenter="dc2"),
            a_numbered(3, meta={"os": "plan9"}, node_class="odd", datacenter="dc1", computed_class="p"),
            a_numbered(4, meta={"os": "linux"}, node_class="bare", drivers=(), datacenter="dc1", computed_class="b"),
            a_numbered(5, meta={"os": "linux"}, datacenter="elsewhere"),
            a_numbered(6, meta={"os": "linux"}, node_pool="other"),
        ]
    )
    job = a_simple(3, cpu=500, memory_mb=256, constraints=(linux,), datacenters=("dc*",))
    evaluation = region.register(job)

    region.run(evaluation)

    metric = region.evaluation(evaluation.id).failed_tg_allocs["group"]
    assert (metric.node_pool, metric.nodes_in_pool, metric.nodes_available) == ("default", 5, {"dc1": 3, "dc2": 1})
    assert (metric.nodes_evaluated, metric.nodes_filtered, metric.nodes_exhausted) == (4, 2, 2)
    assert metric.class_filtered == {"odd": 1, "bare": 1}
    assert metric.constraint_filtered == {"${meta.os} = linux": 1, "missing drivers": 1}
    assert metric.class_exhausted == {"small": 2}
    assert metric.dimension_exhausted == {"cpu": 1, "memory": 1}
    asked = metric.resources_exhausted["web"]
    assert (asked.cpu, asked.memory_mb) == (500, 256)
    assert metric.coalesced_failures == 2
