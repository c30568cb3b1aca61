"""From a job and a fleet to nodes: every placement of a whole run is a best one, by the page on scheduling itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import Allocation
from fedsched.model.constraint import Affinity, Constraint, Spread, SpreadTarget
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node
from fedsched.scheduler.decision import Attempt
from tests.builders import a_group, a_job, a_task
from tests.scheduler.plain_greedy import PlainGreedy, PlainHost
from tests.scheduler.test_generic import ALL_AT_ONCE, a_numbered
from tests.scheduler.toy_region import ToyRegion

PARTS = 8
PER_PART = 50


def any_node(dice: random.Random, number: int) -> Node:
    meta = {"rack": dice.choice(("r1", "r2", "r3"))} if dice.random() < 0.9 else {}
    kind = dice.choice(("", "large"))
    place = dice.choice(("dc1", "dc2"))
    return a_numbered(
        number,
        cpu=dice.choice((1000, 2000, 4000)),
        memory_mb=dice.choice((1024, 4096)),
        datacenter=place,
        node_class=kind,
        meta=meta,
        computed_class=f"{place}-{kind}-{meta.get('rack')}",
    )


def any_job(dice: random.Random, job_id: str, *, is_plain: bool = False) -> Job:
    of_group: dict[str, Any] = {}
    of_job: dict[str, Any] = {}
    targets = ("${node.datacenter}", "${node.class}", "${meta.rack}")
    values = {targets[0]: ("dc1", "dc2"), targets[1]: ("", "large"), targets[2]: ("r1", "r2")}

    def wish() -> tuple[str, str]:
        target = dice.choice(targets)
        return target, dice.choice(values[target])

    if not is_plain:
        if dice.random() < 0.3:
            target, value = wish()
            rule = Constraint(l_target=target, operand=dice.choice(("=", "!=")), r_target=value)
            dice.choice((of_group, of_job))["constraints"] = (rule,)
        if dice.random() < 0.2:
            of_group["constraints"] = (Constraint(operand="distinct_hosts"),)
        for where in (of_group, of_job):
            if dice.random() < 0.3:
                target, value = wish()
                weight = dice.choice((100, 50, -100))
                where["affinities"] = (Affinity(l_target=target, operand="=", r_target=value, weight=weight),)
            if dice.random() < 0.3:
                where["spreads"] = (any_spread(dice),)
        if dice.random() < 0.3:
            ports = (Port(label="http", value=dice.choice((80, 8080))),)
            of_group["networks"] = (NetworkResource(mode="host", reserved_ports=ports),)
    tasks = [a_task(cpu=dice.choice((100, 300, 500)), memory_mb=dice.choice((64, 256, 500)))]
    kind = dice.choice(("service", "batch"))
    if kind == "batch":
        of_group["migrate"] = None
    of_group["update"] = ALL_AT_ONCE if kind == "service" else None
    group = a_group(count=dice.randint(1, 8), tasks=tasks, **of_group)
    return a_job(job_id, groups=[group], type=kind, **of_job)


def any_spread(dice: random.Random) -> Spread:
    if dice.random() < 0.4:
        return Spread(attribute="${meta.rack}", weight=dice.choice((50, 100)))
    percents = dice.choice(((50,), (30, 70), (20, 30)))
    targets = tuple(SpreadTarget(value=f"dc{n + 1}", percent=percent) for n, percent in enumerate(percents))
    return Spread(attribute="${node.datacenter}", weight=dice.choice((50, 100)), spread_target=targets)


def hosts_of(region: ToyRegion, job: Job) -> list[PlainHost]:
    """The fleet before the job's placements, from what is stored."""
    hosts = {node.id: PlainHost(node) for node in (row.node() for row in region.store.nodes.rows.scan())}
    slots = region.store.allocations.columns.in_use(0, region.store.allocations.columns.high)
    for alloc in region.store.allocations.records(slots):
        _settle(hosts[alloc.node_id], alloc, is_mine=alloc.job_id == job.id)
    return list(hosts.values())


def _settle(host: PlainHost, alloc: Allocation, *, is_mine: bool) -> None:
    given = alloc.allocated_resources
    assert given is not None
    host.cpu -= sum(task.cpu.cpu_shares for task in given.tasks.values())
    host.memory -= sum(task.memory.memory_mb for task in given.tasks.values())
    host.disk -= given.shared.disk_mb
    host.ports |= {port.value for port in given.shared.ports}
    host.mine += is_mine


def chosen(region: ToyRegion, attempts: list[Attempt]) -> list[str]:
    """The nodes that were chosen, in the order of the plan."""
    slots = [
        slot
        for attempt in attempts
        if attempt.plan is not None
        for group in attempt.plan.placed
        for slot in memoryview(group.node_slots).cast("I").tolist()
    ]
    rows = [region.store.nodes.of_slot(slot) for slot in slots]
    return [row.id for row in rows if row is not None]


def check_case(seed: int) -> int:
    """Place a job, and again after its count grew; how many placements were looked at."""
    dice = random.Random(seed)
    region = ToyRegion([any_node(dice, number) for number in range(1, dice.randint(2, 9))])
    region.go(any_job(dice, "other", is_plain=True))
    job = any_job(dice, "web")
    looked = 0
    for count in (job.task_groups[0].count, job.task_groups[0].count + dice.randint(0, 4)):
        job = replace(job, task_groups=(replace(job.task_groups[0], count=count),))
        greedy = PlainGreedy(job, hosts_of(region, job))
        by_id = {host.node.id: host for host in greedy.hosts}
        there = sum(host.mine for host in greedy.hosts)
        nodes = chosen(region, region.run(region.register(job)))
        for node_id in nodes:
            best = max(greedy.score(host) for host in greedy.hosts if greedy.fits(host))
            host = by_id[node_id]
            assert greedy.fits(host), f"seed {seed}: {host.node.name} does not fit"
            assert greedy.score(host) == pytest.approx(best, abs=1e-6), f"seed {seed}: {host.node.name} is not the best"
            greedy.place(host)
        if there + len(nodes) < count:
            left = [host.node.name for host in greedy.hosts if greedy.fits(host)]
            assert not left, f"seed {seed}: there is room on {left}"
        looked += len(nodes)
    return looked


@pytest.mark.parametrize("part", range(PARTS))
def test_every_placement_of_a_run_is_on_a_best_node_by_the_page(part: int) -> None:
    looked = sum(check_case(seed) for seed in range(part * PER_PART, (part + 1) * PER_PART))

    assert looked > 3 * PER_PART  # the cases are no empty ones
