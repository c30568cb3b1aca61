"""What a leader's work costs, and what it must not grow with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.constraint import Constraint
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node, NodeStatus
from fedsched.model.node_resources import NodeNetwork, NodeNetworkAddress
from fedsched.scheduler.schedule import scheduler_for
from fedsched.server.leader.blocked_core import BlockedCore, blocked_of
from fedsched.server.leader.heartbeats_core import HeartbeatsCore, command_of, silence_effects
from fedsched.server.leader.plan_check import check_plan
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.node_updates import NodeStatusUpdate, NodeStatusWrite
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_group, a_job, a_node, a_task, an_evaluation, an_id
from tests.costs import Cost, assert_flat, cost_of
from tests.scheduler.toy_region import ToyRegion

pytestmark = pytest.mark.plans_by_hand  # what is counted is the code itself, not the eye on its plans

PORTS = (NetworkResource(mode="host", dynamic_ports=(Port(label="http"),)),)


def a_host(number: int, **fields: Any) -> Node:
    node = a_node(number, disk_mb=1_000_000, **fields)
    address = NodeNetworkAddress(family="ipv4", alias="default", address=f"10.0.{number >> 8}.{number & 255}")
    networks = (NodeNetwork(mode="host", device="eth0", addresses=(address,)),)
    return replace(node, node_resources=replace(node.node_resources, node_networks=networks))


def small_job(job_id: str, count: int = 1, **fields: Any) -> Job:
    group = a_group(count=count, update=None, tasks=[a_task(cpu=1, memory_mb=1)], **fields)
    return a_job(job_id, region="", groups=[group])


def region(nodes: int = 50, *, jobs: int = 20, each: int = 10, **fields: Any) -> ToyRegion:
    """Nodes with `jobs` other jobs of `each` allocations over them."""
    made = ToyRegion(a_host(number) for number in range(1, nodes + 1))
    made.check_nodes = lambda: None  # type: ignore[method-assign]
    for number in range(jobs):
        made.go(small_job(f"other-{number}", each, **fields))
    return made


def in_turn(steps: Iterable[Callable[[], object]]) -> Callable[[], object]:
    """Work that is different each time it is done."""
    left: Iterator[Callable[[], object]] = iter(list(steps))
    return lambda: next(left)()


# ---------------------------------------------------------------------- plans


def plans_for(made: ToyRegion, count: int, **fields: Any) -> list[PlanApply]:
    """Plans alike for jobs alike, made from one state, each on as many nodes. The first ones are for warming up."""
    plans = []
    fields["constraints"] = (Constraint(operand="distinct_hosts", r_target="true"),)
    for number in range(4):
        evaluation = made.register(small_job(f"web-{number}", count, **fields))
        attempt = scheduler_for("service")(evaluation, made.new_id).attempt(made.store, made.fleet, made.now_ns)
        assert attempt.plan is not None
        plans.append(replace(attempt.plan, ends=tuple(map(evaluation_write, attempt.ends))))
    return plans


def cost_of_checking(made: ToyRegion, **fields: Any) -> Cost:
    plan = plans_for(made, 20, **fields)[0]

    def check() -> None:
        assert check_plan(plan, store=made.store, fleet=made.fleet).is_whole

    check()
    return cost_of(check)


def cost_of_applying(made: ToyRegion, **fields: Any) -> Cost:
    first, second, *rest = plans_for(made, 20, **fields)
    made.do(first)
    made.do(second)
    return cost_of(in_turn(lambda plan=plan: made.do(plan) for plan in rest))  # type: ignore[misc]


LARGER = {
    "nodes": ({"nodes": 200, "jobs": 2}, {"nodes": 400, "jobs": 2}),
    "jobs": ({"jobs": 50, "each": 2}, {"jobs": 100, "each": 2}),
    "allocations": ({"each": 60}, {"each": 120}),
}


@pytest.mark.parametrize("quantity", LARGER)
@pytest.mark.parametrize("networks", [(), PORTS], ids=["plain", "ports"])
@pytest.mark.parametrize("measure", [cost_of_checking, cost_of_applying], ids=["checking", "applying"])
def test_checking_and_applying_a_plan_costs_what_the_plan_holds(
    quantity: str, networks: tuple[NetworkResource, ...], measure: Callable[..., Cost]
) -> None:
    few, many = (measure(region(**size, networks=networks), networks=networks) for size in LARGER[quantity])

    assert_flat(few, many, tolerance=1.1)  # ports differ, and some bytes are dearer to decode than others


# ---------------------------------------------------------------------- nodes


def cost_of_beat(nodes: int) -> Cost:
    core = HeartbeatsCore()
    core.begin((an_id(number) for number in range(nodes)), 0)
    times = iter(range(1, 100))
    core.beat(an_id(7), 0, 0.5)
    return cost_of(lambda: core.beat(an_id(7), next(times), 0.5))


def test_a_heartbeat_does_not_grow_with_the_fleet() -> None:
    assert_flat(cost_of_beat(2000), cost_of_beat(4000))


def cost_of_news(made: ToyRegion) -> Cost:
    """A node registers again with something changed, and goes down and up."""
    statuses = (NodeStatus.DOWN, NodeStatus.READY) * 2
    steps = [
        lambda status=status, number=number: (
            made.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status=status.value),))),
            made.do(node_upsert(a_host(1, meta={"round": str(number)}))),
        )
        for number, status in enumerate(statuses)
    ]
    steps[0]()
    steps[1]()
    return cost_of(in_turn(steps[2:]))


@pytest.mark.parametrize("quantity", ["nodes", "jobs"])
def test_news_of_a_node_does_not_grow_with_other_nodes_and_jobs(quantity: str) -> None:
    small, large = LARGER[quantity]
    sizes = ({**small, "each": 1}, {**large, "each": 1})

    assert_flat(*(cost_of_news(region(**size)) for size in sizes))


def failing_region(others: int) -> ToyRegion:
    """One node with five jobs on it, and then others with as many jobs each."""
    made = ToyRegion([a_host(1)])
    made.check_nodes = lambda: None  # type: ignore[method-assign]
    for number in range(5):
        made.go(small_job(f"here-{number}"))
    made.do(node_upsert(a_host(1, scheduling_eligibility="ineligible")))
    made.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status="ready"),)))
    for number in range(2, others + 2):
        made.do(node_upsert(a_host(number)))
    for number in range(others):
        made.go(small_job(f"there-{number}"))
    return made


def cost_of_failure(others: int) -> Cost:
    made = failing_region(others)
    here = made.store.nodes.get(an_id(1))
    assert here is not None
    assert len(made.store.allocations.slots_of_node(here.slot)) == 5

    def effects() -> list[Any]:
        found = silence_effects(made.store, [an_id(1)], made.now_ns, made.new_id)
        assert [len(one.evaluations) for one in found] == [5]
        return found

    def fail_and_return() -> None:
        for effect in effects():
            made.do(command_of(effect))
        made.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status=NodeStatus.READY.value),)))

    fail_and_return()
    return cost_of(fail_and_return)


def test_the_failure_of_a_node_costs_what_was_on_it_and_not_what_is_elsewhere() -> None:
    assert_flat(cost_of_failure(100), cost_of_failure(200))


# ---------------------------------------------------------------------- unblocking


def cost_of_unblocking(others: int) -> Cost:
    """Ten evaluations wait for nodes of a class, `others` have ruled that class out."""
    core = BlockedCore()
    core.enable(0.0)

    def block(number: int, ruled_out: str) -> None:
        evaluation = an_evaluation(
            number,
            job=a_job(f"job-{number}"),
            status=EvaluationStatus.BLOCKED,
            class_eligibility={ruled_out: False},
            snapshot_index=number + 1,
        )
        core.block(blocked_of(evaluation))

    for number in range(others):
        block(number, "small")
    indexes = iter(range(1, 100))

    def free() -> None:
        now = next(indexes)
        for number in range(10):
            block(1_000_000 + number, "other")
        assert len(core.unblock("small", now, float(now))) == 10

    free()
    return cost_of(free)


def test_unblocking_costs_what_it_frees_and_not_what_goes_on_waiting() -> None:
    assert_flat(cost_of_unblocking(1000), cost_of_unblocking(2000))
