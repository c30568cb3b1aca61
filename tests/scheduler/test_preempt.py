"""Preemption: who may be evicted, in which order, and never more than it takes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from fedsched.model.node import Node
from fedsched.model.resources import RequestedDevice
from fedsched.scheduler.ask import Ask, Offer
from fedsched.scheduler.fit import Exhausted, NodeRoom, Sums, sums_of
from fedsched.scheduler.preempt import (
    Candidate,
    Preemption,
    distance,
    net_priority,
    parallel_penalty,
    preempt,
    preemption_score,
)
from fedsched.scheduler.special import HeldDevices, HeldPort, Special
from tests.scheduler.places import a_device, a_place, an_address, an_ask, static

ME = ("default", "me")
GPU = "nvidia/gpu/1080ti"


def held(
    key: str, priority: int, cpu: int = 0, memory_mb: int = 0, disk_mb: int = 0, *, job: str = "", **fields: Any
) -> Candidate:
    group = ("default", job or f"job-{key}", "group")
    return Candidate(key, priority, group, Sums(cpu, memory_mb, disk_mb, 1), **fields)


def wants(cpu: int = 1, memory_mb: int = 10, *ports: Any, **fields: Any) -> Ask:
    return an_ask(*ports, cpu=cpu, memory_mb=memory_mb, **fields)._replace(disk_mb=0)


def room_of(node: Node, on_node: Iterable[Candidate]) -> NodeRoom:
    room = NodeRoom(node)
    for one in on_node:
        room = room.with_(one.sums, one.special)
    return room


def tried(
    node: Node, on_node: list[Candidate], ask: Ask, priority: int = 100, job: tuple[str, str] = ME, **more: Any
) -> Preemption | None:
    return preempt(room_of(node, on_node), on_node, ask, job=job, priority=priority, **more)


def victims(node: Node, on_node: list[Candidate], ask: Ask, priority: int = 100, **more: Any) -> set[str] | None:
    found = tried(node, on_node, ask, priority, **more)
    return {str(one.key) for one in found.victims} if found is not None else None


@pytest.mark.parametrize(
    ("used", "expected"),
    [(Sums(2048, 512, 4096), 0.0), (Sums(1024, 400, 1024), 0.928), (Sums(8192, 200, 1024), 3.152)],
)
def test_distance_is_how_far_an_allocation_is_from_the_ask(used: Sums, expected: float) -> None:
    assert distance(Sums(2048, 512, 4096), used) == pytest.approx(expected, abs=0.0005)


def test_dimensions_that_ask_for_nothing_are_left_out_of_the_distance() -> None:
    assert distance(Sums(0, 512, -5), Sums(9999, 256, 9999)) == pytest.approx(0.5)
    assert distance(Sums(), Sums(1, 1, 1)) == 0


@pytest.mark.parametrize(
    ("max_parallel", "preempted", "penalty"),
    [(0, 9, 0), (1, 0, 0), (1, 1, 50), (1, 2, 100), (3, 0, 0), (3, 2, 0), (3, 4, 100)],
)
def test_a_group_that_lost_its_share_is_penalised(max_parallel: int, preempted: int, penalty: float) -> None:
    assert parallel_penalty(max_parallel, preempted) == penalty


@pytest.mark.parametrize(("priorities", "net"), [([20], 21), ([50], 51), ([90] * 10, 100), ([], 0), ([30, 60], 61.5)])
def test_net_priority_is_the_highest_plus_the_sum_over_it(priorities: list[int], net: float) -> None:
    assert net_priority(priorities) == pytest.approx(net)


@pytest.mark.parametrize(
    ("net", "score"), [(21, 0.999941), (51, 0.999931), (100, 0.999913), (2048, 0.5), (3000, 0.010256), (10**6, 0.0)]
)
def test_the_score_falls_with_the_net_priority(net: float, score: float) -> None:
    assert preemption_score(net) == pytest.approx(score, abs=5e-7)


def test_the_worked_example_evicts_both() -> None:
    node = a_place(cpu=1000, memory_mb=2048, reserved_cpu=50, reserved_memory_mb=256)
    on_node = [held("p30", 30, 500, 1024), held("p50", 50, 350, 512)]

    found = tried(node, on_node, wants(900, 1700), 100)

    assert found is not None
    assert {one.key for one in found.victims} == {"p30", "p50"}
    assert found.net_priority == pytest.approx(50 + 80 / 50)
    assert found.score == pytest.approx(preemption_score(51.6))


@pytest.mark.parametrize(
    ("cpu", "memory_mb", "priority", "expected"),
    [
        (2000, 2000, 50, {"b"}),
        (1000, 1000, 30, {"a"}),
        (1000, 1000, 29, None),
        (4000, 6000, 50, {"a", "b", "c"}),
    ],
)
def test_the_vectors_of_the_specification(cpu: int, memory_mb: int, priority: int, expected: set[str] | None) -> None:
    on_node = [held("a", 20, 1000, 1000), held("b", 20, 2000, 2000), held("c", 40, 1000, 3000)]

    assert victims(a_place(cpu=4000, memory_mb=8192), on_node, wants(cpu, memory_mb), priority) == expected


def test_a_difference_of_ten_is_enough_and_nine_is_not() -> None:
    node = a_place(cpu=1000)

    assert victims(node, [held("a", 40, 1000)], wants(500), 50) == {"a"}
    assert victims(node, [held("a", 41, 1000)], wants(500), 50) is None


def test_allocations_of_the_same_job_are_never_evicted_but_those_of_its_namesake_are() -> None:
    node = a_place(cpu=1000)
    mine = held("a", 1, 1000, job="me")

    assert victims(node, [mine], wants(500)) is None
    assert victims(node, [mine], wants(500), job=("other", "me")) == {"a"}


def test_nothing_is_evicted_where_the_ask_fits_anyway() -> None:
    found = tried(a_place(cpu=1000), [held("a", 1, 100)], wants(500))

    assert found == Preemption((), Offer())
    assert found is not None
    assert found.net_priority == 0


def test_a_lower_priority_is_exhausted_before_the_next_is_touched() -> None:
    node = a_place(cpu=1000)
    on_node = [held("low1", 10, 300), held("low2", 10, 300), held("high", 50, 400)]

    assert victims(node, on_node, wants(500)) == {"low1", "low2"}


def test_the_nearest_to_what_is_still_missing_goes_first() -> None:
    node = a_place(cpu=1000)
    on_node = [held("small", 10, 100), held("near", 10, 400), held("large", 10, 500)]

    assert victims(node, on_node, wants(400)) == {"near"}
    assert victims(node, on_node, wants(600)) == {"large", "small"}


def test_whoever_turns_out_not_to_be_needed_stays() -> None:
    node = a_place(cpu=1000)
    on_node = [held("low", 10, 200), held("high", 20, 800)]

    assert victims(node, on_node, wants(700)) == {"high"}


def test_a_group_that_already_lost_allocations_in_this_plan_is_spared_if_possible() -> None:
    node = a_place(cpu=1000)
    on_node = [held("near", 10, 500, max_parallel=1), held("far", 10, 500, 0, 0, max_parallel=1)]
    spared = {on_node[0].group: 1}

    assert victims(node, on_node, wants(500)) == {"near"}
    assert victims(node, on_node, wants(500), preempted=spared) == {"far"}
    assert victims(node, on_node, wants(1000), preempted=spared) == {"near", "far"}


def test_memory_and_disk_are_freed_like_cpu() -> None:
    on_node = [held("m", 10, 0, 8000), held("d", 10, 0, 0, 99_000)]
    node = a_place()

    assert victims(node, on_node, wants(100, 1000)) == {"m"}
    assert victims(node, on_node, wants(100, 100)._replace(disk_mb=5000)) == {"d"}


def test_one_eviction_makes_place_where_only_the_number_of_allocations_is_exceeded() -> None:
    node = a_place(node_max_allocs=2)
    on_node = [held("a", 10, 100), held("b", 20, 100)]

    assert victims(node, on_node, wants(100)) == {"a"}


def test_a_static_port_is_taken_from_whoever_may_be_evicted() -> None:
    port = Special(ports=(HeldPort("default", "10.0.0.1", 8080),))
    another = Special(ports=(HeldPort("default", "10.0.0.1", 8081),))
    on_node = [held("other", 10, 10), held("holder", 20, 10, special=port), held("next", 5, 10, special=another)]

    found = tried(a_place(), on_node, wants(100, 10, static()))

    assert found is not None
    assert [one.key for one in found.victims] == ["holder"]
    assert [given.value for given in found.offer.held_ports()] == [8080]


def test_a_static_port_held_by_someone_who_stays_makes_the_node_unusable() -> None:
    port = Special(ports=(HeldPort("default", "10.0.0.1", 8080),))
    low, high = held("low", 10, 10, special=port), held("high", 95, 10, special=port)

    assert victims(a_place(), [high], wants(1, 10, static())) is None
    node = a_place(addresses=(an_address(), an_address("10.0.0.2", "other")))
    other = low._replace(special=Special(ports=(HeldPort("other", "10.0.0.2", 8080),)))
    assert victims(node, [high, other], wants(1, 10, static(host_network="other"))) == {"low"}


def test_a_port_that_the_node_keeps_is_nobodys_to_give() -> None:
    assert victims(a_place(reserved_ports="8080"), [held("a", 10)], wants(1, 10, static())) is None
    assert victims(a_place(reserved_ports="oops"), [held("a", 10)], wants(1, 10, static())) is None
    assert victims(a_place(), [held("a", 10)], wants(1, 10, static(host_network="dmz"))) is None


def test_a_port_on_a_network_that_shares_the_address_counts() -> None:
    node = a_place(addresses=(an_address(), an_address("10.0.0.1", "public")))
    port = Special(ports=(HeldPort("public", "10.0.0.1", 8080),))

    assert victims(node, [held("a", 10, special=port)], wants(1, 10, static())) == {"a"}


def test_the_same_port_on_another_network_is_left_to_its_holder() -> None:
    node = a_place(addresses=(an_address(), an_address("10.1.0.1", "private")))
    here = Special(ports=(HeldPort("default", "10.0.0.1", 8080),))
    there = Special(ports=(HeldPort("private", "10.1.0.1", 8080),))
    on_node = [held("here", 10, special=here), held("there", 5, special=there)]

    assert victims(node, on_node, wants(1, 10, static())) == {"here"}


def test_who_does_not_mind_collisions_evicts_nobody_for_a_port() -> None:
    port = Special(ports=(HeldPort("default", "10.0.0.1", 8080),))

    assert victims(a_place(), [held("a", 10, special=port)], wants(1, 10, static(ignore_collision=True))) == set()


def test_eviction_for_a_port_also_frees_its_resources() -> None:
    port = Special(ports=(HeldPort("default", "10.0.0.1", 8080),))
    on_node = [held("holder", 20, 500, special=port), held("other", 10, 500)]

    assert victims(a_place(cpu=1000), on_node, wants(500, 10, static())) == {"holder"}
    assert victims(a_place(cpu=1000), on_node, wants(900, 10, static())) == {"holder", "other"}


def with_gpus(key: str, priority: int, *ids: str, device: str = GPU, job: str = "") -> Candidate:
    return held(key, priority, 10, job=job, special=Special(devices=(HeldDevices(device, ids),)))


def gpus(count: int = 1, **fields: Any) -> Ask:
    return wants(10, 10, devices=(RequestedDevice(name="gpu", count=count, **fields),))


def test_device_holders_go_by_ascending_priority_until_enough_is_free() -> None:
    node = a_place(devices=(a_device(ids=("a", "b", "c", "d")),))
    on_node = [with_gpus("p30", 30, "a"), with_gpus("p20", 20, "b"), with_gpus("p10", 10, "c")]

    found = tried(node, on_node, gpus(2))

    assert found is not None
    assert [one.key for one in found.victims] == ["p10"]
    assert found.offer.devices[0].device_ids == ("c", "d")
    assert victims(node, on_node, gpus(3)) == {"p10", "p20"}
    assert victims(node, on_node, gpus(4)) == {"p10", "p20", "p30"}
    assert victims(node, on_node, gpus(5)) is None
    assert victims(node, on_node, gpus(4), priority=39) is None


def test_holders_of_more_instances_are_preferred_when_fewer_then_suffice() -> None:
    node = a_place(devices=(a_device(ids=tuple("abcdefg")),))
    on_node = [with_gpus("three", 10, "a", "b", "c"), with_gpus("four", 20, "d", "e", "f", "g")]

    assert victims(node, on_node, gpus(4)) == {"four"}


def test_among_devices_the_smallest_sum_of_distinct_priorities_wins() -> None:
    node = a_place(devices=(a_device("v/gpu/x", ("a", "b")), a_device("v/gpu/y", ("c", "d"))))
    on_node = [
        with_gpus("x1", 20, "a", device="v/gpu/x"),
        with_gpus("x2", 30, "b", device="v/gpu/x"),
        with_gpus("y1", 40, "c", device="v/gpu/y"),
        with_gpus("y2", 40, "d", device="v/gpu/y"),
    ]

    assert victims(node, on_node, gpus(2)) == {"y1", "y2"}
    turned = a_place(devices=tuple(reversed(node.node_resources.devices)))
    assert victims(turned, on_node, gpus(2)) == {"y1", "y2"}


def test_devices_of_other_kinds_free_nothing() -> None:
    node = a_place(devices=(a_device(GPU, ("a",)), a_device("v/fpga/x", ("b",))))
    on_node = [with_gpus("f", 10, "b", device="v/fpga/x"), with_gpus("g", 95, "a")]

    assert victims(node, on_node, gpus()) is None
    assert victims(node, [on_node[0], with_gpus("g", 20, "a"), held("none", 10)], gpus()) == {"g"}
    alike = a_place(devices=(a_device(GPU, ("a",)), a_device("v/fpga/x", ("a",))))
    assert victims(alike, [with_gpus("f", 10, "a", device="v/fpga/x"), with_gpus("g", 20, "a")], gpus()) == {"g"}


def test_several_device_requests_are_freed_one_after_the_other() -> None:
    node = a_place(devices=(a_device(GPU, ("a", "b")), a_device("v/fpga/x", ("c",))))
    on_node = [with_gpus("g", 20, "a", "b"), with_gpus("f", 10, "c", device="v/fpga/x")]
    both = (RequestedDevice(name="gpu"), RequestedDevice(name="fpga"))

    assert victims(node, on_node, wants(10, 10, devices=both)) == {"g", "f"}
    assert victims(node, on_node[:1], wants(10, 10, devices=both)) == {"g"}


def test_free_devices_evict_nobody() -> None:
    node = a_place(devices=(a_device(ids=("a", "b")),))

    assert victims(node, [with_gpus("g", 20, "a")], gpus()) == set()


def test_cores_are_no_reason_to_evict() -> None:
    on_node = [held("c", 10, 4000, special=Special(cores=(0, 1, 2, 3)))]

    assert victims(a_place(), on_node, wants(10, 10, cores=1)) is None


def _small_case(chance: random.Random) -> tuple[Node, list[Candidate], Ask, int]:
    node = a_place(cpu=10, memory_mb=10, disk_mb=10)
    on_node: list[Candidate] = []
    left = [10, 10, 10]
    for number in range(chance.randint(0, 5)):
        size = [chance.randint(0, min(5, have)) for have in left]
        left = [have - used for have, used in zip(left, size, strict=True)]
        job = "me" if chance.random() < 0.1 else ""
        on_node.append(
            held(str(number), chance.choice((10, 20, 41, 45)), *size, job=job, max_parallel=chance.randint(0, 2))
        )
    ask = PLAIN_ASK._replace(cpu=chance.randint(1, 10), memory_mb=chance.randint(1, 10), disk_mb=chance.randint(0, 10))
    return node, on_node, ask, chance.choice((20, 30, 50, 51))


PLAIN_ASK = wants()


def test_on_20000_random_nodes_nobody_is_evicted_without_need() -> None:
    chance = random.Random(11)
    evictions = hopeless = 0
    for _ in range(20_000):
        node, on_node, ask, priority = _small_case(chance)
        room, more = room_of(node, on_node), sums_of(ask)
        allowed = [one for one in on_node if one.group[1] != "me" and priority - one.priority >= 10]

        found = preempt(room, on_node, ask, job=ME, priority=priority)

        if found is None:
            hopeless += 1
            everything = _without(room, allowed)
            assert everything.short_of(more) is not None, "an eviction would have done"
            continue
        assert set(found.victims) <= set(allowed)
        assert len(set(found.victims)) == len(found.victims)
        assert _without(room, found.victims).short_of(more) is None
        if not found.victims:
            assert room.short_of(more) is None
            continue
        evictions += 1
        for spared in found.victims:
            fewer = [one for one in found.victims if one is not spared]
            assert _without(room, fewer).short_of(more) is not None, "one less would have done"
        highest = max(one.priority for one in found.victims)
        below = [one for one in allowed if one.priority < highest]
        assert _without(room, below).short_of(more) is not None, "lower priorities alone would have done"
    assert evictions > 2000
    assert hopeless > 2000


def _without(room: NodeRoom, some: Iterable[Candidate]) -> NodeRoom:
    for one in some:
        room = room.without(one.sums, one.special)
    return room


def test_with_ports_and_devices_an_eviction_is_found_whenever_one_would_do() -> None:
    chance = random.Random(5)
    node = a_place(cpu=10, devices=(a_device(ids=("a", "b", "c")),))
    found_some = 0
    for _ in range(1500):
        on_node = _holders(chance)
        ports = [static("p", 8000 + chance.randint(0, 2))] if chance.random() < 0.6 else []
        devices = (RequestedDevice(name="gpu", count=chance.randint(1, 3)),) if chance.random() < 0.6 else ()
        ask = wants(chance.randint(1, 8), 1, *ports, devices=devices)
        room = room_of(node, on_node)
        allowed = [one for one in on_node if one.priority <= 40]

        found = preempt(room, on_node, ask, job=ME, priority=50)

        subsets = itertools.chain.from_iterable(itertools.combinations(allowed, n) for n in range(len(allowed) + 1))
        would_do = any(not isinstance(_without(room, some).offer(ask), Exhausted) for some in subsets)
        assert (found is not None) is would_do
        if found is not None:
            found_some += bool(found.victims)
            after = _without(room, found.victims)
            assert after.with_(sums_of(ask, found.offer), found.offer.special()).overcommitted() is None
    assert found_some > 200


def _holders(chance: random.Random) -> list[Candidate]:
    ports, instances = [8000, 8001, 8002], ["a", "b", "c"]
    chance.shuffle(ports)
    chance.shuffle(instances)
    found = []
    for number in range(chance.randint(0, 4)):
        held_ports = tuple(HeldPort("default", "10.0.0.1", ports.pop()) for _ in range(chance.randint(0, 1)) if ports)
        count = chance.randint(0, min(2, len(instances)))
        parts = (HeldDevices(GPU, tuple(instances.pop() for _ in range(count))),) if count else ()
        special = Special(ports=held_ports, devices=parts) if held_ports or parts else None
        found.append(held(str(number), chance.choice((10, 40, 45)), chance.randint(0, 2), special=special))
    return found
