"""What evaluations and placements cost, and what they must not grow with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.constraint import Spread
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node
from fedsched.model.node_resources import NodeNetwork, NodeNetworkAddress
from fedsched.scheduler.schedule import scheduler_for
from tests.builders import a_group, a_job, a_node, a_task
from tests.costs import Cost, assert_flat, cost_of
from tests.scheduler.toy_region import ToyRegion

pytestmark = pytest.mark.plans_by_hand  # plans like these are counted again in every other test; here costs are

NODES, OTHER_JOBS = 60, 20


def a_host(number: int) -> Node:
    node = a_node(number, disk_mb=1_000_000)
    address = NodeNetworkAddress(family="ipv4", alias="default", address=f"10.0.{number >> 8}.{number & 255}")
    networks = (NodeNetwork(mode="host", device="eth0", addresses=(address,)),)
    return replace(node, node_resources=replace(node.node_resources, node_networks=networks))


def small_job(job_id: str, count: int, **fields: Any) -> Job:
    group = a_group(count=count, update=None, tasks=[a_task(cpu=1, memory_mb=1)], **fields)
    return a_job(job_id, region="", groups=[group])


def region(nodes: int = NODES, *, jobs: int = OTHER_JOBS, each: int = 10, **fields: Any) -> ToyRegion:
    """Nodes that look alike, with `jobs` other jobs of `each` allocations spread over them."""
    made = ToyRegion(a_host(number) for number in range(1, nodes + 1))
    made.check_nodes = lambda: None  # type: ignore[method-assign]
    for number in range(jobs):
        made.go(small_job(f"other-{number}", each, **fields))
    return made


def cost_of_attempt(made: ToyRegion, job: Job) -> Cost:
    """One attempt to schedule a job that was just registered; it changes nothing, so it can be made again."""
    evaluation = made.register(job)
    scheduling = scheduler_for(evaluation.type)
    scheduling(evaluation, made.new_id).attempt(made.store, made.fleet, made.now_ns)  # nothing is first in line
    return cost_of(lambda: scheduling(evaluation, made.new_id).attempt(made.store, made.fleet, made.now_ns))


# ---------------------------------------------------------------------- the start of an evaluation


def test_an_evaluation_does_not_grow_with_the_jobs_of_the_region() -> None:
    few, many = region(), region()
    for made, count in ((few, 200), (many, 400)):
        for number in range(count):
            made.register(small_job(f"waiting-{number}", 1))

    assert_flat(cost_of_attempt(few, small_job("web", 1)), cost_of_attempt(many, small_job("web", 1)))


def test_an_evaluation_does_not_grow_with_the_allocations_of_the_region() -> None:
    few, many = region(each=60), region(each=120)

    assert_flat(cost_of_attempt(few, small_job("web", 1)), cost_of_attempt(many, small_job("web", 1)))


def test_an_evaluation_looks_at_nodes_by_columns_and_never_one_by_one() -> None:
    few, many = region(200, jobs=2), region(400, jobs=2)

    assert_flat(cost_of_attempt(few, small_job("web", 1)), cost_of_attempt(many, small_job("web", 1)), is_vector=True)


# ---------------------------------------------------------------------- one more placement


def cost_of_placements(made: ToyRegion, job: Job, more: int = 100) -> Cost:
    """What so many placements more cost, beside what the evaluation costs anyway."""
    group = job.task_groups[0]
    less = replace(job, id=f"{job.id}-less")
    double = replace(job, id=f"{job.id}-more", task_groups=(replace(group, count=group.count + more),))
    small, large = cost_of_attempt(made, less), cost_of_attempt(made, double)
    return Cost(large.lines - small.lines, large.bytes - small.bytes)


SPREAD = Spread(attribute="${node.datacenter}", weight=100)


@pytest.mark.parametrize("spreads", [(), (SPREAD,)], ids=["plain", "spread"])
def test_a_placement_does_not_grow_with_the_nodes(spreads: tuple[Spread, ...]) -> None:
    job = small_job("web", 100, spreads=spreads)

    few, many = cost_of_placements(region(200, jobs=2), job), cost_of_placements(region(400, jobs=2), job)

    assert_flat(few, many)


PORTS = (NetworkResource(mode="host", dynamic_ports=(Port(label="http"),)),)


@pytest.mark.parametrize("fields", [{}, {"spreads": (SPREAD,)}, {"networks": PORTS}], ids=["plain", "spread", "ports"])
def test_a_placement_does_not_grow_with_the_allocations_on_the_nodes(fields: dict[str, Any]) -> None:
    networks = fields.get("networks", ())
    job = small_job("web", 100, **fields)

    few, many = (cost_of_placements(region(each=each, networks=networks), job) for each in (60, 120))

    assert_flat(few, many)


def test_a_placement_does_not_grow_with_the_count_of_its_group() -> None:
    made = region(200, jobs=2)

    few = cost_of_placements(made, small_job("few", 200), 200)
    many = cost_of_placements(made, small_job("many", 400), 200)

    assert_flat(few, many)
