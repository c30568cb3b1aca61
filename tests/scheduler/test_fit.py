"""What one node can hold: the same answer for one node and for columns, for the worker and for the applier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedsched.model.node import HostVolumeInfo, Node
from fedsched.model.node_resources import CPUCore, CPUTopology, NodeDisk
from fedsched.model.resources import NUMAResource, RequestedDevice, Resources
from fedsched.model.volume import HostVolume, HostVolumeCapability, HostVolumeState, VolumeRequest
from fedsched.scheduler.ask import Ask, Offer, allocated_resources
from fedsched.scheduler.fit import (
    COLLIDING,
    PLAIN_DIMENSIONS,
    SHARED_VOLUME,
    Capacity,
    Exhausted,
    NodeRoom,
    PlainColumns,
    Sums,
    dimensions,
    fits,
    sums_of,
)
from fedsched.scheduler.fleet_usage import usage_of
from fedsched.scheduler.special import HeldDevices, HeldPort, HeldVolume, Special
from tests.builders import a_group, a_job, a_node, a_task
from tests.scheduler.places import (
    a_device,
    a_network,
    a_place,
    a_topology,
    an_ask,
    dynamic,
    static,
)

GPU = "nvidia/gpu/1080ti"


def offered(room: NodeRoom, ask: Ask, seed: int = 0) -> Offer:
    result = room.offer(ask, seed)
    assert isinstance(result, Offer), result
    return result


def gpu(count: int = 1) -> tuple[RequestedDevice, ...]:
    return (RequestedDevice(name="gpu", count=count),)


def test_available_is_what_the_node_has_less_what_it_keeps() -> None:
    node = a_place(cpu=14000, memory_mb=8192, reserved_cpu=100, reserved_memory_mb=256, node_max_allocs=7)

    kept = replace(node.reserved_resources, disk=NodeDisk(disk_mb=4000))

    assert Capacity.of(replace(node, reserved_resources=kept)) == Capacity(13900, 7936, 96_000, 7)


def test_node_cpu_comes_from_its_cores_when_they_are_known() -> None:
    assert Capacity.of(a_place(topology=a_topology((1000, 1500)), reserved_cpu=500)).cpu == 2000


@pytest.mark.parametrize(
    ("used", "dimension"),
    [
        (Sums(3900, 7892, 99_700, 0), None),
        (Sums(3901, 0, 0, 0), "cpu"),
        (Sums(0, 7893, 0, 0), "memory"),
        (Sums(0, 0, 99_701, 0), "disk"),
        (Sums(3901, 7893, 99_701, 0), "cpu"),
        (Sums(0, 7893, 99_701, 0), "memory"),
    ],
)
def test_the_first_dimension_that_does_not_fit_is_named(used: Sums, dimension: str | None) -> None:
    assert NodeRoom(a_node(), used).why_not(an_ask(cpu=100, memory_mb=300)) == dimension


def test_what_is_lacking_is_said_in_numbers() -> None:
    room = NodeRoom(a_node(node_max_allocs=2), Sums(3950, 8092, 0, 2))

    assert room.lacks(Sums(100, 312, 300, 1)) == Sums(50, 212, 0, 1)
    assert NodeRoom(a_node(), Sums(allocs=50)).lacks(Sums(100, 300, 300, 1)) == Sums()


def test_a_node_may_limit_its_number_of_allocations() -> None:
    node = a_node(node_max_allocs=3)

    assert NodeRoom(node, Sums(allocs=2)).why_not(an_ask()) is None
    assert NodeRoom(node, Sums(allocs=3)).why_not(an_ask()) == "max allocation exceeded"
    assert NodeRoom(a_node(), Sums(allocs=9999)).why_not(an_ask()) is None


def test_ports_are_looked_at_first_then_devices_then_cores_then_sums() -> None:
    full = Sums(cpu=999_999)
    held = Special(ports=(HeldPort("default", "10.0.0.1", 8080),), cores=(0, 1, 2, 3))

    def why(*ports: Any, **fields: Any) -> str | None:
        return NodeRoom(a_place(), full, [held]).why_not(an_ask(*ports, **fields))

    assert why(static(), devices=gpu(), cores=1) == "network: reserved port collision http=8080"
    assert why(static("ok", 9090), devices=gpu(), cores=1) == "devices: no devices available"
    assert why(cores=1) == "cores"
    assert why() == "cpu"


def test_network_trouble_is_named_with_its_reason() -> None:
    clash = Special(ports=(HeldPort("default", "10.0.0.1", 80),))

    assert NodeRoom(a_place(), specials=[clash, clash]).why_not(an_ask(dynamic())) == "network: port collision"
    assert NodeRoom(a_place(reserved_ports="oops")).why_not(an_ask(dynamic())) == "network: invalid node"
    assert NodeRoom(a_place()).why_not(an_ask(dynamic(host_network="dmz"))) == (
        "network: no addresses available for dmz network"
    )


def test_devices_that_are_all_held_are_named() -> None:
    room = NodeRoom(
        a_place(devices=(a_device(),)), specials=[Special(devices=(HeldDevices("nvidia/gpu/1080ti", ("a",)),))]
    )

    assert room.why_not(an_ask(devices=gpu(1))) is None
    assert room.why_not(an_ask(devices=gpu(2))) == "devices: no devices match request"


def test_two_allocations_never_share_a_core_and_the_lowest_are_taken_first() -> None:
    room = NodeRoom(a_place(cpu=4000))
    first = offered(room, an_ask(cores=2))
    room = room.with_(sums_of(an_ask(cores=2), first), first.special())
    second = offered(room, an_ask(cores=2))

    assert first.cores[0] is not None
    assert second.cores[0] is not None
    assert (first.cores[0].ids, second.cores[0].ids) == ((0, 1), (2, 3))
    assert room.used.cpu == 2000
    assert room.why_not(an_ask(cores=3)) == "cores"


def test_cpu_shares_of_whole_cores_are_the_sum_of_their_speeds() -> None:
    room = NodeRoom(a_place(topology=a_topology((1000, 2500, 1000))))

    assert offered(room, an_ask(cores=2)).cpu == 3500
    assert room.with_(Sums(cpu=1001)).why_not(an_ask(cores=2)) == "cpu"


def test_cores_that_must_sit_together_but_cannot_are_named_apart() -> None:
    cores = tuple(CPUCore(id=n, node_id=n % 2, base_speed=1000) for n in range(4))
    room = NodeRoom(a_place(topology=CPUTopology(cores=cores)))
    numa = NUMAResource(affinity="require")

    def why(count: int) -> str | None:
        group = a_group(tasks=[a_task(resources=Resources(cpu=0, cores=count, numa=numa))])
        return room.why_not(Ask.of(a_job(groups=[group]), group))

    assert (why(2), why(3), why(5)) == (None, "numa-cores", "cores")


def test_several_tasks_with_cores_get_different_ones() -> None:
    tasks = [a_task(name, resources=Resources(cpu=0, cores=1)) for name in ("a", "b")]
    group = a_group(tasks=[*tasks, a_task("plain")])
    ask = Ask.of(a_job(groups=[group]), group)

    given = offered(NodeRoom(a_place()), ask)

    assert [cores.ids if cores else None for cores in given.cores] == [(0,), (1,), None]


def test_legacy_task_networks_never_get_the_groups_ports() -> None:
    legacy = Resources(networks=(a_network(dynamic("x")), a_network(static("y", 9000))))
    group = a_group(tasks=[a_task(resources=legacy), a_task("other")], networks=(a_network(dynamic("g")),))
    ask = Ask.of(a_job(groups=[group]), group)
    room = NodeRoom(a_place(dynamic=(100, 101)))

    given = offered(room, ask)

    assert len({port.value for port in given.held_ports()}) == 3
    assert room.with_(Sums(), given.special()).why_not(ask) == "network: dynamic port selection failed"
    taken = Special(ports=(HeldPort("default", "10.0.0.1", 9000),))
    assert NodeRoom(a_place(), specials=[taken]).why_not(ask) == "network: reserved port collision y=9000"


def test_two_tasks_with_networks_of_their_own_never_get_one_port() -> None:
    legacy = Resources(networks=(a_network(static("y", 9000)),))
    group = a_group(tasks=[a_task(resources=legacy), a_task("other", resources=legacy)])

    assert NodeRoom(a_place()).why_not(Ask.of(a_job(groups=[group]), group)) == (
        "network: reserved port collision y=9000"
    )


def test_something_taken_off_makes_room_again() -> None:
    ask = an_ask(static(), cpu=4000)
    given = offered(NodeRoom(a_place()), ask)
    full = NodeRoom(a_place()).with_(sums_of(ask, given), given.special())

    assert full.why_not(an_ask(static())) == "network: reserved port collision http=8080"
    assert full.without(sums_of(ask, given), given.special()).why_not(ask) is None
    assert full.without(Sums(cpu=1)).used.cpu == 3999


@pytest.mark.parametrize(
    ("special", "problem"),
    [
        (Special(ports=(HeldPort("default", "10.0.0.1", 80),)), COLLIDING),
        (Special(cores=(2,)), "cores"),
        (Special(devices=(HeldDevices("nvidia/gpu/1080ti", ("a",)),)), "devices: device oversubscribed"),
        (Special(volumes=(HeldVolume("data", True),)), SHARED_VOLUME),
    ],
)
def test_what_is_promised_twice_is_seen(special: Special, problem: str) -> None:
    node = a_place(devices=(a_device(),), host_volumes={"data": HostVolumeInfo(name="data", id="vol-1")})

    assert NodeRoom(node, specials=[special]).overcommitted() is None
    assert NodeRoom(node, specials=[special, special]).overcommitted() == problem


def test_what_is_promised_beyond_the_node_is_seen() -> None:
    assert NodeRoom(a_node(), Sums(cpu=4001)).overcommitted() == "cpu"
    assert NodeRoom(a_node(node_max_allocs=1), Sums(allocs=2)).overcommitted() == "max allocation exceeded"
    assert NodeRoom(a_node(), specials=[Special(cores=(9,))]).overcommitted() == "cores"
    bad = NodeRoom(a_place(reserved_ports="oops"), specials=[Special(ports=(HeldPort("default", "x", 1),))])
    assert bad.overcommitted() == "network: invalid node"


@pytest.mark.parametrize(
    ("there", "new"),
    [
        (Special(cores=(9,)), Special(cores=(0,))),
        (Special(devices=(HeldDevices("nvidia/gpu/gone", ("a",)),)), Special(devices=(HeldDevices(GPU, ("a",)),))),
        (Special(devices=(HeldDevices(GPU, ("ill",)),)), Special(devices=(HeldDevices(GPU, ("a",)),))),
        (Special(volumes=(HeldVolume("data", True),)), Special(volumes=(HeldVolume("other", True),))),
        (Special(ports=(HeldPort("default", "10.0.0.1", 80),)), Special(ports=(HeldPort("default", "10.0.0.1", 81),))),
    ],
)
def test_what_went_wrong_with_others_is_no_reason_to_refuse_the_new(there: Special, new: Special) -> None:
    volumes = {name: HostVolumeInfo(name=name, id=name) for name in ("data", "other")}
    node = a_place(devices=(a_device(ids=("a", "b", "ill"), ill=("ill",)),), host_volumes=volumes)
    room = NodeRoom(node, specials=[there, there])

    assert room.conflict_with([new]) is None
    assert room.conflict_with([new, new]) is not None
    assert room.conflict_with([]) is None
    assert NodeRoom(node, specials=[new]).conflict_with([new]) is not None


def test_a_static_volume_has_no_single_writer() -> None:
    node = a_node(host_volumes={"data": HostVolumeInfo(name="data")})
    alone = Special(volumes=(HeldVolume("data", True),))

    assert NodeRoom(node, specials=[alone, alone]).overcommitted() is None


def wants_volume(**fields: Any) -> Ask:
    request = VolumeRequest(name="v", type="host", source="data", **fields)
    group = a_group(volumes={"v": request})
    return Ask.of(a_job(groups=[group]), group)


def test_a_volume_that_must_be_written_alone_is_offered_once() -> None:
    able = HostVolumeCapability(access_mode="single-node-single-writer", attachment_mode="file-system")
    volume = HostVolume(id="vol-1", state=HostVolumeState.READY, requested_capabilities=(able,))
    node = a_node(host_volumes={"data": HostVolumeInfo(name="data", id="vol-1")})
    ask = wants_volume(access_mode="single-node-single-writer")
    room = NodeRoom(node, find_volume={"vol-1": volume}.get)

    given = offered(room, ask)
    taken = room.with_(sums_of(ask, given), given.special())

    assert taken.overcommitted() is None
    assert taken.why_not(ask) == "missing compatible host volumes"
    assert taken.without(sums_of(ask, given), given.special()).why_not(ask) is None


def test_a_volume_of_each_allocation_is_offered_to_that_allocation_alone() -> None:
    room = NodeRoom(a_node(host_volumes={"data[1]": HostVolumeInfo(name="data[1]")}))

    assert room.why_not(wants_volume(per_alloc=True), name_index=1) is None
    assert room.why_not(wants_volume(per_alloc=True), name_index=0) == "missing compatible host volumes"


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    ports = [
        *(static(f"s{n}", 8000 + draw(st.integers(0, 3))) for n in range(draw(st.integers(0, 1)))),
        *(dynamic(f"d{n}") for n in range(draw(st.integers(0, 2)))),
    ]
    devices = gpu(draw(st.integers(1, 2))) if draw(st.booleans()) else ()
    return an_ask(
        *ports,
        cpu=draw(st.integers(1, 1500)),
        memory_mb=draw(st.integers(10, 3000)),
        cores=draw(st.integers(0, 2)),
        devices=devices,
    )


def a_small_place(max_allocs: int) -> Node:
    devices = (a_device(ids=("a", "b", "c")),)
    return a_place(devices=devices, dynamic=(8000, 8005), node_max_allocs=max_allocs)


@settings(max_examples=200)
@given(st.lists(asks(), max_size=8), st.integers(0, 5), st.integers(0, 2**32))
def test_whatever_a_room_offers_the_applier_accepts(wanted: list[Ask], max_allocs: int, seed: int) -> None:
    room = NodeRoom(a_small_place(max_allocs))

    for number, ask in enumerate(wanted):
        result = room.offer(ask, seed + number)
        if isinstance(result, Exhausted):
            assert result.dimension
            continue
        sums, special = sums_of(ask, result), result.special()
        assert room.conflict_with([special] if special is not None else []) is None
        room = room.with_(sums, special)
        assert room.overcommitted() is None
        record = allocated_resources(ask, result)
        assert usage_of(record) == sums[:3], "what is stored counts for what was asked"
        assert Special.of(record) == special, "and holds what was offered"


@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.integers(0, 8)] * 8), min_size=1, max_size=20),
    st.tuples(*[st.integers(0, 4)] * 3),
)
def test_columns_say_of_every_node_what_its_room_says(lines: list[tuple[int, ...]], more: tuple[int, ...]) -> None:
    table = np.array(lines, dtype=np.int64)
    have = PlainColumns(table[:, 0], table[:, 1], table[:, 2], table[:, 3])
    used = PlainColumns(table[:, 4], table[:, 5], table[:, 6], table[:, 7])
    wanted = Sums(*more, 1)

    codes = dimensions(have, used, wanted)

    rooms = [NodeRoom(a_node(), Sums(*line[4:]), capacity=Capacity(*line[:4])) for line in lines]
    assert [PLAIN_DIMENSIONS[code] or None for code in codes] == [room.short_of(wanted) for room in rooms]
    assert fits(have, used, wanted).tolist() == [room.short_of(wanted) is None for room in rooms]
