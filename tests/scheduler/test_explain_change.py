"""Counterfactuals are true: the suggested change lets the job be placed, and anything less does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedsched.model.constraint import Constraint
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import DrainStrategy, DriverInfo, Eligibility, Node, NodeStatus
from fedsched.model.policies import UpdateStrategy
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.model.volume import VolumeRequest
from fedsched.model.why import Change, JobWhy, Obstacle
from fedsched.scheduler.choose import Chooser
from fedsched.scheduler.explain import job_why, node_why_not
from fedsched.scheduler.explain_change import roster_of
from fedsched.scheduler.field import JobField
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_group, a_job, a_task
from tests.scheduler.places import a_device, a_place
from tests.scheduler.toy_region import ToyRegion
from tests.sizes import size

DRIVER = "mock_driver"
RACK = "${attr.rack}"
WELL = DriverInfo(detected=True, healthy=True)
ILL = DriverInfo(detected=True, healthy=False)


def a_host(number: int, *, rack: str = "r1", **fields: Any) -> Node:
    fields.setdefault("computed_class", f"c{number}")
    return a_place(
        id=f"{number:08x}-0000-4000-8000-000000000000", name=f"n{number}", attributes={"rack": rack}, **fields
    )


def a_wish(cpu: int = 500, memory_mb: int = 256, *, job_id: str = "web", **fields: Any) -> Job:
    of_job = {name: fields.pop(name) for name in ("constraints", "datacenters", "node_pool", "type") if name in fields}
    fields.setdefault("tasks", [a_task(cpu=cpu, memory_mb=memory_mb)])
    group = a_group(update=UpdateStrategy(max_parallel=0), **fields)
    return a_job(job_id, groups=[group], **of_job)


def rack_is(value: str) -> Constraint:
    return Constraint(l_target=RACK, r_target=value, operand="=")


def changed_job(job: Job, obstacle: Obstacle, amount: int) -> Job:
    """The job with what an obstacle asks of it."""
    group = job.task_groups[0]
    task = group.tasks[0]
    have = task.resources
    match obstacle.kind:
        case "cpu":
            have = replace(have, cpu=have.cpu - amount)
        case "memory":
            have = replace(have, memory_mb=have.memory_mb - amount)
        case "cores":
            have = replace(have, cores=have.cores - amount)
        case "disk":
            disk = replace(group.ephemeral_disk, size_mb=group.ephemeral_disk.size_mb - amount)
            group = replace(group, ephemeral_disk=disk)
        case "constraint":
            kept = tuple(
                one for one in job.constraints if f"{one.l_target} {one.operand} {one.r_target}" != obstacle.subject
            )
            assert kept != job.constraints
            job = replace(job, constraints=kept)
        case "distinct_hosts":
            job = replace(job, constraints=tuple(one for one in job.constraints if one.operand != "distinct_hosts"))
        case "datacenter":
            job = replace(job, datacenters=(*job.datacenters, obstacle.subject))
        case "node-pool":
            job = replace(job, node_pool=obstacle.subject)
    group = replace(group, tasks=(replace(task, resources=have),))
    return replace(job, task_groups=(group,))


def changed_node(node: Node, obstacle: Obstacle, amount: int) -> Node:
    """The node with what an obstacle asks of it."""
    have = node.node_resources
    match obstacle.kind:
        case "ineligible":
            return replace(node, scheduling_eligibility=Eligibility.ELIGIBLE)
        case "draining":
            return replace(node, drain_strategy=None)
        case "status":
            return replace(node, status=NodeStatus.READY)
        case "driver" | "driver-health":
            return replace(node, drivers={**node.drivers, obstacle.subject: WELL}, computed_class="changed")
        case "cpu-free":
            have = replace(have, cpu=replace(have.cpu, cpu_shares=have.cpu.cpu_shares + amount))
        case "memory-free":
            have = replace(have, memory=replace(have.memory, memory_mb=have.memory.memory_mb + amount))
        case "disk-free":
            have = replace(have, disk=replace(have.disk, disk_mb=have.disk.disk_mb + amount))
        case "allocs":
            return replace(node, node_max_allocs=node.node_max_allocs + amount)
    return replace(node, node_resources=have)


class World:
    """A region with some nodes and some load, made anew for each trial."""

    def __init__(self, nodes: Iterable[Node], fillers: Iterable[Job], job: Job) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.fillers = list(fillers)
        self.job = job

    def _region(self) -> ToyRegion:
        region = ToyRegion(self.nodes.values())
        for filler in self.fillers:
            region.go(filler)
        return region

    def why(self) -> JobWhy:
        region = self._region()
        region.go(self.job)
        job = region.store.jobs.get("default", self.job.id)
        assert job is not None
        return job_why(region.store, region.fleet, job, region.now_ns)

    def places(self, change: Change, obstacles: Iterable[Obstacle] | None = None, *, less: str = "") -> bool:
        """Whether the job is placed once the change was made; with `less`, by one unit less of that kind."""
        region = self._region()
        job, node = self.job, self.nodes[change.node_id]
        for obstacle in change.obstacles if obstacles is None else obstacles:
            amount = obstacle.amount - (obstacle.kind == less)
            job, node = changed_job(job, obstacle, amount), changed_node(node, obstacle, amount)
        region.do(node_upsert(node))
        return len(region.go(job)) == 1


def check(world: World) -> tuple[Change, ...]:
    """Every suggestion works; the first has no smaller one."""
    changes = world.why().groups[0].changes
    for change in changes:
        assert world.places(change), change.words
    for first in changes[:1]:
        for obstacle in first.obstacles:
            rest = [one for one in first.obstacles if one is not obstacle]
            assert not world.places(first, rest), f"{first.words}: too much by {obstacle.change}"
            if obstacle.amount and obstacle.kind != "port":
                assert not world.places(first, less=obstacle.kind), f"{first.words}: one less would do"
    return changes


nodes = st.builds(
    lambda number, driver, drains, **fields: (number, driver, drains, fields),
    st.just(0),
    st.sampled_from([WELL, WELL, WELL, ILL, None]),
    st.sampled_from([None, None, None, DrainStrategy()]),
    cpu=st.sampled_from([500, 1000, 1500, 2100]),
    memory_mb=st.sampled_from([256, 700, 1024, 2048]),
    disk_mb=st.sampled_from([200, 1000, 5000]),
    rack=st.sampled_from(["r1", "r2"]),
    datacenter=st.sampled_from(["dc1", "dc1", "dc2"]),
    node_pool=st.sampled_from(["default", "default", "gpu"]),
    status=st.sampled_from([NodeStatus.READY, NodeStatus.READY, NodeStatus.DOWN, NodeStatus.INITIALIZING]),
    scheduling_eligibility=st.sampled_from([Eligibility.ELIGIBLE, Eligibility.ELIGIBLE, Eligibility.INELIGIBLE]),
    node_max_allocs=st.sampled_from([0, 0, 1]),
)


@settings(max_examples=size(60, 150), deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from([100, 400, 900]), st.sampled_from([64, 200, 600])), max_size=3),
    st.sampled_from([100, 800, 1300, 3000]),
    st.sampled_from([50, 300, 1100, 4000]),
    st.sampled_from([50, 300, 2000]),
    st.booleans(),
)
def test_every_suggested_change_lets_the_job_be_placed_and_nothing_less_does(
    drawn: list[Any], load: list[tuple[int, int]], cpu: int, memory_mb: int, disk_mb: int, is_constrained: bool
) -> None:
    hosts = []
    for number, (_, driver, drain, fields) in enumerate(drawn, 1):
        host = a_host(number, **fields, drain_strategy=drain)
        drivers = {name: info for name, info in host.drivers.items() if name != DRIVER}
        hosts.append(replace(host, drivers={**drivers, **({DRIVER: driver} if driver is not None else {})}))
    fillers = [a_wish(*sizes, job_id=f"filler-{at}") for at, sizes in enumerate(load)]
    job = a_wish(cpu, memory_mb, constraints=(rack_is("r1"),) if is_constrained else (), datacenters=("dc1",))
    job = replace(
        job,
        task_groups=tuple(
            replace(group, ephemeral_disk=replace(group.ephemeral_disk, size_mb=disk_mb)) for group in job.task_groups
        ),
    )
    world = World(hosts, fillers, job)

    why = world.why()

    if why.groups[0].unplaced:
        assert check(world), "a region with nodes always has something to change"


def words(world: World) -> list[str]:
    return [change.words for change in check(world)]


def test_too_little_memory_is_told_by_how_much() -> None:
    world = World([a_host(1, memory_mb=300), a_host(2, memory_mb=812)], [], a_wish(memory_mb=1024))

    assert words(world) == ["fits if memory is 212 MB less"]


def test_a_node_that_is_not_eligible_is_the_smallest_change() -> None:
    hosts = [a_host(1, memory_mb=100), a_host(3, scheduling_eligibility=Eligibility.INELIGIBLE)]

    assert words(World(hosts, [], a_wish())) == ["fits if node n3 is eligible", "fits if memory is 156 MB less"]


def test_a_constraint_that_rules_all_nodes_out_is_named() -> None:
    world = World([a_host(1), a_host(2)], [], a_wish(constraints=(rack_is("r9"),)))

    changes = check(world)

    assert [one.words for one in changes] == [f'fits if constraint "{RACK} = r9" is dropped']
    assert changes[0].nodes == 2


def test_of_two_constraints_both_have_to_go_if_both_rule_the_node_out() -> None:
    other = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")
    world = World([a_host(1)], [], a_wish(constraints=(rack_is("r9"), other)))

    assert words(world) == [
        f'fits if constraint "{RACK} = r9" is dropped and constraint "${{attr.kernel.name}} = windows" is dropped'
    ]


def test_an_attribute_of_single_nodes_is_looked_at_node_by_node() -> None:
    own = Constraint(l_target="${node.unique.name}", r_target="n2", operand="=")
    hosts = [a_host(1), a_host(2, scheduling_eligibility=Eligibility.INELIGIBLE)]

    assert words(World(hosts, [], a_wish(constraints=(own,)))) == [
        "fits if node n2 is eligible",
        'fits if constraint "${node.unique.name} = n2" is dropped',
    ]


def test_an_unhealthy_driver_is_told_from_a_missing_one() -> None:
    ill = replace(a_host(7), drivers={DRIVER: ILL})
    bare = replace(a_host(8), drivers={})

    assert words(World([ill, bare], [], a_wish())) == [
        "fits if driver mock_driver is healthy on n7",
        "fits if n8 has driver mock_driver",
    ]


def test_a_job_too_large_to_shrink_is_told_what_must_be_free() -> None:
    filler = a_wish(3990, 8190, job_id="filler")

    found = words(World([a_host(1)], [filler], a_wish(cpu=100, memory_mb=11)))

    assert found == ["fits if cpu is 90 MHz less and 9 MB more memory is free on n1"]


def test_a_static_port_that_is_taken_is_named() -> None:
    network = NetworkResource(mode="host", reserved_ports=(Port(label="http", value=8080),))
    filler = a_wish(job_id="filler", networks=(network,))
    world = World([a_host(1)], [filler], a_wish(networks=(network,)))

    changes = world.why().groups[0].changes

    assert [one.words for one in changes] == ["fits if port 8080 is free on n1"]
    other = NetworkResource(mode="host", reserved_ports=(Port(label="http", value=8081),))
    assert not World([a_host(1)], [filler], a_wish(networks=(other,))).why().groups[0].unplaced


def test_cores_are_counted() -> None:
    task = a_task(resources=Resources(cores=6, memory_mb=100))
    world = World([a_host(1), a_host(2, cores=(0, 1))], [], a_wish(tasks=[task]))

    assert words(world)[0] == "fits if cores are 2 fewer"


def test_a_host_volume_that_no_node_offers_is_named() -> None:
    volumes = {"data": VolumeRequest(name="data", type="host", source="fast")}

    found = World([a_host(1)], [], a_wish(volumes=volumes)).why().groups[0].changes

    assert found[0].words == "fits if n1 offers the host volumes (fast)"


def test_a_network_mode_that_no_node_has_is_named() -> None:
    found = World([a_host(1)], [], a_wish(networks=(NetworkResource(mode="bridge"),))).why().groups[0].changes

    assert found[0].words == 'fits if n1 has a network of mode "bridge"'


def test_a_host_network_that_no_node_has_is_named() -> None:
    port = Port(label="http", host_network="private")
    found = World([a_host(1)], [], a_wish(networks=(NetworkResource(dynamic_ports=(port,)),))).why()

    assert found.groups[0].changes[0].words == 'fits if n1 has host network "private" for port "http"'


def test_devices_that_no_node_has_are_named_with_their_number() -> None:
    task = a_task(resources=Resources(cpu=100, memory_mb=100, devices=(RequestedDevice(name="gpu", count=2),)))
    found = World([a_host(1)], [], a_wish(tasks=[task])).why()

    assert found.groups[0].changes[0].words == "fits if n1 has the devices, well and as asked for (2 x gpu)"


def test_devices_that_others_hold_have_to_be_free() -> None:
    task = a_task(resources=Resources(cpu=100, memory_mb=100, devices=(RequestedDevice(name="gpu", count=1),)))
    host = a_host(1, devices=(a_device(ids=("a",)),))
    found = World([host], [a_wish(tasks=[task], job_id="filler")], a_wish(tasks=[task])).why()

    assert [one.words for one in found.groups[0].changes] == ["fits if devices asked for are free on n1"]


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        (Constraint(operand="distinct_hosts"), "fits if constraint distinct_hosts is dropped"),
        (
            Constraint(l_target=RACK, operand="distinct_property", r_target="1"),
            f"fits if distinct_property {RACK} allows 2",
        ),
    ],
)
def test_distinctness_stands_in_the_way_of_the_second_one(constraint: Constraint, told: str) -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish(constraints=(constraint,), count=2))
    job = region.store.jobs.get("default", "web")
    assert job is not None

    why = job_why(region.store, region.fleet, job, region.now_ns)

    assert [change.words for change in why.groups[0].changes] == [told]
    allowed = replace(constraint, r_target="2" if constraint.l_target else "false")
    assert len(ToyRegion([a_host(1)]).go(a_wish(constraints=(allowed,), count=2))) == 2


def test_a_node_without_the_property_that_must_differ_is_no_place() -> None:
    odd = Constraint(l_target="${attr.zone}", operand="distinct_property", r_target="1")

    found = World([a_host(1)], [], a_wish(constraints=(odd,))).why().groups[0].changes

    assert [one.words for one in found] == ["fits if n1 has ${attr.zone}"]


def test_with_no_nodes_at_all_the_smallest_node_that_would_do_is_told() -> None:
    why = World([], [], a_wish()).why().groups[0]

    assert why.changes == ()
    assert why.words == (
        'Node pool "default" has no node that is ready.',
        "Fits if a node joins that has 500 MHz, 256 MB of memory, 300 MB of disk free.",
    )


def test_a_large_fleet_is_sorted_before_it_is_looked_at() -> None:
    hosts = [a_host(number, memory_mb=100 + number, computed_class="same") for number in range(1, 200)]
    hosts.append(a_host(200, scheduling_eligibility=Eligibility.INELIGIBLE))

    found = words(World(hosts, [], a_wish(memory_mb=1000)))

    assert found == ["fits if node n200 is eligible", "fits if memory is 701 MB less"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=4),
    st.integers(0, 4),
    st.sampled_from([(), (Constraint(operand="distinct_hosts"),), (rack_is("r1"),)]),
    st.sampled_from([0, 1, 3, 5]),
    st.sampled_from([0, 8080]),
)
def test_a_node_without_obstacles_is_exactly_a_node_that_the_scheduler_would_take(
    drawn: list[Any], count: int, constraints: tuple[Constraint, ...], cores: int, port: int
) -> None:
    hosts = [
        replace(a_host(number, **fields, drain_strategy=drain), drivers={DRIVER: driver} if driver else {})
        for number, (_, driver, drain, fields) in enumerate(drawn, 1)
    ]
    ports = (Port(label="http", value=port),) if port else ()
    task = a_task(resources=Resources(cores=cores, cpu=0 if cores else 400, memory_mb=200))
    network = NetworkResource(mode="host", reserved_ports=ports, dynamic_ports=(Port(label="other"),))
    region = ToyRegion(hosts)
    region.go(a_wish(constraints=constraints, tasks=[task], networks=(network,), count=count))
    job = region.store.jobs.get("default", "web")
    assert job is not None

    for host in hosts:
        slot = region.fleet.slot_of(host.id)
        assert slot is not None
        found = node_why_not(region.store, region.fleet, slot, job).groups[0]
        assert found.fits == (not found.obstacles)
        assert found.fits == (found.score is not None)
        if not found.fits:
            field = JobField(region.store, region.fleet, job, SchedulerConfiguration())
            chooser = Chooser(field, roster_of(region.store, "default", "web"), region.new_id())
            chosen = chooser.choose(field.group(job.task_groups[0]), [0], only=np.array([slot]))
            chooser.close()
            assert chosen.unplaced == 1, found.words


def test_the_one_node_that_a_job_names_is_found_in_a_large_fleet() -> None:
    own = Constraint(l_target="${node.unique.name}", r_target="n400", operand="=")
    hosts = [a_host(number, memory_mb=900 - number, computed_class="same") for number in range(1, 401)]

    assert words(World(hosts, [], a_wish(memory_mb=1000, constraints=(own,))))[0] == "fits if memory is 500 MB less"
