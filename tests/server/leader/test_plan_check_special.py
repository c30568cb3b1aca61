"""Ports, cores, devices and volumes under the eyes of the applier; and any sequence of plans at all."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedsched.model.network import PortMapping
from fedsched.model.node import HostVolumeInfo
from fedsched.model.node_resources import (
    NodeDevice,
    NodeDeviceGroup,
    NodeNetwork,
    NodeNetworkAddress,
    NodeResources,
)
from fedsched.model.resources import AllocatedDevice, AllocatedResources, AllocatedSharedResources
from fedsched.model.volume import VolumeRequest
from tests.builders import a_group, a_job, a_node, an_id
from tests.overcommit import overcommitted
from tests.server.leader.site import (
    COMPLETE,
    Site,
    changed,
    given_fields,
    placing,
    stopping,
)


def with_network(number: int, **fields: Any) -> Any:
    node = a_node(number, **fields)
    address = NodeNetworkAddress(family="ipv4", alias="default", address=f"10.0.0.{number}")
    resources = changed_resources(node.node_resources, node_networks=(NodeNetwork(addresses=(address,)),))
    return changed(node, node_resources=resources)


def changed_resources(resources: NodeResources, **fields: Any) -> NodeResources:
    return structs.replace(resources, **fields)


def with_port(value: int, address: str = "10.0.0.1") -> bytes:
    ports = (PortMapping(label="http", value=value, host_ip=address),)
    return given_fields(AllocatedResources(shared=AllocatedSharedResources(ports=ports)))


def test_a_port_is_given_once() -> None:
    site = Site(with_network(1))
    assert site.submit(site.a_plan(placed=(placing([1], [0], shared=with_port(80)),))).is_whole

    again = site.submit(site.a_plan(placed=(placing([2], [0], shared=with_port(80)),)))
    other = site.submit(site.a_plan(placed=(placing([3], [0], shared=with_port(81)),)))

    assert again.rejected == {0: "network: port collision"}
    assert other.is_whole


def test_a_port_is_not_given_twice_within_one_plan() -> None:
    site = Site(with_network(1))

    assert not site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], shared=with_port(80)),))).is_whole


def test_a_port_that_a_plan_in_flight_gives_away_is_taken() -> None:
    site = Site(with_network(1))
    made = site.fleet.reserve(site.store, site.a_plan(placed=(placing([1], [0], own={0: with_port(80)}),)))

    assert not site.check(site.a_plan(placed=(placing([2], [0], own={0: with_port(80)}),))).is_whole
    site.fleet.release(made)
    assert site.check(site.a_plan(placed=(placing([2], [0], own={0: with_port(80)}),))).is_whole


def test_the_port_of_an_allocation_that_the_plan_stops_can_be_given_to_its_successor() -> None:
    site = Site(with_network(1))
    site.submit(site.a_plan(placed=(placing([1], [0], shared=with_port(80)),)))

    verdict = site.submit(site.a_plan(stopped=(stopping([1]),), placed=(placing([2], [0], shared=with_port(80)),)))

    assert verdict.is_whole


def test_a_core_is_given_once() -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0], cpu=1000, cores=(0, 1)),)))

    again = site.check(site.a_plan(placed=(placing([2], [0], cpu=1000, cores=(1, 2)),)))

    assert again.rejected == {0: "cores"}


def test_a_device_is_given_once() -> None:
    node = a_node(1)
    group = NodeDeviceGroup(vendor="v", type="gpu", name="m", instances=(NodeDevice(id="g0", healthy=True),))
    site = Site(changed(node, node_resources=changed_resources(node.node_resources, devices=(group,))))
    device = AllocatedDevice(vendor="v", type="gpu", name="m", device_ids=("g0",))
    assert site.submit(site.a_plan(placed=(placing([1], [0], devices=(device,)),))).is_whole

    again = site.submit(site.a_plan(placed=(placing([2], [0], devices=(device,)),)))

    assert again.rejected == {0: "devices: device oversubscribed"}


def test_a_host_volume_that_wants_one_writer_gets_one() -> None:
    volume = VolumeRequest(
        name="data", type="host", source="data", access_mode="single-node-single-writer", attachment_mode="file-system"
    )
    job = a_job(groups=[a_group(volumes={"data": volume})])
    node = changed(a_node(1), host_volumes={"data": HostVolumeInfo(name="data", id=an_id(99))})
    site = Site(node, job=job)
    assert site.submit(site.a_plan(placed=(placing([1], [0]),))).is_whole

    again = site.submit(site.a_plan(placed=(placing([2], [0]),)))

    assert again.rejected == {0: "conflicting claims for host volume with single-writer"}


# ---------------------------------------------------------------------- anything at all


@given(st.data())
@settings(max_examples=60)
def test_no_sequence_of_plans_ever_over_commits_a_node_and_no_room_is_refused_without_need(data: st.DataObject) -> None:
    """Plans overlap: up to three are in flight and land in order, while clients end allocations in between."""
    site = Site(*(with_network(number, cpu=1000, memory_mb=1000, node_max_allocs=5) for number in (1, 2, 3)))
    flights: list[tuple[Any, Any]] = []
    number = 0

    def land() -> None:
        made, command = flights.pop(0)
        site.fleet.release(made)
        site.commit(command)

    for _ in range(data.draw(st.integers(1, 12))):
        nodes = data.draw(st.lists(st.integers(0, 2), max_size=4))
        numbers = list(range(number + 1, number + 1 + len(nodes)))
        stops = data.draw(st.lists(st.integers(1, number), max_size=3)) if number else []
        number += len(nodes)
        cpu, memory = data.draw(st.sampled_from([100, 250, 400])), data.draw(st.sampled_from([50, 300]))
        fields: dict[str, Any] = {"cpu": cpu, "memory_mb": memory}
        if data.draw(st.booleans()):
            fields = {"own": {0: with_port(data.draw(st.integers(80, 82)), f"10.0.0.{nodes[0] + 1}")}} if nodes else {}
        plan = site.a_plan(
            placed=(placing(numbers, nodes, **fields),) if nodes else (), stopped=(stopping(stops),) if stops else ()
        )
        verdict = site.check(plan)
        flights.append((site.fleet.reserve(site.store, verdict.command), verdict.command))
        if number and data.draw(st.booleans()):
            site.report([data.draw(st.integers(1, number))], COMPLETE)
        while len(flights) > data.draw(st.integers(0, 2)):
            land()
    while flights:
        land()

    assert overcommitted(site.store) == []
    for slot in range(3):
        held = site.fleet.held_cpu[slot]
        room = placing([9999], [slot], cpu=int(1000 - held), memory_mb=0, disk_mb=0)
        if site.fleet.held_allocs[slot] < 5:
            assert site.check(site.a_plan(placed=(room,))).is_whole
