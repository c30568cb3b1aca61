"""What an allocation holds beyond numbers, read back from its record."""

from __future__ import annotations

from fedsched.model.network import NetworkResource, Port, PortMapping
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedDevice,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.special import HeldDevices, HeldPort, HeldVolume, Special


def volume(**fields: bool | str) -> VolumeRequest:
    return VolumeRequest(name="v", source="data", **{"type": "host", **fields})  # type: ignore[arg-type]


def test_plain_resources_hold_nothing() -> None:
    record = AllocatedResources(tasks={"web": AllocatedTaskResources(cpu=AllocatedCPU(cpu_shares=100))})

    assert Special.of(record) is None
    assert Special.of(record, {}) is None


def test_ports_carry_the_host_network_that_their_label_was_asked_on() -> None:
    network = NetworkResource(
        ip="10.0.0.1",
        reserved_ports=(Port(label="a", value=80, host_network="public"),),
        dynamic_ports=(Port(label="b"),),
    )
    mappings = (
        PortMapping(label="a", value=80, host_ip="1.2.3.4", ignore_collision=True),
        PortMapping(label="b", value=20001, host_ip="10.0.0.1"),
        PortMapping(label="stray", value=7, host_ip="10.0.0.1"),
    )
    shared = AllocatedSharedResources(networks=(network,), ports=mappings)

    special = Special.of(AllocatedResources(shared=shared))

    assert special is not None
    assert special.ports == (
        HeldPort("public", "1.2.3.4", 80, may_collide=True),
        HeldPort("default", "10.0.0.1", 20001),
        HeldPort("default", "10.0.0.1", 7),
    )


def test_networks_without_mappings_and_legacy_task_networks_count_too() -> None:
    network = NetworkResource(ip="10.0.0.1", reserved_ports=(Port(label="a", value=80, host_network="public"),))
    legacy = NetworkResource(ip="10.0.0.2", dynamic_ports=(Port(label="b", value=20001),))
    record = AllocatedResources(
        tasks={"web": AllocatedTaskResources(networks=(legacy,))}, shared=AllocatedSharedResources(networks=(network,))
    )

    special = Special.of(record)

    assert special is not None
    assert special.ports == (HeldPort("public", "10.0.0.1", 80), HeldPort("default", "10.0.0.2", 20001))


def test_cores_and_devices_of_all_tasks_are_gathered() -> None:
    device = AllocatedDevice(vendor="nvidia", type="gpu", name="x", device_ids=("a", "b"))
    record = AllocatedResources(
        tasks={
            "one": AllocatedTaskResources(cpu=AllocatedCPU(reserved_cores=(0, 3))),
            "two": AllocatedTaskResources(cpu=AllocatedCPU(reserved_cores=(1,)), devices=(device,)),
        }
    )

    assert Special.of(record) == Special(cores=(0, 3, 1), devices=(HeldDevices("nvidia/gpu/x", ("a", "b")),))


def test_only_host_volumes_that_are_written_are_held() -> None:
    volumes = {
        "plain": volume(),
        "alone": volume(access_mode="single-node-single-writer", per_alloc=True),
        "read": volume(read_only=True),
        "csi": volume(type="csi"),
    }

    special = Special.of(AllocatedResources(), volumes, name_index=4)

    assert special == Special(volumes=(HeldVolume("data", False), HeldVolume("data[4]", True)))
