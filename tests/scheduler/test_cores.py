"""Whole cores, and how much CPU a node has."""

from __future__ import annotations

from msgspec.structs import replace

from fedsched.model.node import Node
from fedsched.model.node_resources import CPUCore
from fedsched.scheduler.cores import Cores, core_mhz, core_speeds, node_mhz, numa_nodes, take_cores
from tests.scheduler.places import a_place, a_topology


def test_the_lowest_free_cores_are_taken_and_their_speeds_are_the_shares() -> None:
    speeds = {0: 1000, 1: 2000, 2: 1000, 3: 2000}

    assert take_cores(speeds, {0}, 2) == Cores((1, 2), 3000)
    assert take_cores(speeds, {0, 1}, 3) is None
    assert take_cores(speeds, (), 0) == Cores((), 0)


def test_cores_of_one_memory_node_are_preferred_or_required() -> None:
    speeds, where = dict.fromkeys(range(6), 1000), {0: 0, 1: 1, 2: 0, 3: 1, 4: 1, 5: 0}

    def taken(count: int, affinity: str, held: tuple[int, ...] = ()) -> tuple[int, ...] | None:
        given = take_cores(speeds, held, count, affinity=affinity, memory_nodes=where)
        return given.ids if given is not None else None

    assert taken(2, "none") == (0, 1)
    assert taken(2, "prefer") == taken(2, "require") == (0, 2)
    assert taken(2, "prefer", held=(1,)) == (3, 4), "the node with the fewest to spare"
    assert taken(4, "prefer") == (0, 1, 2, 3)
    assert taken(4, "require") is None
    assert taken(7, "prefer") is None


def test_without_a_topology_all_cores_sit_together() -> None:
    assert numa_nodes(a_place()) == {}
    assert take_cores({0: 1000, 1: 1000}, (), 2, affinity="require") == Cores((0, 1), 2000)


def test_disabled_and_reserved_cores_cannot_be_had() -> None:
    node = a_place(topology=a_topology((1000, 1100, 1200, 1300), disabled=(1,)), reserved_cores=(3,))

    assert core_speeds(node) == {0: 1000, 2: 1200}


def test_without_a_topology_cores_share_the_cpu_evenly() -> None:
    assert core_speeds(a_place(cpu=4000, cores=(3, 1, 0, 2), reserved_cores=(2,))) == {0: 1000, 1: 1000, 3: 1000}
    assert core_speeds(a_place(cores=())) == {}
    node = a_place(cpu=4000, cores=(0, 1))
    assert core_speeds(with_cores(node, total=4)) == {0: 1000, 1: 1000}
    assert core_speeds(with_cores(node, total=0)) == {0: 2000, 1: 2000}


def with_cores(node: Node, *, total: int) -> Node:
    resources = node.node_resources
    return replace(node, node_resources=replace(resources, cpu=replace(resources.cpu, total_cpu_cores=total)))


def test_a_core_counts_with_its_base_speed_else_the_best_guess() -> None:
    assert core_mhz(CPUCore(base_speed=2000, max_speed=3000, guess_speed=1)) == 2000
    assert core_mhz(CPUCore(max_speed=3000, guess_speed=1)) == 3000
    assert core_mhz(CPUCore(guess_speed=1500)) == 1500


def test_node_cpu_is_the_sum_over_usable_cores_unless_overridden() -> None:
    assert node_mhz(a_place(cpu=1, topology=a_topology((1000, 2000, 4000), disabled=(2,)))) == 3000
    assert node_mhz(a_place(cpu=1, topology=a_topology((1000, 2000), total=9999))) == 9999
    assert node_mhz(a_place(cpu=4321)) == 4321
